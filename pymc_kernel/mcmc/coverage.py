"""Whether a surrogate covers the density, or chains that move along it will miss a part.

Where a surrogate is far too low its moves hardly ever go, and a chain that gets there is stuck. The draws then look
well mixed, with all chains alike, but lack a part of the posterior: the neck of a funnel, heavy tails. The chain of
moves along a surrogate s works like importance sampling from s with the weights w = pi / s: the mean time that it stays
at x is in proportion to w(x) where that is large. So the weights at the draws reveal a missing part that was never
visited: they rise towards it. They are judged like importance weights, by the shape of their upper tail (Vehtari et al.
2024), and by the ratio of the largest to a typical one: where no weight is several times the typical one, nothing
follows from the shape.

Imports NumPy only.
"""

import math
from typing import NamedTuple

import numpy as np

__all__ = ["Coverage", "coverage_of", "is_missing_mass", "pareto_shape"]

_LARGEST_SHAPE = 0.7  # above which the error of importance sampling is not to be relied on (Vehtari et al. 2024)
# Excess of the largest log weight over a typical one, above which a warning is possible. In surrogates of smooth
# posteriors whose chains were right it was 1.1 at the most, with funnels, bends and heavy tails from 1.5 up to 20.
_LARGEST_EXCESS = 1.5
_FEWEST_WEIGHTS = 100  # for a fit of their tail: it takes a fifth of them


class Coverage(NamedTuple):
    """How the weights pi / s are distributed over the draws."""

    shape: float  # of the Pareto tail of the weights; NaN with too few of them
    excess: float  # of the largest log weight over the median


def coverage_of(log_weights: np.ndarray) -> Coverage:
    """Return the coverage from the log weights at the draws (n,).

    The shape is the larger of those of all draws and of the distinct positions: a single long stay at the largest
    weight makes a tail of equal weights, which has no shape.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if finite.size < _FEWEST_WEIGHTS:
        return Coverage(math.nan, math.nan)
    shapes = [pareto_shape(w) for w in (finite, np.unique(finite)) if w.size >= _FEWEST_WEIGHTS]
    return Coverage(float(np.fmax.reduce(shapes)), float(finite.max() - np.median(finite)))


def is_missing_mass(coverage: Coverage) -> bool:
    """Return whether chains along this surrogate are likely to miss a part of the posterior."""
    return coverage.shape > _LARGEST_SHAPE and coverage.excess > _LARGEST_EXCESS


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape of a generalized Pareto distribution fitted to the largest weights; NaN where equal or few.

    The largest min(n / 5, 3 sqrt(n)) of them, by the estimator of Zhang and Stephens (2009) with the weak prior of
    Vehtari et al. (2024), which draws small samples towards one half.

    Parameters
    ----------
    log_weights : ndarray (n,)
        Finite; of 25 at least there is a shape.
    """
    n = log_weights.size
    num_tail = math.ceil(min(0.2 * n, 3.0 * math.sqrt(n)))
    if n <= num_tail:
        return math.nan
    ordered = np.sort(log_weights) - log_weights.max()
    excesses = np.exp(ordered[-num_tail:]) - math.exp(ordered[-num_tail - 1])
    # Many draws at one position have equal weights: only what lies above the threshold is the tail.
    excesses = excesses[excesses > 1e-12]
    if excesses.size < 5 or np.ptp(excesses) == 0.0:
        return math.nan
    return _zhang_stephens(excesses)


def _zhang_stephens(excesses):
    """Return the shape fitted to ordered positive excesses (m,), by a mean over a grid of the other parameter."""
    m = excesses.size
    num_nodes = 30 + int(math.sqrt(m))
    nodes = 1.0 - np.sqrt(num_nodes / (np.arange(1.0, num_nodes + 1.0) - 0.5))
    nodes = nodes / (3.0 * excesses[int(m / 4 + 0.5) - 1]) + 1.0 / excesses[-1]
    shapes = np.log1p(-nodes[:, None] * excesses).mean(axis=1)
    log_likelihoods = m * (np.log(-nodes / shapes) - shapes - 1.0)
    weights = np.exp(log_likelihoods - log_likelihoods.max())
    node = (nodes * weights).sum() / weights.sum()
    shape = np.log1p(-node * excesses).mean()
    return float((m * shape + 5.0) / (m + 10.0))
