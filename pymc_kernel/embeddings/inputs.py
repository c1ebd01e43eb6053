"""Users' inputs: checks, scales and default kernels."""

import numpy as np

from pymc_kernel.kernels import Gaussian, median_distance

_MEDIAN_POINTS = 500  # whose distances give the median: to 2 %, in milliseconds
_ROUNDING = 1e-12  # of the largest number of a column: what varies less is constant
_QUARTILE_DISTANCE = 1.349  # between the quartiles of a standard normal distribution


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
