"""Differential evolution: steps along differences of other particles, for targets of any shape and many modes.

ter Braak (2006), with pairs from other folds than that of the particle that moves, so that detailed balance is exact.
In turn with these: a place of its own by a mixture of normals fitted to the others, which forgets where the particle
was.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import check_between
from pymc_kernel.smc.moves import Evaluated, Proposals
from pymc_kernel.smc.normal_mixture import NormalMixture, fit_mixture

_JITTER = 1e-3  # of a difference, so that finitely many of them reach every place
_LARGEST_LOG_SCALE = 50.0  # of steps on a target without an end, so that factors stay finite


class Pairs(NamedTuple):
    """Differences of other particles, and what is learned of how far to go along them."""

    differences: np.ndarray  # (m, d)
    mixture: NormalMixture
    log_scale: float  # of steps along differences
    num_adapted: int
    is_anew: bool  # whether the next move is a place of its own


@dataclass(frozen=True)
class Differences:
    """Steps along the differences of other particles.

    Parameters
    ----------
    target_accept : float
        Which the scale of the steps is adapted to, in (0, 1).
    """

    target_accept: float = 0.3

    def __post_init__(self):
        check_between(target_accept=self.target_accept)

    def fit(self, rng, particles: Evaluated, evaluated, inverse_temperature, learned: Pairs | None, shared=None):
        """Return the differences of these particles; scale and turn go on from those before."""
        positions = particles.positions
        differences = positions - positions[rng.permutation(len(positions))]
        mixture = fit_mixture(rng, positions)
        if learned is None:
            return Pairs(differences, mixture, math.log(2.38 / math.sqrt(2.0 * positions.shape[1])), 0, True)
        # The shape of the particles changes with the temperature: adaptation starts again from the scale reached.
        return learned._replace(differences=differences, mixture=mixture, num_adapted=0)

    def propose(self, rng: np.random.Generator, positions: np.ndarray, learned: Pairs) -> Proposals:
        """Return a place for every particle; O(n d)."""
        n = len(positions)
        if learned.is_anew:
            proposed = learned.mixture.sample(rng, n)
            log_ratio = learned.mixture.log_density(positions) - learned.mixture.log_density(proposed)
            return Proposals(proposed, log_ratio, np.zeros(n, dtype=bool))
        along, other = learned.differences[rng.integers(len(learned.differences), size=(2, n))]
        steps = rng.choice([-1.0, 1.0], (n, 1)) * math.exp(learned.log_scale) * along
        steps += _JITTER * rng.standard_normal((n, 1)) * other
        return Proposals(positions + steps, np.zeros(n), np.ones(n, dtype=bool))

    def adapt(self, learned: Pairs, proposals: Proposals, accept_prob: np.ndarray) -> Pairs:
        """Return what was learned with the scale moved by the mean acceptance of differences, and the other turn."""
        if learned.is_anew:
            return learned._replace(is_anew=False)
        rate = 2.0 * (1.0 + learned.num_adapted) ** -0.5
        log_scale = learned.log_scale + rate * (float(accept_prob.mean()) - self.target_accept)
        log_scale = min(log_scale, _LARGEST_LOG_SCALE)
        return learned._replace(log_scale=log_scale, num_adapted=learned.num_adapted + 1, is_anew=True)

    def scale_of(self, learned: Pairs) -> float:
        """Return the factor of differences of any two particles."""
        return math.exp(learned.log_scale)
