"""Score matching in the span of kernel derivatives at a few points."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import RadialKernel
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import KernelExpansion, radial_expansion
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure

_BLOCK = 100_000  # second derivatives at a time: they stay in the second cache


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
        curvature, slope = np.zeros((m * d, m * d)), np.zeros(m * d)
        block = max(64, _BLOCK // (m * d * d))  # fewer would add to C too often
        for start in range(0, n, block):
            rows = slice(start, start + block)
            gradients = derivative_gram(self.kernel, x[rows], basis)
            slope += (weights[rows] @ laplacian_gradients(self.kernel, x[rows], basis)).ravel()
            slope -= (weights[rows, None] * base_score[rows]).T.ravel() @ gradients
            gradients *= np.tile(np.sqrt(weights[rows]), d)[:, None]
            curvature += gradients.T @ gradients
        return curvature, slope, base

    def assemble(self, coefficients, basis, base) -> KernelExpansion:
        """Return the surrogate: d k(x, Y_j) / d y_i = -2 phi' (x - Y_j)_i / l_i^2 are direction terms."""
        m, d = basis.shape
        directions = -2.0 * coefficients.reshape(d, m).T * self.kernel.inverse_length_scale(d)
        expansion = radial_expansion(self.kernel, basis, np.zeros(m), directions=directions, **base._asdict())
        return KernelExpansion(expansion)


@one_blas_thread
def derivative_gram(kernel: RadialKernel, x, y) -> np.ndarray:
    """Return d^2 k(x_a, y_b) / d x_i d y_j as a matrix (d n, d m), rows (i, a) and columns (j, b)."""
    d = x.shape[1]
    inverse_square = kernel.inverse_length_scale(d) ** 2
    v = _differences(x, y, inverse_square)
    out = v[:, :, None, :] * (-4.0 * kernel.profile_matrix(x, y, 2) * v).transpose(1, 0, 2)
    first = 2.0 * kernel.profile_matrix(x, y, 1)
    for i in range(d):
        out[i, :, i] -= inverse_square[i] * first
    return out.reshape(d * len(x), d * len(y))


def laplacian_gradients(kernel: RadialKernel, x, y) -> np.ndarray:
    """Return the gradient in x of the Laplacian of k(x_a, y_b), (d, n, m).

    With v = (x - y) / l^2 and T = sum 1 / l^2 it is v (8 phi''' |v|^2 + (8 / l^2 + 4 T) phi'').
    """
    inverse_square = kernel.inverse_length_scale(x.shape[1]) ** 2
    second, third = (kernel.profile_matrix(x, y, order) for order in (2, 3))
    v = _differences(x, y, inverse_square)
    third *= 8.0 * (v**2).sum(axis=0)
    return v * (third + (8.0 * inverse_square + 4.0 * inverse_square.sum())[:, None, None] * second)


def _differences(x, y, inverse_square):
    """Return (x - y) / l^2 of all pairs, (d, n, m)."""
    return (x.T[:, :, None] - y.T[:, None, :]) * inverse_square[:, None, None]
