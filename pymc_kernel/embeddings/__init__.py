"""Kernel means, conditional means, density ratios, kernel Bayes' rules and filters.

Every estimator is a frozen set of settings with ``fit(..., rng=)``, which returns a fitted object.
"""

from pymc_kernel.embeddings.bayes_rule import KernelBayesRule, OriginalBayesRule
from pymc_kernel.embeddings.conditional import ConditionalMean, FittedConditionalMean
from pymc_kernel.embeddings.density_ratio import DensityRatio, FittedRatio
from pymc_kernel.embeddings.filter import FilterState, FittedFilter, KernelBayesFilter
from pymc_kernel.embeddings.fitted_rule import FittedRule, RuleCalibration
from pymc_kernel.embeddings.kernel_mean import KernelMean

__all__ = [
    "ConditionalMean", "DensityRatio", "FilterState", "FittedConditionalMean", "FittedFilter", "FittedRatio",
    "FittedRule", "KernelBayesFilter", "KernelBayesRule", "KernelMean", "OriginalBayesRule", "RuleCalibration",
]  # fmt: skip
