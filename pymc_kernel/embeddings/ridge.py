"""Weighted ridge regression on features along a path of regularizations. Imports NumPy and SciPy."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

__all__ = ["RidgePath", "choose_regularization"]

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
