"""The original kernel Bayes' rule: signed prior weights and a squared regularization. Imports NumPy, SciPy, siblings.

Fukumizu, Song and Gretton (2013), figure 1.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from pymc_kernel.embeddings.bayes_rule import NORMALIZATIONS
from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.fitted_rule import FittedRule
from pymc_kernel.embeddings.gram import GramFactor, factorize
from pymc_kernel.embeddings.inputs import check_choice, check_positive, check_regularization, latent_kernel
from pymc_kernel.embeddings.training import (
    Coordinates,
    Prior,
    Weighting,
    as_prior,
    check_overlap,
    complete_pairs,
    observed_features,
    observed_kernels,
    regression_targets,
)
from pymc_kernel.errors import warn_caller
from pymc_kernel.parallel import one_blas_thread

__all__ = ["OriginalBayesRule"]

_CRITERIA = ("latent", "embedding", "marginal")
_NUM_FOLDS = 5  # a fifth held out costs little accuracy; the fits are five
_GRID = 10.0 ** np.arange(-8.0, 0.1, 0.5)  # of the largest squared eigenvalue
_SINGULAR = 1e-14  # smallest eigenvalue of a matrix that can be inverted, as a share of its largest


@dataclass(frozen=True)
class OriginalBayesRule:
    """Kernel Bayes' rule with the squared regularization of Fukumizu et al. (2013), figure 1.

    Its prior weights may be negative, so draws and intervals come from the embedding alone. For posteriors prefer
    :class:`~pymc_kernel.embeddings.KernelBayesRule`.

    Parameters
    ----------
    observed_kernel, latent_kernel, normalize, num_basis, tolerance
        As of :class:`~pymc_kernel.embeddings.KernelBayesRule`.
    regularization : float or {"latent", "embedding", "marginal"}
        delta of the figure over n^2, since prior weights sum to one here and to n there; or what it is chosen for, by
        five-fold cross-validation: means of the latents, or their features, or (the paper's criterion) that posteriors
        averaged over held-out observations are the held-out marginal, which does not detect overfitting.
    ratio_regularization : float, optional
        epsilon; by default chosen by the leave-one-out loss of the ratio. A matrix that cannot be inverted gets a
        stronger one, tenfold each time, and a warning.
    """

    observed_kernel: Any = None
    latent_kernel: Any = None
    regularization: float | str = "latent"
    ratio_regularization: float | None = None
    normalize: str = "prior"
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        check_positive(ratio_regularization=self.ratio_regularization)
        check_regularization(self.regularization, _CRITERIA)

    @one_blas_thread
    def fit(self, latent, observed, prior=None, prior_weights=None, *, rng=None) -> FittedRule:
        """Return the rule learned from pairs and a sample of the prior, by default the training latents.

        Parameters are those of :meth:`KernelBayesRule.fit <pymc_kernel.embeddings.KernelBayesRule.fit>`.
        """
        rng = np.random.default_rng(rng)
        pairs = complete_pairs(latent, observed)
        kernel = latent_kernel(self.latent_kernel, pairs.latent, rng)
        prior = as_prior(prior, prior_weights, pairs.latent)
        factor = factorize(kernel, pairs.latent, self.num_basis, self.tolerance, rng)
        weights, epsilon = _sum_rule(factor, prior, self.ratio_regularization)
        check_overlap(weights, pairs.latent, prior, 1.0)
        weighting = Weighting(weights, None, epsilon, prior)
        coordinates = Coordinates.of(pairs.observed, weighting.ratio, self.observed_kernel is None)
        (observed_kernel,) = observed_kernels(self.observed_kernel, coordinates.placed(pairs.observed), (1.0,), rng)
        features = observed_features(observed_kernel, coordinates, pairs.observed, self, rng)
        path, delta = SignedRule.of(features.factor.features, weights), self.regularization
        if isinstance(delta, str):
            kind = "embedding" if delta == "marginal" else delta
            targets = regression_targets(kind, self, pairs.latent, kernel, weighting)
            delta = _choose_delta(features.factor.features, targets, delta, rng)
        return FittedRule(self, pairs, kernel, weighting, features, path, delta)


def _sum_rule(factor: GramFactor, prior: Prior, epsilon: float | None) -> tuple[np.ndarray, float]:
    """Return mu = (G + n epsilon I)^-1 m (n,), which sums to about one, and epsilon: equation 11 divided by n.

    ``factor`` is that of the training latents.
    """
    n, above = len(factor.features), factor(prior.points)
    if epsilon is None:
        epsilon = DensityRatio().solve(factor.features, above, prior.weights).regularization
    values, vectors = eigh(factor.features.T @ factor.features)
    values, raised = np.maximum(values, 0.0), epsilon
    while not values[0] + n * raised > _SINGULAR * max(values[-1], np.finfo(float).tiny):
        raised *= 10.0
    if raised > epsilon:
        warn_caller(f"the Gram matrix is singular: ratio_regularization raised to {raised:.3g}.")
    mean = vectors.T @ (prior.weights @ above)
    return factor.features @ (vectors @ (mean / (values + n * raised))), float(raised)


@dataclass(frozen=True, eq=False)
class SignedRule:
    """B (B^2 + delta I)^-1 with B = F' diag(mu) F, which may have negative eigenvalues.

    Attributes
    ----------
    features : ndarray (n, r)
        Of the observations, F.
    signed : ndarray (n,)
        Prior weights mu.
    values, vectors : ndarray (r,), (r, r)
        Eigendecomposition of B.
    """

    features: np.ndarray
    signed: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, signed: np.ndarray) -> "SignedRule":
        """Decompose for ``features`` (n, r) and prior weights ``signed`` (n,)."""
        return cls(features, signed, *eigh((features * signed[:, None]).T @ features))

    def coefficients(self, features: np.ndarray, delta: float) -> np.ndarray:
        """Return weights (m, n) of the training points for the features (m, r) of new observations: proposition 4."""
        turned = (features @ self.vectors) * (self.values / (self.values**2 + delta))
        return ((turned @ self.vectors.T) @ self.features.T) * self.signed


def _choose_delta(features: np.ndarray, targets: np.ndarray, criterion: str, rng) -> float:
    """Return delta by five-fold cross-validation with the training marginal as the prior.

    Parameters
    ----------
    features : ndarray (n, r)
        Of the observations.
    targets : ndarray (n, p)
        Scaled latents, or features of them.
    criterion : {"latent", "embedding", "marginal"}
        Squared error of each held-out target, or that of their average: posteriors averaged over observations should be
        the marginal (section 4.2), and a rule that ignores the observation satisfies that too.
    rng : numpy.random.Generator
    """
    n = len(features)
    # The training marginal is the prior here: predictions fall back to its mean, not to that of another prior.
    targets = targets - targets.mean(axis=0)
    fold = rng.permutation(np.arange(n) % min(_NUM_FOLDS, n))
    losses, scale = np.zeros(len(_GRID)), None
    for a in range(min(_NUM_FOLDS, n)):
        inside, outside = fold != a, fold == a
        rule = SignedRule.of(features[inside], np.full(inside.sum(), 1.0 / inside.sum()))
        scale = max(rule.values[-1] ** 2, np.finfo(float).tiny) if scale is None else scale
        for k, delta in enumerate(_GRID):
            errors = rule.coefficients(features[outside], delta * scale) @ targets[inside] - targets[outside]
            losses[k] += (errors.mean(axis=0) ** 2).sum() if criterion == "marginal" else (errors**2).sum() / n
    return float(_GRID[losses.argmin()] * scale)
