"""Posteriors that a seed draws, with exact draws: shapes, sizes, places and scales are new for each seed.

Each family takes a generator and returns a model that can be made anew, and draws of its posterior, name -> (n, ...).
``shaped`` ones are densities around a random place, in random units, under a prior a few times as wide; the others are
models with data. Draws come from the shapes' own construction, from conjugacy, or from a fine grid of one parameter.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

import pymc_kernel as pk

__all__ = ["FAMILIES", "Drawn", "drawn"]

_NUM_EXACT = 20_000  # draws: a mean within .007 standard deviations


class Drawn(NamedTuple):
    """A posterior with exact draws."""

    make: Callable[[], pm.Model]
    exact: dict[str, np.ndarray]
    """Name -> (n, ...)."""
    has_moments: bool = True
    log_evidence: float | None = None
    """Of the likelihood under the prior, where it is worked out."""


# -- shapes ----------------------------------------------------------------------------------------------


def _shaped(rng, log_density, draws, has_moments=True, log_mass=None):
    """Return the posterior with this density, of symbolic (d,), in other units and at another place.

    ``log_mass`` is the log integral of the density over (2 pi)^(d / 2), where it is worked out: the prior takes its
    own density out of the likelihood, so that the evidence is this over the product of the prior's spreads.
    """
    d = draws.shape[1]
    scale, center = np.exp(rng.normal(size=d)), 3.0 * rng.normal(size=d)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    wide = rng.uniform(2.0, 8.0) * (high - low) / 3.29
    middle = 0.5 * (low + high) + wide * rng.uniform(-0.5, 0.5, size=d)

    def make():
        with pm.Model() as model:
            x = pm.Normal("x", center + scale * middle, scale * wide, shape=d)
            z = (x - center) / scale
            pm.Potential("likelihood", log_density(z) + 0.5 * (((z - middle) / wide) ** 2).sum())
        return model

    log_evidence = None if log_mass is None else float(log_mass - np.log(wide).sum())
    return Drawn(make, {"x": center + scale * draws}, has_moments, log_evidence)


def bend(rng):
    """A normal distribution whose second coordinate is moved by the first one's square: up to a long thin ridge."""
    d, spread, curve = int(rng.integers(2, 9)), rng.uniform(1.0, 6.0), rng.uniform(0.05, 0.5)
    z = rng.normal(size=(_NUM_EXACT, d))
    z[:, 0] *= spread
    z[:, 1] += curve * (z[:, 0] ** 2 - spread**2)

    def log_density(x):
        first = x[0] ** 2
        return -0.5 * (first / spread**2 + (x[1] - curve * (first - spread**2)) ** 2 + (x[2:] ** 2).sum())

    return _shaped(rng, log_density, z)


def funnel(rng):
    """The first coordinate is the log variance of the others."""
    d, spread = int(rng.integers(2, 8)), rng.uniform(0.8, 2.5)
    z = rng.normal(size=(_NUM_EXACT, d))
    z[:, 0] *= spread
    z[:, 1:] *= np.exp(z[:, :1] / 2.0)
    return _shaped(
        rng,
        lambda x: -0.5 * (x[0] ** 2 / spread**2 + (x[1:] ** 2).sum() * pt.exp(-x[0]) + (d - 1) * x[0]),
        z,
        # Moments exist, but twenty thousand draws do not tell them where the others' tails are this heavy.
        has_moments=spread < 1.2,
    )


def heavy(rng):
    """Student's distribution, in each coordinate or of all together."""
    d, freedom, together = int(rng.integers(2, 9)), rng.uniform(2.0, 7.0), rng.random() < 0.5
    squares = rng.chisquare(freedom, size=(_NUM_EXACT, 1 if together else d)) / freedom
    z = rng.normal(size=(_NUM_EXACT, d)) / np.sqrt(squares)
    if together:
        return _shaped(rng, lambda x: -0.5 * (freedom + d) * pt.log1p((x**2).sum() / freedom), z, freedom > 5.0)
    return _shaped(rng, lambda x: -0.5 * (freedom + 1.0) * pt.log1p(x**2 / freedom).sum(), z, freedom > 5.0)


def correlated(rng):
    """A normal distribution, up to nearly flat in one direction."""
    d = int(rng.integers(2, 13))
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    sds = np.exp(rng.uniform(np.log(0.01), 0.0, size=d))
    z = rng.normal(size=(_NUM_EXACT, d)) * sds @ basis.T
    precision = basis / sds**2 @ basis.T
    return _shaped(rng, lambda x: -0.5 * x @ precision @ x, z)


def mixture(rng):
    """Two or three normal distributions, from hardly apart to far apart."""
    return _normals(rng, int(rng.integers(1, 6)), int(rng.integers(2, 4)), 1.0, 5.0)


def apart(rng):
    """Two to four normal distributions in one to three dimensions, so far apart that no random walk crosses."""
    return _normals(rng, int(rng.integers(1, 4)), int(rng.integers(2, 5)), 8.0, 16.0)


def pair(rng):
    """Two normal distributions apart, in one or two dimensions."""
    return _normals(rng, int(rng.integers(1, 3)), 2, 5.0, 10.0)


def _normals(rng, d, number, nearest, farthest):
    """Return a mixture; the components are apart by a number of spreads between these two, on average."""
    weights = rng.dirichlet(np.full(number, 3.0))
    places = rng.normal(size=(number, d))
    places *= rng.uniform(nearest, farthest) / np.sqrt((np.diff(places, axis=0) ** 2).sum(axis=1).mean())
    spreads = np.exp(0.3 * rng.normal(size=number))
    which = rng.choice(number, p=weights, size=_NUM_EXACT)
    z = places[which] + spreads[which, None] * rng.normal(size=(_NUM_EXACT, d))

    def log_density(x):
        return pt.logsumexp(
            pt.stack([
                np.log(w) - d * np.log(s) - 0.5 * (((x - p) / s) ** 2).sum()
                for w, s, p in zip(weights, spreads, places, strict=True)
            ])
        )  # fmt: skip

    return _shaped(rng, log_density, z, log_mass=0.0)


def spike(rng):
    """A narrow normal distribution on a wide one, in one or two dimensions."""
    d, share, narrow = int(rng.integers(1, 3)), rng.uniform(0.1, 0.6), np.exp(rng.uniform(np.log(0.02), np.log(0.2)))
    place = rng.normal(size=d)
    is_narrow = rng.random((_NUM_EXACT, 1)) < share
    z = np.where(is_narrow, place + narrow * rng.normal(size=(_NUM_EXACT, d)), rng.normal(size=(_NUM_EXACT, d)))
    logs = np.log(share) - d * np.log(narrow), np.log1p(-share)
    return _shaped(
        rng,
        lambda x: pt.logaddexp(
            logs[0] - 0.5 * (((x - place) / narrow) ** 2).sum(), logs[1] - 0.5 * (x**2).sum()
        ),
        z,
    )  # fmt: skip


def kink(rng):
    """Densities exp(-|x|^power): kinks, plateaus and edges."""
    d, powers = int(rng.integers(1, 7)), rng.choice([0.7, 1.0, 1.5, 4.0, 12.0], size=8)[:6]
    powers = powers[:d]
    z = rng.choice([-1.0, 1.0], size=(_NUM_EXACT, d)) * rng.gamma(1.0 / powers, size=(_NUM_EXACT, d)) ** (1.0 / powers)
    return _shaped(rng, lambda x: -(pt.abs(x) ** powers).sum(), z)


def wall(rng):
    """A normal distribution of which a wall cuts a part off: no density beyond."""
    d = int(rng.integers(1, 7))
    normal = rng.normal(size=d)
    normal /= np.linalg.norm(normal)
    at = rng.uniform(-1.5, 1.5)
    along = stats.truncnorm(-np.inf, at).rvs(size=(_NUM_EXACT, 1), random_state=rng)
    z = rng.normal(size=(_NUM_EXACT, d))
    z += (along - z @ normal[:, None]) * normal
    return _shaped(rng, lambda x: pt.switch(x @ normal <= at, -0.5 * (x**2).sum(), -np.inf), z)


def skewed(rng):
    """Logarithms of gamma variables, or log odds of beta variables: one tail falls slowly."""
    d = int(rng.integers(1, 9))
    one, other = np.exp(rng.uniform(np.log(0.3), np.log(4.0), size=(2, d)))
    gammas = np.maximum(rng.gamma(one, size=(_NUM_EXACT, d)), 1e-280)
    if rng.random() < 0.5:
        return _shaped(rng, lambda x: (one * x - pt.exp(x)).sum(), np.log(gammas))
    others = np.maximum(rng.gamma(other, size=(_NUM_EXACT, d)), 1e-280)
    return _shaped(
        rng, lambda x: (one * x - (one + other) * pt.softplus(x)).sum(), np.log(gammas) - np.log(others)
    )  # fmt: skip


def ring(rng):
    """A ring in the first two coordinates."""
    d, radius, wide = int(rng.integers(2, 6)), rng.uniform(2.0, 8.0), rng.uniform(0.2, 0.6)
    around = radius + wide * rng.normal(size=4 * _NUM_EXACT)
    around = around[(around > 0.0) & (rng.random(around.size) < around / (radius + 6.0 * wide))][:_NUM_EXACT]
    angle = 2.0 * np.pi * rng.random(around.size)
    z = np.column_stack([around * np.cos(angle), around * np.sin(angle), rng.normal(size=(around.size, d - 2))])
    return _shaped(
        rng,
        lambda x: -0.5 * ((pt.sqrt((x[:2] ** 2).sum()) - radius) / wide) ** 2 - 0.5 * (x[2:] ** 2).sum(),
        z,
        # The angle's 2 pi stands against that of the first two coordinates, and the radius is integrated.
        log_mass=np.log(
            radius * wide * np.sqrt(2.0 * np.pi) * stats.norm.cdf(radius / wide)
            + wide**2 * np.exp(-0.5 * (radius / wide) ** 2)
        ),
    )  # fmt: skip


# -- models with data ------------------------------------------------------------------------------------


def _sampled(rng, values, log_weights):
    """Return draws (n,) of a density on an even grid, spread over its cells."""
    weights = np.exp(log_weights - log_weights.max())
    step = values[1] - values[0]
    chosen = rng.choice(values, p=weights / weights.sum(), size=_NUM_EXACT)
    return chosen + step * rng.uniform(-0.5, 0.5, size=_NUM_EXACT)


def hierarchy(rng, is_raw=False):
    """Effects of three to ten groups around a mean, with known errors; centered or not.

    ``is_raw``: always centered, with the scale of the effects as it is, not its logarithm.
    """
    groups, centered = int(rng.integers(3, 11)), rng.random() < 0.5 or is_raw
    errors = np.exp(rng.normal(0.0, 0.5, size=groups))
    spread, prior_mean = rng.choice([0.2, 1.0, 3.0]), 5.0
    y = rng.normal(2.0, 1.0) + spread * rng.normal(size=groups) + errors * rng.normal(size=groups)
    log_tau = np.linspace(-9.0, 3.5, 5001)
    total = errors**2 + np.exp(2.0 * log_tau)[:, None]
    precision = 1.0 / prior_mean**2 + (1.0 / total).sum(axis=1)
    mean = (y / total).sum(axis=1) / precision
    logs = -0.5 * np.log(total).sum(axis=1) - 0.5 * np.log(precision) - 0.5 * ((y**2 / total).sum(axis=1))
    logs += 0.5 * mean**2 * precision + log_tau - 0.5 * np.exp(2.0 * log_tau) / 2.5**2  # half normal, and its Jacobian
    tau = np.exp(_sampled(rng, log_tau, logs))
    total = errors**2 + tau[:, None] ** 2
    precision = 1.0 / prior_mean**2 + (1.0 / total).sum(axis=1)
    mu = (y / total).sum(axis=1) / precision + rng.normal(size=_NUM_EXACT) / np.sqrt(precision)
    share = tau[:, None] ** 2 / total
    theta = mu[:, None] + share * (y - mu[:, None]) + np.sqrt(share) * errors * rng.normal(size=(_NUM_EXACT, groups))

    def make():
        with pm.Model() as model:
            mu = pm.Normal("mu", 0.0, prior_mean)
            tau = pm.HalfNormal("tau", 2.5, **({"default_transform": None} if is_raw else {}))
            if centered:
                effect = pm.Normal("theta", mu, tau, shape=groups)
            else:
                effect = pm.Deterministic("theta", mu + tau * pm.Normal("unit", 0.0, 1.0, shape=groups))
            pm.Normal("y", effect, errors, observed=y)
        return model

    return Drawn(make, {"mu": mu, "tau": tau, "theta": theta})


def regression(rng):
    """A linear regression with nearly collinear columns in units of their own, and an unknown variance; conjugate."""
    d, n = int(rng.integers(2, 9)), int(rng.integers(12, 60))
    design = rng.normal(size=(n, d)) + rng.uniform(0.0, 3.0) * rng.normal(size=(n, 1))
    units = np.exp(rng.normal(size=d))
    design *= units
    y = design @ (rng.normal(size=d) / units) + rng.uniform(0.5, 2.0) * rng.normal(size=n)
    prior = units**2 / 4.0  # precisions of coefficients, in units of one over the variance
    precision = design.T @ design + np.diag(prior)
    mean = np.linalg.solve(precision, design.T @ y)
    rate = 1.0 + 0.5 * (y @ y - mean @ precision @ mean)
    variance = rate / rng.gamma(2.0 + 0.5 * n, size=_NUM_EXACT)
    root = np.linalg.inv(np.linalg.cholesky(precision))
    slope = mean + np.sqrt(variance)[:, None] * (rng.normal(size=(_NUM_EXACT, d)) @ root)

    def make():
        with pm.Model() as model:
            variance = pm.InverseGamma("variance", 2.0, 1.0)
            slope = pm.Normal("slope", 0.0, pt.sqrt(variance / prior), shape=d)
            pm.Normal("y", design @ slope, pt.sqrt(variance), observed=y)
        return model

    return Drawn(make, {"slope": slope, "variance": variance})


def logistic(rng):
    """A logistic regression with two coefficients and few data, at times separated; a fine grid."""
    n, wide = int(rng.integers(8, 40)), rng.choice([2.0, 5.0])
    x = rng.normal(size=n) + rng.uniform(-1.0, 1.0)
    y = (rng.random(n) < expit(rng.normal() + rng.uniform(0.0, 6.0) * x)).astype(int)
    grid = np.linspace(-5.0 * wide, 5.0 * wide, 801)
    a, b = np.meshgrid(grid, grid, indexing="ij")
    logs = -0.5 * (a**2 + b**2) / wide**2
    for xi, yi in zip(x, y, strict=True):
        logs -= np.logaddexp(0.0, (1 - 2 * yi) * (a + b * xi))
    weights = np.exp(logs - logs.max()).ravel()
    cells = rng.choice(weights.size, p=weights / weights.sum(), size=_NUM_EXACT)
    jitter = (grid[1] - grid[0]) * rng.uniform(-0.5, 0.5, size=(_NUM_EXACT, 2))
    draws = np.column_stack([a.ravel()[cells], b.ravel()[cells]]) + jitter

    def make():
        with pm.Model() as model:
            beta = pm.Normal("beta", 0.0, wide, shape=2)
            pm.Bernoulli("y", logit_p=beta[0] + beta[1] * x, observed=y)
        return model

    return Drawn(make, {"beta": draws})


def product(rng):
    """Two factors of which only the product was seen, well."""
    wide, noise = rng.uniform(1.0, 3.0, size=2), np.exp(rng.uniform(np.log(0.02), np.log(0.5)))
    y = noise * rng.normal() + (rng.normal(size=2) * wide).prod()
    a = np.linspace(-5.5 * wide[0], 5.5 * wide[0], 400_001)
    total = noise**2 + (wide[1] * a) ** 2
    a = _sampled(rng, a, -0.5 * (a / wide[0]) ** 2 - 0.5 * np.log(total) - 0.5 * y**2 / total)
    total = noise**2 + (wide[1] * a) ** 2
    b = wide[1] ** 2 * a * y / total + wide[1] * noise / np.sqrt(total) * rng.normal(size=_NUM_EXACT)

    def make():
        with pm.Model() as model:
            factors = [pm.Normal(name, 0.0, w) for name, w in zip("ab", wide, strict=True)]
            pm.Normal("y", factors[0] * factors[1], noise, observed=y)
        return model

    return Drawn(make, {"a": a, "b": b})


def conjugate(rng):
    """Rates of few counts, chances of few trials, and shares of categories: positive, bounded, a simplex."""
    size = int(rng.integers(1, 5))
    counts = rng.poisson(np.exp(rng.normal(0.0, 2.0, size=size)))
    trials = int(rng.integers(3, 40))
    cured = rng.binomial(trials, rng.beta(0.5, 0.5, size=size))
    seen = rng.multinomial(int(rng.integers(3, 30)), rng.dirichlet(np.full(size + 1, 0.6)))
    shape, rate = rng.uniform(0.5, 2.0), rng.uniform(0.05, 1.0)
    exact = {
        "rate": rng.gamma(shape + counts, 1.0 / (rate + 1.0), size=(_NUM_EXACT, size)),
        "chance": rng.beta(1.0 + cured, 1.0 + trials - cured, size=(_NUM_EXACT, size)),
        "share": rng.dirichlet(1.0 + seen, size=_NUM_EXACT),
    }

    def make():
        with pm.Model() as model:
            pm.Poisson("count", pm.Gamma("rate", shape, rate, shape=size), observed=counts)
            pm.Binomial("cured", trials, pm.Beta("chance", 1.0, 1.0, shape=size), observed=cured)
            pm.Multinomial("seen", seen.sum(), pm.Dirichlet("share", np.ones(size + 1)), observed=seen)
        return model

    return Drawn(make, exact)


def changepoint(rng):
    """Two rates and the time between: a likelihood of steps."""
    n = int(rng.integers(15, 60))
    at = rng.uniform(0.15, 0.85) * n
    y = rng.poisson(np.where(np.arange(n) < at, *np.exp(rng.normal(1.0, 0.8, size=2))))
    sums = np.array([[y[:k].sum(), y[k:].sum()] for k in range(n + 1)])
    sizes = np.array([[k, n - k] for k in range(n + 1)])
    logs = (gammaln(1.0 + sums) - (1.0 + sums) * np.log(0.2 + sizes)).sum(axis=1)[1:]  # before time k: the first k
    first = 1 + rng.choice(n, p=np.exp(logs - logsumexp(logs)), size=_NUM_EXACT)
    exact = {
        "time": first - rng.random(_NUM_EXACT),
        "rate": rng.gamma(1.0 + sums[first], 1.0 / (0.2 + sizes[first])),
    }

    def make():
        with pm.Model() as model:
            time, rate = pm.Uniform("time", 0.0, n), pm.Gamma("rate", 1.0, 0.2, shape=2)
            pm.Poisson("y", pt.switch(np.arange(n) < time, rate[0], rate[1]), observed=y)
        return model

    return Drawn(make, exact)


def noise(rng):
    """A normal or a log gamma likelihood that is only estimated."""
    d, sd = int(rng.integers(1, 5)), rng.uniform(0.2, 1.5)
    y, error = rng.normal(size=d), np.exp(rng.normal(-0.5, 0.5, size=d))
    share = 1.0 / (1.0 + error**2)
    draws = share * y + np.sqrt(share) * error * rng.normal(size=(_NUM_EXACT, d))

    def estimate(rng, x, observed):
        return -0.5 * (((observed - x) / error) ** 2).sum() + rng.normal(-0.5 * sd**2, sd)

    def make():
        with pm.Model() as model:
            x = pm.Normal("x", 0.0, 1.0, shape=d)
            pk.EstimatedLikelihood("y", estimate, x, observed=y)
        return model

    return Drawn(make, {"x": draws})


_ALL = (
    bend, funnel, heavy, correlated, mixture, spike, kink, wall, skewed, ring,
    hierarchy, regression, logistic, product, conjugate, changepoint, noise,
)  # fmt: skip
FAMILIES = {family.__name__: family for family in _ALL}
#: For ablations alone.
SPECIAL = {"apart": apart, "pair": pair, "raw": partial(hierarchy, is_raw=True)}


def drawn(family: str, seed: int) -> Drawn:
    """Return the posterior of a seed."""
    return {**FAMILIES, **SPECIAL}[family](np.random.default_rng([seed, *family.encode()]))
