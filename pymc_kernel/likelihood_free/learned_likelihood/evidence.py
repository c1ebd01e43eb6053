"""Regression on blocks of features, a prior variance for each block by evidence. Imports NumPy and SciPy only."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack, solve_triangular

__all__ = ["BlockFit", "fit_blocks"]

_LEAST_GAIN = 3.0  # log evidence below which a block is left out
_MAX_ITERATIONS = 20
_CHANGE = 5e-2  # of a log precision, below which iterations end


class BlockFit(NamedTuple):
    """Weights of features, for one response."""

    weights: np.ndarray
    """(p,)."""
    precisions: np.ndarray
    """(b,), of the prior of each block; infinite where it was left out."""
    noise: float
    """Variance."""
    inverse: np.ndarray
    """(k, k), posterior covariance of the weights in use, for noise of variance one."""
    active: np.ndarray
    """(k,), indices of the features in use."""


def fit_blocks(gram, moment, square, count, blocks, start=None, noise=None, iterations=_MAX_ITERATIONS) -> BlockFit:
    """Return the posterior mean of weights, precisions maximizing the evidence (MacKay's updates).

    Parameters
    ----------
    gram : ndarray (p, p)
        Sum over rows of features times features, weighted. The first feature is the constant, without a prior.
    moment : ndarray (p,)
        Sum of features times response.
    square : float
        Sum of squared responses.
    count : float
        Number of rows.
    blocks : tuple of Block
    start : ndarray (b,), optional
        Precisions to begin with.
    noise : float, optional
        Variance of the noise, where it is known.
    """
    fixed = noise is not None
    precisions = np.array([_first(gram, b, count) for b in blocks]) if start is None else np.minimum(start, 1e6)
    variance = noise if fixed else max(square / count, 1e-300)
    for number in range(iterations):
        active, penalty = _in_use(precisions, blocks)
        scaled = gram[np.ix_(active, active)] / variance
        scaled[np.diag_indices_from(scaled)] += penalty
        inverse = _inverse(scaled)
        weights = inverse @ (moment[active] / variance)
        before, before_variance = precisions.copy(), variance
        weak = number % 2 == 1 or number + 1 == iterations
        precisions, known = _updated(precisions, blocks, active, weights, inverse, weak)
        if not fixed:
            rest = square - 2.0 * weights @ moment[active] + weights @ gram[np.ix_(active, active)] @ weights
            variance = max(rest, 1e-12 * square, 1e-300) / max(count - known, 1.0)
        finite = np.isfinite(precisions)
        if (finite != np.isfinite(before)).any():
            continue
        moved = np.abs(np.log(precisions[finite] / before[finite])).max(initial=0.0)
        if number and max(moved, abs(np.log(variance / before_variance))) < _CHANGE:
            break
    full = np.zeros(len(gram))
    full[active] = weights
    return BlockFit(full, precisions, variance, inverse, active)


def _inverse(matrix):
    """Return the inverse of a positive definite matrix."""
    root, failed = lapack.dpotrf(matrix, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError("the Gram matrix of the features is not positive definite.")
    inverse, _ = lapack.dpotri(root, lower=1, overwrite_c=1)
    lower = np.tril(inverse)
    return lower + np.tril(lower, -1).T


def _first(gram, block, count):
    return max(np.trace(gram[block.start : block.stop, block.start : block.stop]) / count, 1e-3)


def _in_use(precisions, blocks):
    active, penalty = [np.array([0])], [np.array([0.0])]
    for precision, block in zip(precisions, blocks, strict=True):
        if np.isfinite(precision):
            active.append(np.arange(block.start, block.stop))
            penalty.append(np.full(block.stop - block.start, precision))
    return np.concatenate(active), np.concatenate(penalty)


def _updated(precisions, blocks, active, weights, inverse, prune):
    """Return precisions after one update, and how many weights the data determine."""
    precisions, at, known, gains = precisions.copy(), 1, 1.0, {}
    diagonal = np.diag(inverse)
    for b, block in enumerate(blocks):
        if not np.isfinite(precisions[b]):
            continue
        size = block.stop - block.start
        part = slice(at, at + size)
        determined = max(size - precisions[b] * diagonal[part].sum(), 0.0)
        known += determined
        new = max(determined, 1e-10) / max((weights[part] ** 2).sum(), 1e-300)
        if prune:
            gains[b] = _gain(precisions[b], weights[part], inverse[part, part])
        # MacKay's update is slow where a block goes out; a longer step in logarithms gets there in a third of them.
        new = precisions[b] * min(max((new / precisions[b]) ** 1.5, 1e-4), 1e4)
        precisions[b] = np.inf if new * diagonal.size > 0 and determined < 1e-2 else max(new, 1e-10)
        at += size
    # Of blocks that overlap each looks useless while the others are there: only the lower half goes at a time.
    useless = sorted((gain, b) for b, gain in gains.items() if gain < _LEAST_GAIN)
    precisions[[b for _, b in useless[: (len(useless) + 1) // 2]]] = np.inf
    return precisions, known


def _gain(precision, weights, inverse):
    """Return the log evidence that a block gains, given the other blocks."""
    root = np.linalg.cholesky(inverse)
    fit = solve_triangular(root, weights, lower=True, check_finite=False)
    return 0.5 * fit @ fit + np.log(np.diag(root)).sum() + 0.5 * len(weights) * np.log(precision)
