"""Burn-in: the way from a poor start to the bulk, before anything is learned about the bulk itself.

The covariance of the visited positions is useless during burn-in: it is long in the direction in which the chain
travels, so that the scale, which is bounded by the narrow directions, falls to nothing. So the first covariance is kept
and the scale alone follows the acceptance rate, at a speed that does not vanish, 2 / (2 + d). When the log density has
stopped rising, learning begins, from here. Without this phase a regression started fifty standard deviations away has
1/300 of the effective sample size: row "burn-in" of ``benchmarks.ablations``.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.mcmc.metropolis import robbins_monro_rate


class Arrival(NamedTuple):
    """What a chain knows during burn-in, besides the scale of its walk."""

    num_dims: int
    levels: tuple[float, ...] = ()  # log densities of the latest draws
    num_moves: int = 0  # of the walk


def learn_scale(arrival: Arrival, log_scale: float, accept_error: float, noisy: bool) -> tuple[Arrival, float]:
    """Return arrival and log scale of the walk after one of its moves, given acceptance probability minus target.

    A chain that is stuck on a large estimate rejects at any scale, so the gain has a lower bound only where the log
    density is exact.
    """
    # In many dimensions the first scale may be far too large; it falls as fast as in the bulk.
    rate = max(robbins_monro_rate(arrival.num_moves), 0.0 if noisy else 1.0 / (1.0 + 0.5 * arrival.num_dims))
    return arrival._replace(num_moves=arrival.num_moves + 1), log_scale + rate * accept_error


def remember(arrival: Arrival, level: float) -> Arrival:
    """Return the burn-in state after a draw with the log density ``level``."""
    return arrival._replace(levels=(*arrival.levels[1 - 2 * _half(arrival.num_dims) :], level))


def _half(num_dims):
    """Return the number of draws in which a chain halves its distance to the bulk, or decorrelates in the bulk."""
    return 20 + 3 * num_dims


def longest(num_dims: int) -> int:
    """Return the number of draws after which burn-in ends in any case."""
    return 100 + 50 * num_dims


def has_arrived(arrival: Arrival) -> bool:
    """Return whether the log density has stopped rising.

    In the bulk of a Gaussian it varies with a standard deviation of sqrt(d / 2); the means of two stretches of draws,
    one after the other, may differ by that much.
    """
    half = _half(arrival.num_dims)
    if len(arrival.levels) < 2 * half:
        return False
    levels = np.array(arrival.levels)
    return bool(levels[half:].mean() - levels[:half].mean() < math.sqrt(0.5 * arrival.num_dims))
