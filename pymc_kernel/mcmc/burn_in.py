"""Burn-in: the way from a poor start to the bulk, before anything is learned about the bulk itself.

The covariance of the visited positions is useless during burn-in: it is long in the direction in which the chain
travels, so that the scale, which is bounded by the narrow directions, falls to nothing. An evolution strategy works:
the scale follows the acceptance rate at a speed that does not vanish, 2 / (2 + d), and the covariance follows the
accepted steps, not the positions (Igel, Suttorp and Hansen 2006, the (1 + 1) strategy; Hansen's path). The distance to
a mode then falls by a constant factor every few d evaluations. When the log density has stopped rising, learning
begins, from here.

Imports NumPy, Numba and the lower floors only.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.linalg import cholesky_update
from pymc_kernel.mcmc.history import History, recent
from pymc_kernel.mcmc.metropolis import robbins_monro_rate

__all__ = ["Arrival", "bulk", "depart", "has_arrived", "learn_step", "longest", "remember"]

_REFERENCE_SHARE = 1.0 / 3.0  # of the draws, the latest: their median log density is that of the bulk


class Arrival(NamedTuple):
    """What is learned during burn-in, besides the factor and the scale of the walk itself."""

    path: np.ndarray  # (d,), accepted steps in units of the scale, fading
    levels: tuple[float, ...]  # log densities of the latest draws
    num_moves: int  # of the walk


def depart(num_dims: int) -> Arrival:
    """Return the burn-in state at the start of a chain."""
    return Arrival(np.zeros(num_dims), (), 0)


def _follow(factor, path, step):
    """Return factor and path after an accepted ``step`` (in units of the scale); O(d^2).

    The rates are those of the (1 + 1) strategy with covariance adaptation: 2 / (d + 2) for the path, 2 / (d^2 + 6)
    for the covariance.
    """
    d = step.shape[0]
    fading = 2.0 / (d + 2.0)
    rate = 2.0 / (d * d + 6.0)
    new_path = (1.0 - fading) * path + math.sqrt(fading * (2.0 - fading)) * step
    new_factor = math.sqrt(1.0 - rate) * factor
    cholesky_update(new_factor, math.sqrt(rate) * new_path)
    return new_factor, new_path


def learn_step(
    arrival: Arrival, factor: np.ndarray, log_scale: float, moved: np.ndarray | None, accept_error: float, noisy: bool
) -> tuple[Arrival, np.ndarray, float]:
    """Return arrival, factor (d, d) and log scale of the walk after one of its moves.

    Parameters
    ----------
    moved
        The step (d,) where it was accepted, else None.
    accept_error
        Acceptance probability less its target.
    noisy
        Whether the log density is estimated. A chain that is stuck on a large estimate rejects at any scale: so the
        scale follows at a constant speed only where the log density is exact.
    """
    path = arrival.path
    if moved is not None:
        factor, path = _follow(factor, path, moved / math.exp(log_scale))
    # In many dimensions the first scale may be far too large; it falls as fast as in the bulk.
    rate = max(robbins_monro_rate(arrival.num_moves), 0.0 if noisy else 1.0 / (1.0 + 0.5 * path.size))
    return arrival._replace(path=path, num_moves=arrival.num_moves + 1), factor, log_scale + rate * accept_error


def remember(arrival: Arrival, level: float) -> Arrival:
    """Return the burn-in state after a draw with the log density ``level``."""
    return arrival._replace(levels=(*arrival.levels[1 - 2 * _half(arrival.path.size) :], level))


def _half(num_dims):
    """Return the number of draws that halve the distance to the bulk, and in which a chain in the bulk forgets."""
    return 20 + 3 * num_dims


def longest(num_dims: int) -> int:
    """Return the number of draws after which burn-in ends in any case."""
    return 100 + 50 * num_dims


def has_arrived(arrival: Arrival) -> bool:
    """Return whether the log density has stopped rising.

    In the bulk of a Gaussian it varies with a standard deviation of sqrt(d / 2); the means of two stretches of draws,
    one after the other, may differ by that much.
    """
    d = arrival.path.size
    half = _half(d)
    if len(arrival.levels) < 2 * half:
        return False
    levels = np.array(arrival.levels)
    return bool(levels[half:].mean() - levels[:half].mean() < math.sqrt(0.5 * d))


def bulk(places: History, levels: History, fraction: float = 1.0) -> np.ndarray:
    """Return the positions (n, d) since the chain first was as high as it now is; at most the latest ``fraction``.

    The first draw that reaches the median log density of the latest third begins them: in a chain that has forgotten
    its start that is one of the first few, in one that still rises the last sixth is left.

    Parameters
    ----------
    places, levels : History
        Of the same draws: (n, d), and log densities (n, 1).
    """
    if not places.count:
        return places.buffer[:0]
    values = levels.buffer[: levels.count, 0]
    reference = np.median(recent(levels, _REFERENCE_SHARE))
    first = int(np.argmax(values >= reference))
    latest = places.count - math.ceil(fraction * places.count)
    return places.buffer[max(first, latest) : places.count]
