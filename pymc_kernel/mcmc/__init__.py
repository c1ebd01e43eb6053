"""Markov transitions on arrays: adaptive Metropolis and MCMC Kameleon."""

from pymc_kernel.mcmc import adaptive_metropolis, kameleon

__all__ = ["adaptive_metropolis", "kameleon"]
