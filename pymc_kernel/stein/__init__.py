"""Kernel Stein discrepancies, on arrays: whether draws fit the distribution whose scores are given.

Layer: above ``kernels``, beside ``scores``; independent of models. Draws are (n, d) or (chain, draw, d), scores are
gradients of the log density there, of the same shape.

A discrepancy cannot detect wrong weights of well separated modes, since scores do not depend on them, nor a mode
without any draw. It depends on the coordinates (standardized by the draws by default) and loses power as the dimension
grows; with a Gaussian kernel more than with the default one. A Gaussian kernel does not control convergence beyond two
dimensions.
"""

from pymc_kernel.stein.discrepancy import default_kernel, ksd_squared, stein_matrix
from pymc_kernel.stein.draws import choose_thinning, standardize
from pymc_kernel.stein.goodness_of_fit import KSDTest, ksd_test
from pymc_kernel.stein.two_sample import MMDTest, mmd_squared, mmd_test
from pymc_kernel.stein.uses import ControlledExpectation, controlled_expectation, stein_thin

__all__ = [
    "ControlledExpectation", "KSDTest", "MMDTest", "choose_thinning", "controlled_expectation", "default_kernel",
    "ksd_squared", "ksd_test", "mmd_squared", "mmd_test", "standardize", "stein_matrix", "stein_thin",
]  # fmt: skip
