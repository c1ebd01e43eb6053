"""Regression adjustment of residuals by local slopes, and the scatter of residuals around each.

What is near is found by compiled loops over pairs; sums over what is near are one matrix product for all residuals, and
their small systems of equations are solved side by side in vector registers. Imports NumPy, Numba and siblings.
"""

import numpy as np

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.machine_code import compiled

__all__ = ["MOST_DIMENSIONS", "adjusted", "forward_substituted", "neighbor_scatter", "order_statistic"]

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
    Time O(k^2 (p + q) q), memory O(k^2 + k (p + q) q).
    """
    (k, q), p = moves.shape, residuals.shape[1]
    if q > MOST_DIMENSIONS or k <= _FEWEST or q == 0:
        return residuals
    count = max(round(_SHARE * k), _FEWEST)
    weights = weights / weights.sum()
    middle, scale = robust_scales(residuals)
    # In units of their root mean squares, so that the ridge keeps all systems solvable, whatever is rounded or tied.
    units = np.sqrt(weights @ moves**2)
    moves_t = np.ascontiguousarray((moves / np.where(units > 0.0, units, 1.0)).T)
    bound = _MAX_SCALED_RESIDUAL * scale
    clipped_t = np.clip(residuals, middle - bound, middle + bound).T
    # Sums of products lose the digits that both factors have in common, so both are taken from their means.
    moves_apart, errors_apart = moves_t - (moves_t @ weights)[:, None], clipped_t - (clipped_t @ weights)[:, None]
    rows, columns = np.tril_indices(q)
    squares_of_moves = moves_apart[rows] * moves_apart[columns]
    across = (moves_apart[:, None, :] * errors_apart[None, :, :]).reshape(-1, k)
    terms = np.concatenate([np.ones((1, k)), moves_apart, errors_apart, squares_of_moves, across]) * weights
    num_first = 1 + q + p
    whole = terms[num_first:].sum(axis=1)[:, None]
    whole[: len(rows)][rows == columns] += _RIDGE * (q + count) / q  # of which the share below is taken
    lean = q / (q + count)
    scaled_t, places = np.ascontiguousarray((residuals / scale).T), residuals
    matrices, right = np.empty((q, q, k)), np.empty((q, 1 + p, k))
    for _ in range(_ROUNDS):
        squares, radii = _near(scaled_t, count)
        # Residuals that are all the same have no radius, and all of them are near.
        squares *= (-1.0 / np.where(radii > 0.0, radii, np.inf))[:, None]
        squares += 1.0
        sums = terms @ np.maximum(squares, 0.0, out=squares).T
        sums /= np.maximum(sums[0], np.finfo(float).tiny)
        mean_move, mean_error, moments = sums[1 : 1 + q], sums[1 + q : num_first], sums[num_first:]
        moments[: len(rows)] -= mean_move[rows] * mean_move[columns]
        moments[len(rows) :] -= (mean_move[:, None, :] * mean_error[None, :, :]).reshape(-1, k)
        moments *= 1.0 - lean
        moments += lean * whole
        # With the lower factor L of the moments of moves M = L L', slopes times a move m are (L^-1 C)' L^-1 m.
        matrices[rows, columns], right[:, 0] = moments[: len(rows)], moves_t
        right[:, 1:] = moments[len(rows) :].reshape(q, p, k)
        forward_substituted(matrices, right)
        places = residuals - np.einsum("ak,abk->kb", right[:, 0], right[:, 1:])
        scaled_t = np.ascontiguousarray((places / scale).T)
    return places


@compiled
def forward_substituted(matrices, right):
    """Overwrite ``matrices`` (q, q, k), lower triangles, by Cholesky factors L, and ``right`` R (q, c, k) by L^-1 R.

    All k systems side by side, so that the inner loops run in vector registers.
    """
    q, c, k = right.shape
    for a in range(q):
        pivots = matrices[a, a]
        for i in range(k):
            pivots[i] = np.sqrt(pivots[i])
        for column in range(c):
            for i in range(k):
                right[a, column, i] /= pivots[i]
        for b in range(a + 1, q):
            row = matrices[b, a]
            for i in range(k):
                row[i] /= pivots[i]
            for e in range(a + 1, b + 1):
                for i in range(k):
                    matrices[b, e, i] -= row[i] * matrices[e, a, i]
            for column in range(c):
                for i in range(k):
                    right[b, column, i] -= row[i] * right[a, column, i]


def _near(points_t, count):
    """Return squared distances (k, k) of columns of ``points_t`` (p, k), and what ``count`` of each are not above."""
    k = points_t.shape[1]
    squares, radii = np.empty((k, k)), np.empty(k)
    _fill_near(points_t, count, np.empty(k), squares, radii)
    return squares, radii


@compiled
def _fill_near(points_t, count, work, squares, radii):
    p, k = points_t.shape
    for i in range(k):
        row = squares[i]
        for j in range(k):
            row[j] = (points_t[0, i] - points_t[0, j]) ** 2
        for b in range(1, p):
            x = points_t[b, i]
            for j in range(k):
                row[j] += (x - points_t[b, j]) ** 2
        radii[i] = order_statistic(row, count, work)


@compiled
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


def neighbor_scatter(points: np.ndarray, units: np.ndarray, count: int) -> np.ndarray:
    """Return the mean squares (p, p, k) of the differences of each point from its ``count`` nearest ones.

    Parameters
    ----------
    points : ndarray (k, p)
    units : ndarray (p,)
        In which distances are taken.
    count : int
        Below k.

    Notes
    -----
    Time O(k^2 p^2), memory O(k^2 + k p^2). Ties with the farthest of them count as near, too.
    """
    k, p = points.shape
    squares, radii = _near(np.ascontiguousarray((points / units).T), count)
    is_near = (squares <= radii[:, None]).astype(float)
    centered_t = (points - points.mean(axis=0)).T
    products = (centered_t[:, None, :] * centered_t[None, :, :]).reshape(-1, k)
    sums = np.concatenate([np.ones((1, k)), centered_t, products]) @ is_near.T
    # sum_j (x_j - x_i) (x_j - x_i)' = sum_j x_j x_j' - x_i (sum_j x_j)' - (sum_j x_j) x_i' + n x_i x_i'
    across = centered_t[:, None, :] * sums[1 : 1 + p]
    scatter = sums[1 + p :].reshape(p, p, k) - across - across.transpose(1, 0, 2) + sums[0] * products.reshape(p, p, k)
    return scatter / (sums[0] - 1.0)  # without itself
