"""Differential evolution: steps along differences of other particles, for targets of any shape and many modes.

ter Braak (2006), with pairs from other folds than that of the particle that moves, so that detailed balance is exact.
In turn with these: a place of its own by a mixture of normals fitted to the others, which forgets where the particle
was.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.smc.moves import Evaluated, Proposals, Scaled, following
from pymc_kernel.smc.normal_mixture import NormalMixture, fit_mixture

_TARGET_ACCEPT = 0.3  # of steps along differences
_JITTER = 1e-3  # of a difference, so that finitely many of them reach every place
_LARGEST_LOG_SCALE = 50.0  # of steps on a target without an end, so that factors stay finite


class Pairs(NamedTuple):
    """Differences of other particles, and what is learned of how far to go along them."""

    differences: np.ndarray  # (m, d)
    mixture: NormalMixture
    log_scale: float  # of steps along differences
    num_adapted: int
    is_anew: bool  # whether the next move is a place of its own


class Differences(Scaled):
    """Steps along the differences of other particles."""

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
        learned = learned._replace(is_anew=True)
        return following(learned, accept_prob, _TARGET_ACCEPT, rate, _LARGEST_LOG_SCALE)
