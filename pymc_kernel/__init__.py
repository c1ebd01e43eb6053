"""Monte Carlo with reproducing kernels for PyMC: likelihoods with no gradient, with noise, or only simulated."""

from pymc_kernel import kernels
from pymc_kernel.plugin.likelihoods import EstimatedLikelihood
from pymc_kernel.plugin.step_methods import KAMH, AdaptiveMetropolis, register_step_methods

__all__ = ["KAMH", "AdaptiveMetropolis", "EstimatedLikelihood", "kernels", "register_step_methods"]

__version__ = "0.1.0.dev0"
