"""Bandwidths from data. Imports NumPy, SciPy and ``kernels.points``."""

import numpy as np
from scipy.spatial.distance import pdist

from pymc_kernel.kernels.points import as_numbers

__all__ = ["median_distance"]


def median_distance(points, rng: np.random.Generator | None = None, max_points: int = 1000) -> float:
    """Return the median Euclidean distance between two of the points: the median heuristic.

    Parameters
    ----------
    points : array_like (n, d) or (n,)
        At least two rows. The result is in the units of these points.
    rng : numpy.random.Generator, optional
        Draws the subsample where there are more than ``max_points`` points; needed only then.
    max_points : int
        Up to here the median over all pairs is exact; above, it is that of a random subsample of this size.

    Returns
    -------
    float
        Positive. Coinciding pairs (the rejected proposals of a chain) count; where they are the majority,
        the median is taken over the others.

    Raises
    ------
    ValueError
        For fewer than two points, non-finite values, points that all coincide, or a missing ``rng``.

    Notes
    -----
    Time and memory O(min(n, max_points)^2): 4 MB at the default size.
    """
    points = as_numbers(points, "points")
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or points.shape[0] < 2:
        raise ValueError(f"points must have shape (n, d) with n >= 2, got {points.shape}.")
    if points.shape[0] > max_points:
        if rng is None:
            raise ValueError(
                f"{points.shape[0]} points are more than max_points={max_points}, so a subsample is drawn: "
                "pass rng=numpy.random.default_rng(seed), or raise max_points."
            )
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
