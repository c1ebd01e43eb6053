"""Whether posteriors of a fitted rule cover the truth at their nominal levels. Imports NumPy and siblings."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.inputs import scales_of
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.ridge import folds

LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)  # of the intervals whose coverage is counted
_MAX_LATENTS = 8  # that a printed calibration shows


class RuleCalibration(NamedTuple):
    """Ranks and coverage of truths in posteriors; for a right rule ranks are uniform, and coverage is the level."""

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
        nominal = 0.5, 0.9
        at = [int(np.argmin(np.abs(self.levels - level))) for level in nominal]
        coverage = self.coverage[at].T
        lines = [
            f"Calibration by {len(self.regions)} cases: shares of truths within intervals of "
            f"{', '.join(f'{level:.0%}' for level in nominal)}, expected to be off by "
            f"{', '.join(f'{100 * error:.1f}' for error in self.standard_error[at])} points",
            *(f"  latent[{j}]  {_shares(shares)}" for j, shares in enumerate(coverage[:_MAX_LATENTS])),
        ]
        if len(coverage) > _MAX_LATENTS:
            lines.append(f"  and {len(coverage) - _MAX_LATENTS} more")
        lines += [f"  jointly    {_shares(self.tarp[at])}", f"largest gap: {self.worst_gap():.1f} standard errors"]
        return "\n".join(lines)

    def worst_gap(self) -> float:
        """Return the largest distance of coverage or TARP from its level, in standard errors."""
        gaps = np.concatenate([self.coverage - self.levels[:, None], (self.tarp - self.levels)[:, None]], axis=1)
        return float(np.abs(gaps / self.standard_error[:, None]).max())


def _shares(shares):
    return ", ".join(f"{share:.1%}" for share in shares)


def held_out(rule, cases: np.ndarray, rng: np.random.Generator) -> list[KernelMean]:
    """Return the posteriors of training points ``cases`` (indices), each by a fit without a fifth that holds it."""
    fold_of, out = folds(len(rule.latent), rng), [None] * len(cases)
    for fold in np.unique(fold_of[cases]):
        mine = np.flatnonzero(fold_of[cases] == fold)
        fit = rule.refitted((fold_of != fold).astype(float))
        for i, posterior in zip(mine, fit.posteriors(rule.observed[cases[mine]]), strict=True):
            out[i] = posterior
    return out


def calibration_of(draws: np.ndarray, truths: np.ndarray, rng: np.random.Generator) -> RuleCalibration:
    """Return the calibration of posterior ``draws`` (m, s, p) for ``truths`` (m, p) that made the observations."""
    m, s, p = draws.shape
    below, tied = ((compare(draws, truths[:, None])).sum(axis=1) for compare in (np.less, np.equal))
    # Reference points are the truths of other cases: draws from the prior, whatever its shape.
    spread = scales_of(truths)[1]
    references = truths[(np.arange(m) + rng.integers(1, max(m, 2), size=m)) % m]
    references = references + 0.1 * spread * rng.standard_normal((m, p))
    away = (((truths - references) / spread) ** 2).sum(axis=1)
    nearer = ((((draws - references[:, None]) / spread) ** 2).sum(axis=2) < away[:, None]).sum(axis=1)
    # The position of the truth in its gap between two draws is drawn at random: ranks are uniform, and never exactly
    # zero or one, a single one of which would make a test of uniformity reject.
    ranks = (below + rng.random((m, p)) * (tied + 1)) / (s + 1)
    regions = (nearer + rng.random(m)) / (s + 1)
    depth = np.abs(2.0 * ranks - 1.0)  # the smallest central interval that holds the truth
    coverage = (depth[None] <= LEVELS[:, None, None]).mean(axis=1)
    tarp = (regions[None] <= LEVELS[:, None]).mean(axis=1)
    return RuleCalibration(ranks, regions, LEVELS, coverage, tarp, np.sqrt(LEVELS * (1.0 - LEVELS) / m))
