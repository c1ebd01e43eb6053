"""Regression on blocks of features, with a prior variance for each block that maximizes the evidence."""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

MAX_LOG = 30.0  # bound on exponents (parameters, log spreads, logits): beyond it data say nothing
ROWS = 4096  # of features at once, so that memory stays bounded
LEAST_GAIN = 3.0  # log evidence that a block, or a function other than the identity, must gain
_LEAST_DETERMINED = 1e-2  # number of weights that the data determine, below which a block is left out
_MAX_ITERATIONS = 20
_CHANGE = 5e-2  # of a log precision, below which iterations end


def row_blocks(number: int, size: int = ROWS) -> list[slice]:
    """Return slices of at most ``size`` rows that cover ``number`` rows."""
    return [slice(start, start + size) for start in range(0, number, size)]


class BlockFit(NamedTuple):
    """Weights of features, for one response."""

    weights: np.ndarray  # (p,)
    precisions: np.ndarray  # (b,), of the prior of each block; infinite where it was left out
    noise: float  # variance
    factor: np.ndarray  # (k, k), lower; its transpose times itself is the posterior covariance of the weights in use
    active: np.ndarray  # (k,), indices of the features in use


def fit_blocks(gram, moment, square, count, sizes, start=None, noise=None, iterations=_MAX_ITERATIONS) -> BlockFit:
    """Return the posterior mean of weights, with precisions that maximize the evidence (MacKay's updates).

    ``gram`` (p, p), ``moment`` (p,) and ``square`` are weighted sums over ``count`` rows: of features times features,
    of these times the response, of its squares. The first feature is the constant, without a prior; b blocks of
    ``sizes`` (b,) follow, none empty. ``start`` (b,) are precisions to begin with: NaN for what is not known, infinite
    for a block that stays out. ``noise`` is the variance where it is known.
    """
    first = np.maximum(np.add.reduceat(np.diagonal(gram), _starts(sizes)) / count, 1e-3)
    precisions = first if start is None else np.where(np.isnan(start), first, start)
    variance, used = max(square / count, 1e-300) if noise is None else noise, None
    for number in range(iterations):
        if used is None or (np.isfinite(precisions) != used.finite).any():
            used = _in_use(gram, moment, sizes, np.isfinite(precisions))
        weights, factor, penalty = _solved(used, precisions, variance)
        before, before_variance = precisions, variance
        precisions, known = _updated(precisions, used, weights, factor, number % 2 == 1)
        if noise is None:
            # The posterior mean solves (G / s + A) w = m / s, so that w'Gw = w'm - s w'Aw.
            rest = square - weights @ used.moment - variance * penalty @ weights**2
            variance = max(rest, 1e-12 * square, 1e-300) / max(count - known, 1.0)
        if (np.isfinite(precisions) != used.finite).any():
            continue
        moved = np.abs(np.log(precisions[used.finite] / before[used.finite])).max(initial=0.0)
        if number and max(moved, abs(math.log(variance / before_variance))) < _CHANGE:
            break
    if (np.isfinite(precisions) != used.finite).any():  # blocks were left out in the last iteration
        used = _in_use(gram, moment, sizes, np.isfinite(precisions))
        weights, factor, _ = _solved(used, precisions, variance)
    full = np.zeros(len(gram))
    full[used.active] = weights
    return BlockFit(full, precisions, variance, factor, used.active)


class _Used(NamedTuple):
    """The features in use: those of blocks with a finite precision, and the constant."""

    finite: np.ndarray  # (b,), which blocks
    active: np.ndarray  # (k,), which features
    sizes: np.ndarray  # of the blocks in use
    starts: np.ndarray  # of the blocks in use, among the features in use
    gram: np.ndarray  # (k, k)
    moment: np.ndarray  # (k,)


def _in_use(gram, moment, sizes, finite):
    active, own = np.flatnonzero(np.append(True, np.repeat(finite, sizes))), np.asarray(sizes)[finite]
    return _Used(finite, active, own, _starts(own), gram[active[:, None], active], moment[active])


def _starts(sizes):
    """Return where blocks of ``sizes`` (b,) that follow the constant start."""
    return np.cumsum(np.append(1, sizes))[:-1]


def _solved(used, precisions, variance):
    """Return the posterior mean of the weights in use, the inverse factor of their precision, and the prior's part."""
    penalty = np.repeat(np.append(0.0, precisions[used.finite]), np.append(1, used.sizes))
    scaled = used.gram / variance
    scaled.flat[:: len(scaled) + 1] += penalty
    root, failed = lapack.dpotrf(scaled, lower=1, overwrite_a=1)
    if failed:
        raise np.linalg.LinAlgError("the Gram matrix of the features is not positive definite.")
    factor = lapack.dtrtri(root, lower=1, overwrite_c=1)[0]
    return (factor @ (used.moment / variance)) @ factor, factor, penalty


def _updated(precisions, used, weights, factor, prune):
    """Return precisions after one update, and how many weights the data determine."""
    precisions, chosen, gains = precisions.copy(), np.flatnonzero(used.finite), {}
    now, ends = precisions[chosen], used.starts + used.sizes
    spread = np.add.reduceat(np.einsum("kj,kj->j", factor, factor), used.starts)
    determined = np.maximum(used.sizes - now * spread, 0.0)
    size = np.maximum(np.add.reduceat(weights**2, used.starts), 1e-300)
    is_left = determined >= _LEAST_DETERMINED
    for i in np.flatnonzero(is_left & prune):
        part = slice(used.starts[i], ends[i])
        gains[chosen[i]] = _gain(now[i], weights[part], factor[part.start :, part])
    # MacKay's update is slow to leave out a block; a longer step in logarithms takes a third of the iterations.
    steps = np.clip((determined[is_left] / size[is_left] / now[is_left]) ** 1.5, 1e-4, 1e4)
    precisions[chosen] = np.inf
    precisions[chosen[is_left]] = np.maximum(now[is_left] * steps, 1e-10)
    # Each of several overlapping blocks looks useless beside the others, so only the worse half is left out at a time.
    useless = sorted((gain, b) for b, gain in gains.items() if gain < LEAST_GAIN)
    precisions[[b for _, b in useless[: (len(useless) + 1) // 2]]] = np.inf
    return precisions, 1.0 + determined.sum()


def _gain(precision, weights, factor):
    """Return the log evidence that a block gains, given the other blocks."""
    root = np.linalg.cholesky(factor.T @ factor)
    fit = np.linalg.solve(root, weights)
    return 0.5 * fit @ fit + np.log(np.diag(root)).sum() + 0.5 * len(weights) * math.log(precision)
