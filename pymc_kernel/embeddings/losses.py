"""Minus log densities of one held-out case under mixtures of nearby residuals, compiled.

The same numbers as ``predictive.smoothed`` and ``mixture.log_normals`` give, up to rounding: small systems of equations
by loops, where calls into LAPACK would cost more than the arithmetic. Imports NumPy, Numba and lower floors.
"""

import math

import numba
import numpy as np

from pymc_kernel.kernels.profiles import exp_in_place
from pymc_kernel.linalg import cholesky_in_place, solve_lower

__all__ = ["losses_overall", "losses_own"]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _loss(logs, weights, outside, outside_weight):
    """Return minus the log of a mixture with ``logs`` (k,) of its densities, which are overwritten, and one outside."""
    top = -np.inf
    for log in logs:
        top = max(top, log)
    for i in range(len(logs)):
        logs[i] -= top
    exp_in_place(logs)
    total = 0.0
    for i in range(len(logs)):
        total += weights[i] * logs[i]
    inner = math.log1p(-outside_weight) + top + math.log(total)
    high, low = max(inner, outside), min(inner, outside)
    return -(high + math.log1p(math.exp(low - high)))


@numba.njit(cache=True, nogil=True, error_model="numpy")
def losses_overall(residuals, weights, overall, truth, bandwidths, widest, outside, outside_weight):
    """Return minus the log density at ``truth`` (p,) for each bandwidth, smoothed along the covariance of all.

    Parameters
    ----------
    residuals, weights : ndarray (k, p), (k,)
        Weights of sum one.
    overall : ndarray (p, p)
        To which the covariance of few residuals is shrunk.
    widest : float
        Of the smoothing, in spreads of the residuals.
    outside, outside_weight : float
        Log density of what is mixed in, times its weight; the weight.
    """
    k, p = residuals.shape
    mean, effective = np.zeros(p), 0.0
    for i in range(k):
        effective += weights[i] * weights[i]
        for a in range(p):
            mean[a] += weights[i] * residuals[i, a]
    effective = 1.0 / effective
    centered_t, factor = np.empty((p, k)), np.zeros((p, p))
    for a in range(p):
        for i in range(k):
            centered_t[a, i] = residuals[i, a] - mean[a]
    for i in range(k):
        for a in range(p):
            for b in range(a + 1):
                factor[a, b] += weights[i] * centered_t[a, i] * centered_t[b, i]
    lean = p / (p + effective)
    for a in range(p):
        factor[a, a] += 1e-12 + 1e-9 * factor[a, a]
        for b in range(a + 1):
            factor[a, b] = (1.0 - lean) * factor[a, b] + lean * overall[a, b]
    cholesky_in_place(factor)
    place = np.empty(p)
    solve_lower(factor, truth - mean, place)
    log_volume = 0.0
    for a in range(p):
        log_volume += math.log(factor[a, a])
        for b in range(a):
            for i in range(k):
                centered_t[a, i] -= factor[a, b] * centered_t[b, i]
        for i in range(k):
            centered_t[a, i] /= factor[a, a]
    out, logs = np.empty(len(bandwidths)), np.empty(k)
    for c in range(len(bandwidths)):
        width = min(bandwidths[c] * (4.0 / (effective * (p + 2.0))) ** (1.0 / (p + 4.0)), widest)
        pull = math.sqrt(1.0 - width * width)
        for i in range(k):
            logs[i] = 0.0
        for a in range(p):
            for i in range(k):
                logs[i] += (place[a] - pull * centered_t[a, i]) ** 2
        for i in range(k):
            logs[i] = -0.5 * logs[i] / (width * width) - log_volume - p * math.log(width)
        out[c] = _loss(logs, weights, outside, outside_weight)
    return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def losses_own(residuals, weights, factors, truth, bandwidths, outside, outside_weight):
    """Return minus the log density at ``truth`` (p,) for each bandwidth, smoothed by factors (k or 1, p, p) of each.

    Parameters and result otherwise as of :func:`losses_overall`.
    """
    k, p = residuals.shape
    squared, log_volumes, apart = np.empty(k), np.empty(k), np.empty(p)
    for i in range(k):
        for a in range(p):
            apart[a] = truth[a] - residuals[i, a]
        factor = factors[i]
        solve_lower(factor, apart, apart)
        squared[i] = log_volumes[i] = 0.0
        for a in range(p):
            squared[i] += apart[a] * apart[a]
            log_volumes[i] += math.log(factor[a, a])
    out, logs = np.empty(len(bandwidths)), np.empty(k)
    for c in range(len(bandwidths)):
        for i in range(k):
            logs[i] = -0.5 * squared[i] / bandwidths[c] ** 2 - log_volumes[i] - p * math.log(bandwidths[c])
        out[c] = _loss(logs, weights, outside, outside_weight)
    return out
