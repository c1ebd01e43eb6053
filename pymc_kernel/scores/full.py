"""The full kernel exponential family by score matching: the reference that the others approximate."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import RadialKernel
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import KernelExpansion, radial_expansion, within_range
from pymc_kernel.scores.nystrom import derivative_gram, laplacian_gradients
from pymc_kernel.scores.score_matching import ScoreMatching, base_measure, checked_sample, regularized_solve

_BLOCK = 256  # rows at a time, each of d^2 n numbers


@dataclass(frozen=True, eq=False)
class FittedFull(KernelExpansion):
    """The fitted full model: derivative functions in the expansion, and the term xi of Laplacians.

    Attributes
    ----------
    kernel : RadialKernel
    points : ndarray (n, d)
    laplacian_weights : ndarray (n,)
        c of sum_a c_a (Laplacian of k)(x - X_a).
    """

    kernel: RadialKernel
    points: np.ndarray
    laplacian_weights: np.ndarray

    @within_range
    @one_blas_thread
    def log_density(self, x) -> np.ndarray:
        """Return the log density up to a constant at each row of ``x`` (n, d), shape (n,)."""
        x = self._points(x)
        return super().log_density(x) + self._laplacian_terms(x)[0]

    @within_range
    @one_blas_thread
    def score(self, x) -> np.ndarray:
        """Return the gradient of the log density at each row of ``x`` (n, d), shape (n, d)."""
        x = self._points(x)
        return super().score(x) + self._laplacian_terms(x)[1]

    def _laplacian_terms(self, x):
        """Return value (n,) and gradient (n, d) of sum_a c_a L(x - X_a).

        L = 4 phi'' |v|^2 + 2 T phi' with v = (x - X_a) / l^2 and T = sum 1 / l^2; the chain rule gives the rest.
        """
        inverse_square = self.kernel.inverse_length_scale(x.shape[1]) ** 2
        trace = inverse_square.sum()
        c = self.laplacian_weights
        value, gradient = np.empty(len(x)), np.empty_like(x)
        for start in range(0, len(x), _BLOCK):
            rows = slice(start, start + _BLOCK)
            first, second, third = (self.kernel.profile_matrix(x[rows], self.points, k) for k in (1, 2, 3))
            v = (x[rows, None, :] - self.points) * inverse_square
            norm = (v**2).sum(axis=2)
            value[rows] = (4.0 * second * norm + 2.0 * trace * first) @ c
            common = 8.0 * third * norm + 4.0 * trace * second
            gradient[rows] = np.einsum("nmd,nm,m->nd", v, common, c)
            gradient[rows] += 8.0 * inverse_square * np.einsum("nmd,nm,m->nd", v, second, c)
        return value, gradient


@dataclass(frozen=True)
class Full(ScoreMatching):
    """Kernel exponential family in the whole RKHS (Sriperumbudur et al. 2017), with nd coefficients.

    f = -xi / strength + sum_ai beta_ai d k(X_a, .) / d x_i, (G + strength diag(1 / w)) beta = h / strength, where xi
    is the mean of grad log q0 . grad k + Laplacian k at the points and h its products with the derivatives.

    Parameters
    ----------
    kernel : RadialKernel
        Gaussian, rational quadratic or inverse multiquadric; "median" is resolved on the points.
    regularization : float
        Its strength, above 0.
    base : {"gaussian", "uniform"}
        The base measure q0.

    Notes
    -----
    O((n d)^3) time, O((n d)^2) memory: a reference for some hundred points.
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
        matrix = gram.copy()
        matrix[np.diag_indices_from(matrix)] += np.tile(self.regularization / weights, d)
        beta = regularized_solve(matrix, products.ravel() / self.regularization).reshape(d, n).T
        # d k(X_a, x) / d X_a,i = -2 phi' (x - X_a)_i / l_i^2.
        directions = beta - weights[:, None] * base_score / self.regularization
        directions = -2.0 * directions * kernel.inverse_length_scale(d)
        expansion = radial_expansion(kernel, x, np.zeros(n), directions=directions, **base._asdict())
        return FittedFull(expansion, kernel, x, -weights / self.regularization)
