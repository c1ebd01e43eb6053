"""Adaptive Metropolis on arrays: a Gaussian random walk with learnt covariance and learnt scale.

With both switched off it is the thesis's standard Metropolis (SM), with the covariance alone AM-FS, with
both AM-LS (Strathmann 2018, section 3.3; Haario et al. 2001; Andrieu and Thoms 2008). Imports NumPy, Numba
and the lower floors only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numba
import numpy as np

from pymc_kernel.linalg import cholesky_update, definite_cholesky, lower_times
from pymc_kernel.mcmc.metropolis import checked_start, metropolis_accept, robbins_monro_rate

__all__ = ["Config", "Info", "State", "adapt", "init", "optimal_scale", "relocate", "step"]


def optimal_scale(num_dims: int) -> float:
    """Return 2.38 / sqrt(d), the best random-walk scale for Gaussians (Gelman, Roberts and Gilks 1996)."""
    return 2.38 / math.sqrt(num_dims)


@dataclass(frozen=True)
class Config:
    """Settings of the walk, validated once.

    Parameters
    ----------
    covariance : ndarray (d, d), optional
        Of the proposal before the scale; the identity by default. The start of the learning, or the fixed
        value where ``learn_covariance`` is False.
    learn_covariance, learn_scale : bool
    scale : float, optional
        Factor on the proposal's standard deviation at the start; 2.38 / sqrt(d) by default.
    target_accept : float
        Acceptance rate that the learnt scale is driven to, in (0, 1).
    """

    covariance: np.ndarray | None = None
    learn_covariance: bool = True
    scale: float | None = None
    learn_scale: bool = True
    target_accept: float = 0.234

    def __post_init__(self):
        if self.covariance is not None:
            covariance = np.atleast_2d(np.array(self.covariance, dtype=float))
            if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
                raise ValueError(f"covariance must be square, got shape {covariance.shape}.")
            if definite_cholesky(covariance) is None:
                raise ValueError("covariance must be positive definite; add a small multiple of the identity.")
            if not np.allclose(covariance, covariance.T):
                raise ValueError("covariance must be symmetric.")
            object.__setattr__(self, "covariance", covariance)
        if self.scale is not None and not (np.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale must be a positive number, got {self.scale!r}.")
        if not 0.0 < self.target_accept < 1.0:
            raise ValueError(f"target_accept must lie between 0 and 1, got {self.target_accept!r}.")


class State(NamedTuple):
    """What is carried from draw to draw. Arrays are never written to once they are in a state."""

    position: np.ndarray  # (d,)
    log_density: float  # at the position; for an estimated density the estimate that was accepted
    mean: np.ndarray  # (d,), running
    factor: np.ndarray  # (d, d), Cholesky factor of the proposal covariance before the scale
    log_scale: float
    iteration: int  # of the adaptation
    rejections: int  # in a row, up to now


class Info(NamedTuple):
    """What a draw reports."""

    accepted: bool
    accept_prob: float
    scale: float
    proposal: np.ndarray  # (d,)
    proposal_log_density: float


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _move(position, factor, scale, noise):
    out = np.empty_like(position)
    lower_times(factor, noise, out)
    for i in range(out.shape[0]):
        out[i] = position[i] + scale * out[i]
    return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def learn_shape(mean, factor, position, iteration):
    """Return the running mean and covariance factor after one more position; O(d^2).

    The gain 3 / t weights position s in proportion to s^2, so the way from the start to the bulk is forgotten
    at a cubic rate while more than half of the sample still counts. The offset keeps the first few
    positions, which span no more than a line, from collapsing the covariance. Gains 1, 2 and 5 over t and
    offsets d to 10 d were measured on Gaussians, bananas and the flower; this one learns Gaussians fastest
    and is no worse elsewhere.
    """
    d = position.shape[0]
    gain = 3.0 / (iteration + 3.0 + 5.0 * d)
    new_mean = np.empty_like(mean)
    difference = np.empty_like(mean)
    spread = math.sqrt(gain * (1.0 - gain))
    for i in range(d):
        new_mean[i] = mean[i] + gain * (position[i] - mean[i])
        difference[i] = spread * (position[i] - mean[i])
    new_factor = factor * math.sqrt(1.0 - gain)
    cholesky_update(new_factor, difference)
    return new_mean, new_factor


def init(position, log_density: float, config: Config) -> State:
    """Return the first state.

    Raises
    ------
    NonFiniteStartError
        Where the position or its log density is not finite.
    ValueError
        Where the covariance of the configuration has another size than the position.
    """
    position, log_density = checked_start(position, log_density)
    d = position.size
    if config.covariance is None:
        factor = np.eye(d)
    elif config.covariance.shape != (d, d):
        raise ValueError(f"covariance has shape {config.covariance.shape}, but there are {d} dimensions.")
    else:
        factor = np.linalg.cholesky(config.covariance)
    scale = optimal_scale(d) if config.scale is None else config.scale
    return State(position, log_density, position.copy(), factor, math.log(scale), 0, 0)


def relocate(state: State, position, log_density: float) -> State:
    """Return the state moved to ``position`` with its log density, all that was learnt kept."""
    position, log_density = checked_start(position, log_density)
    return state._replace(position=position, log_density=log_density)


def step(
    rng: np.random.Generator, state: State, log_density: Callable[[np.ndarray], float], config: Config
) -> tuple[State, Info]:
    """Return the next state and what happened; one evaluation of ``log_density``, O(d^2) besides.

    The transition with a fixed factor and scale leaves the target invariant: the proposal is symmetric, and
    the log density kept in the state is never estimated anew.
    """
    scale = math.exp(state.log_scale)
    proposal = _move(state.position, state.factor, scale, rng.standard_normal(state.position.size))
    proposed = log_density(proposal)
    accepted, probability = metropolis_accept(rng, proposed - state.log_density)
    if accepted:
        state = State(proposal, proposed, state.mean, state.factor, state.log_scale, state.iteration, 0)
    else:
        state = State(*state[:6], state.rejections + 1)
    return state, Info(accepted, probability, scale, proposal, proposed)


def adapt(state: State, info: Info, config: Config) -> State:
    """Return the state with mean, covariance and scale moved by the last draw; O(d^2)."""
    mean, factor, log_scale = state.mean, state.factor, state.log_scale
    if config.learn_covariance:
        mean, factor = learn_shape(mean, factor, state.position, state.iteration)
    if config.learn_scale:
        log_scale += robbins_monro_rate(state.iteration) * (info.accept_prob - config.target_accept)
    return State(state.position, state.log_density, mean, factor, log_scale, state.iteration + 1, state.rejections)
