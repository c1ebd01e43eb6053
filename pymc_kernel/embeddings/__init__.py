"""Kernel means, conditional means, density ratios, kernel Bayes' rules and filters."""

from pymc_kernel.embeddings.bayes_rule import KernelBayesRule
from pymc_kernel.embeddings.calibration import Calibration
from pymc_kernel.embeddings.conditional import ConditionalMean
from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.filter import FilterState, KernelBayesFilter
from pymc_kernel.embeddings.kernel_mean import KernelMean

__all__ = [
    "Calibration",
    "ConditionalMean",
    "DensityRatio",
    "FilterState",
    "KernelBayesFilter",
    "KernelBayesRule",
    "KernelMean",
]
