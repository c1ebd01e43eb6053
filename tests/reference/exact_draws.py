"""Exact draws (n, d) that tests of the Stein checks share, chains and curved ones, the latter with their scores."""

import numpy as np
from scipy.signal import lfilter

from pymc_kernel import stein

INDEPENDENT = {"thin": 1, "flip_probability": 0.5}  # settings of tests of such draws


def p_values(make, repetitions, seed, **settings):
    """Return the p-values of Stein tests of draws and scores that ``make(rng)`` returns."""
    rng = np.random.default_rng(seed)
    tests = (stein.ksd_test(*make(rng), num_replicates=200, rng=rng, **settings) for _ in range(repetitions))
    return np.array([test.p_value for test in tests])


def normal(draws):
    """Return draws, and their scores as of N(0, I)."""
    return draws, -draws


def autoregressive(rng, correlation, n, d):
    """Stationary AR(1) draws of N(0, I)."""
    noise = rng.standard_normal((n, d))
    noise[1:] *= np.sqrt(1 - correlation**2)
    return lfilter([1.0], [1.0, -correlation], noise, axis=0)


def shifted(rng, n, d):
    """Draws of N(0, I) whose first coordinate has a uniform variable added (Chwialkowski et al. 2016)."""
    draws = rng.standard_normal((n, d))
    draws[:, 0] += rng.random(n)
    return draws


def funnel_scores(draws):
    v, x = draws[:, 0], draws[:, 1:]
    precision = np.exp(-v)
    first = -v / 9.0 + 0.5 * (x**2).sum(axis=1) * precision - 0.5 * x.shape[1]
    return np.column_stack([first, -x * precision[:, None]])


def funnel(rng, n, d, lowest=-np.inf, noise=None):
    """``d`` coordinates in all; everything below ``lowest`` is missing from the first."""
    v = 3.0 * rng.standard_normal(10 * n)
    v = v[v >= lowest][:n]
    noise = rng.standard_normal((n, d - 1)) if noise is None else noise
    draws = np.column_stack([v, np.exp(0.5 * v)[:, None] * noise])
    return draws, funnel_scores(draws)


def horseshoe(rng, n, d, lowest=-np.inf):
    """log tau, d times log lambda, d times x ~ N(0, (tau lambda)^2)."""
    logs = 1.5 * rng.standard_normal((10 * n, 1 + d))
    logs = logs[logs[:, 1] >= lowest][:n]
    scale = np.exp(logs[:, :1] + logs[:, 1:])
    x = scale * rng.standard_normal((n, d))
    excess = (x / scale) ** 2 - 1.0
    down = -logs / 2.25
    draws = np.column_stack([logs, x])
    return draws, np.column_stack([down[:, 0] + excess.sum(axis=1), down[:, 1:] + excess, -x / scale**2])


def banana(rng, n):
    behind = rng.standard_normal((n, 3))
    draws = behind * np.array([10.0, 1.0, 1.0])
    draws[:, 1] += 0.1 * (draws[:, 0] ** 2 - 100.0)
    scores = -behind
    scores[:, 0] = -draws[:, 0] / 100.0 + 0.2 * draws[:, 0] * behind[:, 1]
    return draws, scores


def effects(rng, n, d):
    """Effects around an unknown mean: mu, log tau, where tau is half Cauchy, d times theta_i ~ N(mu, tau^2)."""
    mu, tau, behind = rng.standard_normal(n), np.abs(rng.standard_cauchy(n)), rng.standard_normal((n, d))
    down = -behind / tau[:, None]
    of_tau = (behind**2 - 1.0).sum(axis=1) + 1.0 - 2.0 * tau**2 / (1.0 + tau**2)
    draws = np.column_stack([mu, np.log(tau), mu[:, None] + tau[:, None] * behind])
    return draws, np.column_stack([-mu - down.sum(axis=1), of_tau, down])


def log_scale(rng, n, d):
    """Logarithms of half-normal variables: an exponential tail below."""
    draws = np.log(np.abs(rng.standard_normal((n, d))))
    return draws, 1.0 - np.exp(2.0 * draws)


def log_gamma(rng, n, d):
    draws = np.log(rng.gamma(0.3, size=(n, d)))
    return draws, 0.3 - np.exp(draws)


def cauchy(rng, n, d):
    draws = rng.standard_cauchy((n, d))
    return draws, -2.0 * draws / (1.0 + draws**2)


def correlated_funnel(rng):
    """An exact chain: all normal variables behind the funnel are autoregressive."""
    behind = autoregressive(rng, 0.7, 500, 4)
    draws = np.column_stack([3.0 * behind[:, 0], np.exp(1.5 * behind[:, :1]) * behind[:, 1:]])
    return draws, funnel_scores(draws)
