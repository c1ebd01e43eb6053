"""A bound on how uncertain what was learned is, by few of the rows, so that it may be computed at every gradient.

Imports NumPy, SciPy and the lower floors only.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.emulation.fitted_outputs import FittedOutputs
from pymc_kernel.emulation.outputs import carrying_rows
from pymc_kernel.parallel import one_blas_thread

BOUND_ROWS = 128  # by 64, 12 subjects took up to 100 evaluations, not 52; a gradient takes 41 microseconds, 23 without


@dataclass(frozen=True, eq=False)
class VarianceBound:
    """The posterior variance of an output of amplitude one were it learned from few rows: k(z, z) - |A k(points, z)|^2.

    More rows only make it smaller. The kernel is a Gaussian plus quadratic times (1 + z'z / k)^2; noise is left out.

    Attributes
    ----------
    points : ndarray (m, k)
        Scaled inputs.
    reduction : ndarray (m, m)
        A.
    quadratic : float
    """

    points: np.ndarray
    reduction: np.ndarray
    quadratic: float


@one_blas_thread
def variance_bound(fit: FittedOutputs, inputs: np.ndarray) -> VarianceBound:
    """Return the bound by at most 128 rows, each where those before it leave most of the variance.

    Parameters
    ----------
    fit : FittedOutputs
    inputs : ndarray (n, k)
        Of rows that ``fit`` was learned from: those where the bound is to be close.
    """
    z, hyper = fit.scaled(inputs, inside=False), fit.hyperparameters
    factor, pivots = carrying_rows(hyper, z, BOUND_ROWS)
    reduction = solve_triangular(factor[pivots], np.eye(len(pivots)), lower=True)
    return VarianceBound(z[pivots], reduction, hyper.quadratic)
