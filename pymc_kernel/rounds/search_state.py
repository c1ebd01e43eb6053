"""What a search for the posterior with few evaluations carries from batch to batch. Imports NumPy and siblings only."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.rounds.learned_posterior import LogPosterior
from pymc_kernel.rounds.particles import Prior
from pymc_kernel.scores.values import Hyperparameters

__all__ = ["Batch", "State"]


class Batch(NamedTuple):
    """What a batch of evaluations reports."""

    num_evaluations: int
    """So far."""
    power: float
    """Of the posterior that its fresh draws came from."""
    is_climbing: bool
    """Whether the bulk was still searched for."""
    best: float
    """Largest log density so far."""
    error: float
    """Of the surrogate at the new places before they were learned: standard deviation in nats, by the median."""
    log_ratios: np.ndarray
    """Of true over predicted density at its fresh draws."""
    caution: np.ndarray
    """(k,), what caution took off the log density there."""
    fresh: np.ndarray
    """(k, d), these draws."""
    log_evidence: float
    """Of the surrogate that its fresh draws came from."""
    is_elsewhere: bool = False
    """Whether it was proposed by a second search."""


class State(NamedTuple):
    """What is carried from batch to batch."""

    prior: Prior
    positions: np.ndarray
    """(n, d), all that were evaluated."""
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    """(n,), -inf where there is none."""
    proposed: np.ndarray
    """(b, d), to be evaluated next."""
    num_fresh: int
    """Of these, that are draws from the surrogate's posterior."""
    is_climbing: bool
    learned: LogPosterior | None
    particles: np.ndarray | None
    """(m, d), of the learned posterior at its power."""
    log_evidence: float
    """Of the learned posterior at its power."""
    hyperparameters: Hyperparameters | None
    searched_at: int
    """Number of values when all hyperparameters were last searched for."""
    radius: float
    """Of the region, in units of sqrt(d)."""
    batches: tuple[Batch, ...]
    num_start: int
    """Of the evaluations, the first ones, that are draws of the prior."""
    rival: "State | None" = None
    """A second search, from other starting points, that learns from its own values alone."""
    is_rivals_turn: bool = False
    """Whether it proposed the next places."""
    next_rival: int = 0
    """Number of evaluations from which on another one may begin."""

    @property
    def log_density(self) -> np.ndarray:
        """The log posterior density (n,), up to its constant."""
        return self.log_prior + self.log_likelihood
