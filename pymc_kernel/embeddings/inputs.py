"""Users' inputs: checks, scales, default kernels, and whether places lie among simulations."""

import numpy as np
from scipy.spatial import KDTree

from pymc_kernel.kernels import Gaussian, median_distance
from pymc_kernel.parallel import one_blas_thread

_MEDIAN_POINTS = 500  # whose distances give the median: to 2 %, in milliseconds
_ROUNDING = 1e-12  # of the largest number of a column: what varies less is constant
_QUARTILE_DISTANCE = 1.349  # between the quartiles of a standard normal distribution
OUTSIDE = 0.01  # smallest share of simulations in sparser regions than a place that is among them
_TYPICAL_POINTS, _NEIGHBORS = 2000, 10
MAX_SCALED_DISTANCE = 10.0  # robust z-scores at which simulations and observations are clipped


def check_pairs(**samples) -> None:
    """Raise where two named samples differ in their numbers of rows."""
    (name, first), (other, second) = samples.items()
    if len(first) != len(second):
        raise ValueError(f"{name} has {len(first)} rows and {other} {len(second)}: they must be pairs, one row each.")


def signed_weights(weights, size: int, name: str) -> np.ndarray:
    """Return ``weights`` (size,) that sum to one, equal ones for None; they may be negative."""
    if weights is None:
        return np.full(size, 1.0 / size)
    weights = np.asarray(weights, dtype=float)
    if weights.shape != (size,) or not np.isfinite(weights).all():
        raise ValueError(f"{name} must be {size} finite numbers, one per point, got shape {weights.shape}.")
    total = weights.sum()
    if not total > 0.0:
        raise ValueError(f"{name} sum to {total:g}; they must sum to a positive number.")
    return weights / total


def scales_of(points: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return weighted means (d,) and standard deviations (d,) of ``points``; 1 in place of 0."""
    mean = np.average(points, axis=0, weights=weights)
    scale = np.sqrt(np.average((points - mean) ** 2, axis=0, weights=weights))
    # The computed spread of a constant column is rounding.
    return mean, np.where(scale > _ROUNDING * np.abs(points).max(axis=0), scale, 1.0)


def robust_scales(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return medians (d,) and spreads (d,) from the quartiles, the standard deviation where these coincide.

    Robust: one simulation with extreme values must not shrink all others to a point.
    """
    low, middle, high = np.quantile(points, [0.25, 0.5, 0.75], axis=0)
    spread = (high - low) / _QUARTILE_DISTANCE
    return middle, np.where(spread > _ROUNDING * np.abs(points).max(axis=0), spread, scales_of(points)[1])


def resolved(kernel, points: np.ndarray, rng: np.random.Generator):
    """Return a user's kernel with numbers for its length scales; one without ``resolve`` as it is."""
    if not callable(kernel) or not hasattr(kernel, "diagonal"):
        raise TypeError(
            f"{type(kernel).__name__} is no kernel: it must give Gram matrices, kernel(x, y), and kernel.diagonal(x)."
        )
    return kernel.resolve(points, rng) if hasattr(kernel, "resolve") else kernel


def median_scales(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a length scale for each coordinate: its spread times the median distance of the scaled points."""
    _, scale = robust_scales(points)
    scaled = points / scale
    if len(scaled) > _MEDIAN_POINTS:
        scaled = scaled[rng.choice(len(scaled), size=_MEDIAN_POINTS, replace=False)]
    if (scaled == scaled[0]).all():
        return scale
    return scale * median_distance(scaled, rng, _MEDIAN_POINTS)


def latent_kernel(kernel, points: np.ndarray, rng: np.random.Generator):
    """Return a user's kernel with its numbers; for None Gaussian at the median distance, spread by spread."""
    return Gaussian(median_scales(points, rng)) if kernel is None else resolved(kernel, points, rng)


@one_blas_thread
def typicality(simulated: np.ndarray, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the shares (k,) of simulations whose tenth neighbor is at least as far away as that of each place (k, q).

    Distances are taken after whitening, so that a combination of ``simulated`` (n, q) that never occurs counts as far.
    """
    some = simulated[rng.choice(len(simulated), size=min(_TYPICAL_POINTS, len(simulated)), replace=False)]
    middle, spread = robust_scales(some)
    near = np.clip((some - middle) / spread, -MAX_SCALED_DISTANCE, MAX_SCALED_DISTANCE)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(near.T)))
    root = vectors / np.sqrt(np.maximum(values, max(1e-8 * values[-1], 1e-12)))
    tree = KDTree(near @ root)
    count = min(_NEIGHBORS, len(some) - 1)
    # A simulation is its own nearest neighbor, which a place has not.
    others = np.sort(tree.query(near @ root, k=count + 1)[0][:, -1])
    scaled = np.clip((places - middle) / spread, -10.0 * MAX_SCALED_DISTANCE, 10.0 * MAX_SCALED_DISTANCE) @ root
    return 1.0 - np.searchsorted(others, tree.query(scaled, k=[count])[0][:, 0]) / len(others)
