"""Users' inputs: checks, default kernels, and whether places lie among simulations."""

import numpy as np
from scipy.spatial import KDTree

from pymc_kernel.kernels import Gaussian, median_distance
from pymc_kernel.kernels.points import robust_scales
from pymc_kernel.parallel import one_blas_thread

_MEDIAN_POINTS = 500  # whose distances give the median: to 2 %, in milliseconds
OUTSIDE = 0.01  # a place is outside if fewer than this share of simulations are in as sparse regions
_TYPICAL_POINTS, _NEIGHBORS = 2000, 10
MAX_SCALED_DISTANCE = 10.0  # robust z-scores at which simulations and observations are clipped


def check_pairs(**samples) -> None:
    """Raise where two named samples differ in their numbers of rows."""
    (name, first), (other, second) = samples.items()
    if len(first) != len(second):
        raise ValueError(f"{name} has {len(first)} rows and {other} {len(second)}: they must be pairs, one row each.")


def resolved(kernel, points: np.ndarray, rng: np.random.Generator):
    """Return a user's kernel with numbers for its length scales; one without ``resolve`` as it is."""
    if not callable(kernel) or not hasattr(kernel, "diagonal"):
        raise TypeError(f"{type(kernel).__name__} is no kernel: it must give kernel(x, y) and kernel.diagonal(x).")
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
    """Return a user's kernel with numeric length scales; for None a Gaussian with ``median_scales``."""
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
    # A simulation is its own nearest neighbor; a place is not one of the simulations.
    others = np.sort(tree.query(near @ root, k=count + 1)[0][:, -1])
    scaled = np.clip((places - middle) / spread, -10.0 * MAX_SCALED_DISTANCE, 10.0 * MAX_SCALED_DISTANCE) @ root
    return 1.0 - np.searchsorted(others, tree.query(scaled, k=[count])[0][:, 0]) / len(others)
