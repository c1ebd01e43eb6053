"""Whether places lie among simulations."""

import numpy as np
from scipy.spatial import KDTree

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.parallel import one_blas_thread

OUTSIDE = 0.01  # smallest share of simulations in sparser regions than a place that is among them
_TYPICAL_POINTS, _NEIGHBORS = 2000, 10
_MAX_SCALED_DISTANCE = 10.0  # robust z-scores of simulations are clipped there; those of places at ten times that


@one_blas_thread
def typicality(simulated: np.ndarray, places: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the shares (k,) of simulations whose tenth neighbor is at least as far away as that of each place (k, q).

    Distances are taken after whitening, so that a combination of ``simulated`` (n, q) that never occurs counts as far.
    """
    some = simulated[rng.choice(len(simulated), size=min(_TYPICAL_POINTS, len(simulated)), replace=False)]
    middle, spread = robust_scales(some)
    near = np.clip((some - middle) / spread, -_MAX_SCALED_DISTANCE, _MAX_SCALED_DISTANCE)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(near.T)))
    root = vectors / np.sqrt(np.maximum(values, max(1e-8 * values[-1], 1e-12)))
    tree = KDTree(near @ root)
    count = min(_NEIGHBORS, len(some) - 1)
    # A simulation is its own nearest neighbor, which a place has not.
    others = np.sort(tree.query(near @ root, k=count + 1)[0][:, -1])
    scaled = np.clip((places - middle) / spread, -10.0 * _MAX_SCALED_DISTANCE, 10.0 * _MAX_SCALED_DISTANCE) @ root
    return 1.0 - np.searchsorted(others, tree.query(scaled, k=[count])[0][:, 0]) / len(others)
