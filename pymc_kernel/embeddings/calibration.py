"""Whether a fitted rule's posteriors hold what they promise. Imports NumPy and siblings."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.inputs import scales_of

__all__ = ["Calibration", "calibration_of"]

LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)


class Calibration(NamedTuple):
    """How often the truth fell where the posteriors said; all of it uniform, or on the diagonal, for a right rule."""

    ranks: np.ndarray
    """Share (m, p) of each marginal posterior below the truth: simulation-based calibration (Talts et al. 2018)."""
    regions: np.ndarray
    """Share (m,) of each posterior nearer to a random point than the truth: the TARP ranks (Lemos et al. 2023)."""
    levels: np.ndarray
    """Nominal levels (k,)."""
    coverage: np.ndarray
    """Share (k, p) of truths in the central marginal intervals of these levels."""
    tarp: np.ndarray
    """Share (k,) of truths within the joint regions of these levels around random points."""
    standard_error: np.ndarray
    """Of both shares at the nominal level, (k,)."""

    def worst_gap(self) -> float:
        """Return the largest distance of coverage or TARP from its level, in standard errors."""
        gaps = np.concatenate([self.coverage - self.levels[:, None], (self.tarp - self.levels)[:, None]], axis=1)
        return float(np.abs(gaps / self.standard_error[:, None]).max())


def calibration_of(draws: np.ndarray, truths: np.ndarray, rng: np.random.Generator) -> Calibration:
    """Return the calibration of posterior ``draws`` (m, s, p) for ``truths`` (m, p) that made the observations."""
    m, _, p = draws.shape
    ranks = ((draws < truths[:, None]).mean(axis=1) + (draws <= truths[:, None]).mean(axis=1)) / 2.0
    depth = np.abs(2.0 * ranks - 1.0)  # the smallest central interval that holds the truth
    coverage = (depth[None] <= LEVELS[:, None, None]).mean(axis=1)
    # References from the truths of others: somewhere in the prior, whatever its shape.
    spread = scales_of(truths)[1]
    references = truths[(np.arange(m) + rng.integers(1, max(m, 2), size=m)) % m]
    references = references + 0.1 * spread * rng.standard_normal((m, p))
    away = (((truths - references) / spread) ** 2).sum(axis=1)
    nearer = ((((draws - references[:, None]) / spread) ** 2).sum(axis=2) < away[:, None]).mean(axis=1)
    tarp = (nearer[None] <= LEVELS[:, None]).mean(axis=1)
    return Calibration(ranks, nearer, LEVELS, coverage, tarp, np.sqrt(LEVELS * (1.0 - LEVELS) / m))
