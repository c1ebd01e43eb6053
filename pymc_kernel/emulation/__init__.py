"""Functions learned from few of their values: regression of many outputs on a few inputs, on arrays."""

from pymc_kernel.emulation.fitted_outputs import FittedOutputs, VarianceBound, noisy_variance, variance_bound
from pymc_kernel.emulation.outputs import fit_outputs

__all__ = ["FittedOutputs", "VarianceBound", "fit_outputs", "noisy_variance", "variance_bound"]
