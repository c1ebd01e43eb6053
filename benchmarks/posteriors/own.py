"""Thirteen small posteriors with exact answers, where everyday trouble lives.

Each function returns a model; its neighbor ``*_exact`` returns mean, standard deviation and 5, 50 and 95 % quantiles
of each quantity, in closed form or by quadrature.
"""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy import stats
from scipy.special import expit

import pymc_kernel as pk
from benchmarks.posteriors.exact import (
    gaussian_posterior,
    grid_summary,
    legendre,
    mixture_of_normals_summary,
    nodes_summary,
    of_distribution,
    vector,
)

NOISE = 1.5  # standard deviation of the noise of the estimated log likelihood
COUNTS = np.array([3, 7, 4, 6, 5])
CATEGORIES = np.array([0, 3, 11, 6])
MARKS = np.array([2, 9, 4])  # how often each of three ordered categories was seen
EFFECTS = np.array([0.5, -1.0, 0.8, 0.2])
LATENT_PAIRS = np.random.default_rng(5).multivariate_normal(
    np.zeros(3), [[1.0, 0.7, -0.3], [0.7, 1.0, 0.1], [-0.3, 0.1, 1.0]], 8
)


def counts():
    """Return a probability from successes and a rate from five counts."""
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        rate = pm.Gamma("rate", 2, 0.2)
        pm.Binomial("cured", 20, p, observed=13)
        pm.Poisson("count", rate, observed=COUNTS)
    return model


def counts_exact():
    """Conjugate."""
    rate = stats.gamma(2 + COUNTS.sum(), scale=1 / (0.2 + COUNTS.size))
    return {"p": of_distribution(stats.beta(14, 8)), "rate": of_distribution(rate)}


def walls():
    """Return posteriors that lean against a wall: all successes, and a scale that may well be zero."""
    with pm.Model() as model:
        p = pm.Uniform("p", 0, 1)
        scale = pm.HalfNormal("scale", 1)
        pm.Binomial("cured", 20, p, observed=20)
        pm.Normal("y", 0, pt.sqrt(0.01 + scale**2), observed=0.05)
    return model


def walls_exact():
    """Beta(21, 1), and quadrature."""
    x, w = legendre(0.0, 9.0, 4000)
    log_density = -0.5 * x**2 - 0.5 * np.log(0.01 + x**2) - 0.5 * 0.05**2 / (0.01 + x**2)
    return {"p": of_distribution(stats.beta(21, 1)), "scale": nodes_summary(x, w, log_density)}


def simplex():
    """Return shares of four categories of which one was never seen."""
    with pm.Model() as model:
        share = pm.Dirichlet("share", np.ones(4))
        pm.Multinomial("count", CATEGORIES.sum(), share, observed=CATEGORIES)
    return model


def simplex_exact():
    """Conjugate; the margins are of Beta's distribution."""
    alpha = 1.0 + CATEGORIES
    return vector("share", [of_distribution(stats.beta(a, alpha.sum() - a)) for a in alpha])


def correlations():
    """Return three correlations from eight observations, unit variances known."""
    with pm.Model() as model:
        factor = pm.LKJCorr("factor", n=3, eta=2.0)
        pm.Deterministic("r", pt.stack([(factor @ factor.T)[i, j] for i, j in ((1, 0), (2, 0), (2, 1))]))
        pm.MvNormal("y", np.zeros(3), chol=factor, observed=LATENT_PAIRS)
    return model


def correlations_exact():
    """Return quadrature over the canonical partial correlations, each pair of variables first in turn."""
    scatter, n = LATENT_PAIRS.T @ LATENT_PAIRS, len(LATENT_PAIRS)
    x, wx = legendre(-1.0, 1.0, 400)
    z, wz = legendre(-1.0, 1.0, 100)
    found = []
    for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        r, a, b = x[:, None, None], z[None, :, None], z[None, None, :]
        # a is the correlation of i and k, b the partial correlation of j and k given i.
        c = r * a + b * np.sqrt((1 - r**2) * (1 - a**2))
        log_det = np.log1p(-(r**2)) + np.log1p(-(a**2)) + np.log1p(-(b**2))
        jacobian = 0.5 * (np.log1p(-(r**2)) + np.log1p(-(a**2)))
        inner = (
            scatter[i, i] * (1 - c**2)
            + scatter[j, j] * (1 - a**2)
            + scatter[k, k] * (1 - r**2)
            + 2.0 * scatter[i, j] * (a * c - r)
            + 2.0 * scatter[i, k] * (r * c - a)
            + 2.0 * scatter[j, k] * (r * a - c)
        )
        log_density = (2.0 - 1.0 - 0.5 * n) * log_det + jacobian - 0.5 * inner / np.exp(log_det)
        mass = np.einsum("rab,a,b->r", np.exp(log_density - log_density.max()), wz, wz)
        found.append(nodes_summary(x, wx, np.log(np.maximum(mass, 1e-300))))
    return vector("r", found)


def cutpoints():
    """Return two ordered cutpoints of a logistic scale from fifteen marks."""
    with pm.Model() as model:
        cut = pm.Normal("cut", 0, 2, shape=2, transform=ordered, initval=[-0.5, 0.5])
        pm.Multinomial("marks", MARKS.sum(), _chances(cut, pt.sigmoid, pt.stack), observed=MARKS)
    return model


def _chances(cut, sigmoid, stack):
    low, high = sigmoid(cut[0]), sigmoid(cut[1])
    return stack([low, high - low, 1.0 - high])


def cutpoints_exact():
    """Return quadrature over one cutpoint and the log of the gap."""
    place, log_gap = np.linspace(-14, 14, 1401), np.linspace(-14, 4, 901)
    found = []
    for sign in (1, -1):  # the other cutpoint lies above the first, below the second
        one, other = place[:, None], place[:, None] + sign * np.exp(log_gap)
        low, high = (one, other) if sign == 1 else (other, one)
        between = expit(high) * -np.expm1(low - high) * expit(-low)  # the difference of both, without cancellation
        log_density = (
            -(low**2 + high**2) / 8.0
            + log_gap
            - MARKS[0] * np.logaddexp(0, -low)
            + MARKS[1] * np.log(between)
            - MARKS[2] * np.logaddexp(0, high)
        )
        mass = np.exp(log_density - log_density.max()).sum(axis=1)
        found.append(grid_summary(place, np.log(mass)))
    return vector("cut", found)


def two_modes():
    """Return a number of which the square was seen: modes near 3 and -3, four fifths of the mass at the first."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.924, 2)
        pm.Normal("y", x**2, 1, observed=9.0)
    return model


def two_modes_exact():
    """Return quadrature."""
    x = np.linspace(-8, 8, 16_001)
    return {"x": grid_summary(x, -0.125 * (x - 0.924) ** 2 - 0.5 * (9 - x**2) ** 2)}


def funnel():
    """Return four effects and the log of their variance: a funnel whose neck the data leave open."""
    with pm.Model() as model:
        log_variance = pm.Normal("log_variance", 0, 3)
        effect = pm.Normal("effect", 0, pt.exp(log_variance / 2), shape=4)
        pm.Normal("y", effect, 1, observed=EFFECTS)
    return model


def funnel_exact():
    """Given the variance the effects are normal; quadrature over its log."""
    v = np.linspace(-25, 20, 9001)
    between = np.exp(v)
    log_density = -(v**2) / 18.0 - 0.5 * (np.log1p(between)[:, None] + EFFECTS**2 / (1 + between)[:, None]).sum(axis=1)
    share = between / (1 + between)
    weights = np.exp(log_density - log_density.max())
    effects = [mixture_of_normals_summary(weights, share * y, np.sqrt(share)) for y in EFFECTS]
    return {"log_variance": grid_summary(v, log_density)} | vector("effect", effects)


def heavy_tails():
    """Return a mean with Student's t of three degrees, its variance, and a Cauchy prior against Cauchy data."""
    with pm.Model() as model:
        variance = pm.InverseGamma("variance", 1, 1)
        mean = pm.Normal("mean", 0, pt.sqrt(10 * variance))
        place = pm.Cauchy("place", 0, 1)
        pm.Normal("y", mean, pt.sqrt(variance), observed=1.2)
        pm.Cauchy("z", place, 1, observed=2.5)
    return model


def heavy_tails_exact():
    """Return normal and inverse gamma conjugate; the last has the quotient of polynomials as its density."""
    shape, rate, share = 1.5, 1.0 + 0.5 * 1.2**2 / 11.0, 10.0 / 11.0
    mean = stats.t(2 * shape, loc=share * 1.2, scale=np.sqrt(rate / shape * share))
    angle, w = legendre(-np.pi / 2, np.pi / 2, 4000)
    return {
        "variance": of_distribution(stats.invgamma(shape, scale=rate)),
        "mean": of_distribution(mean),
        "place": nodes_summary(angle, w, -np.log1p((np.tan(angle) - 2.5) ** 2), np.tan),
    }


def constant_likelihood():
    """Return parameters that the data say nothing of."""
    with pm.Model() as model:
        pm.Normal("x", 2, 3)
        pm.Exponential("wait", 0.5)
        pm.Beta("p", 2, 5)
        pm.Normal("y", 0, 1, observed=0.3)
    return model


def constant_likelihood_exact():
    """Return the prior."""
    wait = of_distribution(stats.expon(scale=2))
    return {"x": of_distribution(stats.norm(2, 3)), "wait": wait, "p": of_distribution(stats.beta(2, 5))}


def scales():
    """Return a parameter of a millionth and one of a million, which one observation ties together."""
    with pm.Model() as model:
        small = pm.Normal("small", 0, 1e-6)
        large = pm.Normal("large", 0, 1e6)
        pm.Normal("y", small, 1e-6, observed=1.2e-6)
        pm.Normal("z", 1e6 * small + 1e-6 * large, 0.3, observed=0.5)
    return model


def scales_exact():
    """Return a linear Gaussian model, in units of its own."""
    found = gaussian_posterior(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.2, 0.5]), np.array([1.0, 0.3]))
    return {"small": 1e-6 * found[0], "large": 1e6 * found[1]}


def _noisy_log_likelihood(rng, mean, observed):
    return -0.5 * ((observed - mean) ** 2).sum() + rng.normal(-0.5 * NOISE**2, NOISE)


def noisy():
    """Return two means with a likelihood that is estimated with log-normal noise."""
    with pm.Model() as model:
        mean = pm.Normal("mean", 0, 1, shape=2)
        pk.EstimatedLikelihood("y", _noisy_log_likelihood, mean, observed=np.array([1.0, -0.5]))
    return model


def noisy_exact():
    """Conjugate."""
    return vector("mean", gaussian_posterior(np.eye(2), np.array([1.0, -0.5]), np.ones(2)))


def one_observation():
    """Return mean and standard deviation from a single number."""
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", mu, sigma, observed=np.array([1.5]))
    return model


def one_observation_exact():
    """Return the mean given the standard deviation as normal; quadrature over the log of that."""
    s = np.linspace(-18, 2.2, 8001)
    variance = np.exp(2 * s)
    log_density = s - 0.5 * variance - 0.5 * np.log1p(variance) - 0.5 * 1.5**2 / (1 + variance)
    share = 1 / (1 + variance)
    weights = np.exp(log_density - log_density.max())
    mu = mixture_of_normals_summary(weights, 1.5 * share, np.sqrt(1 - share))
    return {"mu": mu, "sigma": grid_summary(s, log_density, np.exp)}


def thirty_data():
    """Return design (40, 30) and observations (40,) of the linear regression."""
    rng = np.random.default_rng(30)
    design = rng.standard_normal((40, 30)) / np.sqrt(30)
    return design, design @ rng.standard_normal(30) + 0.5 * rng.standard_normal(40)


def thirty():
    """Return a linear regression with thirty coefficients and forty observations."""
    design, y = thirty_data()
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=30)
        pm.Normal("y", design @ x, 0.5, observed=y)
    return model


def thirty_exact():
    """Conjugate."""
    design, y = thirty_data()
    return vector("x", gaussian_posterior(design, y, np.full(y.size, 0.5)))


EXACT = {name.removesuffix("_exact"): f for name, f in list(globals().items()) if name.endswith("_exact")}
MODELS = {name: globals()[name] for name in EXACT}
IMPLICIT = ("noisy",)  # no data can be simulated
QUANTILES_ONLY = {"heavy_tails": ("variance", "mean", "place")}


# -- the same posteriors through blocks that only simulate -------------------------------------------


def _normal_data(rng, mu, sigma, size):
    return rng.normal(mu, sigma, size)


def _count_data(rng, p, rate, size):
    return np.concatenate([[rng.binomial(20, p)], rng.poisson(rate, COUNTS.size)])


def _simulated(block):
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 1)
        sigma = pm.HalfNormal("sigma", 1)
        block("y", _normal_data, mu, sigma, observed=np.array([1.5]))
    return model


def _simulated_counts(block):
    with pm.Model() as model:
        p = pm.Beta("p", 1, 1)
        rate = pm.Gamma("rate", 2, 0.2)
        data = np.concatenate([[13.0], COUNTS])
        block("y", _count_data, p, rate, observed=data, summary=_cured_and_total)
    return model


def _cured_and_total(data):
    return np.array([data[0], data[1:].sum()])


BLOCKS = {"one_observation": _simulated, "counts": _simulated_counts}
