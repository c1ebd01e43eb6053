"""Weighted ridge regression on features along a path of regularizations. Imports NumPy, SciPy and ``linalg``."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import eigh
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf

from pymc_kernel.linalg import jittered_cholesky, triangular_solution

__all__ = ["RidgeFit", "RidgePath", "choose_regularization"]

# Of the largest eigenvalue; beyond the grid the prediction is nearly constant.
_GRID = 10.0 ** np.arange(-7.0, 1.1, 0.25)


@dataclass(frozen=True, eq=False)
class RidgePath:
    """One eigendecomposition of S = F' D F, after which every regularization costs O(n r).

    Attributes
    ----------
    projected : ndarray (n, r)
        Features F in the eigenbasis of S.
    eigenvalues : ndarray (r,)
    vectors : ndarray (r, r)
    weights : ndarray (n,)
        The diagonal of D, not negative, mean one.
    """

    projected: np.ndarray
    eigenvalues: np.ndarray
    vectors: np.ndarray
    weights: np.ndarray

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

    def losses(self, targets: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return weighted squared leave-one-out errors, shape (len(grid), n)."""
        shrinkage = np.stack([self.shrinkage(value) for value in grid])  # (g, r)
        leverage = (self.projected**2) @ shrinkage.T  # (n, g)
        right = self.projected.T @ (self.weights[:, None] * targets)  # (r, p)
        out = np.empty((len(grid), len(targets)))
        for g, row in enumerate(shrinkage):
            residuals = targets - self.projected @ (row[:, None] * right)
            errors = residuals / np.maximum(1.0 - self.weights * leverage[:, g], 1e-10)[:, None]
            out[g] = self.weights * np.einsum("ij,ij->i", errors, errors)
        return out

    def evidence(self, targets: np.ndarray, grid: np.ndarray) -> np.ndarray:
        """Return log marginal likelihoods (len(grid),), up to a constant, of Gaussian processes with these features.

        Each column of ``targets`` (n, p) is a function with the kernel as its prior covariance, times one free scale
        for all, and noise of variance n lambda / weight in the same scale, whose best value is put in.
        """
        size = targets.size
        right = ((self.projected.T @ (self.weights[:, None] * targets)) ** 2).sum(axis=1)  # (r,)
        ridges = len(self.projected) * np.asarray(grid)[:, None]
        left = self.weights @ (targets**2).sum(axis=1) - (right / (self.eigenvalues + ridges)).sum(axis=1)
        volumes = np.log1p(self.eigenvalues / ridges).sum(axis=1)
        floor = np.finfo(float).tiny
        return -0.5 * (size * np.log(np.maximum(left / size, floor)) + targets.shape[1] * volumes)


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """Means by ridge regression at one regularization, for which a Cholesky factor does: a third of the time.

    Attributes
    ----------
    features : ndarray (n, r)
    weights : ndarray (n,)
        Not negative, mean one; zero for points that are left out.
    targets : ndarray (n, p)
    regularization : float
    fallback : ndarray (p,)
        Means where the features are zero, far from the training points.
    """

    features: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    regularization: float
    fallback: np.ndarray

    @cached_property
    def _roots(self):
        """Features of the points with weight, times the roots of their weights, (m, r)."""
        inside = np.flatnonzero(self.weights)
        return inside, self.features[inside] * np.sqrt(self.weights[inside])[:, None]

    @cached_property
    def _factor(self):
        """Lower factor L (r, r) of F' D F + n lambda I."""
        _, roots = self._roots
        whole = dsyrk(1.0, roots.T, lower=1)
        whole.T.flat[:: len(whole) + 1] += len(self.features) * self.regularization
        factor, failed = dpotrf(whole, lower=1)
        return jittered_cholesky(whole + np.tril(whole, -1).T) if failed else factor

    @cached_property
    def _slopes(self):
        inside, roots = self._roots
        targets = (self.targets[inside] - self.fallback) * np.sqrt(self.weights[inside])[:, None]
        return triangular_solution(self._factor, triangular_solution(self._factor, roots.T @ targets), transposed=True)

    def means(self, features: np.ndarray) -> np.ndarray:
        """Return the means (m, p) at features (m, r)."""
        return self.fallback + features @ self._slopes

    def residuals(self) -> np.ndarray:
        """Return targets minus their leave-one-out means, shape (n, p)."""
        inside, roots = self._roots
        errors, turned = self.targets - self.means(self.features), triangular_solution(self._factor, roots.T)
        errors[inside] /= np.maximum(1.0 - np.einsum("ri,ri->i", turned, turned), 1e-10)[:, None]
        return errors


def choose_regularization(path: RidgePath, targets: np.ndarray, criterion: str) -> tuple[float, float]:
    """Return the best regularization of the grid for ``targets`` (n, p), and its loss.

    Parameters
    ----------
    path
    targets : ndarray (n, p)
        Centered where predictions should fall back to, on comparable scales.
    criterion : {"evidence", "leave-one-out"}
        The loss is minus the log evidence, or the mean weighted squared leave-one-out error. The evidence varies less
        from sample to sample, and observations away from the center of the training data need the caution; it takes the
        targets to be Gaussian around their means, which features of latents are not.
    """
    grid = path.grid
    losses = -path.evidence(targets, grid) if criterion == "evidence" else path.losses(targets, grid).mean(axis=1)
    best = int(losses.argmin())
    return float(grid[best]), float(losses[best])
