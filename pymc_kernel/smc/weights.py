"""Weights of particles, in logs: effective sizes, resampling, temperatures. Imports NumPy, Numba, ``kernels``."""

import math

import numpy as np

from pymc_kernel.kernels.points import as_numbers
from pymc_kernel.parallel import one_blas_thread

__all__ = [
    "RESAMPLING",
    "conditional_effective_share",
    "effective_share",
    "log_mean_exp",
    "next_temperature",
    "normalized",
    "resample",
]

RESAMPLING = ("systematic", "stratified", "residual", "multinomial")
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


def _checked_weights(weights, size=None) -> np.ndarray:
    """Return a vector of weights that are not negative and sum to one, nearly."""
    weights = as_numbers(weights, "weights")
    if weights.ndim != 1 or weights.size == 0 or size not in (None, weights.size):
        raise ValueError(f"weights must be a vector with one entry for each particle, got shape {weights.shape}.")
    if not ((weights >= 0.0).all() and abs(weights.sum() - 1.0) < _SUM_TOLERANCE):
        raise ValueError("weights must be finite, not negative, and sum to one.")
    return weights


def log_mean_exp(log_values: np.ndarray) -> float:
    """Return log of the mean of exp; -inf where all are."""
    log_values = _checked(log_values, "log_values")
    largest = log_values.max()
    if largest == -np.inf:
        return -math.inf
    return float(largest + math.log(np.exp(log_values - largest).mean()))


def normalized(log_weights: np.ndarray) -> np.ndarray:
    """Return weights that sum to one, shape as given.

    Raises
    ------
    ValueError
        Where all log weights are -inf, or one is NaN or +inf.
    """
    log_weights = _checked(log_weights, "log_weights")
    largest = log_weights.max()
    if largest == -np.inf:
        raise ValueError(
            f"the largest of {log_weights.size} log_weights is {largest}: no particle has a finite weight to go on "
            "from."
        )
    weights = np.exp(log_weights - largest)
    return weights / weights.sum()


def effective_share(log_weights: np.ndarray) -> float:
    """Return (sum w)^2 / (n sum w^2), the effective sample size over n, in [1 / n, 1]; 0 where all weights are."""
    log_weights = _checked(log_weights, "log_weights")
    largest = log_weights.max()
    if largest == -np.inf:
        return 0.0
    weights = np.exp(log_weights - largest)
    return float(weights.sum() ** 2 / (weights.size * (weights**2).sum()))


@one_blas_thread
def conditional_effective_share(weights: np.ndarray, log_increments: np.ndarray) -> float:
    """Return the conditional effective sample size over n, (sum W w)^2 / sum W w^2 (Zhou, Johansen and Aston 2016).

    Parameters
    ----------
    weights : ndarray (n,)
        Normalized, before.
    log_increments : ndarray (n,)
        Logs of w.
    """
    log_increments = _checked(log_increments, "log_increments")
    weights = _checked_weights(weights, log_increments.size)
    alive = weights > 0.0
    largest = log_increments[alive].max()
    if largest == -np.inf:
        return 0.0
    weights, increments = weights[alive], np.exp(log_increments[alive] - largest)
    return float((weights @ increments) ** 2 / (weights @ increments**2))


@one_blas_thread
def next_temperature(
    log_likelihood: np.ndarray, inverse_temperature: float, wanted_share: float, weights: np.ndarray | None = None
) -> float:
    """Return the next inverse temperature, at most one, by bisection.

    It is the one at which the effective share of the particles whose likelihood is not zero is ``wanted_share``; of
    particles with weights, the conditional one.

    Parameters
    ----------
    log_likelihood : ndarray (n,)
        Of particles at ``inverse_temperature``; -inf says zero.
    weights : ndarray (n,), optional
        Normalized; equal by default.

    Raises
    ------
    ValueError
        Where no particle has a likelihood above zero.
    """
    log_likelihood = _checked(log_likelihood, "log_likelihood")
    if not 0.0 <= inverse_temperature <= 1.0:
        raise ValueError(f"inverse_temperature must lie between 0 and 1, got {inverse_temperature!r}.")
    if not 0.0 < wanted_share <= 1.0:
        raise ValueError(f"wanted_share must lie between 0 and 1, got {wanted_share!r}.")
    weights = None if weights is None else _checked_weights(weights, log_likelihood.size)
    alive = log_likelihood > -math.inf
    if not alive.any():
        raise ValueError(
            f"the likelihood of all {log_likelihood.size} particles is zero, log_likelihood is -inf: take more "
            "particles, a prior that is nearer to the data, or for an estimated likelihood more replicates."
        )
    living = log_likelihood[alive]
    if weights is not None and not weights[alive].sum() > 0.0:
        raise ValueError("weights are zero at all particles whose likelihood is not.")
    if weights is None:
        share = lambda step: effective_share(step * living)  # noqa: E731
    else:
        inside = weights[alive] / weights[alive].sum()
        share = lambda step: conditional_effective_share(inside, step * living)  # noqa: E731
    low, high = 0.0, 1.0 - inverse_temperature
    if share(high) >= _LAST_STAGE_SHARE * wanted_share:
        return 1.0
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= wanted_share else (low, middle)
    return inverse_temperature + max(low, _SMALLEST_STEP * (1.0 - inverse_temperature))


def resample(rng: np.random.Generator, weights: np.ndarray, size: int, method: str = "systematic") -> np.ndarray:
    """Return ``size`` indices drawn by weight, in increasing order; each scheme is unbiased. O(n + size).

    Parameters
    ----------
    weights : ndarray (n,)
        Non-negative, summing to one.
    method : {"systematic", "stratified", "residual", "multinomial"}
        Systematic varies least in practice; for the others there is theory (Douc, Cappe and Moulines 2005).
    """
    weights = _checked_weights(weights)
    if not (isinstance(size, int | np.integer) and size >= 0):
        raise ValueError(f"size must be a whole number >= 0, got {size!r}.")
    if method == "systematic":
        points = (np.arange(size) + rng.random()) / size
    elif method == "stratified":
        points = (np.arange(size) + rng.random(size)) / size
    elif method == "multinomial":
        points = np.sort(rng.random(size))
    elif method == "residual":
        whole = np.floor(size * weights).astype(np.int64)
        rest = size - int(whole.sum())
        kept = np.repeat(np.arange(weights.size), whole)
        if rest == 0:
            return kept
        left = np.maximum(size * weights - whole, 0.0)
        return np.sort(np.concatenate([kept, resample(rng, left / left.sum(), rest, "multinomial")]))
    else:
        raise ValueError(f"method must be one of {', '.join(RESAMPLING)}, got {method!r}.")
    # Indices at which the cumulated weights first exceed the points; where rounding keeps their sum below a point, the
    # last one with weight.
    return np.minimum(np.searchsorted(np.cumsum(weights), points, side="right"), np.flatnonzero(weights)[-1])
