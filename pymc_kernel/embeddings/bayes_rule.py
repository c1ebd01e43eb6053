"""Kernel Bayes' rule: posteriors from samples of prior and joint distribution. Imports NumPy and siblings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from pymc_kernel.embeddings.density_ratio import DensityRatio
from pymc_kernel.embeddings.fitted_rule import FittedRule
from pymc_kernel.embeddings.inputs import check_choice, check_regularization, latent_kernel
from pymc_kernel.embeddings.ridge import RidgePath, choose_regularization
from pymc_kernel.embeddings.training import (
    Coordinates,
    Weighting,
    as_prior,
    check_overlap,
    complete_pairs,
    observed_features,
    observed_kernels,
    regression_targets,
)
from pymc_kernel.parallel import one_blas_thread

__all__ = ["NORMALIZATIONS", "KernelBayesRule"]

NORMALIZATIONS = ("prior", "sum", "none")
_CRITERIA = {"latent": "evidence", "embedding": "leave-one-out"}
_RATIO_CAUTION = 2.0  # standard errors: too smooth a ratio costs little, a noisy one costs effective points


@dataclass(frozen=True)
class KernelBayesRule:
    """Posterior of latent variables for any observation, from a sample of both and a sample of the prior.

    Where the training latents are draws of the prior, it is a regression of the latents on the observations (Fukumizu
    et al. 2013, equation 19); with another prior, one weighted by the ratio of prior to training marginal (Xu et al.
    2022, equation 4 and algorithm 1). For the rule with a squared regularization see
    :class:`~pymc_kernel.embeddings.OriginalBayesRule`.

    Parameters
    ----------
    observed_kernel : kernel, optional
        On the observations. By default Gaussian at the median distance plus linear, on coordinates in units of their
        spread (from quartiles) around their mean, and clipped at ten spreads. ``Product`` joins several variables,
        ``Linear`` is the trace kernel for flattened matrices, ``FeatureKernel`` takes learned features.
    scales : sequence of float
        Factors of the median distance tried for the default ``observed_kernel``; the criterion of the regularization
        decides. Each costs a fit.
    latent_kernel : kernel, optional
        On the latents, for the ratio and the embedding; by default Gaussian at the median distance, spread by spread.
    ratio : DensityRatio, optional
        How the ratio is estimated; by default with ``caution=2`` and the rule's basis. Without a kernel of its own it
        has the one on the latents.
    regularization : float or {"latent", "embedding"}
        lambda of Xu et al., or what it is chosen for: means of the latents, by the evidence of a Gaussian process, or
        their features, by leaving one out, which chooses less smoothing and suits expectations of other functions
        better. For draws and intervals take the first.
    normalize : {"prior", "sum", "none"}
        The weights of a ridge regression sum to less than one. "prior" gives the missing weight to the prior, so that
        an uninformative observation leaves the prior unchanged; "sum" divides by the sum; "none" is the papers' form.
    num_basis, tolerance
        Of the low-rank factors, see :func:`~pymc_kernel.embeddings.gram.factorize`.

    Notes
    -----
    Fit: O(n r^2) time, O(n (r + p + q)) memory; condition: O(m n r). All regularizations of a grid come from one
    eigendecomposition.

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
    scales: tuple[float, ...] = (1.0,)
    latent_kernel: Any = None
    ratio: DensityRatio | None = None
    regularization: float | str = "latent"
    normalize: str = "prior"
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        check_regularization(self.regularization, tuple(_CRITERIA))
        check_choice("normalize", self.normalize, NORMALIZATIONS)
        is_sequence = isinstance(self.scales, Sequence | np.ndarray) and len(self.scales) > 0
        if not is_sequence or not all(isinstance(s, Real) and np.isfinite(s) and s > 0 for s in self.scales):
            raise ValueError(f"scales must be positive numbers, at least one, got {self.scales!r}.")

    @one_blas_thread
    def fit(self, latent, observed, prior=None, prior_weights=None, *, weights=None, rng=None) -> FittedRule:
        """Return the rule learned from pairs and, where the training latents are no draws of it, from a prior's sample.

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
            The ratio of the prior's density to that of the training latents, at each of them, up to a constant, where
            it is known; it is estimated otherwise.
        rng : int or numpy.random.Generator, optional

        Raises
        ------
        ValueError
            For rows that do not match, fewer than two complete pairs, or a prior of another dimension.
        """
        rng = np.random.default_rng(rng)
        pairs = complete_pairs(latent, observed, weights)
        kernel = latent_kernel(self.latent_kernel, pairs.latent, rng)
        given = prior is not None or prior_weights is not None
        prior = as_prior(prior, prior_weights, pairs.latent) if given else None
        return self._fitted(pairs, kernel, self._weighting(pairs, kernel, prior, rng), rng)

    def _weighting(self, pairs, kernel, prior, rng):
        if pairs.weights is not None or prior is None:
            weights = np.ones(len(pairs.latent)) if pairs.weights is None else pairs.weights / pairs.weights.mean()
            return Weighting(weights, weights, None, prior)
        ratio = self.ratio
        if ratio is None:
            ratio = DensityRatio(caution=_RATIO_CAUTION, num_basis=self.num_basis, tolerance=self.tolerance)
        if ratio.kernel is None:
            ratio = replace(ratio, kernel=kernel)
        fitted = ratio.fit(prior.points, pairs.latent, prior.weights, rng=rng)
        check_overlap(fitted.ratio, pairs.latent, prior, float(len(fitted.ratio)))
        weights = fitted.ratio * (len(fitted.ratio) / fitted.ratio.sum())
        # Means want a smooth ratio; the spread of residuals is an average and wants one with little bias.
        least = fitted.least_loss_ratio / fitted.least_loss_ratio.mean()
        return Weighting(weights, least, fitted.solution.regularization, prior)

    def _fitted(self, pairs, kernel, weighting, rng):
        """Return the rule for training points with these weights: of the kernels to choose from, the best."""
        coordinates = Coordinates.of(pairs.observed, weighting.ratio, self.observed_kernel is None)
        kernels = observed_kernels(self.observed_kernel, coordinates.placed(pairs.observed), self.scales, rng)
        given = None if isinstance(self.regularization, str) else self.regularization
        kind, best = self.regularization if given is None else "latent", np.inf
        choosing = given is None or len(kernels) > 1
        targets = regression_targets(kind, self, pairs.latent, kernel, weighting) if choosing else None
        for observed_kernel in kernels:
            features = observed_features(observed_kernel, coordinates, pairs.observed, self, rng)
            path, regularization, loss = RidgePath.of(features.factor.features, weighting.ratio), given, 0.0
            if choosing:
                chosen, loss = choose_regularization(path, targets, _CRITERIA[kind])
                regularization = chosen if given is None else given
            if loss < best:
                best, kept = loss, (features, path, regularization)
        return FittedRule(self, pairs, kernel, weighting, *kept)
