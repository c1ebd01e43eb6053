"""Kernel adaptive Metropolis-Hastings (MCMC Kameleon) on arrays.

Strathmann 2018, chapter 3 (Sejdinovic et al. 2014): the proposal at x is N(x, gamma^2 I + nu^2 M H M') with M = 2 [grad
k(x, X_1), ..., grad k(x, X_n)] over a subsample X of the chain's history and H the centering matrix. The covariance
differs at every x, so the full Metropolis-Hastings ratio is needed.

Three departures from the text, none of which touches exactness:

- The kernel acts in coordinates z = W^-1 (x - mean) in which the history has unit covariance (``whiten=True``),
  so that one length scale and one gamma mean the same in every direction.
- M H M' is divided by its mean trace over the subsample, times d, and the scale counts in units of the subsample's
  spread. This only renames nu, and lets nu keep its meaning (about 2.38 / sqrt(d)) when subsample, bandwidth and units
  change.
- Until the first subsample is drawn, moves are those of ``adaptive_metropolis``.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from pymc_kernel.kernels import Gaussian, Kernel
from pymc_kernel.kernels.points import check_between, check_whole
from pymc_kernel.mcmc import adaptive_metropolis as walk
from pymc_kernel.mcmc import noise as noise_of
from pymc_kernel.mcmc.adaptive_metropolis import Info as Info
from pymc_kernel.mcmc.local_proposal import LocalFit, fit, local_at, propose
from pymc_kernel.mcmc.metropolis import (
    History,
    append,
    decided,
    empty_history,
    fits_between,
    metropolis_accept,
    recent,
    shape_of,
)
from pymc_kernel.parallel import one_blas_thread

_REFRESH_RATE = 10.0  # refreshing with probability rate / t gives about rate x log(T) refreshes in T draws
_HISTORY_PER_POINT = 10  # positions remembered for each point of the subsample
_LARGEST_SCALE = 4.0  # in units of 2.38 / sqrt(d)


@dataclass(frozen=True)
class Config:
    """Settings of the sampler, validated once.

    Parameters
    ----------
    kernel : Kernel
        Any differentiable one. ``length_scale="median"`` is computed anew at each refresh, in the coordinates in which
        the kernel acts (whitened ones if ``whiten``).
    num_basis : int
        n, the number of points of the history that shape the proposal. A draw costs O(n d^2).
    isotropic_share : float
        Share of the isotropic part in the proposal's mean variance, in (0, 1): with s the scale, gamma^2 = share s^2
        and nu^2 = (1 - share) s^2. Far from the subsample the proposal is the isotropic part alone, so its steps must
        not be too short.
    gamma : float, optional
        A fixed standard deviation of the isotropic part instead, in the kernel's coordinates, with nu = s, as
        in the thesis.
    scale : float, optional
        s at the start, in units of the spread that is learned (root mean variance of the subsample over the dimensions,
        1 in whitened coordinates); 2.38 / sqrt(d) by default.
    learn_scale : bool
        Whether s follows the acceptance rate by Robbins-Monro steps on its logarithm, up to ``largest_scale``.
    whiten : bool
        Whether the kernel acts in coordinates in which the history has unit covariance.
    target_accept, noisy, covariance
        As of ``adaptive_metropolis.Config``; the covariance is that of the proposal until there is a history.
    """

    learns_covariance: ClassVar[bool] = True
    kernel: Kernel = field(default_factory=lambda: Gaussian("median"))
    num_basis: int = 1000
    isotropic_share: float = 0.5
    gamma: float | None = None
    scale: float | None = None
    learn_scale: bool = True
    target_accept: float | str = "auto"
    whiten: bool = True
    noisy: bool = False
    covariance: np.ndarray | None = None

    def __post_init__(self):
        object.__setattr__(self, "covariance", walk.checked_covariance(self.covariance))
        if not isinstance(self.kernel, Kernel):
            raise TypeError(f"kernel must be one of pymc_kernel.kernels, got {type(self.kernel).__name__}.")
        self.kernel.need_smoothness(1, "a gradient")
        check_whole(least=2, num_basis=self.num_basis)
        check_between(isotropic_share=self.isotropic_share)
        check_between("gamma", "scale", high=math.inf, gamma=self.gamma, scale=self.scale)
        noise_of.check_target(self.target_accept)
        if self.whiten not in (True, False):
            raise ValueError(f"whiten must be True or False, got {self.whiten!r}.")

    def largest_scale(self, num_dims: int) -> float:
        """Return the bound of s while it is learned: four times 2.38 / sqrt(d), or ``scale`` if that is larger.

        The local covariance has on average the trace of the learned one, so a scale far above the Gaussian optimum does
        not suit the bulk: the chain then lingers where the local covariance is nearly zero, accepts every small step,
        and would be stuck as soon as it came back.
        """
        return max(_LARGEST_SCALE * walk.optimal_scale(num_dims), self.scale or 0.0)

    def widths(self, scale: float) -> tuple[float, float]:
        """Return (gamma, nu) at a scale in the kernel's coordinates: s times ``LocalFit.unit``."""
        if self.gamma is not None:
            return self.gamma, scale
        return scale * math.sqrt(self.isotropic_share), scale * math.sqrt(1.0 - self.isotropic_share)


class State(NamedTuple):
    """What is carried from draw to draw. Arrays are never written to, except for the free rows of the history."""

    position: np.ndarray  # (d,)
    log_density: float
    mean: np.ndarray  # (d,), running, of whitening
    factor: np.ndarray  # (d, d), of the running covariance: of the random walk before the first fit, and of whitening
    fit: LocalFit | None
    whitened: np.ndarray  # (d,), z of the position under ``fit``
    local: np.ndarray  # (d, d), normalized M H M' at the position
    history: History
    log_scale: float
    iteration: int  # of the adaptation
    noise: noise_of.Noise
    rejections: int  # in a row, up to now


def init(position, log_density: float, config: Config) -> State:
    """Return the first state; errors as in ``adaptive_metropolis.init``."""
    first = walk.init(position, log_density, config)
    d = first.position.size
    if not isinstance(config.kernel.length_scale, str):
        config.kernel.inverse_length_scale(d)
    history = empty_history(_HISTORY_PER_POINT * config.num_basis, d)
    return State(**first._asdict(), fit=None, whitened=np.zeros(d), local=np.zeros((d, d)), history=history)


def relocate(state: State, position, log_density: float) -> State:
    """Return the state moved to ``position`` with its log density; everything learned is kept."""
    moved = walk.relocate(state, position, log_density)
    same_place = np.array_equal(moved.position, state.position)
    return moved if same_place or state.fit is None else with_fit(moved, state.fit)


def with_fit(state: State, learned: LocalFit) -> State:
    """Return the state with another proposal and its local covariance at the position."""
    whitened, local = local_at(state.position, learned)
    return state._replace(fit=learned, whitened=whitened, local=local)


def step(rng: np.random.Generator, state: State, log_density: walk.LogDensity, config: Config) -> tuple[State, Info]:
    """Return the next state and what happened; one evaluation of ``log_density``, two to measure noise, and O(n d^2).

    The transition with everything learned held fixed leaves the target invariant.
    """
    state = walk.probed(state, log_density)
    scale = math.exp(state.log_scale)
    noise = rng.standard_normal(state.position.size)
    if state.fit is None:
        proposal = walk.propose(state.position, state.factor, scale, noise)
        whitened, local, log_ratio = state.whitened, state.local, 0.0
    else:
        gamma, nu = config.widths(scale * state.fit.unit)
        proposal, whitened, local, log_ratio = propose(state.whitened, state.local, state.fit, gamma, nu, noise)
    proposed = log_density(proposal)
    accepted, probability = metropolis_accept(rng, proposed - state.log_density + log_ratio)
    state = decided(state, accepted, position=proposal, log_density=proposed, whitened=whitened, local=local)
    return state, Info(accepted, probability, scale, proposal, proposed)


def adapt(rng: np.random.Generator, state: State, info: Info, config: Config, num_tune: int = 0) -> State:
    """Return the state after the last draw has been learned from.

    The scale moves at every draw; the subsample is drawn anew with probability min(1, 10 / t), t the
    iterations so far, from the latest two thirds of the history. If tuning ends after ``num_tune`` draws, the last
    refresh comes after nine tenths of them, so that the scale settles; 0: vanishing adaptation without an end.
    """
    d, t = state.position.size, state.iteration + 1
    mean, factor, log_scale = state.mean, state.factor, state.log_scale
    if config.learn_scale:
        log_scale = walk.learn_scale(state, info.accept_prob, config.target_accept)
        log_scale = min(log_scale, math.log(config.largest_scale(d)))
    if config.whiten or state.fit is None:
        mean, factor = walk.learn_shape(mean, factor, state.position, state.iteration)
    history = append(state.history, state.position)
    state = state._replace(mean=mean, factor=factor, history=history, log_scale=log_scale, iteration=t)
    first, last = fits_between(d, num_tune)
    is_drawn = rng.random() * t < _REFRESH_RATE
    is_due = first <= t <= last and (is_drawn or t == last or state.fit is None)
    return refresh(rng, state, config) if is_due else state


@one_blas_thread
def refresh(rng: np.random.Generator, state: State, config: Config) -> State:
    """Return the state with a proposal learned from a fresh random subsample of the history.

    Where the history holds too few distinct positions (below 2 d + 3), or the fit fails, the earlier proposal is kept.
    """
    candidates, shape = recent(state.history), (state.mean, state.factor)
    if state.noise.is_noisy:
        # A chain under noise stays in place for dozens of draws, and the running moments, which weight the latest draws
        # most, then rest on a few positions; instead all of the recent history has equal weights.
        shape = shape_of(candidates, shape)
    if candidates.shape[0] > config.num_basis:
        candidates = candidates[rng.choice(candidates.shape[0], size=config.num_basis, replace=False)]
    if np.unique(candidates, axis=0).shape[0] < 2 * candidates.shape[1] + 3:
        return state
    try:
        learned = fit(candidates, *shape, config, rng)
    except ValueError:  # a LinAlgError of SciPy or NumPy is one, too
        return state
    return with_fit(state, learned)
