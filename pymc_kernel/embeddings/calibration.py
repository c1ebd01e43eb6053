"""Whether a fitted rule's posteriors hold what they promise. Imports NumPy and siblings."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.inputs import scales_of

__all__ = ["Calibration", "calibration_of"]

LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)
_SHOWN = np.array([0.5, 0.9])  # levels that a printed calibration shows
_MOST_LATENTS = 8  # that it shows


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

    def __repr__(self):
        nominal = _SHOWN.tolist()
        at = [int(np.argmin(np.abs(self.levels - level))) for level in nominal]
        coverage = self.coverage[at].T
        lines = [
            f"Calibration by {len(self.regions)} cases: shares of truths within intervals of "
            f"{', '.join(f'{level:.0%}' for level in nominal)}, expected to be off by "
            f"{', '.join(f'{100 * error:.1f}' for error in self.standard_error[at])} points",
            *(f"  latent[{j}]  {_shares(shares)}" for j, shares in enumerate(coverage[:_MOST_LATENTS])),
        ]
        if len(coverage) > _MOST_LATENTS:
            lines.append(f"  and {len(coverage) - _MOST_LATENTS} more")
        lines += [f"  jointly    {_shares(self.tarp[at])}", f"largest gap: {self.worst_gap():.1f} standard errors"]
        return "\n".join(lines)

    def worst_gap(self) -> float:
        """Return the largest distance of coverage or TARP from its level, in standard errors."""
        gaps = np.concatenate([self.coverage - self.levels[:, None], (self.tarp - self.levels)[:, None]], axis=1)
        return float(np.abs(gaps / self.standard_error[:, None]).max())


def _shares(shares):
    return ", ".join(f"{share:.1%}" for share in shares)


def calibration_of(draws: np.ndarray, truths: np.ndarray, rng: np.random.Generator) -> Calibration:
    """Return the calibration of posterior ``draws`` (m, s, p) for ``truths`` (m, p) that made the observations."""
    m, s, p = draws.shape
    below, tied = ((compare(draws, truths[:, None])).sum(axis=1) for compare in (np.less, np.equal))
    # References from the truths of others: somewhere in the prior, whatever its shape.
    spread = scales_of(truths)[1]
    references = truths[(np.arange(m) + rng.integers(1, max(m, 2), size=m)) % m]
    references = references + 0.1 * spread * rng.standard_normal((m, p))
    away = (((truths - references) / spread) ** 2).sum(axis=1)
    nearer = ((((draws - references[:, None]) / spread) ** 2).sum(axis=2) < away[:, None]).sum(axis=1)
    # Where in its gap between two draws the truth lies is drawn: ranks are uniform, and never exactly zero or one, of
    # which tests of uniformity take a single one as proof.
    ranks = (below + rng.random((m, p)) * (tied + 1)) / (s + 1)
    regions = (nearer + rng.random(m)) / (s + 1)
    depth = np.abs(2.0 * ranks - 1.0)  # the smallest central interval that holds the truth
    coverage = (depth[None] <= LEVELS[:, None, None]).mean(axis=1)
    tarp = (regions[None] <= LEVELS[:, None]).mean(axis=1)
    return Calibration(ranks, regions, LEVELS, coverage, tarp, np.sqrt(LEVELS * (1.0 - LEVELS) / m))
