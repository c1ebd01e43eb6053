"""Kernel Stein discrepancies of draws from the distribution whose scores are given."""

import numpy as np

from pymc_kernel.kernels import InverseMultiquadric
from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.kernels.points import LARGEST
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.draws import ScoredChains, as_chains, merge_repeats, standardize


def default_kernel() -> RadialKernel:
    """Return the inverse multiquadric of length scale one, for standardized coordinates.

    Unlike the Gaussian, whose discrepancy can vanish along draws that run away, it controls convergence in
    distribution, in every dimension (Gorham and Mackey 2017).
    """
    return InverseMultiquadric(1.0)


def prepared(chains: ScoredChains, kernel, how: str, rng=None) -> tiles.Stein:
    """Return standardized draws and scores ready for the compiled functions."""
    draws, scores = standardize(chains.draws, chains.scores, how)
    kernel = default_kernel() if kernel is None else kernel.resolve(draws, rng or np.random.default_rng(0))
    stein = tiles.prepare(draws, scores, kernel)
    if not min(np.sqrt(stein.factor), stein.inverse.min()) > 1.0 / LARGEST:
        raise ValueError(f"length_scale is above {LARGEST:.0e} in units of the draws: give a smaller one.")
    largest = max(np.abs(stein.points).max(), np.abs(stein.scores).max(), np.sqrt(stein.factor), stein.inverse.max())
    if not largest < LARGEST:
        raise ValueError(f"draws or scores reach {largest:.1g} length_scales; rescale them to less than {LARGEST:.0e}.")
    return stein


@one_blas_thread
def ksd_squared(draws, scores, kernel=None, *, statistic: str = "V", how: str = "straighten") -> float:
    """Return the squared kernel Stein discrepancy.

    It is in standardized coordinates: a number to compare with its null distribution, see :func:`ksd_test`. O(n^2 d)
    time on all cores, O(n d) memory. Chwialkowski, Strathmann and Gretton (2016); Liu, Lee and Jordan (2016); Gorham
    and Mackey (2017).

    Parameters
    ----------
    draws, scores : array_like (n, d) or (chain, draw, d)
        Points, and the gradient of the log density of the target there (its constant does not matter).
    kernel : radial kernel of ``pymc_kernel.kernels``, optional
        In standardized coordinates; :func:`default_kernel` by default.
    statistic : {"V", "U"}
        "V" averages over all pairs and is never negative; "U" leaves out pairs of a draw with itself (and its repeats)
        and has expectation zero for independent draws from the target.
    how : {"straighten", "whiten", "scale", "none"}
        Coordinates, see :func:`standardize`. The discrepancy depends on them.
    """
    if statistic not in ("V", "U"):
        raise ValueError(f'statistic must be "V" or "U", got {statistic!r}.')
    chains = merge_repeats(as_chains(draws, scores))
    stein = prepared(chains, kernel, how)
    n, weights = len(chains.draws), chains.weights
    total = tiles.total(stein) if (weights == 1.0).all() else tiles.coordinate_sums(stein, weights).sum()
    if statistic == "V":
        return float(total / n**2)
    squares = weights**2
    return float((total - squares @ tiles.diagonal(stein).sum(axis=1)) / (n**2 - squares.sum()))


@one_blas_thread
def stein_matrix(draws, scores, kernel=None, *, how: str = "straighten") -> np.ndarray:
    """Return the Stein kernel of all pairs, (n, n): for small n, where the matrix itself is wanted.

    Its mean is ``ksd_squared``: repeated draws have the mean of their scores, and count once for the coordinates.
    """
    chains = as_chains(draws, scores)
    merged = merge_repeats(chains)  # whose coordinates a discrepancy has
    stein, m = prepared(merged, kernel, how), len(merged.draws)
    matrix = tiles.fill(stein, slice(0, m), 0, np.empty((m, m)))
    if m == len(chains.draws):
        return matrix
    same = np.unique(np.concatenate([merged.draws, chains.draws]), axis=0, return_inverse=True)[1]
    place = np.argsort(same[:m])[same[m:]]
    return matrix[np.ix_(place, place)]
