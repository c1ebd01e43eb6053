"""Draws from a posterior whose log likelihood is a cheap function of many points at once, such as a learned one.

Particles go from the prior to the posterior through powers of the likelihood (``smc.tempering``) by differential
evolution (``smc.moves``), a few moves at each power and many at the last: until they no longer correlate with
where they were when they were last resampled.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from pymc_kernel.kernels.points import check_whole
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.smc import tempering
from pymc_kernel.smc.moves import Differences, Evaluated, largest_correlation
from pymc_kernel.smc.weights import impossible_as_zero

LogLikelihood = Callable[[np.ndarray], np.ndarray]
_BRIEFLY = 0.4  # correlation at which particles have moved enough for the next power
_FORGOTTEN = 0.1  # correlation with the places before, at which they have moved enough for the last power
_MOST_MOVES = 32  # of each particle at each power but the last


class Prior(Protocol):
    """A prior distribution on the unconstrained scale."""

    is_proper: bool
    """Whether the draws are from this density. Those of a flat prior are not: they are only starting points."""

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return draws (size, d)."""

    def log_density(self, parameters: np.ndarray) -> np.ndarray:
        """Return the normalized log density (m,) at ``parameters`` (m, d)."""


class Draws(NamedTuple):
    """What a sampler returns."""

    positions: np.ndarray  #: (n, d), equally weighted, in random order
    log_likelihood: np.ndarray  #: (n,), without its power
    log_evidence: float  #: log of the mean of the powered likelihood over the prior
    correlation: float  #: largest one of ranks over the last moves: places, distances from the median, log likelihood
    powers: tuple[float, ...]  #: that the particles went through, as shares of the last one
    passed: tuple[np.ndarray, ...]  #: particles (n, d) before each of these powers: draws of the prior first


@one_blas_thread
def sample_particles(
    rng: np.random.Generator, prior: Prior, log_likelihood: LogLikelihood, num_particles: int, power: float = 1.0
) -> Draws:
    """Return draws from the prior times the likelihood to a power.

    Tempered particles, at least 20, with differential moves, at most max(40, 10 d) of each at the last power. The log
    likelihood takes points (m, d) and returns (m,), NaN or -inf where there is none; its power is not below zero.
    Raises ``ValueError`` where no draw of the prior has a likelihood above zero.
    """
    check_whole(least=20, num_particles=num_particles)

    def evaluate(positions):
        with np.errstate(all="ignore"):
            log_prior = prior.log_density(positions)
            powered = power * log_likelihood(positions) if power > 0.0 else np.zeros(len(positions))
        return impossible_as_zero(log_prior), impossible_as_zero(powered)

    positions = prior.draw(rng, num_particles)
    state = tempering.init(Evaluated(positions, *evaluate(positions)))
    # Few moves between two looks at the correlation: two of each kind.
    config = tempering.Config(Differences(), max_moves=tempering.Config.min_moves, num_folds=2)
    powers, passed = [], []
    while state.inverse_temperature < 1.0:
        chosen = tempering.choose_temperature(state, config)
        powers.append(chosen[0])
        passed.append(state.particles.positions)
        is_last = chosen[0] == 1.0
        enough, most = (_FORGOTTEN, max(40, 10 * positions.shape[1])) if is_last else (_BRIEFLY, _MOST_MOVES)
        state, correlation = _forget(rng, state, evaluate, chosen, config, enough, most)
    particles = state.particles.take(rng.permutation(num_particles))
    likelihood = particles.log_likelihood / power if power > 0.0 else log_likelihood(particles.positions)
    return Draws(particles.positions, likelihood, state.log_evidence, correlation, tuple(powers), tuple(passed))


def _forget(rng, state, evaluate, chosen, config, enough, most):
    """Return the state at a chosen power after moves, and the correlation of particles with where they were.

    The correlation is with their places after the first moves, which can only lead to more moves.
    """
    num_moves, correlation, before = 0, 1.0, None
    while before is None or (num_moves + config.min_moves <= most and correlation > enough):
        state, info = tempering.rejuvenate(rng, state, evaluate, chosen, config)
        num_moves += info.moves
        if before is None:
            before, n = _features(state.particles), len(state.particles.positions)
            chosen = (state.inverse_temperature, np.full(n, 1.0 / n), 0.0)
        else:
            correlation = largest_correlation(before, _features(state.particles))
    return state, correlation


def _features(particles):
    """Return ranks (n, 2 d + 1) of what must decorrelate: places, distances from the median, log likelihood.

    Ranks, since on an unconstrained scale a few particles far out in a tail would dominate.
    """
    centered = particles.positions - np.median(particles.positions, axis=0)
    columns = np.column_stack([centered, np.abs(centered), particles.log_likelihood])
    return columns.argsort(axis=0).argsort(axis=0).astype(float)
