"""Functions learned from few of their values: regression of many outputs on a few inputs, on arrays."""

from pymc_kernel.emulation.fitted_outputs import FittedOutputs
from pymc_kernel.emulation.outputs import fit_outputs
from pymc_kernel.emulation.variance_bound import VarianceBound, noisy_variance, variance_bound

__all__ = ["FittedOutputs", "VarianceBound", "fit_outputs", "noisy_variance", "variance_bound"]
