"""The data of kernel Bayes' rules: pairs, a sample of the prior, features of observations. Imports siblings."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pymc_kernel.embeddings.gram import GramFactor, factorize
from pymc_kernel.embeddings.inputs import (
    as_sample,
    as_weights,
    check_pairs,
    default_observed_kernel,
    resolved,
    robust_scales,
    scales_of,
)
from pymc_kernel.errors import warn_caller
from pymc_kernel.kernels.base import as_points

__all__ = [
    "Coordinates",
    "ObservedFeatures",
    "Pairs",
    "Prior",
    "Weighting",
    "as_prior",
    "check_overlap",
    "complete_pairs",
    "observed_features",
    "observed_kernels",
    "positive_part",
    "regression_targets",
]

_LARGEST = 1e100  # numbers whose squares overflow are as good as infinite
_MAX_SCALED_DISTANCE = 10.0  # robust z-scores at which observations are clipped for the default kernel
_MAX_SHIFT = 0.5  # of the weighted training latents' mean, in standard deviations of the prior
_MIN_TOTAL = 1e-3  # of the training weights, as a share of what they should sum to
_SEED = 0  # of Nystroem's points for the latents' features: targets are a function of the data alone


class Pairs(NamedTuple):
    """Training pairs without those that have numbers missing."""

    latent: np.ndarray  # (n, p)
    observed: np.ndarray  # (n, q)
    weights: np.ndarray | None  # (n,) known ratio of prior to training latents, up to a constant
    num_dropped: int  # pairs with NaN or infinite numbers


class Prior(NamedTuple):
    """A sample of the prior."""

    points: np.ndarray  # (l, p)
    weights: np.ndarray  # (l,) of sum one, may be negative

    def mean(self) -> np.ndarray:
        """Return the mean (p,)."""
        return self.weights @ self.points


class Weighting(NamedTuple):
    """The weights by which the training points represent the prior."""

    ratio: np.ndarray  # (n,) weights of the training points
    residual_weights: np.ndarray | None  # (n,) of their residuals; None where weights may be negative
    regularization: float | None  # that the ratio was estimated with
    prior: Prior | None  # None where the training latents are draws of it

    def prior_mean(self, latent: np.ndarray) -> np.ndarray:
        """Return the mean of the prior (p,)."""
        return self.ratio @ latent / self.ratio.sum() if self.prior is None else self.prior.mean()


def complete_pairs(latent, observed, weights=None) -> Pairs:
    """Return the training pairs whose numbers are all finite; warn of others, and of constant columns."""
    latent, observed = as_points(latent, "latent", finite=False), as_points(observed, "observed", finite=False)
    check_pairs(latent=latent, observed=observed)
    if weights is not None:
        weights = as_weights(weights, len(latent), "weights")
        if (weights < 0.0).any():
            raise ValueError("weights must not be negative: they are a ratio of densities.")
    complete = (np.abs(latent) < _LARGEST).all(axis=1) & (np.abs(observed) < _LARGEST).all(axis=1)
    num_dropped = int((~complete).sum())
    if complete.sum() < 2:
        raise ValueError(
            f"only {complete.sum()} of {len(latent)} pairs of latent and observed are complete, not at least two."
        )
    if num_dropped:
        warn_caller(f"{num_dropped} of {len(latent)} pairs have NaN or infinite numbers and are left out.")
    latent, observed = latent[complete], observed[complete]
    constant = np.flatnonzero(np.ptp(observed, axis=0) == 0.0)
    if len(constant):
        what = "all columns are" if len(constant) == observed.shape[1] else f"columns {constant.tolist()} are"
        warn_caller(f"{what} constant in observed: they say nothing about the latents.")
    return Pairs(latent, observed, None if weights is None else weights[complete], num_dropped)


def as_prior(points, weights, latent: np.ndarray) -> Prior:
    """Return the sample of the prior that a user gave; the training latents where only their weights are given."""
    points = latent if points is None else as_sample(points, "prior")
    if points.shape[1] != latent.shape[1]:
        raise ValueError(f"prior has {points.shape[1]} dimensions and latent {latent.shape[1]}; they must agree.")
    return Prior(points, as_weights(weights, len(points), "prior_weights"))


def check_overlap(ratio: np.ndarray, latent: np.ndarray, prior: Prior, total: float) -> None:
    """Refuse a prior where there are no training latents, and warn where its mean cannot be reached from them.

    ``total`` is what the weights ``ratio`` (n,) of the training latents should sum to.
    """
    if not ratio.sum() > _MIN_TOTAL * total:
        raise ValueError(
            "the ratio of prior to training latents is zero at every training point: the prior lies where there "
            "are no training latents. Take training latents that cover the prior."
        )
    spread = scales_of(prior.points, positive_part(prior.weights))[1]
    shift = (np.abs(ratio @ latent / ratio.sum() - prior.mean()) / spread).max()
    if shift > _MAX_SHIFT:
        warn_caller(
            f"weighted to follow the prior, the training latents still have a mean {shift:.2g} standard deviations of "
            "the prior off: they do not cover it, and the posterior is extrapolated."
        )


def positive_part(weights: np.ndarray) -> np.ndarray | None:
    """Return the positive part of weights that may be negative, None where nothing is left."""
    positive = np.maximum(weights, 0.0)
    return positive if positive.sum() > 0.0 else None


class Coordinates(NamedTuple):
    """Robust scales of the training observations, and the coordinates for the kernel."""

    middle: np.ndarray  # (q,)
    spread: np.ndarray  # (q,)
    low: np.ndarray  # (q,) bounds that observations are clipped to
    high: np.ndarray  # (q,)
    location: np.ndarray  # (q,) that clipped observations are moved by

    @classmethod
    def of(cls, observed: np.ndarray, ratio: np.ndarray, clip: bool) -> "Coordinates":
        """Return those of training observations (n, q) with weights ``ratio`` (n,); as they are without ``clip``."""
        middle, spread = robust_scales(observed)
        unmoved, infinite = np.zeros(len(middle)), np.full(len(middle), np.inf)
        if not clip:
            return cls(middle, spread, -infinite, infinite, unmoved)
        # A simulation with extreme values would dominate a linear kernel's trace, and leave no rank to the others.
        reach = _MAX_SCALED_DISTANCE * spread
        clipped = cls(middle, spread, middle - reach, middle + reach, unmoved)
        return clipped._replace(location=scales_of(clipped.placed(observed), positive_part(ratio))[0])

    def placed(self, observed: np.ndarray) -> np.ndarray:
        """Return observations (m, q) as a kernel gets them."""
        return np.clip(observed, self.low, self.high) - self.location

    def scaled(self, observed: np.ndarray) -> np.ndarray:
        """Return observations (m, q) in units of the training observations' spreads."""
        return (observed - self.middle) / self.spread


@dataclass(frozen=True, eq=False)
class ObservedFeatures:
    """Features of observations.

    Attributes
    ----------
    kernel : kernel
    coordinates : Coordinates
    factor : GramFactor
        Features of the training observations, and their extension.
    """

    kernel: Any
    coordinates: Coordinates
    factor: GramFactor

    def as_rows(self, observed) -> np.ndarray:
        """Return observations (m, q) from an array (m, q), or (q,) for one."""
        observed = np.asarray(observed, dtype=float)
        width = len(self.coordinates.middle)
        if observed.ndim == 0 or (observed.ndim == 1 and observed.shape[0] == width):
            observed = observed.reshape(1, -1)
        observed = as_sample(observed, "observed")
        if observed.shape[1] != width:
            raise ValueError(f"observed has {observed.shape[1]} columns, the training observations have {width}.")
        return observed

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return the features (m, r) of observations (m, q)."""
        return self.factor(self.coordinates.placed(rows))


def observed_kernels(kernel, placed: np.ndarray, scales, rng: np.random.Generator) -> list:
    """Return the kernels to choose from: a user's, or the default at ``scales`` times the median distance."""
    if kernel is not None:
        return [resolved(kernel, placed, rng)]
    return [default_observed_kernel(placed, rng, factor) for factor in scales]


def observed_features(kernel, coordinates: Coordinates, observed, settings, rng) -> ObservedFeatures:
    """Return the features by one kernel, of a rule with these ``settings`` (``num_basis`` and ``tolerance``)."""
    placed = coordinates.placed(observed)
    factor = factorize(kernel, placed, settings.num_basis, settings.tolerance, rng)
    return ObservedFeatures(kernel, coordinates, factor)


def regression_targets(kind: str, settings, latent: np.ndarray, latent_kernel, weighting: Weighting) -> np.ndarray:
    """Return the targets of the regression, centered at the value that predictions fall back to.

    Parameters
    ----------
    kind : {"latent", "embedding"}
        The latents, scaled, or their features.
    settings
        Of the rule: ``normalize``, ``num_basis``, ``tolerance``.
    latent : ndarray (n, p)
    latent_kernel : kernel
    weighting : Weighting
    """
    ratio, prior = weighting.ratio, weighting.prior
    if kind == "latent":
        _, scale = scales_of(latent, positive_part(ratio))
        fallback = np.zeros(latent.shape[1]) if settings.normalize == "none" else weighting.prior_mean(latent)
        return (latent - fallback) / scale
    rng = np.random.default_rng(_SEED)
    factor = factorize(latent_kernel, latent, settings.num_basis, settings.tolerance, rng)
    if settings.normalize == "none":
        return factor.features
    if prior is None:
        return factor.features - ratio @ factor.features / ratio.sum()
    return factor.features - prior.weights @ factor(prior.points)
