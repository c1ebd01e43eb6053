"""Whether a surrogate covers the density, or chains that move along it will miss a part.

Where a surrogate is far too low its moves hardly ever go, and a chain that gets there is stuck. The draws then look
well mixed, with all chains alike, but lack a part of the posterior: the neck of a funnel, heavy tails. The chain of
moves along a surrogate s works like independent proposals from s with the weights w = pi / s. Of n proposals n s(A) are
expected in the places A where w is above t, and s(A) is at most pi(A) / t: with n pi(A) < t they are expected less than
once. pi(A) is what the draws say of the upper tail of the weights, a generalized Pareto distribution beyond the largest
(Vehtari et al. 2024). So the weights at the draws reveal the mass of a part that was never visited.

Imports NumPy only.
"""

import math
from typing import NamedTuple

import numpy as np

__all__ = ["Coverage", "coverage_of", "is_missing_mass", "pareto_shape"]

_TAIL_MASS = 0.025  # beyond an end of a 95 % interval
_STANDARD_ERRORS = 2.0  # of the mass that draws have there: a missing mass above that is no chance
_LARGEST_LOG_WEIGHT = 500.0  # over the median: larger ones are not finite numbers
_FEWEST_WEIGHTS = 100  # for a fit of their tail: it takes a fifth of them


class Coverage(NamedTuple):
    """What the weights pi / s at the draws say."""

    missing: float  # mass of the posterior where as many proposals are expected less than once; NaN for few weights
    error: float  # standard error of the mass that as many independent draws have beyond an end of a 95 % interval
    excess: float  # of the largest log weight over the median


def coverage_of(log_weights: np.ndarray) -> Coverage:
    """Return the coverage from the log weights at the draws (n,).

    The missing mass is the larger of those by all draws and by the distinct positions: a single long stay at the
    largest weight makes a tail of equal weights, which has no shape.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if finite.size < _FEWEST_WEIGHTS:
        return Coverage(math.nan, math.nan, math.nan)
    distinct = np.unique(finite)
    masses = [_missing_mass(w, finite.size) for w in (finite, distinct) if w.size >= _FEWEST_WEIGHTS]
    error = math.sqrt(_TAIL_MASS * (1.0 - _TAIL_MASS) / finite.size)
    return Coverage(float(np.fmax.reduce(masses)), error, float(finite.max() - np.median(finite)))


def is_missing_mass(coverage: Coverage) -> bool:
    """Return whether chains along this surrogate are likely to miss a part of the posterior."""
    return coverage.missing > _STANDARD_ERRORS * coverage.error


def _missing_mass(log_weights, num_proposals):
    """Return the mass of the tail of the weights that proposals are expected to enter less than once."""
    weights = np.exp(np.minimum(np.sort(log_weights) - np.median(log_weights), _LARGEST_LOG_WEIGHT))
    fitted = _tail(weights)
    if fitted is None:
        return math.nan
    threshold, mass, shape, scale = fitted
    # At no weight above this one can the condition fail.
    levels = np.geomspace(threshold, max(threshold, mass * num_proposals), 1000)
    with np.errstate(divide="ignore"):  # beyond the end of a tail that is bounded
        masses = mass * np.maximum(1.0 + shape * (levels - threshold) / scale, 0.0) ** (-1.0 / shape)
    missing = masses[np.argmax(num_proposals * masses <= levels)]
    return max(0.0, float(missing) - 1.0 / num_proposals)  # which draws from the posterior itself would miss


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape of a generalized Pareto distribution fitted to the largest weights; NaN where equal or few.

    The largest min(n / 5, 3 sqrt(n)) of them, by the estimator of Zhang and Stephens (2009) with the weak prior of
    Vehtari et al. (2024), which draws small samples towards one half.

    Parameters
    ----------
    log_weights : ndarray (n,)
        Finite; of 25 at least there is a shape.
    """
    fitted = _tail(np.exp(np.sort(log_weights) - log_weights.max()))
    return math.nan if fitted is None else fitted[2]


def _tail(ordered):
    """Return threshold, mass, shape and scale of the upper tail of ordered weights (n,); None for equal or few."""
    n = ordered.size
    num_tail = math.ceil(min(0.2 * n, 3.0 * math.sqrt(n)))
    if n <= num_tail:
        return None
    threshold = ordered[-num_tail - 1]
    excesses = ordered[-num_tail:] - threshold
    # Many draws at one position have equal weights: only what lies above the threshold is the tail.
    excesses = excesses[excesses > 1e-12 * ordered[-1]]
    if excesses.size < 5 or np.ptp(excesses) == 0.0:
        return None
    shape, scale = _zhang_stephens(excesses)
    return threshold, excesses.size / n, shape, scale


def _zhang_stephens(excesses):
    """Return shape and scale fitted to ordered positive excesses (m,), by a mean over a grid of the scale's inverse."""
    m = excesses.size
    num_nodes = 30 + int(math.sqrt(m))
    nodes = 1.0 - np.sqrt(num_nodes / (np.arange(1.0, num_nodes + 1.0) - 0.5))
    nodes = nodes / (3.0 * excesses[int(m / 4 + 0.5) - 1]) + 1.0 / excesses[-1]
    shapes = np.log1p(-nodes[:, None] * excesses).mean(axis=1)
    log_likelihoods = m * (np.log(-nodes / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihoods - log_likelihoods.max())
    node = (nodes * weights).sum() / weights.sum()
    shape = np.log1p(-node * excesses).mean()
    return float((m * shape + 5.0) / (m + 10.0)), float(-shape / node)
