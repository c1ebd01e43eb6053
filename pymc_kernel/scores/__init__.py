"""Surrogates of a log density, learned from draws (score matching) or from log-density values.

Every estimator is a frozen set of settings with ``fit(...)``, which returns an object with ``log_density`` and
``score`` on arrays of points.
"""

from pymc_kernel.scores.derivatives import FittedFull, Full, Nystrom
from pymc_kernel.scores.expansion import KernelExpansion
from pymc_kernel.scores.held_out import HeldOutScores, chain_folds, held_out_scores
from pymc_kernel.scores.score_matching import Finite, Lite
from pymc_kernel.scores.validation import Validation, cross_validate
from pymc_kernel.scores.values import FittedValues, Hyperparameters, Values

__all__ = [
    "Finite", "FittedFull", "FittedValues", "Full", "HeldOutScores", "Hyperparameters", "KernelExpansion", "Lite",
    "Nystrom", "Validation", "Values", "chain_folds", "cross_validate", "held_out_scores",
]  # fmt: skip
