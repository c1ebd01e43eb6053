import inspect
import re
import warnings

import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.embeddings import KernelBayesRule, OriginalBayesRule
from pymc_kernel.kernels import FeatureKernel
from pymc_kernel.plugin.simulation.pairs import simulated_pairs
from tests.plugin.parts import check_moments, data_around

QUIET = {"progressbar": False, "random_seed": 3}


def normal_model(y=1.0):
    """Posterior N(.8, .2): prior N(0, 1), noise of variance .25."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.Deterministic("twice", 2 * theta)
        pm.Normal("y", theta, 0.5, observed=y)
    return model


def test_posterior_of_a_normal_model():
    settings = {"num_simulations": 1000, "draws": 500, "return_fitted": True}
    idata, rule = pk.sample_kbr(model=normal_model(), **settings, **QUIET)
    theta = idata["posterior"]["theta"]
    assert theta.sizes == {"chain": 16, "draw": 500}
    # Learned from 1,000 simulations: the mean is off by about .02, the spread by a few per cent.
    check_moments(theta, 0.8, np.sqrt(0.2), 0.06 / np.sqrt(0.2), 0.12)
    np.testing.assert_allclose(idata["posterior"]["twice"], 2 * theta)
    weights, stats = idata["kernel_weights"], idata["sample_stats"]
    assert weights.sizes["simulation"] == 1000
    assert float(weights["weight"].sum()) == pytest.approx(1.0)
    assert float(stats["typicality"]) > 0.1
    assert float(stats["num_effective"]) > 30
    # Of other observations, too.
    np.testing.assert_allclose(rule.mean([[-1.0], [0.0]])[:, 0], [-0.8, 0.0], atol=0.1)


def test_same_seed_same_draws_of_simulations_and_a_rule_of_ones_own():
    model, own = normal_model(), KernelBayesRule(num_basis=100)
    settings = {"model": model, "draws": 50, "estimator": own, "return_fitted": True} | QUIET
    settings["simulations"] = pm.sample_prior_predictive(250, model=model, random_seed=1)
    (first, rule), (again, _) = (pk.sample_kbr(**settings) for _ in range(2))
    xr.testing.assert_equal(first["posterior"].to_dataset(), again["posterior"].to_dataset())
    assert rule.settings == own


@pytest.mark.long
def test_summary_makes_long_data_short():
    """A posterior of a fortieth of the prior: too wide from 1,000 simulations, which is said."""
    data = np.random.default_rng(0).normal(1.0, 0.7, 200)
    settings = QUIET | {"num_simulations": 1000, "draws": 250, "summary": lambda y: [y.mean(), np.log(y.std())]}
    with pm.Model():
        pm.Normal("y", pm.Normal("mu", 0, 2), pm.HalfNormal("sigma", 2), observed=data)
        with pytest.warns(UserWarning, match=r"has a standard deviation 0\.\d+ times as large"):
            posterior = pk.sample_kbr(**settings)["posterior"]
    means = [float(posterior[name].mean()) for name in ("mu", "sigma")]
    assert means == pytest.approx([1.0, 0.7], abs=0.15)


@pytest.mark.long
def test_failures_that_depend_on_the_parameter_are_evidence():
    """Nine in ten simulations fail for positive parameters: the data y = 0 then speak for negative ones.

    Exactly: N(0, 1 / 2) with nine tenths of its upper half taken away, mean -.46, a share of .091 above zero.
    """

    def simulate(theta, one, rng=None, size=None):
        value = rng.normal(theta, 1.0, size=1)
        return np.where((theta > 0) & (rng.random() < 0.9), np.nan, value)

    with pm.Model():
        theta = pm.Normal("theta", 0, 1)
        pm.CustomDist("y", theta, np.zeros(1), random=simulate, signature="(),(one)->(one)", observed=np.zeros(1))
        with pytest.warns(UserWarning, match="NaN or infinite"):
            draws = pk.sample_kbr(num_simulations=2000, draws=250, **QUIET)["posterior"]["theta"]
    assert float(draws.mean()) == pytest.approx(-0.46, abs=0.12)
    assert float((draws > 0).mean()) < 0.25


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"estimator": OriginalBayesRule()}, "sample_kbr needs estimator=KernelBayesRule"),
        ({"model": data_around(lambda: pm.Poisson("k", 5), 6.0)}, "continuous parameters only"),
        ({"simulations": xr.DataTree.from_dict({"prior": xr.Dataset()})}, "no group prior_predictive"),
    ],
)
def test_mistakes_are_named(settings, match):
    with pytest.raises(ValueError, match=match):
        pk.sample_kbr(**({"model": normal_model()} | settings))


@pytest.mark.long
def test_learned_features_find_what_matters():
    """Twenty columns of which one matters, and not in a straight line: distances do not see it, a network does."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2400, 20))
    z = np.sin(2.0 * x[:, :1]) + 0.1 * rng.standard_normal((2400, 1))
    estimator = pk.LearnedFeatures((32, 32), 16, batch_size=64, num_epochs=60)
    features = estimator.fit(z[:2000], x[:2000], rng=0, progressbar=False)
    assert features.losses[:, 1].min() < 0.5 * features.losses[0, 1]
    errors = []
    for kernel in (FeatureKernel(features), None):
        rule = KernelBayesRule(observed_kernel=kernel).fit(z[:2000], x[:2000], rng=0)
        errors.append(((rule.mean(x[2000:]) - z[2000:]) ** 2).mean())
    assert errors[0] < 0.5 * errors[1]
    assert features(x[:7]).shape == (7, 16)
    with pytest.raises(ValueError, match="too few"):
        pk.LearnedFeatures().fit(z[:50], x[:50])
    with pytest.raises(ValueError, match="larger than"):
        pk.LearnedFeatures(batch_size=8)


@pytest.mark.long
def test_information_that_is_lost_is_said():
    """The spread of eight normal numbers, given as they are: a regression on them does not see their squares."""
    words = r"a likelihood learned from the same simulations .* sample_likelihood_free"
    with pm.Model() as model:
        pm.Normal("y", 0.0, pm.LogNormal("scale", 0.0, 1.0), observed=np.linspace(-0.1, 0.1, 8))
    with pytest.warns(UserWarning, match=words):
        idata = pk.sample_kbr(num_simulations=1500, draws=250, model=model, **QUIET)
    # By quadrature: mean -2.457 and standard deviation .308 of the logarithm, which the opinion knows.
    opinion = idata["sample_stats"].to_dataset()
    log_scale = np.log(idata["posterior"]["scale"])
    mean, spread = float(log_scale.mean()), float(log_scale.std())
    assert mean > -1.5
    assert mean + spread * float(opinion["second_opinion_shift"][0]) == pytest.approx(-2.457, abs=0.3)
    assert spread * float(opinion["second_opinion_spread"][0]) == pytest.approx(0.308, rel=0.25)


@pytest.mark.slow
def test_draws_beside_a_thin_posterior_are_said():
    """A ring, seen by its radius: mean and spread of each parameter are right, and the draws fill its inside."""
    with pm.Model():
        theta = pm.Normal("theta", 0, 1, shape=2)
        pm.Normal("y", pm.math.sqrt((theta**2).sum()), 0.02, observed=1.0)
        with pytest.warns(UserWarning, match=r"of these draws as unlikely as the least likely 1 % of its own\."):
            idata = pk.sample_kbr(num_simulations=1500, draws=250, **QUIET)
    theta, opinion = idata["posterior"]["theta"].values, idata["sample_stats"].to_dataset()
    assert np.abs(opinion["second_opinion_shift"]).max() < 0.4
    # By the ring itself: the share of the draws within three of its standard deviations.
    inside = (np.abs(np.hypot(theta[..., 0], theta[..., 1]) - 1.0) < 0.06).mean()
    assert float(opinion["second_opinion_outside"]) == pytest.approx(1.0 - inside, abs=0.15)


@pytest.mark.long
def test_a_warning_proposes_to_summarize_long_raw_data():
    settings = {"model": data_around(lambda: pm.Normal("theta"), np.linspace(-1.0, 1.0, 30))} | QUIET
    proposal = r"should not be trusted.*Take a summary= of the 30 numbers that the data are, more simulations"
    for summary, words in ((None, proposal), (np.mean, r"Take more simulations.*sample_likelihood_free")):
        with pytest.warns(UserWarning, match=words):
            pk.sample_kbr(num_simulations=25, draws=20, summary=summary, **settings)


def quantiles(y):
    return np.quantile(y, [0.1, 0.9])


@pytest.mark.parametrize(("sum_stat", "summary"), [("mean", np.mean), (quantiles, quantiles), ("identity", None)])
def test_the_sum_stat_of_a_simulator_is_its_summary(sum_stat, summary):
    def compared(own, given):
        with pm.Model() as model:
            rate = pm.LogNormal("rate", 0.0, 0.5)
            times = np.linspace(0.1, 3.0, 6)
            pm.Simulator("y", lambda rng, r, size: rng.exponential(r, size), rate, sum_stat=own, observed=times)
        return simulated_pairs(pk.simulate(10, model=model, **QUIET), model, given)[1]

    np.testing.assert_array_equal(compared(sum_stat, None), compared("identity", summary))


@pytest.mark.parametrize("sample", [pk.sample_kbr, pk.sample_abc])
def test_simulations_must_be_a_datatree(sample):
    with pytest.raises(TypeError, match=r"must be the DataTree .* got Dataset; without it"):
        sample(simulations=xr.Dataset(), model=normal_model())
    assert list(inspect.signature(sample).parameters)[:3] == ["draws", "chains", "simulations"]


@pytest.mark.parametrize("sample", [pk.sample_kbr, pk.sample_abc])
def test_warnings_point_to_the_caller(sample, recwarn):
    """Of data that no simulation is like, of a potential and of simulations that failed."""

    def fails_in_part(rng, theta, size):
        return np.nan if theta > 0.0 else rng.normal(theta)

    with pm.Model():
        theta = pm.Normal("theta")
        pm.Potential("told", -(theta**2))
        pk.KernelABC("y", fails_in_part, theta, observed=50.0, epsilon=1.0)
        warnings.simplefilter("always", UserWarning)
        sample(num_simulations=300, chains=1, draws=10, random_seed=1, progressbar=False)
    assert {one.filename for one in recwarn} == {__file__}
    assert len(recwarn) == 3
    for words in ("told", r"\(\d+ %\) gave NaN", "edge of what the model simulates"):
        assert sum(bool(re.search(words, str(one.message))) for one in recwarn) == 1
