"""A fitted kernel Bayes' rule: embeddings, means, draws and intervals for any observation. Imports siblings."""

import copy
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pymc_kernel.embeddings.calibration import Calibration, calibrate
from pymc_kernel.embeddings.choice import Choice
from pymc_kernel.embeddings.inputs import scales_of
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.posterior import Regression
from pymc_kernel.embeddings.ridge import choose_regularization
from pymc_kernel.embeddings.training import ObservedFeatures, Pairs, Weighting, positive_part, regression_targets
from pymc_kernel.errors import warn_caller
from pymc_kernel.parallel import one_blas_thread

__all__ = ["FittedRule"]

_LENGTHS_DISAGREE = 0.2  # of the length of an interval


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
    rng : numpy.random.Generator
        As the fit left it; a copy of it draws the cases that :attr:`choice` is made by.
    """

    settings: Any
    pairs: Pairs
    latent_kernel: Any
    weighting: Weighting
    features: ObservedFeatures
    path: Any
    regularization: float
    rng: np.random.Generator

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
        embedding = self._condition(rows, self.regularization)
        return embedding[0] if np.ndim(observed) < 2 and len(rows) == 1 else embedding

    def _condition(self, rows, regularization):
        weights, points = self.path.coefficients(self.features(rows), regularization), self.latent
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
        return KernelMean(points, weights, self.latent_kernel)

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

    @cached_property
    @one_blas_thread
    def regression(self) -> Regression:
        """The regression that draws and intervals come from: means, and residuals around them."""
        if self.weighting.residual_weights is None:
            raise ValueError(
                "draws by residuals need weights that are not negative; use KernelBayesRule, or take intervals and "
                "draws from condition(observed)."
            )
        if self.settings.normalize != "prior":
            raise ValueError(
                'draws by residuals need means that fall back to the prior: normalize="prior"; or take intervals and '
                "draws from condition(observed)."
            )
        ratio, residual_weights, _, prior = self.weighting
        return Regression(
            self.features.factor.features,
            self.latent,
            scales_of(self.latent, positive_part(ratio))[1],
            self.features.coordinates.scaled(self.observed),
            ratio,
            residual_weights,
            self.regularization,
            None if prior is None else prior.mean(),
        )

    @cached_property
    @one_blas_thread
    def choice(self) -> Choice:
        """Neighborhoods and smoothing of the residuals, chosen for all observations together."""
        rng = copy.deepcopy(self.rng)
        return self.regression.cross_fit(rng).choose(self.regression.typical_cases(rng), equal=True)

    def query(self, observed) -> tuple[np.ndarray, np.ndarray]:
        """Return features (m, r) and scaled observations (m, q) of ``observed`` (m, q)."""
        rows = self.features.as_rows(observed)
        return self.features(rows), self.features.coordinates.scaled(rows)

    def subset(self, inside: np.ndarray, rng: np.random.Generator) -> "FittedRule":
        """Return a rule with the same settings, fitted to the training points ``inside`` (indices) alone."""
        known = self.regression.residual_weights[inside]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # warnings were given at the first fit
            return self.settings.fit(self.latent[inside], self.observed[inside], weights=known, rng=rng)

    @one_blas_thread
    def posteriors(self, observed) -> list[Mixture]:
        """Return the posterior for each of ``observed`` (m, q), as a mixture of normal distributions."""
        features, scaled = self.query(observed)
        fit, predictive = self.regression.predictive(self.choice.settings)
        places = self.regression.places(self.choice.settings.metric, features, scaled)
        scale = self.regression.scale
        # Without neighborhoods all observations share the residuals.
        same = predictive.at(places[0]) if self.choice.settings.share == 1.0 else None
        return [
            (same or predictive.at(place)).mapped(scale, mean)
            for place, mean in zip(places, fit.means(features), strict=True)
        ]

    @one_blas_thread
    def sample(self, observed, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return posterior draws (m, num_draws, p) for ``observed`` (m, q)."""
        return np.stack([posterior.sample(num_draws, rng) for posterior in self.posteriors(observed)])

    @one_blas_thread
    def interval(self, observed, probability: float = 0.94, check: bool = False) -> np.ndarray:
        """Return central marginal intervals (m, p, 2) for ``observed`` (m, q).

        Parameters
        ----------
        observed : array_like (m, q)
        probability : float
        check : bool
            Compare with the intervals of the nearest probability vector in the RKHS, and warn where their lengths
            differ by more than a fifth: then one of the two approximations by a distribution is wrong. Costs a
            quadratic program for each observation.
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must be in (0, 1), got {probability!r}.")
        rows = self.features.as_rows(observed)
        tail = 0.5 * (1.0 - probability)
        edges = np.array([tail, 1.0 - tail])
        out = np.moveaxis(np.stack([posterior.quantiles(edges) for posterior in self.posteriors(rows)]), 1, 2)
        if check:
            self._compare(out, rows, probability)
        return out

    def _compare(self, intervals, rows, probability):
        """Warn where the embedding's own intervals, from the nearest non-negative weights, have other lengths."""
        targets = regression_targets("embedding", self.settings, self.latent, self.latent_kernel, self.weighting)
        # The embedding needs less smoothing than the means.
        regularization, _ = choose_regularization(self.path, targets, "leave-one-out")
        other = self._condition(rows, regularization).nonnegative().interval(probability)
        apart = float(np.exp(np.max(np.abs(np.log(np.ptp(other, axis=2) / np.ptp(intervals, axis=2))))))
        if apart > 1.0 + _LENGTHS_DISAGREE:
            warn_caller(
                f"intervals from residuals and from the nearest non-negative weights differ up to {apart:.2g}-fold in "
                "length: trust neither without a check, such as calibration() or more simulations."
            )

    def calibration(self, latent=None, observed=None, **options) -> Calibration:
        """Return the calibration of the posteriors: :func:`~pymc_kernel.embeddings.calibrate`."""
        return calibrate(self, latent, observed, **options)


def _guarded(totals):
    if not (totals > 0.0).all():
        raise ValueError(
            'the weights of an observation sum to zero or less, so they cannot be divided by it; use normalize="prior".'
        )
    return totals
