"""The original kernel Bayes' rule on features: signed prior weights and a squared regularisation.

Imports NumPy, SciPy and siblings. Fukumizu, Song and Gretton (2013), figure 1.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.gram import GramFactor

__all__ = ["CRITERIA", "SquaredRule", "choose_delta", "sum_rule"]

CRITERIA = ("latent", "embedding", "marginal")
_FOLDS = 5
_GRID = 10.0 ** np.arange(-8.0, 0.1, 0.5)  # of the largest squared eigenvalue
_SINGULAR = 1e-14


def sum_rule(factor: GramFactor, prior: np.ndarray, weights: np.ndarray, epsilon: float | None):
    """Return mu = (G + n epsilon I)^-1 m, which sums to about one, and epsilon: equation 11 divided by n.

    Parameters
    ----------
    factor : GramFactor
        Of the training latents.
    prior : ndarray (l, p)
    weights : ndarray (l,)
        They sum to one.
    epsilon : float, optional
        Chosen as for a density ratio where it is None. A matrix that cannot be inverted gets a tenfold one until it
        can, and a warning.
    """
    n, above = len(factor.features), factor(prior)
    if epsilon is None:
        ratio = DensityRatio()
        ratio.fit_features(factor.features, above, weights)
        epsilon = ratio.regularization_
    values, vectors = eigh(factor.features.T @ factor.features)
    values, raised = np.maximum(values, 0.0), epsilon
    while not values[0] + n * raised > _SINGULAR * max(values[-1], np.finfo(float).tiny):
        raised *= 10.0
    if raised > epsilon:
        warnings.warn(f"the Gram matrix is singular: ratio_regularization raised to {raised:.3g}.", stacklevel=6)
    mean = vectors.T @ (weights @ above)
    return factor.features @ (vectors @ (mean / (values + n * raised))), float(raised)


@dataclass(frozen=True, eq=False)
class SquaredRule:
    """B (B^2 + delta I)^-1 with B = F' diag(mu) F, which may have negative eigenvalues.

    Attributes
    ----------
    features : ndarray (n, r)
        Of the observations, F.
    signed : ndarray (n,)
        Prior weights mu.
    """

    features: np.ndarray
    signed: np.ndarray
    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, signed: np.ndarray) -> "SquaredRule":
        """Decompose for ``features`` (n, r) and prior weights ``signed`` (n,)."""
        return cls(features, signed, *eigh((features * signed[:, None]).T @ features))

    def coefficients(self, features: np.ndarray, delta: float) -> np.ndarray:
        """Return weights (m, n) of the training points for the features (m, r) of new observations: proposition 4."""
        turned = (features @ self.vectors) * (self.values / (self.values**2 + delta))
        return ((turned @ self.vectors.T) @ self.features.T) * self.signed


def choose_delta(features: np.ndarray, targets: np.ndarray, total: float, criterion: str, rng) -> float:
    """Return delta by five-fold cross-validation with the training marginal as the prior.

    Parameters
    ----------
    features : ndarray (n, r)
        Of the observations.
    targets : ndarray (n, p)
        Scaled latents, or features of them.
    total : float
        What the prior weights sum to: one, or n for figure 1 to the letter.
    criterion : {"latent", "embedding", "marginal"}
        Squared error of each held-out target, or that of their average: posteriors averaged over observations should be
        the marginal (section 4.2), which any observation can be ignored for.
    rng : numpy.random.Generator
    """
    n = len(features)
    # The training marginal is the prior here: predictions fall back to its mean, not to that of another prior.
    targets = targets - targets.mean(axis=0)
    fold = rng.permutation(np.arange(n) % min(_FOLDS, n))
    losses, scale = np.zeros(len(_GRID)), None
    for a in range(min(_FOLDS, n)):
        inside, outside = fold != a, fold == a
        rule = SquaredRule.of(features[inside], np.full(inside.sum(), total / inside.sum()))
        scale = max(rule.values[-1] ** 2, np.finfo(float).tiny) if scale is None else scale
        for k, delta in enumerate(_GRID):
            errors = rule.coefficients(features[outside], delta * scale) @ targets[inside] - targets[outside]
            losses[k] += (errors.mean(axis=0) ** 2).sum() if criterion == "marginal" else (errors**2).sum() / n
    return float(_GRID[losses.argmin()] * scale)
