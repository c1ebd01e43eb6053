"""Posteriors in rounds: a likelihood is learned, and decides where the next round simulates."""

from pymc_kernel.rounds.cautious import CautiousRounds, Round, State
from pymc_kernel.rounds.checks import Calibration, Checks
from pymc_kernel.rounds.local_likelihood import LocalLikelihood
from pymc_kernel.rounds.particles import Draws, Prior, sample_particles

__all__ = [
    "Calibration",
    "CautiousRounds",
    "Checks",
    "Draws",
    "LocalLikelihood",
    "Prior",
    "Round",
    "State",
    "sample_particles",
]
