"""Adaptive Metropolis on arrays: a Gaussian random walk with learned covariance and learned scale.

In the thesis it is standard Metropolis (SM) with neither learned, AM-FS with the covariance alone, AM-LS with both
(Strathmann 2018, section 3.3; Haario et al. 2001; Andrieu and Thoms 2008).
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_numbers, check_between
from pymc_kernel.linalg import cholesky_update, definite_cholesky, lower_times
from pymc_kernel.machine_code import compiled
from pymc_kernel.mcmc import noise
from pymc_kernel.mcmc.metropolis import LogDensity, checked_start, decided, metropolis_accept, robbins_monro_rate

_ASYMMETRY = 1e-5  # of a given covariance, in units of its standard deviations


def optimal_scale(num_dims: int) -> float:
    """Return 2.38 / sqrt(d), the best random-walk scale for Gaussians (Gelman, Roberts and Gilks 1996)."""
    return 2.38 / math.sqrt(num_dims)


def checked_covariance(covariance) -> np.ndarray | None:
    """Return the covariance of a proposal, (d, d), or None for none; raises ``ValueError`` for an invalid one."""
    if covariance is None:
        return None
    covariance = np.atleast_2d(np.array(as_numbers(covariance, "covariance")))
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ValueError(f"covariance must be square, got shape {covariance.shape}.")
    if definite_cholesky(covariance) is None:
        raise ValueError("covariance must be positive definite; add a small multiple of the identity.")
    scales = np.sqrt(np.diag(covariance))
    if (np.abs(covariance - covariance.T) > _ASYMMETRY * np.outer(scales, scales)).any():
        raise ValueError("covariance must be symmetric.")
    return covariance


@dataclass(frozen=True)
class Config:
    """Settings of the walk, validated once.

    Parameters
    ----------
    covariance : ndarray (d, d), optional
        Of the proposal before scaling; the identity by default. Learning starts from it; it stays fixed if
        ``learn_covariance`` is False.
    learn_covariance, learn_scale : bool
    scale : float, optional
        Factor on the proposal's standard deviation at the start; 2.38 / sqrt(d) by default.
    target_accept : float or "auto"
        Acceptance rate that the learned scale is driven to, in (0, 1). "auto" is .234, or for a noisy log density the
        best rate under the measured noise, see ``noise``.
    noisy : bool
        Whether the log density is an estimate: if so, one extra evaluation every ten draws measures the noise while the
        scale is learned.
    """

    covariance: np.ndarray | None = None
    learn_covariance: bool = True
    scale: float | None = None
    learn_scale: bool = True
    target_accept: float | str = "auto"
    noisy: bool = False

    def __post_init__(self):
        object.__setattr__(self, "covariance", checked_covariance(self.covariance))
        check_between("scale", high=math.inf, scale=self.scale)
        noise.check_target(self.target_accept)

    @property
    def learns_covariance(self) -> bool:
        """Whether the covariance is learned, so that ``covariance`` is only its start."""
        return self.learn_covariance and self.scale is None


class State(NamedTuple):
    """What is carried from draw to draw. Arrays are never written to once they are in a state."""

    position: np.ndarray  # (d,)
    log_density: float  # at the position; for an estimated density the estimate that was accepted
    mean: np.ndarray  # (d,), running
    factor: np.ndarray  # (d, d), Cholesky factor of the proposal covariance before the scale
    log_scale: float
    iteration: int  # of the adaptation
    noise: noise.Noise
    rejections: int  # in a row, up to now


class Info(NamedTuple):
    """What a draw reports."""

    accepted: bool
    accept_prob: float
    scale: float
    proposal: np.ndarray  # (d,)
    proposal_log_density: float


@compiled
def propose(position, factor, scale, noise):
    """Return position + scale factor noise."""
    out = np.empty_like(position)
    lower_times(factor, noise, out)
    return position + scale * out


@compiled
def learn_shape(mean, factor, position, iteration):
    """Return the running mean and covariance factor after one more position; O(d^2).

    The gain 3 / t weights position s in proportion to s^2, so the burn-in is forgotten at a cubic rate while more than
    half of the sample still counts. The offset keeps the first few positions, which span no more than a line, from
    collapsing the covariance. Gains 1, 2 and 5 over t and offsets d to 10 d were compared on Gaussians, bananas and the
    flower; this gain learns Gaussians fastest and is no worse elsewhere.
    """
    gain = 3.0 / (iteration + 3.0 + 5.0 * position.size)
    difference = position - mean
    new_factor = factor * math.sqrt(1.0 - gain)
    cholesky_update(new_factor, math.sqrt(gain * (1.0 - gain)) * difference)
    return mean + gain * difference, new_factor


def init(position, log_density: float, config) -> State:
    """Return the first state of a walk with this configuration, or with that of ``kameleon``.

    Raises ``NonFiniteStartError`` where the position or its log density is not finite, ``ValueError`` where the
    covariance of the configuration has another size than the position.
    """
    position, log_density = checked_start(position, log_density)
    d = position.size
    covariance = np.eye(d) if config.covariance is None else config.covariance
    if covariance.shape != (d, d):
        raise ValueError(f"covariance has shape {covariance.shape}, but there are {d} dimensions.")
    factor = np.linalg.cholesky(covariance)
    scale = optimal_scale(d) if config.scale is None else config.scale
    known = noise.unmeasured(config.noisy, config.learn_scale)
    return State(position, log_density, position.copy(), factor, math.log(scale), 0, known, 0)


def relocate(state, position, log_density: float):
    """Return the state of any transition moved to ``position`` with its log density; everything learned is kept."""
    position, log_density = checked_start(position, log_density, state.position.size)
    return state._replace(position=position, log_density=log_density)


def probed(state, log_density: LogDensity):
    """Return the state of any walk, after one evaluation to measure its noise if that is due."""
    if state.iteration < state.noise.next_probe:
        return state
    again = log_density(state.position)
    return state._replace(noise=noise.probe(state.noise, state.iteration, state.log_density, again))


def step(rng: np.random.Generator, state: State, log_density: LogDensity, config: Config) -> tuple[State, Info]:
    """Return the next state and what happened; one evaluation of ``log_density``, two to measure noise, and O(d^2).

    The transition with a fixed factor and scale leaves the target invariant: the proposal is symmetric, and
    the log density kept in the state is never estimated anew.
    """
    state = probed(state, log_density)
    scale = math.exp(state.log_scale)
    proposal = propose(state.position, state.factor, scale, rng.standard_normal(state.position.size))
    proposed = log_density(proposal)
    accepted, probability = metropolis_accept(rng, proposed - state.log_density)
    state = decided(state, accepted, position=proposal, log_density=proposed)
    return state, Info(accepted, probability, scale, proposal, proposed)


def learn_scale(state, accept_prob: float, target_accept: float | str) -> float:
    """Return the log scale of the state of any walk after one more draw."""
    target = noise.target_of(target_accept, state.noise)
    return state.log_scale + robbins_monro_rate(state.iteration) * (accept_prob - target)


def adapt(state: State, info: Info, config: Config) -> State:
    """Return the state with mean, covariance and scale moved by the last draw; O(d^2)."""
    mean, factor, log_scale = state.mean, state.factor, state.log_scale
    if config.learn_covariance:
        mean, factor = learn_shape(mean, factor, state.position, state.iteration)
    if config.learn_scale:
        log_scale = learn_scale(state, info.accept_prob, config.target_accept)
    return state._replace(mean=mean, factor=factor, log_scale=log_scale, iteration=state.iteration + 1)
