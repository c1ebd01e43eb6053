"""Minus log densities of one held-out case under mixtures of nearby residuals.

The same numbers as ``predictive.smoothed`` and ``mixture.log_normals`` give, up to rounding, without a call of LAPACK
for each residual. Imports NumPy and lower floors.
"""

import math

import numpy as np

from pymc_kernel.embeddings.adjustment import forward_substituted
from pymc_kernel.kernels.profiles import exp_in_place
from pymc_kernel.linalg import triangular_solution

__all__ = ["losses_overall", "losses_own"]


def _losses(logs, weights, outside, outside_weight):
    """Return minus the logs of mixtures (b,), of the logs (b, k) of their densities and of one outside."""
    top = logs.max(axis=1)
    logs -= top[:, None]
    exp_in_place(logs.ravel())
    inner = math.log1p(-outside_weight) + top + np.log(logs @ weights)
    return -np.logaddexp(inner, outside)


def losses_overall(residuals, weights, overall, truth, bandwidths, widest, outside, outside_weight):
    """Return minus the log density at ``truth`` (p,) for each bandwidth (b,), smoothed along the covariance of all.

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
    p = residuals.shape[1]
    effective = 1.0 / (weights @ weights)
    mean = weights @ residuals
    centered_t = (residuals - mean).T
    scatter = (centered_t * weights) @ centered_t.T
    scatter.flat[:: p + 1] += 1e-12 + 1e-9 * scatter.flat[:: p + 1]
    lean = p / (p + effective)
    factor = np.linalg.cholesky((1.0 - lean) * scatter + lean * overall)
    places, place = triangular_solution(factor, centered_t), triangular_solution(factor, truth - mean)
    log_volume = sum(map(math.log, factor.flat[:: p + 1]))
    # |place - pull x|^2 for all residuals x, as a product for all widths
    parts = np.empty((3, len(weights)))
    np.einsum("ij,ij->j", places, places, out=parts[0])
    np.matmul(place, places, out=parts[1])
    parts[2] = 1.0
    factors = np.empty((len(bandwidths), 3))
    for row, bandwidth in zip(factors, bandwidths, strict=True):
        width = min(bandwidth * (4.0 / (effective * (p + 2.0))) ** (1.0 / (p + 4.0)), widest)
        pull, precision = math.sqrt(1.0 - width**2), 1.0 / width**2
        row[0], row[1] = -0.5 * precision * pull**2, precision * pull
        row[2] = -0.5 * precision * (place @ place) - log_volume - p * math.log(width)
    return _losses(factors @ parts, weights, outside, outside_weight)


def losses_own(residuals, weights, covariances, truth, bandwidths, outside, outside_weight):
    """Return minus the log density at ``truth`` (p,) for each bandwidth, smoothed by covariances (p, p, k) of each.

    These are overwritten. Parameters and result otherwise as of :func:`losses_overall`.
    """
    p = residuals.shape[1]
    apart = (truth - residuals).T[:, None, :].copy()
    forward_substituted(covariances, apart)
    squared = np.einsum("aik,aik->k", apart, apart)
    log_volumes = np.log(np.einsum("aak->ak", covariances)).sum(axis=0)
    widths = bandwidths[:, None]
    logs = -0.5 * squared / widths**2 - log_volumes - p * np.log(widths)
    return _losses(logs, weights, outside, outside_weight)
