"""How far a synthetic likelihood's posterior is off where summaries are not normal.

A draw comes with the simulations that made its estimate. They estimate the likelihood by a kernel, too, which assumes
nothing; the normal density, seen through the same kernel, differs from that where summaries are not normal. The ratio
of the two reweights the draws: what that does to a mean, a spread or a quantile is its error.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from pymc_kernel.likelihood_free.estimates import log_kernel_abc
from pymc_kernel.linalg import definite_cholesky
from pymc_kernel.parallel import one_blas_thread

_NARROWEST = 0.2  # of the spread of the summaries: what a kernel hides of a skewness by then is a twentieth
_QUANTILES = (0.05, 0.95)
_BATCHES = 20  # of consecutive draws, for standard errors of chains
_FEWEST_DRAWS = 5 * _BATCHES
_LOG_2PI = np.log(2.0 * np.pi)


class NormalityErrors(NamedTuple):
    """What not normal summaries do to a posterior; rows of (4, d) are mean, spread, 5 % and 95 % quantile."""

    # How far the true ones lie above the posterior's, in its standard deviations; of the spread, log of true over
    # posterior's.
    moved: np.ndarray
    errors: np.ndarray  # standard errors


@one_blas_thread
def normality_errors(
    positions: np.ndarray, simulated: list[np.ndarray], observed: np.ndarray
) -> NormalityErrors | None:
    """Return the errors of the posterior of a synthetic likelihood; None where they cannot be known.

    Of draws ``positions`` (n, d), those of a chain in their order, and the summaries ``simulated`` (m, q) behind the
    estimate of each. None for fewer than a hundred draws, a coordinate that never moved, and summaries with a singular
    covariance.

    The kernel is normal, with the mean covariance of the summaries times h^2. For normal summaries of dimension q at
    their mean its estimate has the relative variance ((1 + h^-2)^2 / (1 + 2 h^-2))^(q / 2) / m - 1 / m; h is as small
    as keeps that at one. Errors are smaller than they would be without a kernel, and for draws that do not reach the
    true posterior.
    """
    if len(positions) < _FEWEST_DRAWS or not np.ptp(positions, axis=0).all():
        return None
    means = np.array([rows.mean(axis=0) for rows in simulated])
    covariances = np.array([np.atleast_2d(np.cov(rows.T)) for rows in simulated])
    blur = _relative_width(len(observed), min(map(len, simulated))) ** 2 * covariances.mean(axis=0)
    factor = definite_cholesky(blur)
    if factor is None:
        return None
    log_kernel = np.array([log_kernel_abc(rows, observed, factor, len(rows)) for rows in simulated])
    roots = np.linalg.cholesky(covariances + blur)
    scaled = np.linalg.solve(roots, (observed - means)[:, :, None])[:, :, 0]
    log_volumes = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    log_ratio = log_kernel + 0.5 * (scaled**2).sum(axis=1) + log_volumes + 0.5 * len(observed) * _LOG_2PI
    if not np.isfinite(log_ratio).any():
        return None
    return _moved(np.exp(log_ratio - log_ratio.max()), positions)


def _relative_width(width, count):
    """Return the bandwidth h in spreads of the summaries."""

    def excess(h):
        return width * (np.log1p(h**-2) - 0.5 * np.log1p(2.0 * h**-2)) - np.log1p(count)

    return _NARROWEST if excess(_NARROWEST) < 0.0 else brentq(excess, _NARROWEST, 1e3)


def _moved(weights, positions):
    """Return what weights (n,) do, with standard errors by leaving out batches of consecutive draws."""
    z = (positions - positions.mean(axis=0)) / positions.std(axis=0)

    def moved(left_out=()):
        rest = np.delete(z, left_out, axis=0)
        return _statistics(rest, np.delete(weights, left_out)) - _statistics(rest, np.ones(len(rest)))

    without = [moved(batch) for batch in np.array_split(np.arange(len(z)), _BATCHES)]
    return NormalityErrors(moved(), np.std(without, axis=0) * np.sqrt(_BATCHES - 1.0))


def _statistics(z, weights):
    """Return means, log spreads and quantiles (4, d) of weighted draws (n, d)."""
    shares = weights / weights.sum()
    mean = shares @ z
    order = np.argsort(z, axis=0)
    levels, values = shares[order].cumsum(axis=0), np.take_along_axis(z, order, axis=0)
    ends = [[np.interp(q, levels[:, j], values[:, j]) for j in range(z.shape[1])] for q in _QUANTILES]
    return np.array([mean, 0.5 * np.log(shares @ (z - mean) ** 2), *ends])
