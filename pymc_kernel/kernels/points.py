"""Checks of users' arrays and numbers, and the distances of points."""

from numbers import Real

import numpy as np
from scipy.spatial.distance import pdist
from scipy.special import ndtri

from pymc_kernel.linalg import ROUNDING

MAD_TO_SD = 1.0 / ndtri(0.75)  # standard deviation of a normal distribution over its median absolute deviation
SMALLEST, LARGEST = 1e-60, 1e60  # their fourth powers, as in curvatures, still fit into floating point


def check_between(*optional: str, high: float = 1.0, **numbers) -> None:
    """Raise where a named number does not lie between zero and ``high``; ``optional`` ones may be None."""
    for name, value in numbers.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (value is None and name in optional) and not (is_number and 0.0 < value < high):
            where = "be a positive number" if high == np.inf else f"lie between 0 and {high:g}"
            raise ValueError(f"{name} must {where}, got {value!r}.")


def check_whole(*optional: str, least: int = 1, **numbers) -> None:
    """Raise where a named number is not a whole one of ``least`` or more; ``optional`` ones may be None."""
    for name, value in numbers.items():
        if not (value is None and name in optional) and not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")


def as_numbers(values, name: str) -> np.ndarray:
    """Return ``values`` as a float array; raise a ``TypeError`` that names them if they are not real."""
    try:
        values = np.asarray(values)
        if values.dtype.kind in "biuf":
            return np.asarray(values, dtype=float)
    except ValueError:  # rows of different lengths
        pass
    raise TypeError(f"{name} must be an array of real numbers, got {values!r:.80}.")


def as_points(points, name: str = "points", finite: bool = True, num_dims: int | None = None) -> np.ndarray:
    """Return ``points`` as a contiguous float array (n, d); a vector becomes one column.

    A read-only array is copied, since Numba would compile all code anew for it. Raises ``TypeError`` for anything but
    an array of real numbers, ``ValueError`` for another shape, no points, no dimensions or another number than
    ``num_dims``, and, if ``finite``, for NaN and infinities.
    """
    points = as_numbers(points, name)
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(f"{name} must have shape (n, d) with n >= 1 and d >= 1, got {points.shape}.")
    if num_dims is not None and points.shape[1] != num_dims:
        raise ValueError(f"{name} has {points.shape[1]} dimensions (columns), others {num_dims}: they must agree.")
    if finite and not np.isfinite(points).all():
        bad = int((~np.isfinite(points)).any(axis=1).sum())
        raise ValueError(f"{name} has {bad} of {len(points)} rows with NaN or infinite values; drop or repair them.")
    return np.require(points, requirements=["C", "W"])


def check_magnitude(values: np.ndarray, name: str) -> None:
    """Raise where the numbers in a column spread so little or are so large that fourth powers under- or overflow."""
    largest, spread = np.abs(values).max(), np.ptp(values, axis=0)
    if largest > LARGEST:
        raise ValueError(f"{name} has numbers as large as {largest:.1g}; rescale them to less than {LARGEST:.0e}.")
    if ((spread > 0.0) & (spread < SMALLEST)).any():
        raise ValueError(f"{name} spreads over no more than {spread.min():.1g} in a column; rescale it.")


def as_weights(weights, size: int, name: str = "weights", signed: bool = False) -> np.ndarray:
    """Return weights (size,) that sum to one, equal for None; ``signed`` ones may be negative; raise if invalid."""
    if weights is None:
        return np.full(size, 1.0 / size)
    weights = as_numbers(weights, name)
    if weights.shape != (size,):
        raise ValueError(f"{name} must have shape ({size},), one per point, got {weights.shape}.")
    largest = np.abs(weights).max() or 1.0  # the sum of huge ones would be infinite
    if not (np.isfinite(largest) and (signed or (weights >= 0).all()) and (weights / largest).sum() > 0):
        raise ValueError(f"{name} must be finite{'' if signed else ', not negative'}, and sum to a positive number.")
    weights = weights / largest
    return weights / weights.sum()


def scales_of(points: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted means (d,) and standard deviations (d,) of ``points``; 1 in place of 0."""
    mean = np.average(points, axis=0, weights=weights)
    scale = np.sqrt(np.average((points - mean) ** 2, axis=0, weights=weights))
    # The computed spread of a constant column is rounding.
    return mean, np.where(scale > ROUNDING * np.abs(points).max(axis=0), scale, 1.0)


def robust_scales(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians (d,) and spreads (d,) from the quartiles, the standard deviation where these coincide.

    Robust: one simulation with extreme values must not shrink all others to a point.
    """
    low, middle, high = np.quantile(points, [0.25, 0.5, 0.75], axis=0)
    spread = MAD_TO_SD * (high - low) / 2.0
    return middle, np.where(spread > ROUNDING * np.abs(points).max(axis=0), spread, scales_of(points)[1])


def systematic(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``size`` indices in increasing order, as often as weights (n,) say to within one. O(n + size).

    Systematic resampling: unbiased, and of the usual schemes the one that varies least in practice (Douc, Cappe and
    Moulines 2005).
    """
    edges = np.cumsum(weights)
    places = (np.arange(size) + rng.random()) / size * edges[-1]
    # Where rounding puts a place beyond the last edge, the last one with weight.
    return np.minimum(np.searchsorted(edges, places, side="right"), np.flatnonzero(weights)[-1])


def median_distance(points, rng: np.random.Generator | None = None, max_points: int = 1000) -> float:
    """Return the median Euclidean distance between two of the points: the median heuristic.

    It is positive, in the units of the points. Coinciding pairs (the rejected proposals of a chain) count; where they
    are the majority, the median is taken over the others. Time and memory are O(min(n, max_points)^2), 4 MB at the
    default size. Raises ``ValueError`` for fewer than two points, non-finite values, points that all coincide, or a
    missing ``rng``.

    Parameters
    ----------
    points : array_like (n, d) or (n,)
        At least two rows.
    rng : numpy.random.Generator, optional
        Draws the subsample where there are more than ``max_points`` points; needed only then.
    max_points : int
        Up to here the median over all pairs is exact; above, it is that of a random subsample of this size.
    """
    points = as_points(points, finite=False)
    if points.shape[0] < 2:
        raise ValueError(f"points must have shape (n, d) with n >= 2, got {points.shape}.")
    if points.shape[0] > max_points:
        if rng is None:
            raise ValueError(f"{len(points)} points exceed {max_points=}: pass rng=numpy.random.default_rng(seed).")
        points = points[rng.choice(points.shape[0], size=max_points, replace=False)]
    distances = pdist(points)
    if not np.isfinite(distances).all():
        raise ValueError("points must be finite; remove rows with NaN or infinite values.")
    median = float(np.median(distances))
    if median == 0.0:
        distances = distances[distances > 0.0]
        if distances.size == 0:
            raise ValueError("all points coincide, so they have no length scale; give a number instead.")
        median = float(np.median(distances))
    return median
