"""A fitted kernel Bayes' rule: embeddings, means, draws and intervals for any observation."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from pymc_kernel.embeddings.inputs import MAX_SCALED_DISTANCE, median_scales, resolved
from pymc_kernel.embeddings.kernel_mean import KernelMean, resample, smoothed_draws
from pymc_kernel.embeddings.ridge import GramFactor, RidgePath, factorize, folds
from pymc_kernel.kernels import Gaussian, Linear, Sum
from pymc_kernel.kernels.points import as_points, check_between, robust_scales, scales_of
from pymc_kernel.parallel import one_blas_thread

_NUM_CASES = 200  # nearest training points, by which rules near an observation are compared
_POINTS_A_FEATURE = 3  # at least, of a rule near an observation
LEVELS = np.round(np.arange(0.05, 1.0, 0.05), 2)  # of the intervals whose coverage is counted


@dataclass(frozen=True, eq=False)
class ObservedFeatures:
    """Features of observations: scaled and clipped for the default kernel, else used as they are."""

    is_default: bool
    middle: np.ndarray  # (q,), of the training observations, robust
    spread: np.ndarray  # (q,)
    factor: GramFactor  # features of the training observations, and their extension

    @classmethod
    def of(cls, settings, observed: np.ndarray, rng: np.random.Generator) -> "ObservedFeatures":
        """Return those of a rule with these ``settings`` for training observations (n, q)."""
        features = cls(settings.observed_kernel is None, *robust_scales(observed), None)
        placed, kernel = features.placed(observed), settings.observed_kernel
        if features.is_default:
            # The linear part lets posterior means keep changing far from the data, where the Gaussian is zero. Both
            # parts are about one on average.
            kernel = Sum([Gaussian(median_scales(placed, rng)), Linear(np.sqrt(placed.shape[1]))])
        kernel = resolved(kernel, placed, rng)
        return replace(features, factor=factorize(kernel, placed, settings.num_basis, settings.tolerance, rng))

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Return observations (m, q) in units of the training observations' spreads."""
        return (rows - self.middle) / self.spread

    def placed(self, rows: np.ndarray) -> np.ndarray:
        """Return observations (m, q) as the kernel gets them."""
        # A simulation with extreme values would dominate a linear kernel's trace, and leave no rank to the others.
        return np.clip(self.scaled(rows), -MAX_SCALED_DISTANCE, MAX_SCALED_DISTANCE) if self.is_default else rows

    def as_rows(self, observed) -> np.ndarray:
        """Return observations (m, q) from an array (m, q), or (q,) for one."""
        observed, width = np.asarray(observed, dtype=float), len(self.middle)
        if observed.ndim == 0 or (observed.ndim == 1 and observed.shape[0] == width):
            observed = observed.reshape(1, -1)
        return as_points(observed, "observed", num_dims=width)

    def __call__(self, observed) -> np.ndarray:
        """Return the features (m, r) of observations (m, q), or (q,) for one."""
        return self.factor.extend(self.placed(self.as_rows(observed)))


@dataclass(frozen=True, eq=False)
class FittedRule:
    """A fitted kernel Bayes' rule; each observation costs one product with an n x r matrix.

    Attributes
    ----------
    settings : KernelBayesRule or OriginalBayesRule
    latent, observed : ndarray (n, p), (n, q)
        Training pairs whose numbers are all finite.
    num_dropped : int
        Number of the other pairs.
    latent_kernel : kernel
    ratio : ndarray (n,)
        Weights by which the training latents represent the prior: mean one, or for the original rule signed, sum one.
    prior : KernelMean or None
        None if the prior is known only through the weighted training latents.
    features : ObservedFeatures
        Of observations; ``features.factor`` has their number and the share of the trace that they miss.
    path : RidgePath or SignedRule
        Weights of the training points from features of observations.
    regularization : float
    """

    settings: Any
    latent: np.ndarray
    observed: np.ndarray
    num_dropped: int
    latent_kernel: Any
    ratio: np.ndarray
    prior: KernelMean | None
    features: ObservedFeatures
    path: Any
    regularization: float

    @property
    def fallback(self) -> np.ndarray:
        """Mean of the prior (p,), the posterior mean for an uninformative observation."""
        return self.ratio @ self.latent / self.ratio.sum() if self.prior is None else self.prior.mean()

    @one_blas_thread
    def weights(self, observed) -> np.ndarray:
        """Return the weights (m, n) of the training points for ``observed`` (m, q), as in the papers."""
        return self.path.coefficients(self.features(observed), self.regularization)

    @one_blas_thread
    def condition(self, observed) -> KernelMean:
        """Return the posterior embedding for ``observed`` (q,) or the embeddings for (m, q), at once.

        The weights of a ridge regression sum to less than one. The prior gets the rest, so that an uninformative
        observation leaves it unchanged. The points are the training latents, followed by the prior's sample if there is
        one.
        """
        weights, points = self.weights(observed), self.latent
        missing = 1.0 - weights.sum(axis=1, keepdims=True)
        if self.prior is None:
            weights = weights + missing * (self.ratio / self.ratio.sum())
        else:
            points = np.concatenate([points, self.prior.points])
            weights = np.concatenate([weights, missing * self.prior.weights], axis=1)
        embedding = KernelMean(points, weights, self.latent_kernel)
        return embedding[0] if np.ndim(observed) < 2 and len(weights) == 1 else embedding

    @one_blas_thread
    def mean(self, observed) -> np.ndarray:
        """Return posterior means (m, p) for ``observed`` (m, q)."""
        return self._means(self.weights(observed))

    def _means(self, weights):
        fallback = self.fallback
        return fallback + weights @ (self.latent - fallback)

    @cached_property
    def residuals(self) -> np.ndarray:
        """Training latents minus their leave-one-out predictions, (n, p)."""
        if not isinstance(self.path, RidgePath):
            raise ValueError("draws by residuals need KernelBayesRule; draw from condition(observed) instead.")
        return self.path.leave_one_out(self.latent - self.fallback, self.regularization)

    @one_blas_thread
    def refitted(self, factors: np.ndarray) -> "FittedRule":
        """Return the regression with weights of the training points times ``factors`` (n,).

        Zero leaves a point out; random factors of mean one make a Bayesian bootstrap (Rubin 1981).
        """
        weights = self.ratio * factors / (self.ratio @ factors) * len(factors)
        return replace(self, ratio=weights, path=RidgePath.of(self.features.factor.features, weights))

    @one_blas_thread
    def posteriors(self, observed) -> list[KernelMean]:
        """Return the posterior for each of ``observed`` (m, q): points with weights that are not negative.

        Each is the posterior mean plus the leave-one-out residuals of the training points, with the weights of the rule
        at the observation, negative ones set to zero.
        """
        residuals, weights, out = self.residuals, self.weights(observed), []
        for mean, row in zip(self._means(weights), self._shares(weights), strict=True):
            inside = np.flatnonzero(row)
            out.append(KernelMean(mean + residuals[inside], row[inside], self.latent_kernel))
        return out

    def _shares(self, rows):
        """Return the weights (m, n) of the residuals, of sum one; what ``rows`` lack goes to all by their ratio."""
        rows = np.maximum(rows + (1.0 - rows.sum(axis=1, keepdims=True)) * self.ratio / self.ratio.sum(), 0.0)
        return rows / rows.sum(axis=1, keepdims=True)

    @one_blas_thread
    def sample(self, observed, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws (m, num_draws, p) for ``observed`` (m, q), smoothed so that none repeats."""
        return np.stack([smoothed_draws(one.points, one.weights, num_draws, rng) for one in self.posteriors(observed)])

    @one_blas_thread
    def interval(self, observed, probability: float = 0.94) -> np.ndarray:
        """Return central marginal intervals (m, p, 2) for ``observed`` (m, q)."""
        check_between(probability=probability)
        return np.stack([posterior.interval(probability) for posterior in self.posteriors(observed)])

    @one_blas_thread
    def near(self, observed, rng: np.random.Generator) -> "FittedRule":
        """Return a rule with the same settings for one observation (q,), fitted to training points around it.

        Leaving out points far from the observation does not change the posterior, and a smaller region is a simpler
        problem for as many features. The farther half, by the previous rule's distances, is left out while three points
        (effective ones) per feature remain. Of all rules, this one included, the one returned best predicts the 200
        nearest points, each from all others: where one regression fits everywhere, that may be the one with all points.
        """
        rules, kept, fewest = [self], [np.arange(len(self.latent))], _POINTS_A_FEATURE * self.settings.num_basis
        while len(kept[-1]) // 2 >= fewest:
            inside = np.sort(rules[-1].nearest(observed, len(kept[-1]) // 2, rng))
            ratio = rules[-1].ratio[inside]
            if ratio.sum() ** 2 < fewest * (ratio**2).sum():
                break
            kept.append(kept[-1][inside])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # warnings were given at the first fit
                pairs = self.latent[kept[-1]], self.observed[kept[-1]]
                rules.append(self.settings.fit(*pairs, weights=ratio, rng=rng))
        if len(rules) == 1:
            return self
        cases = kept[-1][rules[-1].nearest(observed, _NUM_CASES, rng)]
        scores = [rule.normal_score(np.searchsorted(own, cases)) for own, rule in zip(kept, rules, strict=True)]
        return rules[int(np.argmax(scores))]

    def normal_score(self, cases: np.ndarray) -> float:
        """Return the mean log density of training points ``cases`` (indices) given all others, up to a constant.

        Each posterior is replaced by the normal distribution with its mean and covariance.
        """
        shares = self._shares(self.path.coefficients(self.features.factor.features[cases], self.regularization))
        shares[np.arange(len(cases)), cases] = 0.0
        spread = scales_of(self.residuals)[1]
        scaled = self.residuals / spread  # so that the pseudoinverse drops rounding alone, in any units
        squares = np.einsum("ij,ik->ijk", scaled, scaled)
        covariances = np.tensordot(shares / shares.sum(axis=1, keepdims=True), squares, 1)
        inverses = np.linalg.pinv(covariances, hermitian=True)
        squared = np.einsum("mi,mij,mj->m", scaled[cases], inverses, scaled[cases])
        return float(-0.5 * (np.linalg.slogdet(covariances)[1] + squared).mean() - np.log(spread).sum())

    def nearest(self, observed, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the indices of the ``size`` training points nearest to one observation (q,); ties at random.

        The distance is the squared distance of observations scaled by their spreads, plus that of posterior means
        scaled by the spreads of residuals, each divided by its median.
        """
        scaled, spread = self.features.scaled, np.sqrt(self.ratio @ self.residuals**2 / self.ratio.sum())
        means = self.latent - self.residuals, self.mean(observed)
        squared = _squared_distances(scaled(self.observed), scaled(self.features.as_rows(observed)))
        squared = squared + _squared_distances(*(m / np.where(spread > 0.0, spread, 1.0) for m in means))
        order = rng.permutation(len(squared))
        return order[np.argsort(squared[order], kind="stable")[:size]]

    @one_blas_thread
    def calibration(
        self, latent=None, observed=None, *, num_draws: int = 200, num_cases: int = 1000, rng=None
    ) -> "RuleCalibration":
        """Return the calibration of the posteriors, from pairs that the rule was not fitted to.

        It holds ranks, coverage of marginal intervals and TARP coverage; :func:`pymc_kernel.plot_calibration` draws it.
        With pairs it takes one product with an n x r matrix per case, without also five regressions, O(n r^2).

        Parameters
        ----------
        latent, observed : array_like (m, p), (m, q), optional
            Pairs with latents from the prior. Without them the training pairs are used, in five folds: each is held out
            in turn and the regression fitted to the others, with the kernel and the regularization of the whole fit.
        num_draws : int
            From each posterior.
        num_cases : int
            Training pairs used, where no others are given; drawn by their weights.
        rng : int or numpy.random.Generator, optional
        """
        rng = np.random.default_rng(rng)
        if (latent is None) != (observed is None):
            raise ValueError("give latent and observed both, or neither for calibration by cross-validation.")
        if latent is None:
            cases = np.unique(resample(self.ratio, min(num_cases, len(self.latent)), rng))
            draws = np.stack([posterior.sample(num_draws, rng) for posterior in self.held_out(cases, rng)])
            return calibration_of(draws, self.latent[cases], rng)
        latent, rows = as_points(latent, "latent"), self.features.as_rows(observed)
        if latent.shape != (len(rows), self.latent.shape[1]):
            raise ValueError(f"latent must have shape {(len(rows), self.latent.shape[1])}, got {latent.shape}.")
        return calibration_of(self.sample(rows, num_draws, rng), latent, rng)

    def held_out(self, cases: np.ndarray, rng: np.random.Generator) -> list[KernelMean]:
        """Return the posteriors of training points ``cases`` (indices), each by a fit without the fold it is in."""
        fold_of, out = folds(len(self.latent), rng), [None] * len(cases)
        for fold in np.unique(fold_of[cases]):
            mine = np.flatnonzero(fold_of[cases] == fold)
            fit = self.refitted((fold_of != fold).astype(float))
            for i, posterior in zip(mine, fit.posteriors(self.observed[cases[mine]]), strict=True):
                out[i] = posterior
        return out


def _squared_distances(points, place):
    """Return squared distances (n,) from a place, in units of their median; rounding counts as zero."""
    squared = ((points - place) ** 2).sum(axis=1)
    rounding = 1e-18 * max(np.abs(points).max(), np.abs(place).max()) ** 2
    squared = np.where(squared > rounding, squared, 0.0)
    return squared / (np.median(squared) or squared.mean() or 1.0)  # zero if over half coincide with it


class RuleCalibration(NamedTuple):
    """Ranks and coverage of truths in posteriors; for a right rule ranks are uniform, and coverage is the level."""

    ranks: np.ndarray  #: share (m, p) of each marginal posterior below the truth: simulation-based calibration
    regions: np.ndarray  #: share (m,) of each posterior nearer a random point than the truth (TARP, Lemos et al. 2023)
    levels: np.ndarray  #: nominal levels (k,)
    coverage: np.ndarray  #: share (k, p) of truths in the central marginal intervals of these levels
    tarp: np.ndarray  #: share (k,) of truths within the joint regions of these levels around random points
    standard_error: np.ndarray  #: of both shares at the nominal level, (k,)

    def __repr__(self):
        nominal = 0.5, 0.9
        at = [int(np.argmin(np.abs(self.levels - level))) for level in nominal]
        coverage = self.coverage[at].T
        lines = [
            f"Calibration by {len(self.regions)} cases: shares of truths within intervals of "
            f"{', '.join(f'{level:.0%}' for level in nominal)}, expected to be off by "
            f"{', '.join(f'{100 * error:.1f}' for error in self.standard_error[at])} points",
            *(f"  latent[{j}]  {_percentages(shares)}" for j, shares in enumerate(coverage[:8])),
        ]
        if len(coverage) > 8:
            lines.append(f"  and {len(coverage) - 8} more")
        lines += [f"  jointly    {_percentages(self.tarp[at])}", f"largest gap: {self.worst_gap():.1f} standard errors"]
        return "\n".join(lines)

    def worst_gap(self) -> float:
        """Return the largest distance of coverage or TARP from its level, in standard errors."""
        gaps = np.concatenate([self.coverage - self.levels[:, None], (self.tarp - self.levels)[:, None]], axis=1)
        return float(np.abs(gaps / self.standard_error[:, None]).max())


def _percentages(shares):
    return ", ".join(f"{share:.1%}" for share in shares)


def calibration_of(draws: np.ndarray, truths: np.ndarray, rng: np.random.Generator) -> RuleCalibration:
    """Return the calibration of posterior ``draws`` (m, s, p) for ``truths`` (m, p) that generated the observations."""
    m, s, p = draws.shape
    below, tied = ((compare(draws, truths[:, None])).sum(axis=1) for compare in (np.less, np.equal))
    # Reference points are the truths of other cases: draws from the prior, whatever its shape.
    spread = scales_of(truths)[1]
    references = truths[(np.arange(m) + rng.integers(1, max(m, 2), size=m)) % m]
    references = references + 0.1 * spread * rng.standard_normal((m, p))
    away = (((truths - references) / spread) ** 2).sum(axis=1)
    nearer = ((((draws - references[:, None]) / spread) ** 2).sum(axis=2) < away[:, None]).sum(axis=1)
    # The position of the truth between two neighboring draws is drawn at random, so that ranks are uniform and never
    # exactly zero or one: a single such rank would make a test of uniformity reject.
    ranks = (below + rng.random((m, p)) * (tied + 1)) / (s + 1)
    regions = (nearer + rng.random(m)) / (s + 1)
    depth = np.abs(2.0 * ranks - 1.0)  # level of the smallest central interval that holds the truth
    coverage = (depth[None] <= LEVELS[:, None, None]).mean(axis=1)
    tarp = (regions[None] <= LEVELS[:, None]).mean(axis=1)
    return RuleCalibration(ranks, regions, LEVELS, coverage, tarp, np.sqrt(LEVELS * (1.0 - LEVELS) / m))
