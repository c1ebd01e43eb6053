"""Choosing the few draws that fit the target best. Imports NumPy, Numba and lower files of ``stein`` only."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pymc_kernel.parallel import num_threads, one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import as_chains
from pymc_kernel.stein.registers import add_row_with_root

__all__ = ["stein_thin"]

_THREADED = 200_000  # entries of the draws, above which a step is shared between cores


@tiles.compiled_sums
def _advance_with_root(last, points, scores, packed, start, stop, objective):
    """Add h(x_last, .) to the objective (tiles, TILE) of some tiles; return where it is smallest, and how small."""
    best, smallest = -1, np.inf
    for t in range(start, stop):
        if last >= 0:
            add_row_with_root(last, last + 1, points, scores, packed[t], float(points.shape[1]), objective[t])
        j = _below(objective[t], smallest)
        if j >= 0:
            best, smallest = t * tiles.TILE + j, objective[t, j]
    return best, smallest


@tiles.compiled_sums
def _advance_family(last, points, scores, packed, inverse, family, b, uniform, start, stop, objective):
    """As :func:`_advance_with_root` for other kernels."""
    sums, profiles = np.empty((4, 1, tiles.TILE)), np.empty((4, tiles.TILE))
    best, smallest = -1, np.inf
    for t in range(start, stop):
        if last >= 0:
            tiles.add_row(last, points, scores, packed[t], inverse, family, b, uniform, sums, profiles, objective[t])
        j = _below(objective[t], smallest)
        if j >= 0:
            best, smallest = t * tiles.TILE + j, objective[t, j]
    return best, smallest


@tiles.compiled_sums
def _below(row, smallest):
    """Return the place of the first of the smallest numbers of a row, -1 where none is below ``smallest``."""
    # Counting runs in vector registers, looking for the place does not.
    smaller = 0
    for j in range(row.size):
        smaller += row[j] < smallest
    best = -1
    if smaller > 0:
        for j in range(row.size):
            if row[j] < smallest:
                smallest, best = row[j], j
    return best


@one_blas_thread
def stein_thin(draws, scores, num_points: int, kernel=None, *, how: str = "whiten") -> np.ndarray:
    """Return the indices of ``num_points`` draws that together have a small Stein discrepancy.

    Greedy: each draw is the one that lowers the discrepancy of all chosen so far the most. A draw may be chosen more
    than once. Burn-in, bias and repetition are corrected for, as far as scores see them.

    Parameters
    ----------
    draws, scores : array_like (n, d) or (chain, draw, d)
        Chains are taken together.
    num_points : int
        How many to choose.
    kernel, how
        As in ``ksd_squared``, but whitened by default: straightening is for draws that are to be judged.

    Returns
    -------
    ndarray (num_points,)
        Indices into the draws, chains one after the other, in the order of choice.

    Notes
    -----
    O(n num_points d) time, O(n d) memory.

    References
    ----------
    Riabiz et al. (2022), Optimal thinning of MCMC output, algorithm 1.
    """
    if not (isinstance(num_points, int | np.integer) and num_points >= 1):
        raise ValueError(f"num_points must be a whole number >= 1, got {num_points!r}.")
    chains = as_chains(draws, scores)
    stein, _ = prepared(chains.draws, chains.scores, kernel, how)
    n, num_tiles = len(chains.draws), len(stein.packed)
    objective = np.full(num_tiles * tiles.TILE, np.inf)
    objective[:n] = tiles.diagonal(stein).sum(axis=1) / (2.0 * stein.factor)
    objective = objective.reshape(num_tiles, tiles.TILE)
    threads = num_threads() if n * stein.points.shape[1] > _THREADED else 1
    edges = [num_tiles * t // threads for t in range(threads + 1)]
    chosen = np.empty(int(num_points), dtype=np.int64)
    last = -1
    with ThreadPoolExecutor(threads) as pool:
        for m in range(len(chosen)):

            def advance(start, stop, last=last):
                if stein.root:
                    return _advance_with_root(last, *stein[:3], start, stop, objective)
                return _advance_family(last, *stein[:4], *stein[5:8], start, stop, objective)

            if threads == 1:
                last, _ = advance(0, num_tiles)
            else:
                last, _ = min(pool.map(advance, edges[:-1], edges[1:]), key=lambda found: found[1])
            chosen[m] = last
    return chosen
