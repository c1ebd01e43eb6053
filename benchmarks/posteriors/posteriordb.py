"""Twelve posteriors of posteriordb (BSD 3-clause) as PyMC models, with the moments of their reference draws.

The models are written anew after their Stan programs; differential equations and hidden Markov chains are black boxes
without a gradient. Data and reference: ``zoo_reference.json``.
"""

import json
from functools import cache, partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import Chain, log, ordered

from benchmarks.posteriors.black_boxes import concentration, forward_log_likelihood, hares_and_lynx

_FILE = Path(__file__).with_name("zoo_reference.json")
NUM_REFERENCE_DRAWS = 10_000
_POSITIVE_ORDERED = Chain([log, ordered])


@cache
def _stored(name):
    return json.loads(_FILE.read_text())["posteriors"][name]


def _data(name):
    return {key: np.asarray(values) for key, values in _stored(name)["data"].items()}


def data_of(short_name):
    """Return the data of the posterior whose name begins so, up to the first hyphen."""
    [name] = [n for n in MODELS if n.split("-")[0] == short_name]
    return _data(name)


def reference(name):
    """Return mean, standard deviation and 5, 50 and 95 % quantiles of each quantity of a posterior."""
    return {key: np.array(v)[[0, 1, 2, 4, 6]] for key, v in _stored(name)["reference"].items()}


def autoregression():
    """Return the model of an autoregressive series of order five."""
    data = _data("arK-arK")
    y, order = data["y"], int(data["K"])
    lags = np.stack([y[order - k : y.size - k] for k in range(1, order + 1)], axis=1)
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0, 10)
        beta = pm.Normal("beta", 0, 10, shape=order)
        sigma = pm.HalfCauchy("sigma", 2.5)
        pm.Normal("y", alpha + lags @ beta, sigma, observed=y[order:])
    return model


def drives():
    """Return the hidden Markov model of a basketball player who drives to the hoop, or does not."""
    data = _data("bball_drive_event_0-hmm_drive_0")
    u, v, alpha = data["u"], data["v"], data["alpha"].astype(float)
    with pm.Model() as model:
        rows = [pm.Dirichlet(f"theta{i + 1}", alpha[i]) for i in range(2)]
        phi = pm.Normal("phi", [0, 3], 1, transform=_POSITIVE_ORDERED, initval=[1.0, 3.0])
        rate = pm.Normal("lambda", [0, 3], 1, transform=_POSITIVE_ORDERED, initval=[1.0, 3.0])
        emission = pt.log(phi) - u[:, None] * phi + pt.log(rate) - v[:, None] * rate
        pm.Potential("events", forward_log_likelihood(emission, pt.stack(rows)))
    return model


def hidden_states():
    """Return a hidden Markov model of two states with normal observations."""
    y = _data("hmm_example-hmm_example")["y"]
    with pm.Model() as model:
        rows = [pm.Dirichlet(f"theta{i + 1}", np.ones(2)) for i in range(2)]
        mu = pm.Normal("mu", [3, 10], 1, transform=_POSITIVE_ORDERED, initval=[3.0, 10.0])
        emission = -0.5 * (y[:, None] - mu) ** 2 - 0.5 * np.log(2 * np.pi)
        pm.Potential("y", forward_log_likelihood(emission, pt.stack(rows)))
    return model


def eight_schools():
    """Return the eight schools, not centered."""
    data = _data("eight_schools-eight_schools_noncentered")
    with pm.Model() as model:
        raw = pm.Normal("theta_trans", shape=8)
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfCauchy("tau", 5)
        theta = pm.Deterministic("theta", raw * tau + mu)
        pm.Normal("y", theta, data["sigma"].astype(float), observed=data["y"].astype(float))
    return model


def counts_on_a_curve():
    """Return the regression of counts on a Gaussian process."""
    data = _data("gp_pois_regr-gp_pois_regr")
    squared = np.subtract.outer(data["x"], data["x"]).astype(float) ** 2
    with pm.Model() as model:
        rho = pm.Gamma("rho", 25, 4)
        alpha = pm.HalfNormal("alpha", 2)
        raw = pm.Normal("f_tilde", shape=11)
        covariance = alpha**2 * pt.exp(-0.5 * squared / rho**2) + 1e-10 * np.eye(11)
        f = pm.Deterministic("f", pt.linalg.cholesky(covariance) @ raw)
        pm.Poisson("k", pt.exp(f), observed=data["k"])
    return model


def lynx_and_hares():
    """Return Lotka and Volterra's equations for twenty years of hares and lynx."""
    data = _data("hudson_lynx_hare-lotka_volterra")
    with pm.Model() as model:
        theta = pm.TruncatedNormal("theta", [1, 0.05, 1, 0.05], [0.5, 0.05, 0.5, 0.05], lower=0)
        start = pm.LogNormal("z_init", np.log(10), 1, shape=2)
        sigma = pm.LogNormal("sigma", -1, 1, shape=2)
        pm.LogNormal("y_init", pt.log(start), sigma, observed=data["y_init"].astype(float))
        pm.LogNormal("y", hares_and_lynx(theta, start, data["ts"].astype(float)), sigma, observed=data["y"])
    return model


def drug():
    """Return the model of one compartment: absorption of first order, Michaelis and Menten's elimination."""
    data = _data("one_comp_mm_elim_abs-one_comp_mm_elim_abs")
    with pm.Model() as model:
        absorption, half, fastest, sigma = (pm.HalfCauchy(name, 1) for name in ("k_a", "K_m", "V_m", "sigma"))
        level = concentration(absorption, half, fastest, float(data["D"]), float(data["V"]), data["times"])
        pm.LogNormal("C_hat", level, sigma, observed=data["C_hat"])
    return model


def _regression(y, design, sigma_prior, beta_prior=pm.Flat):
    with pm.Model() as model:
        beta = beta_prior("beta", shape=design.shape[1])
        sigma = sigma_prior("sigma")
        pm.Normal("y", design @ beta, sigma, observed=y)
    return model


_cauchy_scale = partial(pm.HalfCauchy, beta=2.5)


def earnings():
    """Return the regression of log earnings on height, sex and their interaction."""
    data = _data("earnings-logearn_interaction_z")
    height = (data["height"] - data["height"].mean()) / data["height"].std(ddof=1)
    male = data["male"]
    design = np.stack([np.ones(male.size), height, male, height * male], axis=1)
    return _regression(np.log(data["earn"]), design, pm.HalfFlat)


def kid_scores():
    """Return the regression of children's scores on their mothers' schooling, intelligence and the interaction."""
    data = _data("kidiq-kidscore_interaction")
    school, intelligence = data["mom_hs"], data["mom_iq"]
    design = np.stack([np.ones(school.size), school, intelligence, school * intelligence], axis=1)
    return _regression(data["kid_score"].astype(float), design, _cauchy_scale)


def mesquite():
    """Return the regression of the log weight of bushes on logs of volume, area, shape and height, and group."""
    d = _data("mesquite-logmesquite_logvash")
    area = d["diam1"] * d["diam2"]
    columns = [area * d["canopy_height"], area, d["diam1"] / d["diam2"], d["total_height"]]
    design = np.stack([np.ones(area.size), *(np.log(c) for c in columns), d["group"]], axis=1)
    return _regression(np.log(d["weight"]), design, pm.HalfFlat)


def party():
    """Return the regression of party identification on eight predictors."""
    d = _data("nes1976-nes")
    ages = [d["age_discrete"] == k for k in (2, 3, 4)]
    columns = [d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"]]
    design = np.stack([np.ones(d["gender"].size), *columns], axis=1).astype(float)
    return _regression(d["partyid7"].astype(float), design, pm.HalfFlat)


def linear_regression():
    """Return a linear regression on five predictors with normal priors."""
    data = _data("sblrc-blr")
    return _regression(data["y"], data["X"], partial(pm.HalfNormal, sigma=10), partial(pm.Normal, mu=0, sigma=10))


MODELS = {
    "arK-arK": autoregression,
    "bball_drive_event_0-hmm_drive_0": drives,
    "earnings-logearn_interaction_z": earnings,
    "eight_schools-eight_schools_noncentered": eight_schools,
    "gp_pois_regr-gp_pois_regr": counts_on_a_curve,
    "hmm_example-hmm_example": hidden_states,
    "hudson_lynx_hare-lotka_volterra": lynx_and_hares,
    "kidiq-kidscore_interaction": kid_scores,
    "mesquite-logmesquite_logvash": mesquite,
    "nes1976-nes": party,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": drug,
    "sblrc-blr": linear_regression,
}
IMPROPER = (
    "earnings-logearn_interaction_z",
    "kidiq-kidscore_interaction",
    "mesquite-logmesquite_logvash",
    "nes1976-nes",
)
PLAIN = ("eight_schools-eight_schools_noncentered", "gp_pois_regr-gp_pois_regr", "hudson_lynx_hare-lotka_volterra")
# The prior has Cauchy tails that the data bound in a ratio alone: the variance does not exist.
QUANTILES_ONLY = {"one_comp_mm_elim_abs-one_comp_mm_elim_abs": ("K_m", "V_m")}
