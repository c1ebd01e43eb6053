"""How an emulated model was learned, and how far it is from the true one."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

__all__ = ["Emulation", "Round", "measured"]


@dataclass(frozen=True, eq=False)
class Emulation:
    """How an emulated model was learned, and how far it is from the true one; ``emulated.emulation`` has it."""

    num_evaluations: int
    """Of the whole model, besides the three to six that showed its structure."""
    num_failed: int
    """Of these, without a finite value."""
    distance: float
    """Total variation distance between the posteriors, the largest of three: at the fresh draws of two rounds, which
    had not been learned, and at all places like them, by what is learned without them (ten folds). Of estimates, fresh
    draws and places like them together, with one standard error: it is never zero, however good what is learned is."""
    log_ratio_sd: float
    """Standard deviation (nats) of true minus learned log density at these draws; of estimates, without their noise."""
    effective_share: float
    """Of these draws, were they weighted by importance."""
    rhat: float
    """Largest R-hat of the chains that made these draws."""
    autocorrelation_time: float
    """Draws that these chains took for one effective draw of the slowest parameter."""
    noise_sd: dict[str, float]
    """Of each estimated likelihood, the standard deviation (nats) of its estimates where the posterior is."""
    rounds: pd.DataFrame
    """The same after each round, by the number of evaluations that it had learned from."""
    draws: np.ndarray
    """(n, d): draws of the emulated posterior on the unconstrained scale, where the next chains may begin."""
    positions: np.ndarray
    """(num_evaluations, d): where the model was evaluated, on the unconstrained scale."""
    log_density: np.ndarray
    """(num_evaluations,): of the true model there, minus infinity where it failed."""


class Round(NamedTuple):
    """What one round has measured, of a model learned from so many evaluations."""

    num_evaluations: int
    distance: float
    log_ratio_sd: float
    effective_share: float
    held_out: float
    rhat: float
    noise_sd: float


def measured(log_ratios) -> tuple[float, float, float]:
    """Return total variation distance, standard deviation and effective share of true over learned densities."""
    finite = log_ratios[np.isfinite(log_ratios)]
    if finite.size < 2:
        return 1.0, np.inf, 0.0
    weights = np.where(np.isfinite(log_ratios), np.exp(log_ratios - finite.max()), 0.0)
    weights /= weights.mean()
    return 0.5 * float(np.abs(weights - 1.0).mean()), float(finite.std(ddof=1)), float(1.0 / (weights**2).mean())
