"""Posteriors in rounds: a likelihood is learned, draws from it say where to simulate, or to evaluate, next."""

from pymc_kernel.rounds.active import ActiveLearning
from pymc_kernel.rounds.cautious import CautiousRounds, Posterior, Round, State
from pymc_kernel.rounds.checks import Calibration, Checks
from pymc_kernel.rounds.learned_posterior import LogPosterior
from pymc_kernel.rounds.local_likelihood import LocalLikelihood
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior

__all__ = [
    "ActiveLearning",
    "Calibration",
    "CautiousRounds",
    "Checks",
    "Draws",
    "LocalLikelihood",
    "LogPosterior",
    "ParticleSampler",
    "Posterior",
    "Prior",
    "Round",
    "State",
]
