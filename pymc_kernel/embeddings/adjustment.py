"""Regression adjustment of errors of which neighbours may disagree on the slope. Imports NumPy, SciPy, siblings."""

import numpy as np
from scipy.spatial.distance import cdist

from pymc_kernel.embeddings.inputs import robust_scales

__all__ = ["MOST_DIMENSIONS", "adjusted"]

MOST_DIMENSIONS = 20  # of moves, that slopes are learnt for

_SHARE = 0.3  # of the errors, that a slope is learnt from
_FEWEST = 5
_ROUNDS = 3
_RIDGE = 1e-6  # of the mean square of a move
_FAR = 10.0  # spreads, beyond which an error counts as that far for the slopes


def adjusted(errors: np.ndarray, moves: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the errors (k, p) as they would be at the query, which their points are ``moves`` (k, q) away from.

    Each is moved by a slope of its own: the regression of errors on moves among the third of the errors nearest to it
    (Epanechnikov's weights), leaning to that of all of them the more, the fewer errors there are for the q dimensions
    of a move. Where a posterior has branches that go different
    ways with the data, as the two of a square root do, each branch goes its own way, and a neighborhood can be many
    times as wide as the branches are. With one slope for all it is the adjustment of Beaumont, Zhang and Balding
    (2002). As it is better known which errors are near once they are moved, this is done three times over.

    Moves of more than twenty dimensions are too many to learn slopes for: errors stay as they are.

    Notes
    -----
    Time O(k^2 (q + p) q), memory O(k^2 + k (q + p) q).
    """
    (k, q), p = moves.shape, errors.shape[1]
    if q > MOST_DIMENSIONS or k <= _FEWEST:
        return errors
    count = max(round(_SHARE * k), _FEWEST)
    lean = q / (q + count)
    weights = weights / weights.sum()
    middle, scale = robust_scales(errors)  # of each round's neighbors, too
    # In units of their root mean squares, so that the ridge keeps all systems solvable, whatever is rounded or tied.
    units = np.sqrt(weights @ moves**2)
    moves = moves / np.where(units > 0.0, units, 1.0)
    terms = weights[:, None] * _terms(moves, np.clip(errors, middle - _FAR * scale, middle + _FAR * scale))
    spread, cross = (moment[0] for moment in _moments(terms.sum(axis=0, keepdims=True), p, q))
    spread, cross = lean * spread + _RIDGE * np.eye(q), lean * cross
    found = errors
    for _ in range(_ROUNDS):
        own_spread, own_cross = _moments(_near(found / scale, count) @ terms, p, q)
        slopes = np.linalg.solve((1.0 - lean) * own_spread + spread, (1.0 - lean) * own_cross + cross)
        found = errors - np.matmul(moves[:, None], slopes)[:, 0]
    return found


def _near(scaled, count):
    """Return the weights (k, k) of each error's nearest ones, over scaled distances."""
    distances = cdist(scaled, scaled, "sqeuclidean")
    radii = np.partition(distances, count, axis=1)[:, count]
    # Errors that are all the same have no radius, and all of them are near.
    return np.maximum(0.0, 1.0 - distances / np.where(radii > 0.0, radii, np.inf)[:, None])


def _terms(moves, errors):
    """Return ones, moves, errors, and the products of moves with moves (lower half) and with errors, side by side."""
    rows, columns = np.tril_indices(moves.shape[1])
    with_errors = (moves[:, :, None] * errors[:, None]).reshape(len(moves), -1)
    return np.hstack([np.ones((len(moves), 1)), moves, errors, moves[:, rows] * moves[:, columns], with_errors])


def _moments(sums, p, q):
    """Return covariances (m, q, q) of moves and (m, q, p) with errors, from weighted sums of the terms (m, .)."""
    rows, columns = np.tril_indices(q)
    mass, move, error, squares, crosses = np.split(sums, np.cumsum([1, q, p, len(rows)]), axis=1)
    move, error = move / mass, error / mass
    spread = np.empty((len(sums), q, q))
    spread[:, rows, columns] = spread[:, columns, rows] = squares / mass
    spread -= move[:, :, None] * move[:, None]
    return spread, (crosses / mass).reshape(-1, q, p) - move[:, :, None] * error[:, None]
