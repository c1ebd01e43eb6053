"""How far draws of a surrogate are from the posterior, by true and predicted values at some of its draws.

Draws x from a surrogate q were evaluated before q learned from them. With weights w = p / q of the true density and
c of the cautious one that is returned, each with mean one, the total variation distance is half the mean of |w - c|.
Imports NumPy and SciPy only.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from pymc_kernel.smc.weights import normalized

_LEAST_DRAWS = 8  # with which a distance is said at all
_LEAST_DENSITY = 0.01  # of the cautious density relative to the surrogate, with which a weight is divided
_EVIDENCE_ERROR = 0.07  # nats, of the log evidence by a thousand particles
_LARGEST_LOG_WEIGHT = 100.0  # which exponentials can bear


class Distance(NamedTuple):
    """How far the surrogate's posterior is from the true one, as its fresh draws say."""

    total_variation: float
    """Of the joint distributions, in [0, 1]; NaN where too few draws were evaluated."""
    error: float
    """Standard error of it, zero where it is a lower bound; of noisy values how far it may be too large by chance."""
    effective_share: float
    """Of importance weights from the surrogate's posterior to the true one."""
    num_draws: int


def unknown_distance(num_draws: int = 0) -> Distance:
    """Return the distance where too few draws were evaluated."""
    return Distance(np.nan, np.nan, np.nan, num_draws)


def distance_of(log_ratios, caution, noise: float, log_shares=None) -> Distance:
    """Return the distance of a surrogate's posterior.

    Parameters
    ----------
    log_ratios : ndarray (n,)
        Of true over predicted density at draws of the surrogate, up to a constant; -inf where there is no density.
    caution : ndarray (n,)
        What was taken off the predicted log density before it was sampled for the user.
    noise : float
        Standard deviation of the values, zero of exact ones.
    log_shares : ndarray (n,), optional
        Log evidence of the surrogate that a draw came from, less that of the latest one. Where the latter found a
        mode that the draws know nothing of, the true density has less than its whole mass where they are.
    """
    n = log_ratios.size
    finite = np.isfinite(log_ratios)
    if n < _LEAST_DRAWS or finite.sum() < 2:
        return unknown_distance(n)
    if noise > 0.0:
        departures = (log_ratios + caution)[finite]
        variance, by_chance = float(np.var(departures)), np.sqrt(2.0 / departures.size)  # a relative standard error
        # Twice the standard error of what noise adds, so that chance does not hide an error.
        excess = max(variance - noise**2 * (1.0 - 2.0 * by_chance), 0.0)
        total = _of_normal_errors(excess)
        error = total - _of_normal_errors(max(variance * (1.0 - by_chance) - noise**2, 0.0))
        return Distance(total, error, float(np.exp(-excess)), n)
    weights, cautious = normalized(log_ratios) * n, normalized(-caution) * n
    parts = 0.5 * np.abs(weights - cautious)
    total, error = float(parts.mean()), float(parts.std() / np.sqrt(n))
    if log_shares is not None:
        missing = _missing_mass(log_ratios + log_shares)
        error = 0.0 if missing > total else error
        total = max(total, missing)
    share = float(weights.mean() ** 2 / (weights**2 / np.maximum(cautious, _LEAST_DENSITY)).mean())
    return Distance(total, error, share, n)


def _of_normal_errors(variance):
    """Return the total variation distance of densities whose log ratio is normal with this variance."""
    return float(2.0 * ndtr(0.5 * np.sqrt(variance)) - 1.0)


def _missing_mass(log_weights):
    """Return the mass of the density in the numerator that draws from the other know nothing of, less its error."""
    weights = np.exp(np.minimum(log_weights, _LARGEST_LOG_WEIGHT))
    error = weights.std() / np.sqrt(weights.size) / max(weights.mean(), 1e-300) + _EVIDENCE_ERROR
    return max(1.0 - float(weights.mean() * np.exp(min(2.0 * error, _LARGEST_LOG_WEIGHT))), 0.0)
