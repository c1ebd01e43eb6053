"""How uncertain what was learned is, computed at every gradient: of exact values a bound by few of the rows."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.emulation.fitted_outputs import FittedOutputs
from pymc_kernel.emulation.outputs import carrying_rows
from pymc_kernel.parallel import one_blas_thread

BOUND_ROWS = 128  # by 64, 12 subjects took up to 100 evaluations, not 52; a gradient takes 41 microseconds, 23 without


@dataclass(frozen=True, eq=False)
class VarianceBound:
    """A variance of an output of amplitude one: k(z, z) - |A k(points, z)|^2.

    The kernel is a Gaussian plus quadratic times (1 + z'z / k)^2.

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
    """Return the posterior variance were it learned from at most 128 rows: more rows only make it smaller.

    Each is where those before it leave most of the variance. Noise is left out.

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


@one_blas_thread
def noisy_variance(fit: FittedOutputs) -> VarianceBound:
    """Return the posterior variance of what was learned from values with noise.

    With K = L L' of the points that carry the fit, the variance is k(z, z) - c'c + s |R'^-1 c|^2, where c = L^-1 k, s
    is the variance of the noise and R'R the matrix of the normal equations. So A'A = L'^-1 (I - s (R'R)^-1) L^-1.
    """
    unit = np.eye(len(fit.points))
    inverse = solve_triangular(fit.normal, unit, trans=1)
    shares, vectors = np.linalg.eigh(unit - fit.hyperparameters.nugget * inverse.T @ inverse)
    root = np.sqrt(np.maximum(shares, 0.0))[:, None] * vectors.T
    reduction = solve_triangular(fit.factor, root.T, lower=True, trans=1).T
    return VarianceBound(fit.points / fit.inverse_length_scale, reduction, fit.hyperparameters.quadratic)
