"""Posteriors in rounds: a likelihood is learned, and decides where the next round simulates."""

from pymc_kernel.rounds.cautious import CautiousRounds, Round, State
from pymc_kernel.rounds.checks import Calibration, Checks
from pymc_kernel.rounds.local_likelihood import LocalLikelihood
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior

__all__ = [
    "Calibration",
    "CautiousRounds",
    "Checks",
    "Draws",
    "LocalLikelihood",
    "ParticleSampler",
    "Prior",
    "Round",
    "State",
]
