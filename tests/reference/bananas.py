"""Bananas that tests draw from: one that samplers must leave invariant, and one that is bent a little."""

import numpy as np
from scipy import stats

from benchmarks.targets import banana

BANANA = banana(0.1, 25.0, num_dims=2)


def worst_p_value(points):
    """Return the smallest p-value of three tests of points (n, 2): level, first coordinate, second one unbent."""
    first, second = points[:, 0], points[:, 1] - 0.1 * (points[:, 0] ** 2 - 25.0)
    cases = (BANANA.level(points), stats.chi2(2)), (first, stats.norm(0, 5.0)), (second, stats.norm())
    return min(stats.kstest(x, exact.cdf).pvalue for x, exact in cases)


def bent_log_density(x):
    """Return the log density of a slightly bent normal distribution at points (..., 2), up to a constant."""
    return -0.5 * x[..., 0] ** 2 - 0.5 * (x[..., 1] - 0.2 * x[..., 0] ** 2) ** 2


def bent_score(x):
    """Return its gradient (..., 2)."""
    bend = x[..., 1] - 0.2 * x[..., 0] ** 2
    return np.stack([-x[..., 0] + 0.4 * x[..., 0] * bend, -bend], axis=-1)


def bent_draws(rng, *shape):
    """Return exact draws (*shape, 2) of it."""
    x = rng.standard_normal((*shape, 2))
    x[..., 1] += 0.2 * x[..., 0] ** 2
    return x
