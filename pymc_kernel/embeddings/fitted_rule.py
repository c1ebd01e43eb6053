"""A fitted kernel Bayes' rule: embeddings, means, draws and intervals for any observation. Imports siblings."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from pymc_kernel.embeddings.calibration import RuleCalibration, calibrate
from pymc_kernel.embeddings.kernel_mean import KernelMean, smoothed_draws
from pymc_kernel.embeddings.ridge import RidgePath
from pymc_kernel.embeddings.training import ObservedFeatures, Pairs, Weighting
from pymc_kernel.parallel import one_blas_thread

__all__ = ["FittedRule", "ResidualFit"]

_NUM_FOLDS = 5  # a fifth held out costs little accuracy; the fits are five
_NUM_CASES = 200  # that a rule near an observation is to predict
_POINTS_A_FEATURE = 3  # that a rule near an observation keeps for each feature


@dataclass(frozen=True, eq=False)
class ResidualFit:
    """Posteriors as the mean of a ridge regression plus its residuals, weighted by the rule at the observation.

    Attributes
    ----------
    path : RidgePath
        Of the features, with the weights of the training points; zero leaves a point out.
    residual_weights : ndarray (n,)
        Of the training points as residuals.
    latent : ndarray (n, p)
    fallback : ndarray (p,)
        Means where the features are zero, far from the training points.
    regularization : float
    kernel : kernel
        On the latents.
    """

    path: RidgePath
    residual_weights: np.ndarray
    latent: np.ndarray
    fallback: np.ndarray
    regularization: float
    kernel: Any

    @cached_property
    def residuals(self) -> np.ndarray:
        """Training latents minus their means by all other training points, (n, p)."""
        return self.path.leave_one_out(self.latent - self.fallback, self.regularization)

    def posteriors(self, features: np.ndarray) -> list[KernelMean]:
        """Return the posterior for each row of ``features`` (m, r), as points whose weights are not negative.

        The weight that those of the rule lack to one belongs to the prior: to all residuals alike.
        """
        rows = self.path.coefficients(features, self.regularization)
        means = self.fallback + rows @ (self.latent - self.fallback)
        out = []
        for mean, shares in zip(means, self.shares(features), strict=True):
            inside = np.flatnonzero(shares)
            out.append(KernelMean(mean + self.residuals[inside], shares[inside], self.kernel))
        return out

    def shares(self, features: np.ndarray) -> np.ndarray:
        """Return the weights (m, n) of the residuals for each row of ``features`` (m, r), of sum one."""
        missing = self.residual_weights / self.residual_weights.sum()
        rows = replace(self.path, weights=self.residual_weights).coefficients(features, self.regularization)
        rows = np.maximum(rows + (1.0 - rows.sum(axis=1, keepdims=True)) * missing, 0.0)
        return rows / rows.sum(axis=1, keepdims=True)


@dataclass(frozen=True, eq=False)
class FittedRule:
    """A fitted kernel Bayes' rule; each observation costs one product with an n x r matrix.

    Attributes
    ----------
    settings : KernelBayesRule or OriginalBayesRule
    pairs : Pairs
        Training latents and observations, and how many were left out.
    latent_kernel : kernel
    weighting : Weighting
        Of the training points, mean one where they are estimated from a prior; with the prior.
    features : ObservedFeatures
        Of observations; ``features.factor`` has their number and the share of the trace that they miss.
    path : RidgePath or SignedRule
        Weights of the training points from features of observations.
    regularization : float
    """

    settings: Any
    pairs: Pairs
    latent_kernel: Any
    weighting: Weighting
    features: ObservedFeatures
    path: Any
    regularization: float

    @property
    def latent(self) -> np.ndarray:
        """Training latents (n, p)."""
        return self.pairs.latent

    @property
    def observed(self) -> np.ndarray:
        """Training observations (n, q)."""
        return self.pairs.observed

    # -- the embedding -----------------------------------------------------------------------------------------

    @one_blas_thread
    def weights(self, observed) -> np.ndarray:
        """Return the weights (m, n) of the training points for ``observed`` (m, q), before any normalization."""
        return self.path.coefficients(self.features(self.features.as_rows(observed)), self.regularization)

    @one_blas_thread
    def condition(self, observed) -> KernelMean:
        """Return the posterior embedding for ``observed`` (q,) or the embeddings for (m, q), at once.

        Its points are the training latents, followed by the sample of the prior where the prior gets the missing weight
        (``normalize="prior"``).
        """
        rows = self.features.as_rows(observed)
        weights, points = self.weights(rows), self.latent
        ratio, prior = self.weighting.ratio, self.weighting.prior
        if self.settings.normalize == "sum":
            weights = weights / _guarded(weights.sum(axis=1))[:, None]
        elif self.settings.normalize == "prior":
            missing = 1.0 - weights.sum(axis=1, keepdims=True)
            if prior is None:
                weights = weights + missing * (ratio / ratio.sum())
            else:
                points = np.concatenate([points, prior.points])
                weights = np.concatenate([weights, missing * prior.weights], axis=1)
        embedding = KernelMean(points, weights, self.latent_kernel)
        return embedding[0] if np.ndim(observed) < 2 and len(rows) == 1 else embedding

    @one_blas_thread
    def mean(self, observed) -> np.ndarray:
        """Return posterior means (m, p) for ``observed`` (m, q)."""
        weights = self.weights(observed)
        first = weights @ self.latent
        if self.settings.normalize == "prior":
            return first + (1.0 - weights.sum(axis=1, keepdims=True)) * self.weighting.prior_mean(self.latent)
        if self.settings.normalize == "sum":
            return first / _guarded(weights.sum(axis=1))[:, None]
        return first

    # -- draws -----------------------------------------------------------------------------------------------

    @one_blas_thread
    def refitted(self, factors: np.ndarray | None = None) -> ResidualFit:
        """Return the regression that draws come from, with weights of the training points times ``factors`` (n,).

        Zero leaves a point out; random factors of mean one make a Bayesian bootstrap (Rubin 1981).
        """
        if self.weighting.residual_weights is None or self.settings.normalize != "prior":
            raise ValueError(
                'draws by residuals need KernelBayesRule with normalize="prior", whose weights are not negative and '
                "whose means fall back to the prior; or take intervals and draws from condition(observed)."
            )
        path, residual_weights = self.path, self.weighting.residual_weights
        if factors is not None:
            weights, residual_weights = _scaled(path.weights * factors), _scaled(residual_weights * factors)
            path = RidgePath.of(self.features.factor.features, weights)
        prior = self.weighting.prior
        fallback = path.weights @ self.latent / path.weights.sum() if prior is None else prior.mean()
        return ResidualFit(path, residual_weights, self.latent, fallback, self.regularization, self.latent_kernel)

    @cached_property
    def _residual_fit(self):
        return self.refitted()

    @one_blas_thread
    def posteriors(self, observed, factors: np.ndarray | None = None) -> list[KernelMean]:
        """Return the posterior for each of ``observed`` (m, q): points with weights that are not negative.

        Each is the posterior mean plus the leave-one-out residuals of the training points, with the weights of the rule
        at the observation, cut at zero. ``factors`` (n,) are those of :meth:`refitted`.
        """
        features = self.features(self.features.as_rows(observed))
        return (self._residual_fit if factors is None else self.refitted(factors)).posteriors(features)

    @one_blas_thread
    def sample(self, observed, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws (m, num_draws, p) for ``observed`` (m, q), smoothed so that none repeats."""
        found = self.posteriors(observed)
        return np.stack([smoothed_draws(one.points, one.weights, num_draws, rng) for one in found])

    @one_blas_thread
    def interval(self, observed, probability: float = 0.94) -> np.ndarray:
        """Return central marginal intervals (m, p, 2) for ``observed`` (m, q)."""
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be in (0, 1), got {probability!r}.")
        return np.stack([posterior.interval(probability) for posterior in self.posteriors(observed)])

    @one_blas_thread
    def near(self, observed, rng: np.random.Generator) -> "FittedRule":
        """Return a rule with the same settings for one observation (q,), fitted to training points around it.

        To condition on an observation is to know that it is this one, so leaving out what is far away does not change
        the posterior, and what is left is a simpler problem for as many features. The farther half is left out as often
        as three points a feature remain, each time by the rule before. Of these rules and this one, the best predicts
        the nearest 200 points, each by all others: where one regression fits everywhere, all points tell.
        """
        rules, fewest = [(np.arange(len(self.latent)), self)], _POINTS_A_FEATURE * self.settings.num_basis
        while len(rules[-1][0]) // 2 >= fewest:
            kept, here = rules[-1]
            inside = here.nearest(observed, len(kept) // 2, rng)
            ratio = here.weighting.residual_weights[inside]
            if ratio.sum() ** 2 < fewest * (ratio**2).sum():
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # warnings were given at the first fit
                new = self.settings.fit(here.latent[inside], here.observed[inside], weights=ratio, rng=rng)
            rules.append((kept[inside], new))
        cases = rules[-1][0][:_NUM_CASES]
        orders = [np.argsort(kept) for kept, _ in rules]
        places = [o[np.searchsorted(kept, cases, sorter=o)] for o, (kept, _) in zip(orders, rules, strict=True)]
        scores = [rule.normal_score(own) for own, (_, rule) in zip(places, rules, strict=True)]
        return rules[int(np.argmax(scores))][1] if len(rules) > 1 else self

    def normal_score(self, cases: np.ndarray) -> float:
        """Return the mean log density of training points ``cases`` (indices) given all others, up to a constant.

        As if posteriors were normal, with their means and covariances.
        """
        fit = self._residual_fit
        shares = fit.shares(self.features.factor.features[cases])
        shares[np.arange(len(cases)), cases] = 0.0
        shares /= shares.sum(axis=1, keepdims=True)
        spread = fit.residuals.std(axis=0)
        spread[spread == 0.0] = 1.0
        scaled = fit.residuals / spread  # whatever the units, the pseudoinverse leaves out rounding alone
        p = scaled.shape[1]
        covariances = (shares @ (scaled[:, :, None] * scaled[:, None, :]).reshape(-1, p * p)).reshape(-1, p, p)
        own = scaled[cases]
        squared = np.einsum("mi,mij,mj->m", own, np.linalg.pinv(covariances, hermitian=True), own)
        return float(-0.5 * (np.linalg.slogdet(covariances)[1] + squared).mean() - np.log(spread).sum())

    def nearest(self, observed, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return the indices of the ``size`` training points nearest to one observation (q,); of ties any.

        By squared distances of observations, in their spreads, plus those of posterior means, in spreads of residuals,
        each in units of their median.
        """
        fit, scaled = self._residual_fit, self.features.coordinates.scaled
        spread = np.sqrt(fit.residual_weights @ fit.residuals**2 / fit.residual_weights.sum())
        means = self.latent - fit.residuals, self.mean(observed)
        squared = _squared_distances(scaled(self.observed), scaled(self.features.as_rows(observed)))
        squared = squared + _squared_distances(*(m / np.where(spread > 0.0, spread, 1.0) for m in means))
        order = rng.permutation(len(squared))
        return order[np.argsort(squared[order], kind="stable")[:size]]

    @one_blas_thread
    def held_out(self, cases: np.ndarray, rng: np.random.Generator) -> list[KernelMean]:
        """Return the posteriors of training points ``cases`` (indices), each by a fit without a fifth that holds it."""
        fold_of = rng.permutation(np.arange(len(self.latent)) % _NUM_FOLDS)
        out = [None] * len(cases)
        for fold in np.unique(fold_of[cases]):
            mine = np.flatnonzero(fold_of[cases] == fold)
            fit = self.refitted((fold_of != fold).astype(float))
            found = fit.posteriors(self.features.factor.features[cases[mine]])
            for i, posterior in zip(mine, found, strict=True):
                out[i] = posterior
        return out

    def calibration(self, latent=None, observed=None, **options) -> RuleCalibration:
        """Return the calibration of the posteriors: see :func:`pymc_kernel.embeddings.calibration.calibrate`."""
        return calibrate(self, latent, observed, **options)


def _scaled(weights):
    """Return weights with mean one, as regularizations are for them."""
    return weights / weights.mean()


def _squared_distances(points, place):
    """Return squared distances (n,) from a place, in units of their median; what is rounding counts as zero."""
    squared = ((points - place) ** 2).sum(axis=1)
    rounding = 1e-18 * max(np.abs(points).max(), np.abs(place).max()) ** 2
    squared = np.where(squared > rounding, squared, 0.0)
    return squared / (np.median(squared) or squared.mean() or 1.0)  # more than half may be tied with the place


def _guarded(totals):
    if not (totals > 0.0).all():
        raise ValueError(
            'the weights of an observation sum to zero or less, so they cannot be divided by it; use normalize="prior".'
        )
    return totals
