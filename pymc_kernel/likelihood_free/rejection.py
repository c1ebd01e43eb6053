"""Rejection ABC with regression adjustment, on arrays. Imports NumPy."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points
from pymc_kernel.parallel import one_blas_thread

__all__ = ["Accepted", "regression_adjusted", "rejection", "scale_adjusted"]

_SMALL_SQUARE = 1e-4  # of the mean squared residual, added to all before their logarithm
_ROUNDING = 1e-12  # of the largest singular value: smaller ones are rounding
_MOST_LOG_RATIO = 2.0  # by which a residual's spread may be changed


class Accepted(NamedTuple):
    """The simulations nearest to the data."""

    index: np.ndarray
    """(k,), the nearest first."""
    weights: np.ndarray
    """(k,), of the Epanechnikov kernel, sum one."""
    epsilon: float
    """The largest distance among them."""


def rejection(summaries: np.ndarray, observed: np.ndarray, quantile: float) -> Accepted:
    """Return the share ``quantile`` of simulations whose summaries are nearest to the observed ones.

    Parameters
    ----------
    summaries : ndarray (n, q)
        Of comparable scales.
    observed : ndarray (q,)
    quantile : float
        In (0, 1]; at least two are accepted.
    """
    summaries, observed = _checked(summaries, observed)
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile must be above 0 and at most 1, got {quantile!r}.")
    distances = np.sqrt(((summaries - observed) ** 2).sum(axis=1))
    count = min(max(round(quantile * len(distances)), 2), len(distances))
    index = np.argpartition(distances, count - 1)[:count]
    index = index[np.argsort(distances[index], kind="stable")]
    epsilon = float(distances[index[-1]])
    # The farthest would have no weight at all: the kernel's edge lies a little beyond it.
    ratio = distances[index] / (epsilon * (1.0 + 1.0 / count)) if epsilon > 0.0 else np.zeros(count)
    weights = 1.0 - ratio**2
    return Accepted(index, weights / weights.sum(), epsilon)


def _checked(summaries, observed):
    """Return summaries (n, q) and (q,) as floats; errors where they do not fit or are not finite."""
    summaries, observed = as_points(summaries, "summaries"), as_numbers(observed, "observed")
    if observed.shape != summaries.shape[1:] or not np.isfinite(observed).all():
        raise ValueError(f"observed must be {summaries.shape[1]} finite numbers, got shape {observed.shape}.")
    return summaries, observed


@one_blas_thread
def regression_adjusted(
    latent: np.ndarray, summaries: np.ndarray, observed: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Return parameters (k, d) moved to the observed summaries by a local linear regression.

    Parameters
    ----------
    latent : ndarray (k, d)
        Of the accepted simulations, on a scale without bounds.
    summaries : ndarray (k, q)
    observed : ndarray (q,)
    weights : ndarray (k,)

    Notes
    -----
    Beaumont, Zhang and Balding (2002), equations 4 to 6: theta_i - (s_i - s)' beta with beta by weighted least squares.
    Where there are fewer simulations than coefficients the solution of least norm is taken.
    """
    latent, moves = _checked_pairs(latent, summaries, observed, weights)
    return _finite(_adjusted(latent, moves, weights)[0])


@one_blas_thread
def scale_adjusted(latent: np.ndarray, summaries: np.ndarray, observed: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return parameters (k, d) moved to the observed summaries, with residuals scaled to the spread there.

    Arguments as for :func:`regression_adjusted`.

    Notes
    -----
    Blum and Francois (2010), section 3.2, with a linear regression of log squared residuals for the spread: residuals
    are multiplied by exp of half the difference of its values at the observation and at the simulation. Residuals are
    from regressions without the simulation itself.
    """
    latent, moves = _checked_pairs(latent, summaries, observed, weights)
    moved, residuals, leverage = _adjusted(latent, moves, weights)
    center = moved - residuals
    # Left out of their own regression, residuals have the spread of what is predicted.
    residuals = residuals / np.maximum(1.0 - leverage, 0.5)[:, None]
    squares = residuals**2
    # A residual near zero has a logarithm without bound; the mean square is the unit.
    logs = np.log(squares + _SMALL_SQUARE * (weights @ squares) + np.finfo(float).tiny)
    log_ratio = 0.5 * (_adjusted(logs, moves, weights)[0] - logs)
    return _finite(center + residuals * np.exp(np.clip(log_ratio, -_MOST_LOG_RATIO, _MOST_LOG_RATIO)))


def _adjusted(values, moves, weights):
    """Return values (k, d) moved along the slopes of a weighted linear regression, residuals, and leverages (k,)."""
    root = np.sqrt(weights)[:, None]
    design = np.hstack([np.ones((len(values), 1)), moves])
    left, sizes, right = np.linalg.svd(design * root, full_matrices=False)
    kept = sizes > _ROUNDING * sizes[0]
    left, sizes, right = left[:, kept], sizes[kept], right[kept]
    with np.errstate(over="ignore", invalid="ignore"):
        coefficients = right.T @ ((left.T @ (values * root)) / sizes[:, None])
        return values - moves @ coefficients[1:], values - design @ coefficients, (left**2).sum(axis=1)


def _checked_pairs(latent, summaries, observed, weights):
    """Return parameters, and how far the summaries are from the observed ones."""
    latent, (summaries, observed) = as_points(latent, "latent"), _checked(summaries, observed)
    if len(latent) != len(summaries) or np.shape(weights) != (len(latent),):
        raise ValueError(
            f"latent, summaries and weights must have one row each a simulation, got {len(latent)}, {len(summaries)} "
            f"and weights of shape {np.shape(weights)}."
        )
    return latent, summaries - observed


def _finite(moved):
    if not np.isfinite(moved).all():
        raise ValueError("latent is too large for floating point once adjusted: rescale latent and summaries.")
    return moved
