"""Functions learned from few of their values: regression of many outputs on a few inputs, on arrays."""

from pymc_kernel.emulation.estimates import fit_estimates
from pymc_kernel.emulation.outputs import FittedOutputs, fit_outputs

__all__ = ["FittedOutputs", "fit_estimates", "fit_outputs"]
