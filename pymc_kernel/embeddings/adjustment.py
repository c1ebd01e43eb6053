"""Regression adjustment of residuals by local slopes, and the scatter of residuals around each.

Compiled loops over pairs of residuals. Imports NumPy, Numba, ``linalg`` and siblings.
"""

import numba
import numpy as np

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.linalg import cholesky_in_place, solve_lower

__all__ = ["MOST_DIMENSIONS", "adjusted", "neighbor_scatter", "order_statistic"]

MOST_DIMENSIONS = 20  # of moves, that slopes are learned for

_SHARE = 0.3  # of the residuals, that a slope is learned from
_FEWEST = 5  # residuals that a slope can be learned from
_HALVINGS = 40  # of a range in the search for an order statistic; by then what is left in it is tied, or nearly
_FEW_LEFT = 8  # numbers that are sorted instead
_ROUNDS = 3  # iterations: which residuals are near is known better once they are moved
_RIDGE = 1e-6  # of the mean square of a move
_MAX_SCALED_RESIDUAL = 10.0  # robust z-scores beyond this count as that far for the slopes


def adjusted(residuals: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the residuals (k, p) moved to the query, from which their points are ``moves`` (k, q) away.

    Each is moved by its own slope: the regression of residuals on moves among the nearest third of the residuals
    (Epanechnikov's weights), shrunk towards that of all residuals, the more so the fewer there are for the q dimensions
    of a move. Where a posterior has branches that depend differently on the data, as the two of a square root, each
    branch gets its own slopes, and a neighborhood can be many times as wide as the branches. With one slope for all it
    is the adjustment of Beaumont, Zhang and Balding (2002). It is done three times, since near residuals are known
    better once all are moved.

    Moves of more than twenty dimensions are too many to learn slopes for: residuals stay as they are.

    Notes
    -----
    Time O(k^2 (p + q) q), memory O(k (p + q)).
    """
    (k, q), p = moves.shape, residuals.shape[1]
    if q > MOST_DIMENSIONS or k <= _FEWEST:
        return residuals
    count = max(round(_SHARE * k), _FEWEST)
    weights = weights / weights.sum()
    middle, scale = robust_scales(residuals)
    # In units of their root mean squares, so that the ridge keeps all systems solvable, whatever is rounded or tied.
    units = np.sqrt(weights @ moves**2)
    moves = moves / np.where(units > 0.0, units, 1.0)
    bound = _MAX_SCALED_RESIDUAL * scale
    clipped = np.clip(residuals, middle - bound, middle + bound)
    places = np.ascontiguousarray(residuals)
    for _ in range(_ROUNDS):
        moved = np.empty((k, p))
        _move(places / scale, residuals, moves, clipped, weights, count, q / (q + count), moved)
        places = moved
    return places


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _add_moments(moves, residuals, weights, rows, factor, spread, cross):
    """Add ``factor`` times the covariances of moves and of moves with residuals to ``spread`` and ``cross``.

    ``rows`` are those with weight.
    """
    q, p = moves.shape[1], residuals.shape[1]
    move, residual, mass = np.zeros(q), np.zeros(p), 0.0
    for j in rows:
        mass += weights[j]
        for a in range(q):
            move[a] += weights[j] * moves[j, a]
        for b in range(p):
            residual[b] += weights[j] * residuals[j, b]
    for a in range(q):
        move[a] /= mass
    for b in range(p):
        residual[b] /= mass
    for j in rows:
        share = factor * weights[j] / mass
        for a in range(q):
            step = share * (moves[j, a] - move[a])
            for c in range(a + 1):
                spread[a, c] += step * (moves[j, c] - move[c])
            for b in range(p):
                cross[a, b] += step * (residuals[j, b] - residual[b])


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _squared_distances(points_t, i, out):
    """Write the squared distances of column ``i`` of ``points_t`` (p, k) from all columns to ``out`` (k,)."""
    for j in range(len(out)):
        out[j] = 0.0
    for b in range(len(points_t)):
        x = points_t[b, i]
        for j in range(len(out)):
            out[j] += (x - points_t[b, j]) ** 2


@numba.njit(cache=True, nogil=True, error_model="numpy")
def order_statistic(values, rank, work):
    """Return the number that ``rank`` of ``values`` (k,) are not above; ``work`` (k,) is overwritten.

    Halving the range and counting, in vector registers, leaves a few numbers, which are sorted. Values must be finite.
    """
    low, high = values[0], values[0]
    for j in range(len(values)):
        low, high = min(low, values[j]), max(high, values[j])
    # Up to ``low`` there are ``below`` numbers, not more than the rank; up to ``high`` more than it.
    below, above = 0, len(values)
    for j in range(len(values)):
        below += values[j] <= low
    if below > rank:
        return low
    for _ in range(_HALVINGS):
        if above - below <= _FEW_LEFT:
            break
        middle = low + 0.5 * (high - low)
        count = 0
        for j in range(len(values)):
            count += values[j] <= middle
        if count > rank:
            high, above = middle, count
        else:
            low, below = middle, count
    size = 0
    for j in range(len(values)):
        x = values[j]
        if low < x <= high:
            place = size
            while place > 0 and work[place - 1] > x:
                work[place] = work[place - 1]
                place -= 1
            work[place] = x
            size += 1
    return work[rank - below]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _move(scaled, residuals, moves, clipped, weights, count, lean, out):
    """Fill ``out`` (k, p) with residuals moved by slopes of their neighbors' among the ``scaled`` ones."""
    (k, q), p = moves.shape, residuals.shape[1]
    all_spread, all_cross = np.zeros((q, q)), np.zeros((q, p))
    rows, scaled_t = np.flatnonzero(weights), scaled.T.copy()
    _add_moments(moves, clipped, weights, rows, lean, all_spread, all_cross)
    for a in range(q):
        all_spread[a, a] += _RIDGE
    squared, near, along, work = np.empty(k), np.empty(k), np.empty(q), np.empty(k)
    spread, cross, rows_near = np.empty((q, q)), np.empty((q, p)), np.empty(k, dtype=np.int64)
    for i in range(k):
        _squared_distances(scaled_t, i, squared)
        radius = order_statistic(squared, count, work)
        number = 0
        for j in range(k):
            # Residuals that are all the same have no radius, and all of them are near.
            share = 1.0 - squared[j] / radius if radius > 0.0 else 1.0
            near[j] = weights[j] * max(0.0, share)
            rows_near[number] = j
            number += near[j] > 0.0
        for a in range(q):
            for c in range(q):
                spread[a, c] = all_spread[a, c]
            for b in range(p):
                cross[a, b] = all_cross[a, b]
        _add_moments(moves, clipped, near, rows_near[:number], 1.0 - lean, spread, cross)
        cholesky_in_place(spread)  # it has the ridge
        solve_lower(spread, moves[i], along)
        for a in range(q - 1, -1, -1):
            for c in range(a + 1, q):
                along[a] -= spread[c, a] * along[c]
            along[a] /= spread[a, a]
        for b in range(p):
            out[i, b] = residuals[i, b]
            for a in range(q):
                out[i, b] -= along[a] * cross[a, b]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def neighbor_scatter(points, units, count):
    """Return the mean squares (k, p, p) of the differences of each point from its ``count`` nearest ones.

    Parameters
    ----------
    points : ndarray (k, p)
    units : ndarray (p,)
        In which distances are taken.
    count : int
        Below k.

    Notes
    -----
    Time O(k^2 p + k count p^2). Ties with the farthest of them count as near, too.
    """
    k, p = points.shape
    out = np.zeros((k, p, p))
    scaled_t, squared, work = np.empty((p, k)), np.empty(k), np.empty(k)
    for i in range(k):
        for a in range(p):
            scaled_t[a, i] = points[i, a] / units[a]
    for i in range(k):
        _squared_distances(scaled_t, i, squared)
        radius = order_statistic(squared, count, work)
        number = -1  # without itself
        for j in range(k):
            if squared[j] <= radius:
                number += 1
                for a in range(p):
                    step = points[j, a] - points[i, a]
                    for b in range(p):
                        out[i, a, b] += step * (points[j, b] - points[i, b])
        for a in range(p):
            for b in range(p):
                out[i, a, b] /= number
    return out
