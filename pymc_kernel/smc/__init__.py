"""Sequential Monte Carlo on arrays: weights and resampling, moves learned from particles, tempering."""

from pymc_kernel.smc.moves import Evaluated, Hamiltonian, Kameleon, Walk
from pymc_kernel.smc.tempering import Config, Info, State, init, sample, step
from pymc_kernel.smc.weights import effective_share, log_mean_exp, next_temperature, normalized, resample

__all__ = [
    "Config", "Evaluated", "Hamiltonian", "Info", "Kameleon", "State", "Walk", "effective_share", "init",
    "log_mean_exp", "next_temperature", "normalized", "resample", "sample", "step",
]  # fmt: skip
