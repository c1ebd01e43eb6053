"""Markov transitions on arrays: adaptive Metropolis, MCMC Kameleon, kernel Hamiltonian Monte Carlo."""

from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc

__all__ = ["adaptive_metropolis", "kameleon", "kernel_hmc"]
