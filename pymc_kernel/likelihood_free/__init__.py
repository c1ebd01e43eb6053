"""Likelihoods of simulators: approximate Bayesian computation with kernels, synthetic likelihoods."""

from pymc_kernel.likelihood_free.estimates import (
    as_data_points,
    log_kernel_abc,
    log_mmd_abc,
    log_normal_unbiased,
    log_synthetic,
)
from pymc_kernel.likelihood_free.simulator import Simulations, simulate_repeatedly

__all__ = [
    "Simulations",
    "as_data_points",
    "log_kernel_abc",
    "log_mmd_abc",
    "log_normal_unbiased",
    "log_synthetic",
    "simulate_repeatedly",
]
