"""Kernel Bayes' rules: posteriors from samples of prior and joint distribution."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.fitted_rule import FittedRule, ObservedFeatures
from pymc_kernel.embeddings.inputs import check_pairs, latent_kernel
from pymc_kernel.embeddings.kernel_mean import KernelMean
from pymc_kernel.embeddings.ridge import RidgePath, factorize, folds, most_evidence
from pymc_kernel.errors import warn_caller
from pymc_kernel.kernels.points import LARGEST, as_points, as_weights, check_between, scales_of
from pymc_kernel.parallel import one_blas_thread

_MAX_SHIFT = 0.5  # of the weighted training latents' mean, in standard deviations of the prior
_GRID = 10.0 ** np.arange(-8.0, 0.1, 0.5)  # of the largest squared eigenvalue


@dataclass(frozen=True)
class KernelBayesRule:
    """Posterior of latent variables for any observation, from a sample of both and a sample of the prior.

    Where the training latents are draws of the prior, it is a regression of the latents on the observations (Fukumizu
    et al. 2013, equation 19); with another prior, one weighted by the ratio of prior to training marginal (Xu et al.
    2022, equation 4 and algorithm 1). For the rule with a squared regularization see
    :class:`~pymc_kernel.embeddings.OriginalBayesRule`. Fit: O(n r^2) time, O(n (r + p + q)) memory; condition:
    O(m n r). All regularizations of a grid come from one eigendecomposition.

    Parameters
    ----------
    observed_kernel : kernel, optional
        On the observations. By default a Gaussian kernel at the median distance plus a linear one, on coordinates minus
        their median, divided by their spread (from quartiles) and clipped at ten spreads. ``Product`` joins several
        variables, ``Linear`` is the trace kernel for flattened matrices, ``FeatureKernel`` takes learned features.
    latent_kernel : kernel, optional
        On the latents, for the ratio and the embedding; by default Gaussian at the median distance of scaled latents.
    ratio : DensityRatio, optional
        How the ratio is estimated; by default with this ``num_basis`` and ``tolerance``. Without a kernel of its own it
        uses the one on the latents.
    regularization : float, optional
        lambda of Xu et al.; by default chosen for the means of the latents, by the evidence of a Gaussian process.
    num_basis, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.ridge.factorize`.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.embeddings import KernelBayesRule
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 1))
    >>> rule = KernelBayesRule().fit(z, z + 0.5 * rng.normal(size=(2000, 1)), rng=rng)
    >>> rule.mean([[1.0]]).round(1)
    array([[0.8]])
    """

    observed_kernel: Any = None
    latent_kernel: Any = None
    ratio: DensityRatio | None = None
    regularization: float | None = None
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        check_between("regularization", high=np.inf, regularization=self.regularization)

    @one_blas_thread
    def fit(self, latent, observed, prior=None, prior_weights=None, *, weights=None, rng=None) -> FittedRule:
        """Return the rule learned from pairs, and from a sample of the prior if the training latents are not from it.

        Raises ``ValueError`` for rows that do not match, fewer than two complete pairs, or a prior of another
        dimension.

        Parameters
        ----------
        latent : array_like (n, p)
        observed : array_like (n, q)
            Row i was simulated from, or observed with, row i of ``latent``.
        prior : array_like (l, p), optional
            Sample of the prior; without it the training latents are the prior.
        prior_weights : array_like (l,), optional
            May be negative; equal by default.
        weights : array_like (n,), optional
            Ratio of the prior's density to that of the training latents, at each of them, up to a constant, if it is
            known; otherwise it is estimated if a prior is given, and one if not.
        rng : int or numpy.random.Generator, optional
        """
        rng = np.random.default_rng(rng)
        is_known = weights is not None
        latent, observed, weights, num_dropped = _complete_pairs(latent, observed, weights)
        kernel, ratio = latent_kernel(self.latent_kernel, latent, rng), weights * len(weights)
        if prior is not None or prior_weights is not None:
            prior = _as_prior(prior, prior_weights, latent, kernel)
            if not is_known:
                estimator = self.ratio or DensityRatio(num_basis=self.num_basis, tolerance=self.tolerance)
                estimator = replace(estimator, kernel=kernel) if estimator.kernel is None else estimator
                ratio = estimator.fit(prior.points, latent, prior.weights, rng=rng).ratio
                _check_overlap(ratio, latent, prior)
                ratio = ratio / ratio.mean()
        features = ObservedFeatures.of(self, observed, rng)
        path, chosen = RidgePath.of(features.factor.features, ratio), self.regularization
        fitted = FittedRule(self, latent, observed, num_dropped, kernel, ratio, prior, features, path, chosen)
        if chosen is not None:
            return fitted
        targets = (latent - fitted.fallback) / scales_of(latent, ratio)[1]
        return replace(fitted, regularization=most_evidence(path, targets))


@dataclass(frozen=True)
class OriginalBayesRule:
    """Kernel Bayes' rule with the squared regularization of Fukumizu et al. (2013), figure 1.

    Its prior weights may be negative, so draws and intervals come from the embedding alone. For posteriors prefer
    :class:`~pymc_kernel.embeddings.KernelBayesRule`.

    Parameters
    ----------
    observed_kernel, latent_kernel, num_basis, tolerance
        As of :class:`~pymc_kernel.embeddings.KernelBayesRule`.
    regularization : float, optional
        delta of the figure over n^2, since prior weights sum to one here and to n there; by default chosen for the
        means of the latents, by five-fold cross-validation. The paper's criterion, that posteriors averaged over
        held-out observations are the held-out marginal, does not detect overfitting.
    ratio_regularization : float, optional
        epsilon; by default chosen by the leave-one-out loss of the ratio.
    """

    observed_kernel: Any = None
    latent_kernel: Any = None
    regularization: float | None = None
    ratio_regularization: float | None = None
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        numbers = {"regularization": self.regularization, "ratio_regularization": self.ratio_regularization}
        check_between(*numbers, high=np.inf, **numbers)

    @one_blas_thread
    def fit(self, latent, observed, prior=None, prior_weights=None, *, rng=None) -> FittedRule:
        """Return the rule learned from pairs and a sample of the prior, by default the training latents.

        Parameters are those of :meth:`KernelBayesRule.fit <pymc_kernel.embeddings.KernelBayesRule.fit>`.
        """
        rng = np.random.default_rng(rng)
        latent, observed, _, num_dropped = _complete_pairs(latent, observed)
        kernel = latent_kernel(self.latent_kernel, latent, rng)
        prior = _as_prior(prior, prior_weights, latent, kernel)
        factor = factorize(kernel, latent, self.num_basis, self.tolerance, rng)
        # The sum rule, equation 11 divided by n: mu = (G + n epsilon I)^-1 m, which sums to about one.
        ratio = DensityRatio(regularization=self.ratio_regularization)
        solution = ratio.solve(factor.features, factor.extend(prior.points), prior.weights)
        weights = factor.features @ solution.coefficients / len(latent)
        _check_overlap(weights * len(weights), latent, prior)
        features = ObservedFeatures.of(self, observed, rng)
        path, delta = SignedRule.of(features.factor.features, weights), self.regularization
        if delta is None:
            scaled = latent / scales_of(latent, np.maximum(weights, 0.0))[1]
            delta = _choose_delta(features.factor.features, scaled, rng)
        return FittedRule(self, latent, observed, num_dropped, kernel, weights, prior, features, path, delta)


@dataclass(frozen=True, eq=False)
class SignedRule:
    """B (B^2 + delta I)^-1 with B = F' diag(mu) F, which may have negative eigenvalues."""

    features: np.ndarray  # (n, r), of the observations, F
    signed: np.ndarray  # (n,), prior weights mu
    values: np.ndarray  # (r,), eigenvalues of B
    vectors: np.ndarray  # (r, r)

    @classmethod
    def of(cls, features: np.ndarray, signed: np.ndarray) -> "SignedRule":
        """Decompose for ``features`` (n, r) and prior weights ``signed`` (n,)."""
        return cls(features, signed, *eigh((features * signed[:, None]).T @ features))

    def coefficients(self, features: np.ndarray, delta: float) -> np.ndarray:
        """Return weights (m, n) of the training points for the features (m, r) of new observations: proposition 4."""
        turned = (features @ self.vectors) * (self.values / (self.values**2 + delta))
        return ((turned @ self.vectors.T) @ self.features.T) * self.signed


def _choose_delta(features, latent, rng):
    """Return the delta with the least squared error of held-out scaled ``latent`` (n, p), their marginal as prior."""
    latent, fold_of, losses, scale = latent - latent.mean(axis=0), folds(len(latent), rng), np.zeros(len(_GRID)), None
    for fold in np.unique(fold_of):
        inside, outside = fold_of != fold, fold_of == fold
        rule = SignedRule.of(features[inside], np.full(inside.sum(), 1.0 / inside.sum()))
        scale = max(rule.values[-1] ** 2, np.finfo(float).tiny) if scale is None else scale
        for k, delta in enumerate(_GRID):
            errors = rule.coefficients(features[outside], delta * scale) @ latent[inside] - latent[outside]
            losses[k] += (errors**2).sum()
    return float(_GRID[losses.argmin()] * scale)


def _complete_pairs(latent, observed, weights=None):
    """Return the finite pairs, their weights (of sum one), how many were dropped; warn of these and of constants."""
    latent, observed = as_points(latent, "latent", finite=False), as_points(observed, "observed", finite=False)
    check_pairs(latent=latent, observed=observed)
    weights = as_weights(weights, len(latent))
    complete = (np.abs(latent) < LARGEST).all(axis=1) & (np.abs(observed) < LARGEST).all(axis=1)
    num_dropped = int((~complete).sum())
    if complete.sum() < 2:
        raise ValueError(f"only {complete.sum()} of {len(latent)} pairs of latent and observed are complete, not two.")
    if num_dropped:
        warn_caller(f"{num_dropped} of {len(latent)} pairs have NaN or infinite numbers and are left out.")
    latent, observed, weights = latent[complete], observed[complete], as_weights(weights[complete], complete.sum())
    constant = np.flatnonzero(np.ptp(observed, axis=0) == 0.0)
    if len(constant):
        what = "all columns are" if len(constant) == observed.shape[1] else f"columns {constant.tolist()} are"
        warn_caller(f"{what} constant in observed: they say nothing about the latents.")
    return latent, observed, weights, num_dropped


def _as_prior(points, weights, latent, kernel):
    """Return the sample of the prior that a user gave; the training latents where only their weights are given."""
    points = latent if points is None else as_points(points, "prior", num_dims=latent.shape[1])
    return KernelMean(points, as_weights(weights, len(points), "prior_weights", signed=True), kernel)


def _check_overlap(ratio, latent, prior):
    """Raise where no training latents are near the prior; warn where weights ``ratio`` of mean one miss its mean."""
    if not ratio.mean() > 1e-3:
        raise ValueError("the prior is zero at every training point: take training latents that cover it.")
    spread = scales_of(prior.points, np.maximum(prior.weights, 0.0))[1]
    shift = (np.abs(ratio @ latent / ratio.sum() - prior.mean()) / spread).max()
    if shift > _MAX_SHIFT:
        warn_caller(
            f"weighted to follow the prior, the training latents still have a mean {shift:.2g} standard deviations of "
            "the prior off: they do not cover it, and the posterior is extrapolated."
        )
