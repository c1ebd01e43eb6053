"""How an emulated model was learned, and how far it is from the true one."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr


@dataclass(frozen=True, eq=False)
class Emulation:
    """How an emulated model was learned, and how far it is from the true one: the attribute ``emulated.emulation``."""

    num_evaluations: int  #: of the whole model, besides three or more that showed its structure
    num_failed: int  #: of these, without a finite value
    distance: float
    """Total variation distance between the posteriors, the largest of several: at the fresh draws of two rounds, which
    had not been learned; at all places like them, each predicted from other places (ten folds); and from a posterior
    that extends as far as the outputs are uncertain, by the share of that mass which evaluations found real. With
    estimates, fresh draws and places like them count together, and one standard error is added, so it is never zero.
    The last evaluations may be learned, too: the model that results has not been compared with fresh draws."""
    log_ratio_sd: float
    """Standard deviation (nats) of true minus learned log density at these draws; of estimates, without their noise."""
    effective_share: float  #: effective sample size of these draws under importance weights, relative to their number
    rhat: float  #: largest R-hat of the chains that made these draws
    noise_sd: dict[str, float]
    """Of each estimated likelihood, the standard deviation (nats) of its estimates where the posterior is."""
    rounds: pd.DataFrame = field(repr=False)
    """The same measures after each round, with the number of evaluations learned before it."""
    draws: np.ndarray = field(repr=False)
    """(n, d): draws of the emulated posterior on the unconstrained scale, where the next chains may begin."""
    positions: np.ndarray = field(repr=False)  #: (num_evaluations, d): where it was evaluated, unconstrained
    log_density: np.ndarray = field(repr=False)  #: (num_evaluations,): true ones there, -inf where it failed


class Round(NamedTuple):
    """What one round has measured, of a model learned from ``num_evaluations``."""

    num_evaluations: int
    distance: float
    log_ratio_sd: float
    effective_share: float
    held_out: float
    rhat: float
    noise_sd: float
    beyond: float  # share of the places beyond the draws to which the posterior extends; NaN if not all were evaluated


def measured(log_ratios) -> tuple[float, float, float]:
    """Return total variation distance, standard deviation and effective share by true minus learned log densities."""
    finite = log_ratios[np.isfinite(log_ratios)]
    if finite.size < 2:
        return 1.0, np.inf, 0.0
    weights = np.where(np.isfinite(log_ratios), np.exp(log_ratios - finite.max()), 0.0)
    weights /= weights.mean()
    return 0.5 * float(np.abs(weights - 1.0).mean()), float(finite.std(ddof=1)), float(1.0 / (weights**2).mean())


def normal_distance(log_ratio_sd: float) -> float:
    """Return the total variation distance of two densities whose log ratio is normal with this standard deviation."""
    return 2.0 * float(ndtr(0.5 * log_ratio_sd)) - 1.0


def noise_variance(errors: np.ndarray) -> np.ndarray:
    """Return the noise variance (f,) of each term, from errors (n, 2, f) of two estimates at n places."""
    return 0.5 * np.mean((errors[:, 0] - errors[:, 1]) ** 2, axis=0)


def squared_error(errors: np.ndarray) -> tuple[float, float]:
    """Return the variance over places of what is learned minus the truth, and the standard error of this estimate.

    The noises of two estimates at a place are independent, so that the product of their errors has the squared error
    of what is learned as its expectation, however large the noise is. It may be below zero by chance.

    ``errors`` (n, 2, f) are true minus learned at n >= 2 places, by two estimates, of f terms that are learned
    separately. Their errors are taken as independent, so products of different terms are left out: they have
    expectation zero, and most of the variance.
    """
    n = len(errors)
    centered = errors - errors.mean(axis=0)  # a constant factor of a density does not count
    products = (centered[:, 0] * centered[:, 1]).sum(axis=1) * n / (n - 1)
    return float(products.mean()), float(products.std(ddof=1) / np.sqrt(n))


def tilt(errors: np.ndarray, inputs: np.ndarray) -> float:
    """Return the variance over places of half the noise variance, fitted as a linear function of the inputs.

    The log of an unbiased estimate with normal noise lies below the log likelihood by half the variance of the noise.
    Where that changes with the parameters, the mean of the log estimates is tilted against the log likelihood. The
    ``errors`` (n, 2) and ``inputs`` (n, k) are those of one term.
    """
    n, k = inputs.shape
    if n < 2 * (k + 2):
        return 0.0
    half = 0.25 * (errors[:, 0] - errors[:, 1]) ** 2
    design = np.hstack([np.ones((n, 1)), inputs - inputs.mean(axis=0)])
    fitted = design @ np.linalg.lstsq(design, half, rcond=None)[0]
    residual = np.sum((half - fitted) ** 2) / (n - k - 1)
    return float(fitted.var() - residual * k / n)  # minus what k coefficients fit by chance


def measured_by_pairs(errors: np.ndarray, inputs: list[np.ndarray]) -> tuple[float, float, float, np.ndarray]:
    """Return distance, standard deviation and effective share as :func:`measured` does, and noise variances (f,).

    One standard error is added to the variance of the log ratio: a distance that noise hides is not zero. The log ratio
    is taken as normal: with variance v the distance is 2 Phi(sqrt(v) / 2) - 1, and the share exp(-v).

    Of the ``errors`` (n, 2, 1 + f), see :func:`squared_error`, the first is that of all that is not estimated; places
    where one is not finite count as lost. ``inputs`` (n, k) are those of each of the f estimated terms.
    """
    is_finite = np.isfinite(errors).all(axis=(1, 2))
    kept = errors[is_finite]
    noise = noise_variance(kept[:, :, 1:]) if len(kept) else np.zeros(len(inputs))
    if len(kept) < 3:
        return 1.0, np.inf, 0.0, noise
    variance, error = squared_error(kept)
    variance += sum(tilt(kept[:, :, 1 + i], x[is_finite]) for i, x in enumerate(inputs))
    variance, lost = max(variance, 0.0) + error, 1.0 - float(is_finite.mean())
    distance = min(1.0, normal_distance(np.sqrt(variance)) + lost)
    return distance, float(np.sqrt(variance)), float(np.exp(-variance)) * (1.0 - lost), noise
