"""Length scale and regularization by cross-validated score-matching loss."""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from pymc_kernel.kernels import median_distance
from pymc_kernel.kernels.points import as_numbers
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure, checked_sample

_LENGTH_SCALES = (0.5, 1.0, 2.0, 4.0)  # times the median distance
_REGULARIZATIONS = tuple(10.0 ** np.arange(-7, 2))


@dataclass(frozen=True, eq=False)
class Validation:
    """The result of cross-validation."""

    estimator: object  #: the given one with the best length scale and regularization
    loss: float  #: its mean loss on held-out points, up to a constant of the sample
    losses: np.ndarray  #: (length scales, regularizations)
    length_scales: np.ndarray
    regularizations: np.ndarray


@one_blas_thread
def cross_validate(
    estimator, x, weights=None, *, length_scales=None, regularizations=_REGULARIZATIONS, num_folds: int = 5,
    max_basis: int = 200, rng: np.random.Generator | None = None,
) -> Validation:  # fmt: skip
    """Return the estimator with the length scale and regularization of the smallest held-out loss.

    The loss is quadratic in the coefficients, so each fold enters through its C and b alone, made once a length scale;
    one eigendecomposition a fold then serves all regularizations. O(n m^2 + folds m^3) a length scale.

    Parameters
    ----------
    estimator : Lite, Finite or Nystrom
    x : array_like (n, d)
        In the order of time: the folds are blocks of consecutive rows, because neighbors in a chain are alike and
        random folds would choose the narrowest kernel.
    weights : array_like (n,), optional
    length_scales : sequence of float, optional
        Candidates; 0.5, 1, 2 and 4 times the median distance by default.
    regularizations : sequence of float
    num_folds : int
    max_basis : int
        Coefficients used for the choice, at most: basis points, features for ``Finite``, d a basis point for
        ``Nystrom``. The fit afterwards uses its own number.
    rng : numpy.random.Generator, optional
    """
    if not isinstance(estimator, ScoreMatching) or not hasattr(estimator, "system"):
        raise TypeError(f"estimator must be a Lite, Finite or Nystrom, got {type(estimator).__name__}.")
    x, weights = checked_sample(x, weights)
    if not 2 <= num_folds <= len(x):
        raise ValueError(f"num_folds must lie between 2 and the number of points, {len(x)}, got {num_folds}.")
    folds = [f for f in np.array_split(np.arange(len(x)), num_folds) if weights[f].sum() > 0.0]
    if len(folds) < 2:
        raise ValueError("weights are zero in all folds but one: there is nothing to hold out.")
    rng = np.random.default_rng(0) if rng is None else rng
    if length_scales is None:
        length_scales = np.array(_LENGTH_SCALES) * median_distance(np.unique(x, axis=0), rng)
    length_scales = _candidates(length_scales, "length_scales")
    regularizations = _candidates(regularizations, "regularizations")
    seed = int(rng.integers(2**63))
    base = base_measure(estimator.base, x, weights)
    losses = np.empty((len(length_scales), len(regularizations)))
    limited = estimator.limited(max_basis, x.shape[1])
    for row, length_scale in enumerate(length_scales):
        candidate = replace(limited, kernel=replace(estimator.kernel, length_scale=length_scale))
        # The same features or basis points for every length scale, as far as they can be the same.
        candidate, basis = candidate.prepare(x, np.random.default_rng(seed))
        with np.errstate(over="ignore", invalid="ignore"):
            penalty = candidate.penalty_matrix(basis)
            systems = [candidate.system(x[f], weights[f] / weights[f].sum(), basis, base) for f in folds]
            losses[row] = _path(systems, [weights[f].sum() for f in folds], penalty, regularizations)
    losses[np.isnan(losses)] = np.inf
    if not np.isfinite(losses).any():
        raise ValueError("no loss is a number: rescale x, or give length_scales nearer to the distances of its points.")
    best = np.unravel_index(np.argmin(losses), losses.shape)
    kernel = replace(estimator.kernel, length_scale=float(length_scales[best[0]]))
    chosen = replace(estimator, kernel=kernel, regularization=float(regularizations[best[1]]))
    return Validation(chosen, float(losses[best]), losses, length_scales, regularizations)


def _candidates(values, name):
    values = as_numbers(values, name)
    if values.ndim != 1 or not values.size or not ((values > 0.0) & (values < np.inf)).all():
        raise ValueError(f"{name} must be positive numbers, at least one, got {values}.")
    return values


def _path(systems, shares, penalty, regularizations):
    """Return the mean held-out loss a'C a / 2 - b'a for every regularization; NaN where numbers are too large."""
    total_curvature = sum(s * c for s, (c, _) in zip(shares, systems, strict=True))
    total_slope = sum(s * b for s, (_, b) in zip(shares, systems, strict=True))
    losses = np.zeros(len(regularizations))
    size = 1.0 if penalty is None else np.trace(penalty)
    if not (np.isfinite(total_curvature).all() and np.isfinite(total_slope).all() and 0.0 < size < np.inf):
        return np.full(len(regularizations), np.nan)
    if penalty is not None:
        penalty = penalty + 1e-10 * size / len(penalty) * np.eye(len(penalty))
    for share, (curvature, slope) in zip(shares, systems, strict=True):
        rest = (total_curvature - share * curvature) / (1.0 - share)
        values, vectors = eigh(rest, penalty)
        projected = vectors.T @ ((total_slope - share * slope) / (1.0 - share))
        inside = vectors.T @ curvature @ vectors
        held_out = vectors.T @ slope
        coefficients = projected[:, None] / (np.maximum(values, 0.0)[:, None] + regularizations)
        losses += share * (0.5 * (coefficients * (inside @ coefficients)).sum(axis=0) - held_out @ coefficients)
    return losses
