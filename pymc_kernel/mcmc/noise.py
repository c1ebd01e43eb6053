"""The acceptance rate that noise of an estimated log density allows, and the target rate of a random walk under it.

A pseudo-marginal chain keeps the estimate that it accepted. With an estimate of log-normal noise of variance v, even a
step of length zero is then accepted with probability 2 Phi(-sqrt(v / 2)) only: the *ceiling*, .29 at v = 1.5^2. A walk
whose scale is driven to an acceptance rate next to or above the ceiling shrinks to nothing. So the ceiling is measured
while the chain adapts: now and then the density is estimated once more at the current point, as it would be for a
proposal, and the chance that this estimate would be accepted is averaged. This assumes nothing about the noise, and
includes estimates of zero and reused random numbers. It does not change the chain.
"""

import math
from numbers import Real
from statistics import NormalDist
from typing import NamedTuple

PLAIN_TARGET = 0.234  #: acceptance rate of the best random walk on a Gaussian in many dimensions, without noise
_INTERVAL = 10  # draws between two probes while adapting: a tenth more evaluations
_LATE_SHARE = 0.01  # interval between probes as a share of the draws so far, where adaptation never ends
# Before the first probes, the ceiling of a standard deviation of 1.5 is assumed, with the weight of five probes: a
# target rate that is too low for a while costs little, one too high lets the scale collapse in the first hundred draws.
_PRIOR_CEILING, _PRIOR_WEIGHT = 0.29, 5
_LOWEST_CEILING = 1e-3  # smallest acceptance rate that a ceiling may have


class Noise(NamedTuple):
    """What a chain has learned about the noise of its log density."""

    is_noisy: bool
    ceiling: float  # acceptance rate of steps of length zero
    target: float  # the acceptance rate that fits it
    num_probes: int
    next_probe: float  # iteration of the adaptation; infinite where none is wanted


def check_target(target_accept) -> None:
    """Raise ValueError where a target acceptance is neither "auto" nor in (0, 1)."""
    is_share = isinstance(target_accept, Real) and 0.0 < target_accept < 1.0
    if not (is_share or (isinstance(target_accept, str) and target_accept == "auto")):
        raise ValueError(f'target_accept must lie between 0 and 1, or be "auto", got {target_accept!r}.')


def unmeasured(is_noisy: bool, is_wanted: bool = True) -> Noise:
    """Return the state before the first probe; an exact density has no probes, nor a noisy one unless ``is_wanted``."""
    ceiling = _PRIOR_CEILING if is_noisy else 1.0
    return Noise(is_noisy, ceiling, optimal_target(ceiling), 0, 0 if is_noisy and is_wanted else math.inf)


def probe(known: Noise, iteration: int, kept: float, again: float) -> Noise:
    """Return the state after one more estimate at the current point, ``again``, beside the ``kept`` one."""
    difference = again - kept
    accepted = 0.0 if math.isnan(difference) else math.exp(min(difference, 0.0))
    # Gain 2 / n weights probe n in proportion to n: noise during burn-in is forgotten.
    gain = 2.0 / (known.num_probes + 2 + _PRIOR_WEIGHT)
    ceiling = known.ceiling + gain * (accepted - known.ceiling)
    following = iteration + max(_INTERVAL, int(_LATE_SHARE * iteration))
    return Noise(True, ceiling, optimal_target(ceiling), known.num_probes + 1, following)


def variance_of(ceiling: float) -> float:
    """Return the variance v of log-normal noise with this ceiling 2 Phi(-sqrt(v / 2)) in (0, 1]."""
    return 2.0 * NormalDist().inv_cdf(0.5 * max(ceiling, _LOWEST_CEILING)) ** 2


def optimal_target(ceiling: float) -> float:
    """Return the acceptance rate of the best random walk under log-normal noise with this ceiling.

    The acceptance rate of a walk with scale l / sqrt(d) on a Gaussian in many dimensions is a(l) = 2 Phi(-u) with
    u = sqrt(l^2 + 2 v) / 2 (Sherlock, Thiery, Roberts and Rosenthal 2015), and its efficiency is l^2 a(l). That is
    largest where u^2 = 2 u m(u) + v / 2, m being Mills' ratio. Without noise it is .234; at the variance
    v = 3.28, where a fixed budget is best spent, .07; the scale hardly depends on v (l from 2.38 to 2.83).
    """
    half = 0.5 * variance_of(ceiling)
    u = 1.19 + math.sqrt(half)
    for _ in range(40):  # a contraction by .6 or less
        mills = math.sqrt(0.5 * math.pi) * math.erfc(u / math.sqrt(2.0)) * math.exp(0.5 * u * u)
        u = mills + math.sqrt(mills * mills + half)
    return min(PLAIN_TARGET, math.erfc(u / math.sqrt(2.0)))


def target_of(target_accept: float | str, known: Noise | None = None) -> float:
    """Return the current target acceptance rate; that without noise if no noise is ``known``."""
    if target_accept != "auto":
        return target_accept
    return known.target if known is not None and known.is_noisy else PLAIN_TARGET
