"""From signed weights to quantiles, probabilities and draws. Imports NumPy, SciPy and siblings."""

import numpy as np
from scipy.optimize import isotonic_regression

from pymc_kernel.embeddings.gram import factorize

__all__ = ["herd", "nearest_probability", "resample", "signed_quantiles"]

_NUM_BASIS = 500  # of the factor of the Gram matrix
_SEED = 0  # of its points: the result is a function of the weights alone
_STEPS = 500  # at most; the duality gap falls as 1 / steps, and nearly all runs reach the tolerance before
_TOLERANCE = 1e-6  # of the gap, in units of the mean diagonal of the Gram matrix


def signed_quantiles(points: np.ndarray, weights: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return marginal quantiles (q, d) of ``points`` (n, d) with ``weights`` (n,) that may be negative.

    The running sum of the weights is replaced by the nearest monotone function, cut at 0 and at the total.
    """
    total = weights.sum()
    if not total > 0.0:
        raise ValueError(f"the weights sum to {total:g}: there is no distribution to take quantiles of.")
    out = np.empty((len(probabilities), points.shape[1]))
    for j, column in enumerate(points.T):
        order = np.argsort(column, kind="stable")
        steps = np.cumsum(weights[order]) / total
        out[:, j] = _inverse(column[order], np.clip(isotonic_regression(steps).x, 0.0, 1.0), probabilities)
    return out


def _inverse(values, steps, probabilities):
    """Invert a distribution function with jumps to ``steps`` at sorted ``values``, linearly between their middles."""
    rises = np.diff(steps, prepend=0.0) > 0.0
    values, steps = values[rises], steps[rises]
    heights = steps - 0.5 * np.diff(steps, prepend=0.0)
    return np.interp(probabilities, heights, values)


def resample(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return ``size`` indices with frequencies as near to ``weights`` as one uniform number allows, in random order."""
    edges = np.cumsum(weights)
    places = (rng.random() + np.arange(size)) / size * edges[-1]
    return rng.permutation(np.minimum(np.searchsorted(edges, places, side="right"), len(weights) - 1))


def nearest_probability(kernel, points: np.ndarray, weights: np.ndarray, ridge: float) -> np.ndarray:
    """Return the probability vectors (m, n) whose kernel means are nearest to those of signed ``weights`` (m, n).

    Minimizes (p - w)' (G + ridge g I) (p - w) over the simplex, g the mean of G's diagonal, by accelerated projected
    gradients with restarts, all rows at once; O(m n r) a step, r the rank of the Gram matrix.
    """
    if not (weights.sum(axis=1) > 0.0).all():
        raise ValueError("the weights of a kernel mean sum to zero or less: there is no distribution near to it.")
    factor = factorize(kernel, points, min(len(points), _NUM_BASIS), 1e-6, np.random.default_rng(_SEED))
    features = factor.features / np.sqrt(np.mean(kernel.diagonal(points)))
    lipschitz = np.linalg.eigvalsh(features.T @ features)[-1] + ridge
    signed = weights / weights.sum(axis=1, keepdims=True)
    here = _to_simplex(signed)
    ahead, momentum = here, np.ones((len(signed), 1))
    for _ in range(_STEPS):
        difference = ahead - signed
        gradient = (difference @ features) @ features.T + ridge * difference
        # The duality gap bounds the distance from the minimum.
        gap = np.einsum("mi,mi->m", gradient, ahead) - gradient.min(axis=1)
        if (gap < _TOLERANCE).all():
            break
        new = _to_simplex(ahead - gradient / lipschitz)
        uphill = np.einsum("mi,mi->m", gradient, new - here) > 0.0
        momentum[uphill] = 1.0
        following = 0.5 * (1.0 + np.sqrt(1.0 + 4.0 * momentum**2))
        ahead = new + (momentum - 1.0) / following * (new - here)
        here, momentum = new, following
    return here


def _to_simplex(rows: np.ndarray) -> np.ndarray:
    """Return the Euclidean projections of ``rows`` (m, n) on the probability simplex (Duchi et al. 2008)."""
    ordered = -np.sort(-rows, axis=1)
    shifts = (np.cumsum(ordered, axis=1) - 1.0) / np.arange(1, rows.shape[1] + 1)
    last = (ordered > shifts).sum(axis=1) - 1
    return np.maximum(0.0, rows - np.take_along_axis(shifts, last[:, None], axis=1))


def herd(kernel, candidates: np.ndarray, embedding: np.ndarray, size: int) -> np.ndarray:
    """Return indices (size,) of ``candidates`` (k, d), each where the embedding most exceeds that of the earlier ones.

    ``embedding`` (k,) is the kernel mean at the candidates.
    """
    chosen = np.empty(size, dtype=np.int64)
    served = np.zeros(len(candidates))
    for t in range(size):
        chosen[t] = int(np.argmax(embedding - served / (t + 1.0)))
        served += kernel(candidates[chosen[t]][None], candidates)[0]
    return chosen
