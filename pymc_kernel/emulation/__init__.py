"""Functions learned from few of their values: regression of many outputs on a few inputs, on arrays."""

from pymc_kernel.emulation.estimates import fit_estimates
from pymc_kernel.emulation.fitted_outputs import FittedOutputs
from pymc_kernel.emulation.outputs import fit_outputs
from pymc_kernel.emulation.variance_bound import VarianceBound, variance_bound

__all__ = ["FittedOutputs", "VarianceBound", "fit_estimates", "fit_outputs", "variance_bound"]
