"""What speaks against a posterior that was learned from simulations, in words for all methods that do."""

import warnings

import numpy as np
from scipy.spatial import KDTree

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.parallel import one_blas_thread

__all__ = ["findings", "typicality", "warn_of_findings"]

_OUTSIDE = 0.01  # of the simulations lie in emptier places than an observation that is still inside
_TYPICAL_POINTS, _NEIGHBORS, _FAR = 2000, 10, 10.0
_FEW = 30  # simulations with weight, below which a warning is due
_LARGE_ERROR = 0.3  # posterior standard deviations of learning error, above which a warning is due


def findings(typical: float, effective: float, learning_error: float, others: list[str]) -> list[str]:
    """Return what speaks against a posterior, in words.

    Parameters
    ----------
    typical : float
        From :func:`typicality`.
    effective : float
        Effective number of simulations that draws come from.
    learning_error : float
        Standard deviation of a posterior mean between fits to resampled simulations, in posterior ones.
    others : list of str
        What else was found; empty words are left out.
    """
    problems = []
    if typical < _OUTSIDE:
        problems.append(
            f"only {100 * typical:.1f} % of the simulations lie in places as empty as that of the observation, "
            "which is at the edge of what the model simulates, or outside"
        )
    if effective < _FEW:
        problems.append(f"the draws come from an effective number of {effective:.0f} simulations")
    if learning_error > _LARGE_ERROR:
        problems.append(
            f"its means differ by {learning_error:.2f} posterior standard deviations between fits to resampled "
            "simulations"
        )
    return problems + [words for words in others if words]


def warn_of_findings(problems: list[str], advice: str, stacklevel: int) -> None:
    """Give one warning of all that was found, if anything was."""
    if problems:
        warnings.warn(
            f"this posterior should not be trusted: {'; '.join(problems)}. {advice}", stacklevel=stacklevel + 1
        )


@one_blas_thread
def typicality(summaries: np.ndarray, observed: np.ndarray, rng: np.random.Generator) -> float:
    """Return the share of simulations whose tenth neighbor is at least as far off as the observation's.

    Distances are taken after whitening, so that a combination of ``summaries`` (n, q) that never occurs counts as far.
    """
    some = summaries[rng.choice(len(summaries), size=min(_TYPICAL_POINTS, len(summaries)), replace=False)]
    middle, spread = robust_scales(some)
    near = np.clip((some - middle) / spread, -_FAR, _FAR)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(near.T)))
    root = vectors / np.sqrt(np.maximum(values, max(1e-8 * values[-1], 1e-12)))
    tree = KDTree(near @ root)
    count = min(_NEIGHBORS, len(some) - 1)
    # A simulation is its own nearest neighbor, which the observation has not.
    others = tree.query(near @ root, k=count + 1)[0][:, -1]
    place = np.clip((observed - middle) / spread, -10.0 * _FAR, 10.0 * _FAR) @ root
    return float((others >= tree.query(place, k=[count])[0][0]).mean())
