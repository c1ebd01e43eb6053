"""Choosing the few draws that fit the target best."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pymc_kernel.kernels.points import check_whole
from pymc_kernel.parallel import num_threads, one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import as_chains

_THREADED = 200_000  # entries of the draws, above which a step is shared between cores


@tiles.compiled_sums
def _advance(stein, last, start, stop, objective):
    """Add h(x_last, .) to the objective (tiles, TILE) of some tiles; return where it is smallest, and how small."""
    best, smallest, block = -1, np.inf, np.empty((1, tiles.TILE))
    for t in range(start, stop):
        row = objective[t]
        if last >= 0:
            tiles.write_block(stein, last, last + 1, t, block)
            row += block[0]
        least = row.min()  # in vector registers; looking for the place is not
        if least < smallest:
            smallest = least
            for j in range(tiles.TILE):
                if row[j] == least:
                    best = t * tiles.TILE + j
                    break
    return best, smallest


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
    check_whole(num_points=num_points)
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
                return _advance(stein, last, start, stop, objective)

            if threads == 1:  # eight times as fast for a thousand draws as by a pool
                last, _ = advance(0, num_tiles)
            else:
                last, _ = min(pool.map(advance, edges[:-1], edges[1:]), key=lambda found: found[1])
            chosen[m] = last
    return chosen
