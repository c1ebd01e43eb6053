"""Posteriors of simulators in rounds: a likelihood is learned, draws from it say where to simulate next."""

from pymc_kernel.rounds.cautious import CautiousRounds, LocalLikelihood, Posterior, Round, State
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior

__all__ = ["CautiousRounds", "Draws", "LocalLikelihood", "ParticleSampler", "Posterior", "Prior", "Round", "State"]
