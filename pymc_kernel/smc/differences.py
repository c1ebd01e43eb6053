"""Differential evolution: steps along differences of other particles, for targets of any shape and many modes.

ter Braak (2006), with pairs from other folds than that of the particle that moves, so that detailed balance is exact.
Moves take turns: differences of any two particles; of two that are close, whose steps stay within a mode; whole
differences, which carry a particle from one mode to the same place in another; and, in between, a place of its own by
a mixture of normals fitted to the others, which forgets where the particle was. Imports NumPy and siblings.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import is_number
from pymc_kernel.smc.moves import Evaluated, Proposals
from pymc_kernel.smc.normal_mixture import NormalMixture, fit_mixture

__all__ = ["Differences"]

_NUM_CANDIDATES = 8  # others among which the nearest is taken for a close pair
_ANY, _CLOSE, _WHOLE, _ANEW = 0, 1, 2, 3
_TURNS = (_ANEW, _ANY, _CLOSE, _ANEW, _ANY, _CLOSE, _ANEW, _WHOLE)
_JITTER = 1e-3  # of a difference, so that finitely many of them reach every place
_LARGEST_LOG_SCALE = 50.0  # of steps on a target without an end, so that factors stay finite
_SPREAD_OF_SCALES = 0.3  # standard deviation of the log of a step's scale: short steps where the target is narrow


class Pairs(NamedTuple):
    """Differences of other particles, and what is learned of how far to go along them."""

    any_two: np.ndarray  # (m, d)
    close: np.ndarray  # (m, d)
    mixture: NormalMixture
    log_scales: tuple[float, float]  # of steps along either
    num_adapted: tuple[int, int]
    turn: int  # number of moves made


@dataclass(frozen=True)
class Differences:
    """Steps along the differences of other particles.

    Parameters
    ----------
    target_accept : float
        Which the scales of the steps are adapted to, in (0, 1).
    """

    target_accept: float = 0.3

    def __post_init__(self):
        if not is_number(self.target_accept, 0.0, 1.0):
            raise ValueError(f"target_accept must lie between 0 and 1, got {self.target_accept!r}.")

    def fit(
        self,
        rng: np.random.Generator,
        particles: Evaluated,
        evaluated: Evaluated,
        inverse_temperature: float,
        learned: Pairs | None,
        shared: Pairs | None = None,
    ) -> Pairs:
        """Return the differences of these particles; scales and turn go on from those before."""
        positions = particles.positions
        any_two = positions - positions[rng.permutation(len(positions))]
        close = _close_differences(rng, positions)
        mixture = fit_mixture(rng, positions)
        if learned is None:
            scale = math.log(2.38 / math.sqrt(2.0 * positions.shape[1]))
            return Pairs(any_two, close, mixture, (scale, scale), (0, 0), 0)
        # The shape of the particles changes with the temperature: adaptation starts again from the scales reached.
        return learned._replace(any_two=any_two, close=close, mixture=mixture, num_adapted=(0, 0))

    def propose(self, rng: np.random.Generator, positions: np.ndarray, learned: Pairs) -> Proposals:
        """Return a place for every particle; O(n d)."""
        n = len(positions)
        kind = _TURNS[learned.turn % len(_TURNS)]
        if kind == _ANEW:
            proposed = learned.mixture.sample(rng, n)
            log_ratio = learned.mixture.log_density(positions) - learned.mixture.log_density(proposed)
            return Proposals(proposed, log_ratio, np.zeros(n, dtype=bool))
        differences = learned.close if kind == _CLOSE else learned.any_two
        steps = differences[rng.integers(len(differences), size=n)] * rng.choice([-1.0, 1.0], (n, 1))
        if kind != _WHOLE:
            log_scale = learned.log_scales[kind] + _SPREAD_OF_SCALES * rng.standard_normal((n, 1))
            steps = np.exp(log_scale) * steps
        other = differences[rng.integers(len(differences), size=n)]
        steps = steps + _JITTER * rng.standard_normal((n, 1)) * other
        return Proposals(positions + steps, np.zeros(n), np.full(n, kind != _WHOLE))

    def adapt(self, learned: Pairs, proposals: Proposals, accept_prob: np.ndarray) -> Pairs:
        """Return the scale of the last kind of move moved by the mean acceptance, and the next turn."""
        kind, learned = _TURNS[learned.turn % len(_TURNS)], learned._replace(turn=learned.turn + 1)
        if kind in (_WHOLE, _ANEW):
            return learned
        scales, counts = list(learned.log_scales), list(learned.num_adapted)
        rate = 2.0 * (1.0 + counts[kind]) ** -0.5
        scales[kind] += rate * (float(accept_prob.mean()) - self.target_accept)
        scales[kind] = min(scales[kind], _LARGEST_LOG_SCALE)
        counts[kind] += 1
        return learned._replace(log_scales=tuple(scales), num_adapted=tuple(counts))

    def scale_of(self, learned: Pairs) -> float:
        """Return the factor of differences of any two particles."""
        return math.exp(learned.log_scales[_ANY])


def _close_differences(rng, positions):
    """Return the difference (m, d) of each row and the nearest of a few others, in spreads of each column."""
    n = len(positions)
    spread = positions.std(axis=0)
    scaled = positions / np.where(spread > 0.0, spread, 1.0)
    nearest, smallest = np.zeros(n, dtype=int), np.full(n, np.inf)
    for _ in range(_NUM_CANDIDATES):
        candidate = rng.integers(n, size=n)
        squared = ((scaled - scaled[candidate]) ** 2).sum(axis=1)
        is_nearer = (squared < smallest) & (squared > 0.0)  # copies of one ancestor show no direction
        nearest[is_nearer], smallest[is_nearer] = candidate[is_nearer], squared[is_nearer]
    found = smallest < np.inf
    close = positions[found] - positions[nearest[found]]
    return close if len(close) else positions - positions.mean(axis=0)
