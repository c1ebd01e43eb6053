"""Reasons to distrust a posterior that was learned from simulations, in words."""

import numpy as np
from scipy.spatial import KDTree

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.parallel import one_blas_thread

__all__ = ["LARGE_ERROR", "findings", "typicality"]

_OUTSIDE = 0.01  # smallest share of simulations in sparser regions than the observation that needs no warning
_TYPICAL_POINTS, _NEIGHBORS = 2000, 10
_MAX_SCALED_DISTANCE = 10.0  # robust z-scores of simulations are clipped there; the observation's at ten times that
_FEW_EFFECTIVE = 30  # effective number of simulations, below which a warning is given
LARGE_ERROR = 0.3  # learning error in posterior standard deviations, above which a warning is given


def findings(typical: float, effective: float, learning_error: float, others: list[str]) -> list[str]:
    """Return reasons to distrust a posterior, in words.

    Parameters
    ----------
    typical : float
        From :func:`typicality`.
    effective : float
        Effective number of simulations that draws come from.
    learning_error : float
        Standard deviation of a posterior mean between fits to resampled simulations, in posterior ones.
    others : list of str
        Further reasons; empty ones are left out.
    """
    problems = []
    if typical < _OUTSIDE:
        problems.append(
            f"only {100 * typical:.1f} % of the simulations lie in regions as sparse as that of the observation, "
            "which is at the edge of what the model simulates, or outside"
        )
    if effective < _FEW_EFFECTIVE:
        problems.append(f"the draws come from an effective number of {effective:.0f} simulations")
    if learning_error > LARGE_ERROR:
        problems.append(
            f"its means differ by {learning_error:.2f} posterior standard deviations between fits to resampled "
            "simulations"
        )
    return problems + [words for words in others if words]


@one_blas_thread
def typicality(summaries: np.ndarray, observed: np.ndarray, rng: np.random.Generator) -> float:
    """Return the share of simulations whose tenth neighbor is at least as far away as that of the observation.

    Distances are taken after whitening, so that a combination of ``summaries`` (n, q) that never occurs counts as far.
    """
    some = summaries[rng.choice(len(summaries), size=min(_TYPICAL_POINTS, len(summaries)), replace=False)]
    middle, spread = robust_scales(some)
    near = np.clip((some - middle) / spread, -_MAX_SCALED_DISTANCE, _MAX_SCALED_DISTANCE)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(near.T)))
    root = vectors / np.sqrt(np.maximum(values, max(1e-8 * values[-1], 1e-12)))
    tree = KDTree(near @ root)
    count = min(_NEIGHBORS, len(some) - 1)
    # A simulation is its own nearest neighbor, which the observation has not.
    others = tree.query(near @ root, k=count + 1)[0][:, -1]
    place = np.clip((observed - middle) / spread, -10.0 * _MAX_SCALED_DISTANCE, 10.0 * _MAX_SCALED_DISTANCE) @ root
    return float((others >= tree.query(place, k=[count])[0][0]).mean())
