"""Whether a chain has missed a mode: points as likely as its draws that it never came near.

If a chain covers its target, there are draws near every point whose log density is no lower than theirs. Points that
were evaluated before the chain began, at draws from the prior for example, were not chosen by the chain: one that is as
high as the draws and far from all of them belongs to a mode that the chain has not visited. R-hat does not show that
where all chains are in one mode.

A few such points seldom lie in a narrow mode, but one on its slope is enough: a short climb is made from every hill
other than the highest.

Imports NumPy only.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Places", "missed", "other_hills"]

_LOW_QUANTILE = 0.01  # quantile of the draws' log densities: points above it are in the highest-density region of 99 %
# Two independent draws of a normal distribution are sqrt(2 d) standard deviations apart, give or take one, and a point
# of that region lies as far from an average draw. The nearest of hundreds is nearer by far.
_DISTANCE_MARGIN = 3.0
_LEAST_DRAWS = 100  # for a meaningful quantile and spread
_FIRST_STRIDE = 0.3  # of the climbs, in units of the scales
# Factors of the stride: it keeps its length where one step in five goes up (Rechenberg's rule).
_STRIDE_GROWTH, _STRIDE_DECAY = 1.5, 1.5**-0.25
_CLIMB_EVALUATIONS = 30  # evaluations for each dimension and climb


class Places(NamedTuple):
    """Where a density was evaluated."""

    positions: np.ndarray
    """(m, d)."""
    log_densities: np.ndarray
    """(m,); not finite where it is zero or failed."""


def other_hills(
    places: Places,
    log_density: Callable[[np.ndarray], float],
    scales: np.ndarray,
    budget: int,
    rng: np.random.Generator,
) -> Places:
    """Return points (m, d) high up on hills that the highest of the places is not on; often none.

    Two places are on one hill where the density half way between them is no lower than at the lower one (Ursem 1999).
    A banana counts as two hills then: the density is only to be as high there as the chain finds it elsewhere.

    Parameters
    ----------
    places : Places
    log_density
        Of a position (d,).
    scales : ndarray (d,)
        Rough spreads of the target: the climbs begin with steps of a third of them.
    budget : int
        Largest number of evaluations. No climb begins that would exceed it.
    """
    order = np.argsort(-np.where(np.isfinite(places.log_densities), places.log_densities, -np.inf))
    order = [i for i in order if np.isfinite(places.log_densities[i])]
    hills, tops, levels = order[:1], [], []
    length = _CLIMB_EVALUATIONS * places.positions.shape[1]
    for i in order[1:]:
        if budget < length + len(hills):
            break
        position, level = places.positions[i], places.log_densities[i]
        apart = (places.positions[hills] - position) / scales
        by_distance = np.argsort((apart**2).sum(axis=1))
        is_new = True
        for hill in np.take(hills, by_distance):
            budget -= 1
            is_new = log_density(0.5 * (position + places.positions[hill])) < level
            if not is_new:
                break
        if is_new:
            hills.append(i)
            budget -= length
            top, height = _climb(position, level, log_density, scales, length, rng)
            tops.append(top)
            levels.append(height)
    return Places(np.reshape(tops, (len(tops), len(scales))), np.array(levels))


def _climb(position, level, log_density, scales, num_steps, rng):
    stride = _FIRST_STRIDE
    for _ in range(num_steps):
        proposal = position + stride * scales * rng.standard_normal(position.size)
        height = log_density(proposal)
        if height > level:
            position, level = proposal, height
            stride *= _STRIDE_GROWTH
        else:
            stride *= _STRIDE_DECAY
    return position, level


def missed(places: Places, draws: np.ndarray, log_densities: np.ndarray) -> np.ndarray | None:
    """Return the most likely of the places that a chain has left out, (d,), or None.

    Parameters
    ----------
    places : Places
        Evaluated beforehand, not chosen by the chain.
    draws, log_densities
        (n, d) and (n,), of the chain, which must all be of the target; thinned ones will do. O(m n d).
    """
    if len(draws) < _LEAST_DRAWS:
        return None
    spreads = draws.std(axis=0)
    if not (spreads > 0.0).all():
        return None  # the chain has hardly moved; other warnings report that
    is_likely = places.log_densities >= np.quantile(log_densities, _LOW_QUANTILE)
    positions, levels = places.positions[is_likely], places.log_densities[is_likely]
    differences = (positions[:, None] - draws) / spreads
    nearest = np.sqrt(np.einsum("mnd,mnd->mn", differences, differences).min(axis=1, initial=np.inf))
    is_far = nearest > math.sqrt(2.0 * draws.shape[1]) + _DISTANCE_MARGIN
    return positions[is_far][np.argmax(levels[is_far])] if is_far.any() else None
