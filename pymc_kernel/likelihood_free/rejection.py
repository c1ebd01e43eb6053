"""Rejection ABC with regression adjustment, on arrays."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points
from pymc_kernel.parallel import one_blas_thread


class Accepted(NamedTuple):
    """The simulations nearest to the data."""

    index: np.ndarray  #: (k,), the nearest first
    weights: np.ndarray  #: (k,), of the Epanechnikov kernel, sum one
    epsilon: float  #: the largest distance among them


def rejection(summaries: np.ndarray, observed: np.ndarray, quantile: float) -> Accepted:
    """Return the share ``quantile`` in (0, 1] of simulations nearest to the observed summaries, at least two.

    The ``summaries`` (n, q) are of comparable scales, those ``observed`` are (q,).
    """
    summaries, observed = _checked(summaries, observed)
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile must be above 0 and at most 1, got {quantile!r}.")
    distances = np.sqrt(((summaries - observed) ** 2).sum(axis=1))
    count = min(max(round(quantile * len(distances)), 2), len(distances))
    index = np.argpartition(distances, count - 1)[:count]
    index = index[np.argsort(distances[index], kind="stable")]
    epsilon = float(distances[index[-1]])
    # The kernel's edge lies a little beyond the farthest, which would otherwise have no weight.
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

    Beaumont, Zhang and Balding (2002), equations 4 to 6: theta_i - (s_i - s)' beta with beta by weighted least squares;
    where there are fewer simulations than coefficients the solution of least norm is taken. Accepted simulations have
    ``latent`` (k, d), on a scale without bounds, ``summaries`` (k, q) and ``weights`` (k,); ``observed`` is (q,).
    """
    latent, (summaries, observed) = as_points(latent, "latent"), _checked(summaries, observed)
    if len(latent) != len(summaries) or np.shape(weights) != (len(latent),):
        sizes = len(latent), len(summaries), np.shape(weights)
        raise ValueError(f"latent, summaries and weights must have one row each a simulation, got {sizes}.")
    moves = summaries - observed
    root = np.sqrt(weights)[:, None]
    design = np.hstack([np.ones((len(latent), 1)), moves]) * root
    with np.errstate(over="ignore", invalid="ignore"):
        moved = latent - moves @ np.linalg.lstsq(design, latent * root)[0][1:]
    if not np.isfinite(moved).all():
        raise ValueError("latent is too large for floating point once adjusted: rescale latent and summaries.")
    return moved
