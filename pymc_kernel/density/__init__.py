"""Kernel density estimation with a posterior over its bandwidth, on arrays."""

from pymc_kernel.density.bayesian_kde import STRUCTURES, BayesianKDE, GammaPosterior, WishartPosterior

__all__ = ["STRUCTURES", "BayesianKDE", "GammaPosterior", "WishartPosterior"]
