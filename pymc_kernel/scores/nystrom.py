"""Score matching in the span of kernel derivatives at a few points. Imports NumPy, Numba and the lower floors only."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import RadialKernel
from pymc_kernel.kernels.profiles import fill_profile, radial_row
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import radial_expansion
from pymc_kernel.scores.kernel_expansion import KernelExpansion
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure

__all__ = ["Nystrom", "derivative_gram"]


@compiled
def _fill_block(x, basis, basis_t, inverse_length, family, a, b, base_score, gradients, laplacians):
    """Write the derivatives of h_ji(x) = d k(x, Y_j) / d y_i for a block of points.

    With v = (x - Y_j) / l^2 and T = sum 1 / l^2:
    d h_ji / d x_r = -4 phi'' v_r v_i - [r = i] 2 phi' / l_i^2, into ``gradients`` (B, d, m, d) as [x, r, j, i], and
    minus the Laplacian of h_ji, v_i (8 phi''' |v|^2 + 8 phi'' / l_i^2 + 4 phi'' T), with minus the product of base
    score and gradient added, into ``laplacians`` (B, m, d): the terms of the slope.
    """
    rows, d = x.shape
    m = basis.shape[0]
    squared, first, second, third = np.empty(m), np.empty(m), np.empty(m), np.empty(m)
    v = np.empty(d)
    inverse_square = inverse_length**2
    trace = inverse_square.sum()
    for row in range(rows):
        radial_row(x[row], basis_t, inverse_length, squared)
        fill_profile(family, a, b, np.int64(1), squared, first)
        fill_profile(family, a, b, np.int64(2), squared, second)
        fill_profile(family, a, b, np.int64(3), squared, third)
        for j in range(m):
            norm, along = 0.0, 0.0
            for i in range(d):
                v[i] = (x[row, i] - basis[j, i]) * inverse_square[i]
                norm += v[i] * v[i]
                along += base_score[row, i] * v[i]
            for i in range(d):
                for r in range(d):
                    gradients[row, r, j, i] = -4.0 * second[j] * v[r] * v[i]
                gradients[row, i, j, i] -= 2.0 * first[j] * inverse_square[i]
                term = v[i] * (8.0 * third[j] * norm + (8.0 * inverse_square[i] + 4.0 * trace) * second[j])
                term += 4.0 * second[j] * along * v[i] + 2.0 * first[j] * inverse_square[i] * base_score[row, i]
                laplacians[row, j, i] = term


@dataclass(frozen=True)
class Nystrom(ScoreMatching):
    """Kernel exponential family in the span of the md functions d k(., Y_j) / d y_i, fitted by score matching.

    The minimizer over that span of the loss of the full estimator, strength times the squared RKHS norm over two
    included (Sutherland et al. 2018): coefficients (C + strength G)^-1 b with G the Gram matrix of the basis.

    Parameters
    ----------
    kernel : RadialKernel
        Gaussian, rational quadratic or inverse multiquadric; "median" is resolved on the points.
    num_basis : int
        m; the points Y are a random subset of the sample.
    regularization : float
        Its strength, above 0.
    base : {"gaussian", "uniform"}
        The base measure q0.

    Notes
    -----
    O(n d (m d)^2 + (m d)^3) time, linear in n; O(n m d + (m d)^2) memory at most, in blocks of points.
    """

    smoothness: ClassVar[int] = 3
    num_basis: int = 100

    def draw_basis(self, x, rng):
        """Return a random subset of the distinct points."""
        distinct = np.unique(x, axis=0)
        return distinct[rng.choice(len(distinct), min(self.num_basis, len(distinct)), replace=False)]

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most: each basis point has one a dimension."""
        return replace(self, num_basis=min(self.num_basis, max(1, size // num_dims)))

    def penalty_matrix(self, basis):
        """Return R, or None for the identity."""
        return derivative_gram(self.kernel, basis, basis)

    def system(self, x, weights, basis, base=None):
        """Return C (m d, m d), b (m d,) and the base measure, from blocks of at most n / d points."""
        n, d = x.shape
        m = len(basis)
        base = base_measure(self.base, x, weights) if base is None else base
        base_score = base.score(x)
        a, b = self.kernel.shape_parameters
        block = max(1, min(64, n // d))
        gradients, slopes = np.empty((block, d, m, d)), np.empty((block, m, d))
        curvature, slope = np.zeros((m * d, m * d)), np.zeros(m * d)
        basis_t = np.ascontiguousarray(basis.T)
        inverse_length = self.kernel.inverse_length_scale(d)
        for start in range(0, n, block):
            rows = slice(start, min(start + block, n))
            size = rows.stop - rows.start
            _fill_block(
                x[rows],
                basis,
                basis_t,
                inverse_length,
                self.kernel.family,
                a,
                b,
                base_score[rows],
                gradients[:size],
                slopes[:size],
            )
            slope += weights[rows] @ slopes[:size].reshape(size, m * d)
            gradients[:size] *= np.sqrt(weights[rows])[:, None, None, None]
            flat = gradients[:size].reshape(size * d, m * d)
            curvature += flat.T @ flat
        return curvature, slope, base

    def assemble(self, coefficients, basis, base) -> KernelExpansion:
        """Return the surrogate: d k(x, Y_j) / d y_i = -2 phi' (x - Y_j)_i / l_i^2 are direction terms."""
        m, d = basis.shape
        inverse = self.kernel.inverse_length_scale(d)
        return KernelExpansion(
            radial_expansion(
                self.kernel,
                basis,
                np.zeros(m),
                directions=-2.0 * coefficients.reshape(m, d) * inverse,
                center=base.center,
                linear=base.linear,
                quadratic=base.quadratic,
            )
        )


@one_blas_thread
def derivative_gram(kernel: RadialKernel, x, y) -> np.ndarray:
    """Return d^2 k(x_a, y_b) / d x_i d y_j as a matrix (n d, m d), rows (a, i) and columns (b, j)."""
    n, d = x.shape
    m = len(y)
    inverse_square = kernel.inverse_length_scale(d) ** 2
    first = kernel.profile_matrix(x, y, 1)
    second = kernel.profile_matrix(x, y, 2)
    v = (x[:, None, :] - y[None, :, :]) * inverse_square
    out = -4.0 * second[:, :, None, None] * v[:, :, :, None] * v[:, :, None, :]
    out[:, :, np.arange(d), np.arange(d)] -= 2.0 * first[:, :, None] * inverse_square
    return out.transpose(0, 2, 1, 3).reshape(n * d, m * d)
