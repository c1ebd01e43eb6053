"""Low-rank features of kernels, and weighted ridge regression on them.

Everything in this folder is linear algebra on features: G = F F' with F (n, r), and rows of F for new points. With the
pivoted Cholesky factor at a small tolerance that is the exact method; with fewer columns it is Nystroem's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, solve_triangular

from pymc_kernel.kernels import FeatureKernel
from pymc_kernel.kernels.points import SMALLEST
from pymc_kernel.linalg import ROUNDING, pivoted_cholesky

_NUM_FOLDS = 5  # holding out a fifth costs little accuracy, and takes five fits
_GRID = 10.0 ** np.arange(-7.0, 1.1, 0.25)  # of the largest eigenvalue; beyond it predictions are nearly constant


class GramFactor(NamedTuple):
    """Features whose scalar products are the kernel, up to what was left out."""

    features: np.ndarray  # (n, r), of the points that it was made from
    extend: Callable[[np.ndarray], np.ndarray]  # points (m, d) -> features (m, r); O(m r^2) time, O(m r) memory


def factorize(kernel, points: np.ndarray, num_basis: int, tolerance: float, rng: np.random.Generator) -> GramFactor:
    """Return features of a ``kernel`` with a numeric length scale on ``points`` (n, d); O(n r^2) time, O(n r) memory.

    There are at most ``num_basis``. Where the ``tolerance``, the largest trace of what is left out as a share of that
    of the Gram matrix, would need more, the factor is Nystroem's with this many points, drawn at random: greedy pivots
    would be outlying points. A :class:`~pymc_kernel.kernels.FeatureKernel` brings its features along. The Gram matrix
    is never formed.
    """
    if isinstance(kernel, FeatureKernel):
        return GramFactor(np.ascontiguousarray(kernel.features(points), dtype=float), kernel.features)
    n, diagonal = len(points), kernel.diagonal(points)
    trace = diagonal.sum()
    if not trace > n * SMALLEST**2:  # else its inverse has no floating-point number
        raise ValueError("the kernel is zero at all points, or nearly, and cannot distinguish them: take another one.")
    # A remainder of at most this on each entry of the diagonal keeps its sum below the share of the trace.
    level = tolerance * trace / n
    features, pivots = pivoted_cholesky(diagonal, lambda chosen: kernel(points, points[chosen]), num_basis, level)
    left_out = 1.0 - np.einsum("ij,ij->", features, features) / trace
    # A factor that stopped before its largest size leaves out no more than the tolerance, up to rounding.
    if left_out <= tolerance or len(pivots) < num_basis or len(pivots) == n:
        centers, triangle = points[pivots], features[pivots]

        def on_pivots(new):
            return solve_triangular(triangle, kernel(centers, new), lower=True, overwrite_b=True).T

        return GramFactor(np.ascontiguousarray(features), on_pivots)
    centers = points[rng.choice(n, size=num_basis, replace=False)]
    values, vectors = eigh(kernel(centers))
    kept = values > ROUNDING * values[-1]
    root = vectors[:, kept] / np.sqrt(values[kept])
    features = kernel(points, centers) @ root
    return GramFactor(features, lambda new: kernel(new, centers) @ root)


@dataclass(frozen=True, eq=False)
class RidgePath:
    """One eigendecomposition of S = F' D F, after which every regularization costs O(n r)."""

    projected: np.ndarray  # (n, r), features F in the eigenbasis of S
    eigenvalues: np.ndarray  # (r,)
    vectors: np.ndarray  # (r, r)
    weights: np.ndarray  # (n,), the diagonal of D, not negative, mean one

    @classmethod
    def of(cls, features: np.ndarray, weights: np.ndarray) -> "RidgePath":
        """Decompose for ``features`` (n, r) and ``weights`` (n,)."""
        values, vectors = eigh((features * weights[:, None]).T @ features, overwrite_a=True)
        return cls(features @ vectors, np.maximum(values, 0.0), vectors, weights)

    @property
    def grid(self) -> np.ndarray:
        """Regularizations worth trying, rising; n times each is added to the eigenvalues."""
        return _GRID * max(self.eigenvalues[-1], np.finfo(float).tiny) / len(self.projected)

    def shrinkage(self, regularization: float) -> np.ndarray:
        """Return 1 / (eigenvalue + n regularization), shape (r,)."""
        return 1.0 / (self.eigenvalues + len(self.projected) * regularization)

    def coefficients(self, features: np.ndarray, regularization: float) -> np.ndarray:
        """Return D F (S + n lambda I)^-1 q, weights (m, n) of the training points, for new features q (m, r)."""
        turned = (features @ self.vectors) * self.shrinkage(regularization)
        return (turned @ self.projected.T) * self.weights

    def leave_one_out(self, targets: np.ndarray, regularization: float) -> np.ndarray:
        """Return targets (n, p) minus their predictions from all other points, shape (n, p)."""
        shrinkage = self.shrinkage(regularization)
        fitted = self.projected @ (shrinkage[:, None] * (self.projected.T @ (self.weights[:, None] * targets)))
        leverage = self.weights * ((self.projected**2) @ shrinkage)
        return (targets - fitted) / np.maximum(1.0 - leverage, 1e-10)[:, None]

    def evidence(self, targets: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return log marginal likelihoods (len(grid),), up to a constant, of Gaussian processes with these features.

        Each column of ``targets`` (n, p) is a function with the kernel as prior covariance, plus noise of variance n
        lambda / weight, both times one scale for all columns, which is set to its best value.
        """
        size = targets.size
        right = ((self.projected.T @ (self.weights[:, None] * targets)) ** 2).sum(axis=1)  # (r,)
        ridges = len(self.projected) * np.asarray(grid)[:, None]
        left = self.weights @ (targets**2).sum(axis=1) - (right / (self.eigenvalues + ridges)).sum(axis=1)
        volumes = np.log1p(self.eigenvalues / ridges).sum(axis=1)
        floor = np.finfo(float).tiny
        return -0.5 * (size * np.log(np.maximum(left / size, floor)) + targets.shape[1] * volumes)


def most_evidence(path: RidgePath, targets: np.ndarray) -> float:
    """Return the regularization of most evidence for ``targets`` (n, p), centered at what predictions shrink to.

    The evidence varies less from sample to sample than the leave-one-out error, which matters for observations away
    from the center of the training data. It assumes targets that are Gaussian around their means.
    """
    return float(path.grid[path.evidence(targets, path.grid).argmax()])


def least_error(path: RidgePath, targets: np.ndarray) -> float:
    """Return the regularization of the least leave-one-out squared error of ``targets`` (n, p)."""
    errors = [path.weights @ (path.leave_one_out(targets, value) ** 2).sum(axis=1) for value in path.grid]
    return float(path.grid[int(np.argmin(errors))])


def folds(n: int, rng: np.random.Generator) -> np.ndarray:
    """Return the fold (n,) that each of n points is held out with; there are five folds, or n if n is smaller."""
    return rng.permutation(np.arange(n) % min(_NUM_FOLDS, n))
