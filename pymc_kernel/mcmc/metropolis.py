"""What all Metropolis-Hastings transitions share. Imports the standard library and NumPy only."""

import math

import numpy as np

from pymc_kernel.errors import NonFiniteStartError

__all__ = ["checked_start", "metropolis_accept", "robbins_monro_rate"]


def checked_start(position, log_density: float, size: int | None = None) -> tuple[np.ndarray, float]:
    """Return the start of a chain as a float vector and number; an error where the density is not finite.

    An error, too, where a ``size`` is known and the vector has another.
    """
    position = np.array(position, dtype=float)
    if position.ndim != 1 or position.size == 0 or size not in (None, position.size):
        entries = "at least one entry" if size is None else f"{size} entries"
        raise ValueError(f"position must be a vector of {entries}, got shape {position.shape}.")
    if not np.isfinite(position).all():
        raise NonFiniteStartError(f"the starting position is not finite: {position}.")
    log_density = float(log_density)
    if not math.isfinite(log_density):
        raise NonFiniteStartError(
            f"the log density at the starting position {position} is {log_density}. Start where the density "
            "is positive (initvals= in PyMC); for an estimated likelihood, more replicates per estimate make "
            "a zero estimate less likely."
        )
    return position, log_density


def metropolis_accept(rng: np.random.Generator, log_ratio: float) -> tuple[bool, float]:
    """Return whether to accept, and the acceptance probability.

    A ratio that is NaN or plus infinity rejects: neither says that the proposal is likely, and a chain that
    moved there could never leave. The uniform number is drawn in any case, so the stream of random numbers
    does not depend on the density.
    """
    uniform = rng.random()
    if not log_ratio < math.inf:
        return False, 0.0
    probability = 1.0 if log_ratio >= 0.0 else math.exp(log_ratio)
    return uniform < probability, probability


def robbins_monro_rate(iteration: int) -> float:
    """Return the gain (1 + t)^-0.6 of a stochastic approximation: not summable, squares summable."""
    return (1.0 + iteration) ** -0.6
