"""Weights of particles, in logs: effective sizes, resampling, temperatures."""

import math

import numpy as np
from scipy.special import logsumexp, softmax

from pymc_kernel.kernels.points import as_numbers, check_whole, systematic

_BISECTIONS = 60  # of a temperature in (0, 1]: beyond the last bit of a number
_SUM_TOLERANCE = 1e-6  # tolerance for rounding in the sum of a user's weights
_LAST_STAGE_SHARE = 0.9  # of the wanted share: a last stage with hardly any change of temperature is left out
_SMALLEST_STEP = 1e-12  # of an inverse temperature, relative to its distance from one


def _checked(logs, name) -> np.ndarray:
    """Return a vector of logs that are numbers, or -inf."""
    logs = as_numbers(logs, name)
    if logs.size == 0:
        raise ValueError(f"{name} must have at least one entry.")
    if not (logs < np.inf).all():
        raise ValueError(f"{name} must not be NaN or plus infinity: each stands for a finite weight, -inf for zero.")
    return logs


def impossible_as_zero(log_values: np.ndarray) -> np.ndarray:
    """Return log values with NaN and plus infinity as -inf, so that a learned density cannot trap particles."""
    return np.where(np.isnan(log_values) | (log_values == np.inf), -np.inf, log_values)


def log_mean_exp(log_values: np.ndarray) -> float:
    """Return log of the mean of exp; -inf where all are."""
    log_values = _checked(log_values, "log_values")
    return float(logsumexp(log_values)) - math.log(log_values.size)


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Return weights that sum to one, shape as given; raise where all logs are -inf, or one is NaN or +inf."""
    log_weights = _checked(log_weights, "log_weights")
    if log_weights.max() == -np.inf:
        raise ValueError(f"the largest of {log_weights.size} log_weights is -inf: no particle has a finite weight.")
    return softmax(log_weights)


def effective_share(log_weights: np.ndarray) -> float:
    """Return (sum w)^2 / (n sum w^2), the effective sample size over n, in [1 / n, 1]; 0 if all weights are 0."""
    log_weights = _checked(log_weights, "log_weights")
    if log_weights.max() == -np.inf:
        return 0.0
    return float(1.0 / (log_weights.size * (softmax(log_weights) ** 2).sum()))


def next_temperature(log_likelihood: np.ndarray, inverse_temperature: float, wanted_share: float) -> float:
    """Return the next inverse temperature, at most one, by bisection.

    There the effective share of particles with positive likelihood is ``wanted_share``; at one, 0.9 of it is enough.
    ``log_likelihood`` (n,) is that of equally weighted particles at ``inverse_temperature``, -inf for a likelihood of
    zero; raises ``ValueError`` where no particle has one above zero.
    """
    log_likelihood = _checked(log_likelihood, "log_likelihood")
    if not 0.0 <= inverse_temperature <= 1.0:
        raise ValueError(f"inverse_temperature must lie between 0 and 1, got {inverse_temperature!r}.")
    if not 0.0 < wanted_share <= 1.0:
        raise ValueError(f"wanted_share must lie between 0 and 1, got {wanted_share!r}.")
    alive = log_likelihood > -math.inf
    if not alive.any():
        raise ValueError(
            f"the likelihood of all {log_likelihood.size} particles is zero, log_likelihood is -inf: take more "
            "particles, a prior that is nearer to the data, or for an estimated likelihood more replicates."
        )
    living = log_likelihood[alive]

    def share(step):
        return effective_share(step * living)

    low, high = 0.0, 1.0 - inverse_temperature
    if share(high) >= _LAST_STAGE_SHARE * wanted_share:
        return 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= wanted_share else (low, middle)
    return inverse_temperature + max(low, _SMALLEST_STEP * (1.0 - inverse_temperature))


def resample(rng: np.random.Generator, weights: np.ndarray, size: int) -> np.ndarray:
    """Return ``size`` systematic draws of indices, in order, by weights (n,) of sum one, none negative. O(n + size)."""
    weights = as_numbers(weights, "weights")
    if weights.ndim != 1 or weights.size == 0:
        raise ValueError(f"weights must be a vector with one entry for each particle, got shape {weights.shape}.")
    if not ((weights >= 0.0).all() and abs(weights.sum() - 1.0) < _SUM_TOLERANCE):
        raise ValueError("weights must be finite, not negative, and sum to one.")
    check_whole(least=0, size=size)
    return systematic(weights, size, rng)
