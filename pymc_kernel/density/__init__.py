"""Kernel density estimation with a posterior over its bandwidth, on arrays."""

from pymc_kernel.density.bayesian_kde import BayesianKDE
from pymc_kernel.density.fitted_kde import FittedKDE
from pymc_kernel.density.propagation import STRUCTURES, GammaPosterior, WishartPosterior

__all__ = ["STRUCTURES", "BayesianKDE", "FittedKDE", "GammaPosterior", "WishartPosterior"]
