"""Gradient-free Hamiltonian Monte Carlo along a surrogate that is learnt while the chain tunes.

Strathmann 2018, chapter 4 (Strathmann et al. 2015), with three changes: the surrogate may be a regression on
log-density values, which uses the rejected proposals too; a share of the moves are plain random-walk moves, so
that a bad surrogate costs efficiency only; and nothing is learnt once tuning is over. The accept step uses the
true (or estimated, kept) log density, never the surrogate. Imports NumPy and the lower floors only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.mcmc import adaptive_metropolis as walk
from pymc_kernel.mcmc.history import History, append, empty_history, recent
from pymc_kernel.mcmc.metropolis import checked_start, metropolis_accept
from pymc_kernel.mcmc.trajectory import choose_num_steps, choose_step_size, leapfrog
from pymc_kernel.scores.expansion import Expansion, change_variables
from pymc_kernel.scores.values import Values

__all__ = ["Config", "Fit", "Info", "State", "adapt", "init", "refit_is_due", "relocate", "step"]

WALK, DIFFERENCE, SURROGATE = 0, 1, 2
LENGTHS = (1.0, 0.35, 0.1)

_DIFFERENCE_SHARE = 0.3
_JUMP_TO_MODE_SHARE = 0.1
_ARCHIVE = 20_000
_VISITED = 4000
_GROWTH = 1.15
_LAST_FIT_SHARE = 0.9
_TRIALS = 100
_MEMORY = 150.0  # moves of a kind that its expected squared jump is averaged over


@dataclass(frozen=True)
class Config:
    surrogate: str = "values"
    exploring_share: float = 0.2
    max_steps: int = 60
    max_points: int = 1000
    target_accept: float = 0.234
    noisy: bool = False


class Fit(NamedTuple):
    """A surrogate with what belongs to it; frozen between refits."""

    mean: np.ndarray
    factor: np.ndarray  # (d, d): x = mean + factor q, unit mass in q
    expansion: Expansion  # in q
    step_size: float
    num_steps: int
    hyperparameters: object
    error: float


class State(NamedTuple):
    position: np.ndarray
    log_density: float
    walk: walk.State
    evaluated: History  # (points, value) of every evaluation, d + 1 columns
    visited: History
    fit: Fit | None
    jumps: np.ndarray  # (5,) expected squared jump of walk, difference, and surrogate moves by length
    counts: np.ndarray
    shares: np.ndarray  # (5,) probabilities of kinds of moves
    iteration: int
    num_refits: int
    rejections: int


class Info(NamedTuple):
    accepted: bool
    accept_prob: float
    scale: float
    proposal: np.ndarray
    proposal_log_density: float
    kind: int
    energy_error: float
    num_steps: int
    squared_jump: float


def init(position, log_density: float, config: Config) -> State:
    position, log_density = checked_start(position, log_density)
    d = position.size
    first = walk.init(position, log_density, walk.Config(target_accept=config.target_accept))
    return State(
        position,
        log_density,
        first,
        empty_history(_ARCHIVE, d + 1),
        empty_history(_VISITED, d),
        None,
        np.zeros(5),
        np.zeros(5),
        np.array([1.0, 0.0, 0.0, 0.0, 0.0]),
        0,
        0,
        0,
    )


def relocate(state, position, log_density):
    position, log_density = checked_start(position, log_density)
    return state._replace(position=position, log_density=log_density)


def step(rng, state: State, log_density: Callable, config: Config):
    kind = int(np.searchsorted(np.cumsum(state.shares), rng.random() * state.shares.sum(), side="right"))
    kind = min(kind, 4)
    position = state.position
    d = position.size
    energy_gain = 0.0
    num_steps = 0
    scale = math.exp(state.walk.log_scale)
    if kind == WALK:
        proposal = walk._move(position, state.walk.factor, scale, rng.standard_normal(d))
        log_ratio = 0.0
    elif kind == DIFFERENCE:
        a, b = rng.choice(state.visited.count, 2, replace=False)
        scale = 1.0 if rng.random() < _JUMP_TO_MODE_SHARE else 2.38 / math.sqrt(2 * d)
        difference = state.visited.buffer[a] - state.visited.buffer[b]
        noise = walk._move(np.zeros(d), state.walk.factor, 1e-3, rng.standard_normal(d))
        proposal = position + scale * difference + noise
        log_ratio = 0.0
    else:
        fit = state.fit
        longest = max(1, int(round(fit.num_steps * LENGTHS[kind - SURROGATE])))
        num_steps = int(rng.integers((longest + 1) // 2, longest + 1))
        momentum = rng.standard_normal(d)
        q = np.linalg.solve(fit.factor, position - fit.mean)
        scale = fit.step_size
        q_new, p_new, _ = leapfrog(q, momentum, scale, num_steps, fit.expansion)
        proposal = fit.mean + fit.factor @ q_new
        log_ratio = 0.5 * (momentum @ momentum - p_new @ p_new)
    finite = np.isfinite(proposal).all()
    proposed = log_density(proposal) if finite else -math.inf
    gain = proposed - state.log_density + log_ratio
    accepted, probability = metropolis_accept(rng, gain)
    jump = np.linalg.solve(state.walk.factor, proposal - position) if finite else np.zeros(d)
    info = Info(
        accepted, probability, scale, proposal, proposed, kind, gain, num_steps, probability * float(jump @ jump)
    )
    if accepted:
        state = state._replace(position=proposal, log_density=proposed, rejections=0)
    else:
        state = state._replace(rejections=state.rejections + 1)
    return state, info


def refit_is_due(state: State, num_tune: int) -> bool:
    """Return whether the next :func:`adapt` learns a surrogate: a doubling schedule, the last at 0.9 of tuning."""
    t = state.iteration + 1
    d = state.position.size
    first = min(100 + 10 * d, int(0.3 * num_tune))
    last = int(_LAST_FIT_SHARE * num_tune)
    if t < first or t > last:
        return False
    if t in (first, last):
        return True
    def level(s):
        return math.floor(math.log(s / first) / math.log(_GROWTH))
    return level(t) > level(t - 1)


def adapt(rng, state: State, info: Info, config: Config, num_tune: int) -> State:
    w = state.walk
    mean, factor = walk.learn_shape(w.mean, w.factor, state.position, state.iteration)
    log_scale = w.log_scale
    iteration = w.iteration
    if info.kind == WALK:
        log_scale += (1.0 + iteration) ** -0.6 * (info.accept_prob - config.target_accept)
        iteration += 1
    evaluated = state.evaluated
    if math.isfinite(info.proposal_log_density):
        evaluated = append(evaluated, np.append(info.proposal, info.proposal_log_density))
    jumps, counts = state.jumps.copy(), state.counts.copy()
    k = info.kind
    counts[k] = min(counts[k] + 1.0, _MEMORY)
    jumps[k] += (info.squared_jump - jumps[k]) / counts[k]
    due = refit_is_due(state, num_tune)
    state = state._replace(
        walk=w._replace(mean=mean, factor=factor, log_scale=log_scale, iteration=iteration),
        evaluated=evaluated,
        visited=append(state.visited, state.position),
        jumps=jumps,
        counts=counts,
        iteration=state.iteration + 1,
    )
    if due:
        state = refit(rng, state, config, num_tune)
    t = state.iteration
    e = config.exploring_share
    if t == 50 + state.position.size or (due and state.fit is None):
        state = state._replace(shares=np.array([1 - _DIFFERENCE_SHARE, _DIFFERENCE_SHARE, 0, 0, 0]))
    if state.fit is not None and due:
        s = 1 - e
        state = state._replace(shares=np.array([e * 0.7, e * 0.3, s / 3, s / 3, s / 3]))
    if t == num_tune and state.fit is not None:
        state = state._replace(shares=final_shares(state, config))
    return state


def final_shares(state, config):
    jumps = state.jumps
    exploring = 0.7 * jumps[0] + 0.3 * jumps[1]
    best = 2 + int(np.argmax(jumps[2:] * np.array([1.0, 0.8, 0.6])))
    shares = np.zeros(5)
    e = config.exploring_share
    if jumps[best] < exploring:
        e = 0.95
    shares[0], shares[1] = e * 0.7, e * 0.3
    shares[best] = 1 - e
    return shares


def refit(rng, state: State, config: Config, num_tune) -> State:
    rows = state.evaluated.buffer[: state.evaluated.count]
    points, values = rows[:, :-1], rows[:, -1]
    start = state.fit.hyperparameters if state.fit is not None and state.num_refits % 3 else None
    mean, factor = state.walk.mean, state.walk.factor
    try:
        fitted = Values(max_points=config.max_points).fit(
            points, values, rng, mean=mean, factor=factor, start=start, previous=state.fit.hyperparameters if state.fit else None, noisy=config.noisy, max_iterations=None if start is None else 10
        )
    except ValueError:
        return state
    expansion = change_variables(fitted.expansion, factor, mean)
    places = recent(state.visited, 2.0 / 3.0)
    places = places[rng.choice(len(places), min(len(places), _TRIALS), replace=False)]
    starts = np.ascontiguousarray(np.linalg.solve(factor, (places - mean).T).T)
    momenta = rng.standard_normal(starts.shape)
    step_size = choose_step_size(starts, momenta, expansion)
    num_steps = choose_num_steps(starts, momenta, step_size, config.max_steps, expansion)
    counts = state.counts.copy()
    counts[2:] = np.minimum(counts[2:], 20.0)
    return state._replace(
        fit=Fit(mean, factor, expansion, step_size, num_steps, fitted.hyperparameters, fitted.error),
        num_refits=state.num_refits + 1,
        counts=counts,
    )
