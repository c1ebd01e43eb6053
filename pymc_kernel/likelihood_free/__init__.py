"""Likelihoods of simulators: approximate Bayesian computation with kernels, synthetic likelihoods."""

from pymc_kernel.likelihood_free.bandwidth import Bandwidth, Pilot, TooManyFailures, choose_bandwidth, explore
from pymc_kernel.likelihood_free.batches import Batch, Workers, WorkersLost
from pymc_kernel.likelihood_free.estimates import log_kernel_abc, log_normal_unbiased, log_synthetic
from pymc_kernel.likelihood_free.interrupts import TimedOut, time_limit
from pymc_kernel.likelihood_free.learned_likelihood import FittedLikelihood, LearnedLikelihood
from pymc_kernel.likelihood_free.rejection import Accepted, regression_adjusted, rejection
from pymc_kernel.likelihood_free.simulator import (
    Simulations,
    Status,
    failures_are_raised,
    simulate_once,
    simulate_repeatedly,
)
from pymc_kernel.likelihood_free.store import ArraySpec, Store, open_store

__all__ = [
    "Accepted", "ArraySpec", "Bandwidth", "Batch", "FittedLikelihood", "LearnedLikelihood", "Pilot", "Simulations",
    "Status", "Store", "TimedOut", "TooManyFailures", "Workers", "WorkersLost", "choose_bandwidth", "explore",
    "failures_are_raised", "log_kernel_abc", "log_normal_unbiased", "log_synthetic", "open_store",
    "regression_adjusted", "rejection", "simulate_once", "simulate_repeatedly", "time_limit",
]  # fmt: skip
