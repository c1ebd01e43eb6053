"""Mixtures of normal distributions, the form of posteriors. Imports NumPy, SciPy and siblings."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dtrtrs
from scipy.special import logsumexp, ndtr

from pymc_kernel.embeddings.draws import resample

__all__ = ["Mixture", "log_normals"]

_ENTRIES = 2**22  # numbers of the largest temporary array
_BISECTIONS = 50  # halvings of the bracket of a quantile


class Mixture(NamedTuple):
    """Normal distributions with weights.

    Attributes
    ----------
    weights : ndarray (k,)
        Of sum one.
    centers : ndarray (k, p)
    factors : ndarray (k, p, p) or (1, p, p)
        Lower Cholesky factors of the covariances; one for all, or one each.
    """

    weights: np.ndarray
    centers: np.ndarray
    factors: np.ndarray

    def mapped(self, scale: np.ndarray, shift: np.ndarray) -> "Mixture":
        """Return the distribution of ``scale`` (p,) times the variable plus ``shift`` (p,)."""
        return self._replace(centers=self.centers * scale + shift, factors=self.factors * scale[:, None])

    def sample(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (num_draws, p), stratified over the components."""
        chosen = resample(self.weights, num_draws, rng)
        noise = rng.standard_normal((num_draws, self.centers.shape[1]))
        if len(self.factors) == 1:
            return self.centers[chosen] + noise @ self.factors[0].T
        return self.centers[chosen] + np.einsum("mij,mj->mi", self.factors[chosen], noise)

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log densities (m,) at ``points`` (m, p), with the constant of the normal distribution."""
        k, p = self.centers.shape
        if len(self.factors) == 1:
            return self._log_density_of_one_factor(points)
        inverses = np.linalg.inv(self.factors)
        log_weights = self._log_weights()
        log_volumes = np.log(np.diagonal(self.factors, axis1=1, axis2=2)).sum(axis=1)
        out = np.empty(len(points))
        block = max(1, _ENTRIES // (k * p))
        for a in range(0, len(points), block):
            differences = points[a : a + block, None] - self.centers  # (m, k, p)
            squared = (np.einsum("kij,mkj->mki", inverses, differences) ** 2).sum(axis=2)
            out[a : a + block] = logsumexp(log_weights - log_volumes - 0.5 * squared, axis=1)
        return out - 0.5 * p * np.log(2.0 * np.pi)

    def _log_density_of_one_factor(self, points):
        p = self.centers.shape[1]
        factor = self.factors[0]
        centers = solve_triangular(factor, self.centers.T, lower=True).T
        places = solve_triangular(factor, points.T, lower=True).T
        out = np.empty(len(points))
        block = max(1, _ENTRIES // (len(centers) * p))
        log_weights = self._log_weights()
        for a in range(0, len(points), block):
            squared = ((places[a : a + block, None] - centers) ** 2).sum(axis=2)
            out[a : a + block] = logsumexp(log_weights - 0.5 * squared, axis=1)
        return out - np.log(np.diagonal(factor)).sum() - 0.5 * p * np.log(2.0 * np.pi)

    def _log_weights(self):
        with np.errstate(divide="ignore"):
            return np.log(self.weights)

    def spreads(self) -> np.ndarray:
        """Return the marginal standard deviations (k or 1, p) of the components."""
        return np.sqrt((self.factors**2).sum(axis=2))

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean (p,) and the covariance (p, p)."""
        mean = self.weights @ self.centers
        centered = self.centers - mean
        weights = self.weights if len(self.factors) > 1 else np.ones(1)
        within = np.einsum("k,kij,klj->il", weights, self.factors, self.factors)
        return mean, (centered.T * self.weights) @ centered + within

    def cumulative(self, point: np.ndarray) -> np.ndarray:
        """Return the marginal distribution functions (p,) at ``point`` (p,)."""
        return self.weights @ ndtr((point - self.centers) / self.spreads())

    def quantiles(self, probabilities: np.ndarray) -> np.ndarray:
        """Return marginal quantiles (q, p), by bisection."""
        spreads = self.spreads()
        low = np.broadcast_to((self.centers - 10.0 * spreads).min(axis=0), (len(probabilities), spreads.shape[1]))
        high = np.broadcast_to((self.centers + 10.0 * spreads).max(axis=0), low.shape)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            below = np.stack([self.cumulative(row) for row in middle]) < probabilities[:, None]
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


def log_normals(differences: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Return the log densities (k,) of ``differences`` (k, p), up to the constant of the normal distribution.

    Parameters
    ----------
    differences : ndarray (k, p)
        From the means.
    factors : ndarray (k, p, p) or (1, p, p)
        Cholesky factors of the covariances.
    """
    if len(factors) == 1:
        # Straight to LAPACK: for these small systems SciPy's checks take most of the time.
        scaled = dtrtrs(factors[0].T, differences.T, lower=0, trans=1)[0].T
    else:
        scaled = np.linalg.solve(factors, differences[:, :, None])[:, :, 0]
    log_volume = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    return -0.5 * (scaled**2).sum(axis=1) - log_volume
