"""The moves of kernel HMC: a random walk, differences of visited places, chains of trajectories on the surrogate.

While a chain tunes its moves are measured by the normalized expected squared jumping distance: acceptance probability
times squared jumps of the whitened coordinates z and of their squares, over twice their variances; the smallest over
coordinates and squares counts. For a stationary chain it is one minus the autocorrelation, so that independent draws
have a measure of one. A surrogate along which the chain moves less far than by the walk is not used.

Imports NumPy and the lower floors only.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.mcmc import adaptive_metropolis as walk

__all__ = [
    "DIFFERENCE",
    "NAMES",
    "TRAJECTORIES",
    "WALK",
    "Choice",
    "after_tuning",
    "averaged",
    "difference",
    "first",
    "measured",
    "shares_of",
    "squared_jumps",
    "while_tuning",
]

NAMES = ("walk", "difference", "trajectories")
WALK, DIFFERENCE, TRAJECTORIES = NAMES

_FULL_DIFFERENCE_SHARE = 0.1  # of differences, taken at their full length: from mode to mode
_NOISE_OF_DIFFERENCES = 1e-3  # in units of the walk's factor, so that a difference can reach any place
_DIFFERENCE_SHARE = 0.3  # of the exploring moves
_MEMORY = 150.0  # moves of a kind that its measure is averaged over
_MEMORY_OF_OLD_FIT = 20.0  # of these, at most, from before the last fit
_USELESS_SHARE = 0.15  # of moves while tuning along a surrogate that was worse: a later one may be better


class Choice(NamedTuple):
    """Probabilities of the kinds of moves, in the order of their names, and what they follow from."""

    shares: np.ndarray  # (3,), of sum one
    jumps: np.ndarray  # (3, 2 d), normalized squared jumps times acceptance probability, averaged
    counts: np.ndarray  # (3,), moves that they are averaged over

    @property
    def is_worse(self) -> bool:
        """Whether moves along the surrogate go less far than the exploring ones; not before both have been tried."""
        walk, difference, along = self.jumps.min(axis=1)
        return bool(self.counts[2]) and along < max(walk, difference)


def shares_of(surrogate_share: float, with_differences: bool = True) -> np.ndarray:
    """Return the shares of the kinds of moves (3,)."""
    of_exploring = _DIFFERENCE_SHARE if with_differences else 0.0
    exploring = 1.0 - surrogate_share
    return np.array([exploring * (1.0 - of_exploring), exploring * of_exploring, surrogate_share])


def first(num_dims: int) -> Choice:
    """Return the choice before anything is known: the walk."""
    return Choice(shares_of(0.0, with_differences=False), np.zeros((3, 2 * num_dims)), np.zeros(3))


def while_tuning(choice: Choice, exploring_share: float) -> Choice:
    """Return the choice while a chain tunes with a new surrogate."""
    share = min(_USELESS_SHARE, 1.0 - exploring_share) if choice.is_worse else 1.0 - exploring_share
    counts = choice.counts.copy()
    counts[2] = min(counts[2], _MEMORY_OF_OLD_FIT)
    return choice._replace(shares=shares_of(share), counts=counts)


def after_tuning(choice: Choice, exploring_share: float, has_surrogate: bool) -> Choice:
    """Return the choice for after tuning: without the surrogate where it is worse than exploring."""
    is_used = has_surrogate and not choice.is_worse
    return choice._replace(shares=shares_of(1.0 - exploring_share if is_used else 0.0))


def difference(rng: np.random.Generator, position: np.ndarray, places: np.ndarray, factor) -> tuple[np.ndarray, float]:
    """Return x + g (a - b) + small noise, a and b two of the visited ``places`` (n, d), and g.

    Differential evolution on the chain's own past (ter Braak and Vrugt 2008).
    """
    d = position.size
    # A chain that never moved has only one position.
    first, second = rng.choice(len(places), 2, replace=len(places) < 2)
    scale = 1.0 if rng.random() < _FULL_DIFFERENCE_SHARE else walk.optimal_scale(2 * d)
    end = position + scale * (places[first] - places[second])
    return walk.propose(end, factor, _NOISE_OF_DIFFERENCES, rng.standard_normal(d)), scale


def squared_jumps(before: np.ndarray, after: np.ndarray, accept_prob: float) -> np.ndarray:
    """Return the normalized squared jumps (2 d,) of one move, from whitened positions (d,) before it and proposed."""
    return accept_prob * np.concatenate([(after - before) ** 2 / 2.0, (after**2 - before**2) ** 2 / 4.0])


def measured(choice: Choice, move: str, jumps: np.ndarray) -> Choice:
    """Return the choice with one more move of a kind in its average."""
    averages, counts, k = choice.jumps.copy(), choice.counts.copy(), NAMES.index(move)
    counts[k] = min(counts[k] + 1.0, _MEMORY)
    averages[k] += (jumps - averages[k]) / counts[k]
    return choice._replace(jumps=averages, counts=counts)


def averaged(choices) -> Choice:
    """Return the choice with the measures of several chains together, and the shares of the first."""
    counts = np.array([c.counts for c in choices])
    total = np.maximum(counts.sum(axis=0), 1.0)
    jumps = np.einsum("ck,ckj->kj", counts, [c.jumps for c in choices]) / total[:, None]
    return Choice(choices[0].shares, jumps, np.minimum(counts.max(axis=0), total))
