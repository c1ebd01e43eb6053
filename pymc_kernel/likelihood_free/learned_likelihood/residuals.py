"""Distributions of residuals: independent mixtures of normals, joint mixtures. Imports NumPy and SciPy only."""

from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

__all__ = ["Marginals"]

_LOG_2_PI = np.log(2.0 * np.pi)


@dataclass(frozen=True, eq=False)
class Marginals:
    """Independent residuals, each from a mixture of k normals; ``log_weights``, ``means``, ``sds`` are (q, k)."""

    log_weights: np.ndarray
    means: np.ndarray
    sds: np.ndarray

    def log_density_and_slope(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (m,) of residuals (m, q), and their derivatives (m, q)."""
        if self.sds.shape[1] == 1:
            away = (noise - self.means[:, 0]) / self.sds[:, 0]
            density = -0.5 * (away**2).sum(axis=1) - np.log(self.sds).sum() - 0.5 * self.sds.size * _LOG_2_PI
            return density, -away / self.sds[:, 0]
        away = (noise[:, :, None] - self.means) / self.sds
        parts = self.log_weights - 0.5 * away**2 - np.log(self.sds) - 0.5 * _LOG_2_PI
        density = logsumexp(parts, axis=2)
        shares = np.exp(parts - density[:, :, None])
        return density.sum(axis=1), -(shares * away / self.sds).sum(axis=2)

    def sample(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return residuals (number, q)."""
        q, _ = self.sds.shape
        edges = np.cumsum(np.exp(self.log_weights), axis=1)
        which = (rng.random((number, q))[:, :, None] * edges[:, -1:] > edges).sum(axis=2)
        rows = np.arange(q)
        return self.means[rows, which] + self.sds[rows, which] * rng.standard_normal((number, q))

    @classmethod
    def normal(cls, num_summaries: int) -> "Marginals":
        """Return standard normal residuals."""
        one = np.ones((num_summaries, 1))
        return cls(0.0 * one, 0.0 * one, one)
