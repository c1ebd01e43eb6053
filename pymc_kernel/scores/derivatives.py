"""Score matching in the span of kernel derivatives: at a few points, or at all points, for the whole RKHS.

The full kernel exponential family is the reference that the others approximate.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import RadialKernel
from pymc_kernel.linalg import jittered_solve
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import KernelExpansion, radial_expansion, within_range
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure, checked_sample

_BLOCK = 100_000  # second derivatives at a time: they stay in the second cache
_ROWS = 256  # at a time, each of d^2 n numbers


@dataclass(frozen=True)
class Nystrom(ScoreMatching):
    """Kernel exponential family in the span of the md functions d k(., Y_j) / d y_i, fitted by score matching.

    The minimizer over that span of the full estimator's loss, which includes strength times half the squared RKHS norm
    (Sutherland et al. 2018): coefficients (C + strength G)^-1 b with G the Gram matrix of the basis.
    O(n d (m d)^2 + (m d)^3) time, linear in n; O(n m d + (m d)^2) memory at most, in blocks of points.

    Parameters
    ----------
    kernel : RadialKernel
        Gaussian, rational quadratic or inverse multiquadric; "median" is resolved on the points.
    num_basis : int
        m; the points Y are a random subset of the sample.
    regularization, base
        As of :class:`Lite`.
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

    def system(self, x, weights, basis, base):
        """Return C (m d, m d) and b (m d,), summed over blocks of points."""
        n, d = x.shape
        m = len(basis)
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
        return curvature, slope

    def assemble(self, coefficients, basis, base) -> KernelExpansion:
        """Return the surrogate: d k(x, Y_j) / d y_i = -2 phi' (x - Y_j)_i / l_i^2 are direction terms."""
        m, d = basis.shape
        directions = -2.0 * coefficients.reshape(d, m).T * self.kernel.inverse_length_scale(d)
        expansion = radial_expansion(self.kernel, basis, np.zeros(m), directions=directions, **base._asdict())
        return KernelExpansion(expansion)


@dataclass(frozen=True, eq=False)
class FittedFull(KernelExpansion):
    """The fitted full model: derivative functions in the expansion, and the term xi of Laplacians."""

    kernel: RadialKernel
    points: np.ndarray  #: (n, d)
    laplacian_weights: np.ndarray  #: (n,), c of sum_a c_a (Laplacian of k)(x - X_a)

    @one_blas_thread
    def _values_and_scores(self, x):
        """Return values (n,) and gradients (n, d) with those of sum_a c_a L(x - X_a).

        L = 4 phi'' |v|^2 + 2 T phi' with v = (x - X_a) / l^2 and T = sum 1 / l^2; the chain rule gives the rest.
        """
        inverse_square = self.kernel.inverse_length_scale(x.shape[1]) ** 2
        trace = inverse_square.sum()
        c = self.laplacian_weights
        value, gradient = super()._values_and_scores(x)
        for start in range(0, len(x), _ROWS):
            rows = slice(start, start + _ROWS)
            first, second, third = (self.kernel.profile_matrix(x[rows], self.points, k) for k in (1, 2, 3))
            v = (x[rows, None, :] - self.points) * inverse_square
            norm = (v**2).sum(axis=2)
            value[rows] += (4.0 * second * norm + 2.0 * trace * first) @ c
            common = 8.0 * third * norm + 4.0 * trace * second
            along, other = (np.einsum("nmd,nm,m->nd", v, part, c) for part in (common, second))
            gradient[rows] += along + 8.0 * inverse_square * other
        return value, gradient


@dataclass(frozen=True)
class Full(ScoreMatching):
    """Kernel exponential family in the whole RKHS (Sriperumbudur et al. 2017), with nd coefficients.

    f = -xi / strength + sum_ai beta_ai d k(X_a, .) / d x_i, (G + strength diag(1 / w)) beta = h / strength, where xi is
    the mean of grad log q0 . grad k + Laplacian k at the points and h its products with the derivatives. O((n d)^3)
    time, O((n d)^2) memory: a reference for some hundred points. The settings are those of :class:`Nystrom`.
    """

    smoothness: ClassVar[int] = 3

    @within_range
    @one_blas_thread
    def fit(self, x, weights=None, *, rng: np.random.Generator | None = None) -> "FittedFull":
        """Return the surrogate fitted to draws ``x`` (n, d) with ``weights`` (n,), zero ones left out."""
        x, weights = checked_sample(x, weights)
        x, weights = x[weights > 0], weights[weights > 0]
        n, d = x.shape
        kernel = self.resolved(x, np.random.default_rng(0) if rng is None else rng).kernel
        base = base_measure(self.base, x, weights)
        base_score = base.score(x)
        gram = derivative_gram(kernel, x, x)
        # Products of xi with the derivative functions: mean over a of sum_i d_i^2 d_j' k + s_i d_i d_j' k.
        products = -(weights @ laplacian_gradients(kernel, x, x))
        products += ((weights[:, None] * base_score).T.ravel() @ gram).reshape(d, n)
        gram[np.diag_indices_from(gram)] += np.tile(self.regularization / weights, d)
        beta = jittered_solve(gram, products.ravel() / self.regularization).reshape(d, n).T
        # d k(X_a, x) / d X_a,i = -2 phi' (x - X_a)_i / l_i^2.
        directions = beta - weights[:, None] * base_score / self.regularization
        directions = -2.0 * directions * kernel.inverse_length_scale(d)
        expansion = radial_expansion(kernel, x, np.zeros(n), directions=directions, **base._asdict())
        return FittedFull(expansion, kernel, x, -weights / self.regularization)


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
