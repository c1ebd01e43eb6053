"""Priors on arrays and whole runs that tests of the rounds share."""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import log_expit, logit

from pymc_kernel.rounds import sample_particles


@dataclass(frozen=True)
class NormalPrior:
    """Independent normals."""

    mean: np.ndarray
    spread: np.ndarray
    is_proper = True

    def draw(self, rng, size):
        return rng.normal(self.mean, self.spread, (size, len(self.mean)))

    def log_density(self, parameters):
        return stats.norm.logpdf(parameters, self.mean, self.spread).sum(axis=1)


@dataclass(frozen=True)
class UniformPrior:
    """Uniform on a box from 0 to 1, on the logistic scale."""

    num_dims: int
    is_proper = True

    def draw(self, rng, size):
        return logit(rng.random((size, self.num_dims)))

    def log_density(self, parameters):
        return (log_expit(parameters) + log_expit(-parameters)).sum(axis=1)


def run(rounds, simulate, prior, observed, rng):
    """Return draws from the posterior after all rounds, as many as the settings have particles, and the last state."""
    state = rounds.init(prior, observed)
    while not state.is_finished:
        state, parameters = rounds.propose(rng, state)
        state = rounds.update(rng, state, parameters, simulate(rng, parameters))
    return sample_particles(rng, state.prior, state.likelihood, rounds.num_particles), state
