"""Posteriors in rounds: a likelihood is learned, draws from it say where to simulate, or to evaluate, next."""

from pymc_kernel.rounds.active import ActiveLearning, LogPosterior
from pymc_kernel.rounds.cautious import CautiousRounds, LocalLikelihood, Posterior, Round, State
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior

__all__ = [
    "ActiveLearning",
    "CautiousRounds",
    "Draws",
    "LocalLikelihood",
    "LogPosterior",
    "ParticleSampler",
    "Posterior",
    "Prior",
    "Round",
    "State",
]
