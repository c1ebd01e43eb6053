"""The few draws that fit the target best, and expectations with less variance than the mean of the draws."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pymc_kernel.kernels.points import check_whole, scales_of
from pymc_kernel.parallel import num_threads, one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import as_chains

_THREADED = 200_000  # entries of the draws, above which a step is shared between cores
_RIDGES = 10.0 ** np.arange(-8.0, 1.0)  # of which cross-validation chooses one
_FOLDS = 5  # a fifth held out; the fits are five for each ridge


@tiles.compiled_sums
def _advance(stein, objective, last, start, stop):
    """Add h(x_last, .) to the objective (tiles, TILE) of some tiles; return how small it is at the least, and where."""
    best, smallest, block = -1, np.inf, np.empty((1, tiles.TILE))
    for t in range(start, stop):
        row = objective[t]
        if last >= 0:
            tiles.write_block(stein, last, last + 1, t, block)
            row += block[0]
        least = row.min()  # in vector registers, unlike the search for the place
        if least < smallest:
            best, smallest = t * tiles.TILE + row.argmin(), least
    return smallest, best


@one_blas_thread
def stein_thin(draws, scores, num_points: int, kernel=None, *, how: str = "whiten") -> np.ndarray:
    """Return the indices of ``num_points`` draws that together have a small Stein discrepancy, in the order of choice.

    Greedy: each draw is the one that makes the discrepancy of all chosen so far smallest. A draw may be chosen more
    than once. Indices count chains one after the other. Burn-in, bias and repetition are corrected for, as far as
    scores show them. O(n num_points d) time, O(n d) memory. Riabiz et al. (2022), Optimal thinning of MCMC output,
    algorithm 1.

    Parameters
    ----------
    draws, scores : array_like (n, d) or (chain, draw, d)
        Chains are taken together.
    num_points : int
        How many to choose.
    kernel, how
        As in ``ksd_squared``, but whitened by default: straightening is for draws that are to be judged.
    """
    check_whole(num_points=num_points)
    stein = prepared(as_chains(draws, scores), kernel, how)
    n, num_tiles = len(stein.points), len(stein.packed)
    objective = np.full(num_tiles * tiles.TILE, np.inf)
    objective[:n] = tiles.diagonal(stein).sum(axis=1) / (2.0 * stein.factor)
    objective = objective.reshape(num_tiles, tiles.TILE)
    threads = num_threads() if n * stein.points.shape[1] > _THREADED else 1
    edges = [num_tiles * t // threads for t in range(threads + 1)]
    chosen = [-1]  # before the first there is none
    with ThreadPoolExecutor(threads) as pool:
        each = map if threads == 1 else pool.map  # eight times as fast for a thousand draws as by a pool
        for _ in range(num_points):
            _, best = min(each(partial(_advance, stein, objective, chosen[-1]), edges[:-1], edges[1:]))
            chosen.append(best)
    return np.array(chosen[1:])


@dataclass(frozen=True)
class ControlledExpectation:
    """Expectations under the target.

    Attributes
    ----------
    value : ndarray (p,)
    mean : ndarray (p,)
        Plain means of the draws, for comparison.
    variance_ratio : ndarray (p,)
        Variance of the held-out residuals of the control over that of the values: small where the control helps.
    ridge : ndarray (p,)
        Chosen regularization, in units of the mean diagonal of the kernel.
    """

    value: np.ndarray
    mean: np.ndarray
    variance_ratio: np.ndarray
    ridge: np.ndarray


@one_blas_thread
def controlled_expectation(
    values, draws, scores, kernel=None, *, num_basis: int = 500, how: str = "whiten", weights=None
) -> ControlledExpectation:
    """Return expectations of functions under the target, by control functionals.

    The values are regressed on a constant and functions h(., y_j), h the Stein kernel, which have mean zero under the
    target. The estimate is the constant plus the mean of the residuals. The ridge minimizes the squared error on
    held-out blocks of draws; where no ridge is better than a constant, the plain mean is returned. Each held-out block
    is corrected by a regression on the other blocks: no bias from fitting. O(n m^2) time and O(n m) memory for m basis
    points. Oates, Girolami and Chopin (2017), with South et al. (2022) for the constant and the basis.

    Parameters
    ----------
    values : array_like (n,) or (n, p)
        Of the functions at the draws, chains one after the other.
    draws, scores, kernel, how
        As in ``ksd_squared``.
    num_basis : int
        Points y_j, evenly spaced among the draws.
    weights : array_like (n,) or (chain, draw), optional
        As in ``ksd_test``, if the scores are those of a density q instead of the target p: q / p at the draws. Then the
        functions q / p h(., y_j) have mean zero under the target.
    """
    chains = as_chains(draws, scores, weights)
    n = len(chains.draws)
    values = np.asarray(values, dtype=float)
    values = values.reshape(n, -1) if values.size % n == 0 and values.size else values
    if values.ndim != 2 or len(values) != n:
        raise ValueError(f"values must have one row for each of the {n} draws, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite.")
    check_whole(num_basis=num_basis)
    stein = prepared(chains, kernel, how)
    basis = np.unique(np.linspace(0, n - 1, min(n, num_basis)).astype(int))
    full = tiles.fill(stein, basis, 0, np.empty((len(basis), n))).T  # draws and basis, (n, m)
    gram = full[basis]
    full = chains.weights[:, None] * full
    scale = np.trace(gram) / len(basis)
    folds = np.arange(n) * _FOLDS // n  # blocks of draws: neighbors in a chain are alike
    center, spread = scales_of(values)
    scaled = (values - center) / spread
    left = np.empty((len(_RIDGES), *values.shape))
    for fold in range(_FOLDS):
        held = folds == fold
        left[:, held] = scaled[held] - full[held] @ _ridge_path(full[~held], gram, scaled[~held], scale)
    # The mean of the residuals is the estimate; the control is to reduce their variance.
    errors = left.var(axis=1)
    best, ratio = errors.argmin(axis=0), errors.min(axis=0)
    useful = ratio < 1.0
    estimate = np.where(useful, left.mean(axis=1)[best, np.arange(len(best))], 0.0)
    return ControlledExpectation(center + spread * estimate, center, np.where(useful, ratio, 1.0), _RIDGES[best])


def _ridge_path(features, gram, values, scale):
    """Return weights (ridges, m, p) of ridge regression on features and a constant."""
    n = len(features)
    features = features - features.mean(axis=0)
    normal = features.T @ features / n
    target = features.T @ (values - values.mean(axis=0)) / n
    fits = []
    for ridge in _RIDGES:
        # |values - constant - features w|^2 / n + ridge scale w' gram w / m; the jitter keeps the matrix positive
        # definite.
        matrix = normal + ridge * scale * gram
        matrix[np.diag_indices_from(matrix)] += 1e-10 * np.trace(matrix) / len(matrix)
        fits.append(cho_solve(cho_factor(matrix), target))
    return np.array(fits)
