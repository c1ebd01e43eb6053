"""From a kernel regression to posteriors: means plus residuals, with settings chosen by cross-validation.

Imports NumPy and siblings.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pymc_kernel.embeddings.choice import NUM_FOLDS, CrossFit, Fold, place_values
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.predictive import Predictive, Settings, covariance
from pymc_kernel.embeddings.ridge import RidgeFit

__all__ = ["Regression"]

_HALF_OF_FOLDS = (1, 2)  # the two of the other four folds, counted from a fold, that half fits use
_NUM_CASES = 200  # held-out cases that settings are chosen by


@dataclass(frozen=True, eq=False)
class Regression:
    """Ridge regression of parameters on features of observations, with the data for its residuals.

    Attributes
    ----------
    features : ndarray (n, r)
        Of the training observations.
    latent : ndarray (n, p)
        Training parameters.
    scale : ndarray (p,)
        Their spreads.
    observed : ndarray (n, q)
        Training observations, scaled: one metric of nearness.
    weights : ndarray (n,)
        Of the training points in the regression, not negative.
    residual_weights : ndarray (n,)
        Of their residuals: means want a smooth ratio, the spread of residuals one with little bias.
    regularization : float
    prior_mean : ndarray (p,) or None
        What means fall back to; None for the weighted mean of the training parameters.
    """

    features: np.ndarray
    latent: np.ndarray
    scale: np.ndarray
    observed: np.ndarray
    weights: np.ndarray
    residual_weights: np.ndarray
    regularization: float
    prior_mean: np.ndarray | None

    def fitted(self, factors: np.ndarray | None = None) -> RidgeFit:
        """Return the fit with weights times ``factors`` (n,); zero leaves a point out."""
        weights = self.weights if factors is None else self.weights * factors
        weights = weights / weights.mean()
        fallback = weights @ self.latent / weights.sum() if self.prior_mean is None else self.prior_mean
        return RidgeFit(self.features, weights, self.latent, self.regularization, fallback)

    @cached_property
    def fit(self) -> RidgeFit:
        """The fit to all training points."""
        return self.fitted()

    @cached_property
    def spread(self) -> np.ndarray:
        """Cholesky factor (p, p) of the covariance of all scaled residuals."""
        return np.linalg.cholesky(covariance(self.fit.residuals() / self.scale, self.shares))

    @property
    def shares(self) -> np.ndarray:
        """Weights (n,) of the residuals, of sum one."""
        return self.residual_weights / self.residual_weights.sum()

    def places(self, metric: str, features: np.ndarray, observed: np.ndarray) -> np.ndarray:
        """Return the coordinates (m, k) of observations with features (m, r) and scaled values (m, q)."""
        return place_values(observed, self.fit.means(features) / self.scale, self.spread)[metric]

    def predictive(self, settings: Settings, factors: np.ndarray | None = None) -> tuple[RidgeFit, Predictive]:
        """Return the fit with weights times ``factors`` (n,), and the distributions of its residuals.

        Places are means of the fit to all points, as those of a query are.
        """
        fit = self.fit if factors is None else self.fitted(factors)
        weights = self.residual_weights if factors is None else self.residual_weights * factors
        places = self.places(settings.metric, self.features, self.observed)
        return fit, Predictive(fit.residuals() / self.scale, weights, places, settings)

    def posterior(
        self, settings: Settings, features: np.ndarray, observed: np.ndarray, factors: np.ndarray | None = None
    ) -> Mixture:
        """Return the posterior for one observation, features (r,) and scaled (q,)."""
        fit, predictive = self.predictive(settings, factors)
        place = self.places(settings.metric, features[None], observed[None])[0]
        return predictive.at(place).mapped(self.scale, fit.means(features[None])[0])

    def cross_fit(self, rng: np.random.Generator) -> CrossFit:
        """Return the fits without each of five folds."""
        fold_of = rng.permutation(np.arange(len(self.latent)) % NUM_FOLDS)
        return CrossFit(fold_of, lambda k: self._fold(fold_of != k), self.residual_weights)

    def half_cross_fit(self, fold_of: np.ndarray) -> CrossFit:
        """Return fits to half as many points as :meth:`cross_fit`: to two of the other folds for each of the five."""
        return CrossFit(
            fold_of, lambda k: self._fold(np.isin((fold_of - k) % NUM_FOLDS, _HALF_OF_FOLDS)), self.residual_weights
        )

    def typical_cases(self, rng: np.random.Generator) -> np.ndarray:
        """Return indices of training points, drawn by their weights."""
        shares = self.shares
        alive = np.flatnonzero(shares)
        return rng.choice(alive, size=min(_NUM_CASES, len(alive)), replace=False, p=shares[alive])

    def _fold(self, inside: np.ndarray) -> Fold:
        """Return the fit to the points ``inside`` (n,) alone."""
        fit = self.fitted(inside.astype(float))
        means = fit.means(self.features)
        weights = self.residual_weights * inside
        residuals = np.where(inside[:, None], fit.residuals(), 0.0) / self.scale
        spread = np.linalg.cholesky(covariance(residuals, weights / weights.sum()))
        places = place_values(self.observed, means / self.scale, spread)
        return Fold(weights, residuals, (self.latent - means) / self.scale, places)
