"""Gradient-free Hamiltonian Monte Carlo along a surrogate that is learned while the chain tunes.

Kernel HMC (Strathmann et al. 2015; Strathmann 2018, chapter 4) learns a gradient from the past of the chain, runs
leapfrog trajectories along it, and accepts with the true log density or a kept estimate. Departures:

- The surrogate is by default a regression on log-density values, which learns from rejected proposals too.
- A proposal is the end of a chain of trajectories on the surrogate alone, accepted with pi(y) s(x) / (pi(x) s(y)), s
  the surrogate's density (Liu 2001, section 9.4.3). Step size, length and number of the trajectories are chosen on the
  surrogate, without evaluations. Where it is good, draws are nearly independent, for one evaluation each.
- A surrogate of values is learned in coordinates in which, given one of them, the others are normal, where a fit finds
  such ones: funnels, hierarchies and bananas then have one scale everywhere, see ``conditionally_normal``.
- The other moves are those of adaptive Metropolis, as many as trajectories are rejected: a bad surrogate costs
  efficiency, but neither correctness nor irreducibility, and not what the walk would have learned.
- Until the log density has stopped rising nothing is learned about the posterior, see ``burn_in``.
- After tuning all is frozen, and each draw reports its log weight, density over surrogate: see ``chain_checks``.
- In many dimensions the mass matrix comes from the surrogate's quadratic part, where there are enough values to fit
  one, and not from the few positions visited.

Chains that start far apart explore more of a hard target than a single one, so several may learn one surrogate together
(:func:`fit_together`, :func:`frozen`). Between two fits they run separately, so the result does not depend on how they
are scheduled. After tuning every chain is a Markov chain of its own that leaves the target invariant.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from pymc_kernel.mcmc import adaptive_metropolis as walk
from pymc_kernel.mcmc import burn_in, noise
from pymc_kernel.mcmc.adaptive_metropolis import relocate as relocate
from pymc_kernel.mcmc.metropolis import History, append, decided, empty_history, fits_between, metropolis_accept
from pymc_kernel.mcmc.surrogate_fit import (
    NUM_EVALUATED,
    SurrogateFit,
    along,
    check_surrogate_moves,
    in_unit,
    joint_shape,
    refit,
    to_unit,
)
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import value_and_score
from pymc_kernel.scores.values import Values

MOVES = ("walk", "trajectories")  #: kinds of moves
WALK, TRAJECTORIES = MOVES

_NUM_VISITED = 4000  # places remembered
_GROWTH = 1.15  # of the number of draws from one fit to the next
_LONGEST_BURN_IN = 0.5  # of tuning
TUNE = 1000  # draws, by default: PyMC's
_MEMORY = 50  # chains of trajectories that their worth is averaged over
# Squared distance that the best walk goes in a move, in units of its covariance.
_WALKED = noise.PLAIN_TARGET * walk.optimal_scale(1) ** 2
_LEAST_TRIED = 0.1  # of moves in tuning, along any surrogate; one worth less, as at the walls of a box, is not used
_LEAST_LEARNED = 2  # draws in the bulk, for each dimension, before the first fit


@dataclass(frozen=True)
class Config:
    """Settings of the sampler, validated once.

    Parameters
    ----------
    surrogate
        One of ``pymc_kernel.scores``: ``Values``, or a score-matching estimator (``Lite``, ``Finite``, ``Nystrom``).
    exploring_share : float
        Least share of random-walk moves, in (0, 1]: moves along the surrogate are as many as are accepted of them.
    max_steps : int
        Leapfrog steps of a trajectory, at most. Steps cost microseconds, no evaluation.
    target_accept : float or "auto"
        Of the random walk, as in ``adaptive_metropolis``.
    noisy : bool
        Whether the log density is estimated: the surrogate then has to learn the size of the noise, and one extra
        evaluation every ten moves of the random walk measures it while the chain tunes.
    covariance : ndarray (d, d), optional
        Of the random walk's proposal at the start; the identity by default.
    """

    learns_covariance: ClassVar[bool] = True
    surrogate: object = field(default_factory=Values)
    exploring_share: float = 0.1
    max_steps: int = 60
    target_accept: float | str = "auto"
    noisy: bool = False
    covariance: np.ndarray | None = None

    def __post_init__(self):
        object.__setattr__(self, "covariance", walk.checked_covariance(self.covariance))
        check_surrogate_moves(self.surrogate, self.exploring_share, self.max_steps)
        noise.check_target(self.target_accept)


class State(NamedTuple):
    """What is carried from draw to draw. Arrays are never written to, except for the free rows of histories."""

    position: np.ndarray  # (d,)
    log_density: float
    walk: walk.State
    evaluated: History  # (n, d + 1) proposals and their log densities, where finite
    visited: History  # since the burn-in
    arrival: burn_in.Arrival | None  # during burn-in; None after it
    fit: SurrogateFit | None = None
    worth: np.ndarray = np.full(2, _LEAST_TRIED)  # of trajectories: acceptance rate, squared jumps over a walk's
    num_tried: int = 1  # of them
    walk_share: float = 1.0  # of moves; one until there is a surrogate
    iteration: int = 0  # of the adaptation
    num_learned: int = 0  # draws that the walk's covariance is learned from: those since the burn-in
    num_fits: int = 0
    rejections: int = 0  # in a row, up to now
    is_weighed: bool = False  # whether draws report their weights: after tuning, where the density is exact


class Info(NamedTuple):
    """What a draw reports."""

    accepted: bool
    accept_prob: float
    scale: float  # of the random walk, or the step size
    proposal: np.ndarray  # (d,)
    proposal_log_density: float
    move: str  # one of ``MOVES``
    energy_error: float  # minus the log acceptance ratio
    num_steps: int  # leapfrog steps
    squared_jump: float = 0.0  # of accepted trajectories, in units of the walk's covariance
    log_weight: float = math.nan  # log density minus surrogate at the draw; NaN where it is not weighed


def init(position, log_density: float, config: Config) -> State:
    """Return the first state; errors as in ``adaptive_metropolis.init``."""
    first = walk.init(position, log_density, walk.Config(covariance=config.covariance, noisy=config.noisy))
    position, log_density, d = first.position, first.log_density, first.position.size
    evaluated = append(empty_history(NUM_EVALUATED, d + 1), np.append(position, log_density))
    visited, arrival = empty_history(_NUM_VISITED, d), burn_in.Arrival(d)
    return State(position, log_density, first, evaluated, visited, arrival)


def step(rng: np.random.Generator, state: State, log_density: walk.LogDensity, config: Config) -> tuple[State, Info]:
    """Return the next state and what happened; at most one evaluation of ``log_density``, or two to measure noise.

    With everything learned held fixed, each kind of move leaves the target invariant, and so does their mixture:
    the walk is symmetric, a chain of trajectories is reversible with respect to the surrogate.
    """
    origin = state.position
    move = WALK if rng.random() < state.walk_share else TRAJECTORIES
    num_steps, log_ratio = 0, 0.0
    if move == WALK:
        scale = math.exp(state.walk.log_scale)
        place = walk.propose(origin, state.walk.factor, scale, rng.standard_normal(origin.size))
        if state.walk.iteration >= state.walk.noise.next_probe:
            here = state.walk._replace(position=origin, log_density=state.log_density)
            state = state._replace(walk=walk.probed(here, log_density))
    else:
        scale, num_steps = state.fit.step_size, state.fit.chain_length * state.fit.num_steps
        place, log_ratio = (one[0] for one in along(rng, origin[None], state.fit))
    if np.array_equal(place, origin):  # the surrogate's own chain may stay where it was
        proposed, gain, accepted, probability = state.log_density, 0.0, False, 1.0
    else:
        proposed = log_density(place) if np.isfinite(place).all() else -math.inf
        gain = proposed - state.log_density + float(log_ratio)
        accepted, probability = metropolis_accept(rng, gain)
    state = decided(state, accepted, position=place, log_density=proposed)
    away = to_unit(state.walk.factor, origin, place[None])[0] if accepted and move == TRAJECTORIES else np.zeros(1)
    jump, weight = float(away @ away), _log_weight(state)
    return state, Info(accepted, probability, scale, place, proposed, move, -gain, num_steps, jump, weight)


def _log_weight(state):
    if not (state.is_weighed and state.fit is not None and state.walk_share < 1.0):
        return math.nan
    [here], [log_det] = in_unit(state.fit, state.position[None])
    value = value_and_score(here, state.fit.expansion, np.empty_like(here))
    return state.log_density - value - float(log_det)


def is_dropped(state: State) -> bool:
    """Return whether there is a surrogate that no move goes along: if few were accepted or went anywhere."""
    return state.fit is not None and state.walk_share == 1.0


def enough_tuning(num_dims: int) -> int:
    """Return the tuning draws of a chain: 1,000, and from nine dimensions on what the longest burn-in asks for."""
    return max(TUNE, math.ceil(burn_in.longest(num_dims) / _LONGEST_BURN_IN))


def refit_is_due(num_dims: int, iteration: int, num_tune: int) -> bool:
    """Return whether a surrogate is to be fitted after draw ``iteration``, from 0, of a tuning phase.

    The first after 100 + 10 d draws (or three tenths of tuning), then whenever the chain is 15 % longer, so that
    the known region grows quickly; the last after nine tenths.
    """
    t = iteration + 1
    first, last = fits_between(num_dims, num_tune)
    if not (num_tune and 1 <= first <= t <= last):
        return False

    def level(draws):
        return math.floor(math.log(draws / first) / math.log(_GROWTH))

    return t in (first, last) or level(t) > level(t - 1)


def adapt(rng: np.random.Generator, state: State, info: Info, config: Config, num_tune: int) -> State:
    """Return the state after the last draw has been learned from; with a new surrogate where one is due.

    After ``num_tune`` draws nothing is learned any more.
    """
    if state.iteration >= num_tune:
        return state
    due = refit_is_due(state.position.size, state.iteration, num_tune)
    state = learn_from(state, info, config)
    if state.arrival is not None and state.iteration >= _LONGEST_BURN_IN * num_tune:
        state = _end_burn_in(state)
    if due and state.arrival is None and state.num_learned >= _LEAST_LEARNED * state.position.size:
        [state] = fit_together(rng, [state], config)
    return finish(state, config) if state.iteration == num_tune else state


def learn_from(state: State, info: Info, config: Config) -> State:
    """Return the state with walk and histories updated by one draw; O(d^2)."""
    evaluated = state.evaluated
    if math.isfinite(info.proposal_log_density):
        evaluated = append(evaluated, np.append(info.proposal, info.proposal_log_density))
    state = state._replace(evaluated=evaluated, iteration=state.iteration + 1)
    if info.move == TRAJECTORIES:
        tried = state.num_tried + 1
        latest = np.array([info.accepted, info.squared_jump / _WALKED])
        worth = state.worth + (latest - state.worth) / min(tried, _MEMORY)
        state = state._replace(worth=worth, num_tried=tried, walk_share=_walk_share(worth, config))
    if state.arrival is not None:
        return _burn_in_draw(state, info, config)
    shape = state.walk
    mean, factor = walk.learn_shape(shape.mean, shape.factor, state.position, state.num_learned)
    if info.move == WALK:
        log_scale = walk.learn_scale(shape, info.accept_prob, config.target_accept)
        shape = shape._replace(log_scale=log_scale, iteration=shape.iteration + 1)
    shape, visited = shape._replace(mean=mean, factor=factor), append(state.visited, state.position)
    return state._replace(walk=shape, visited=visited, num_learned=state.num_learned + 1)


def _walk_share(worth, config):
    """Return the share of walks, that of trajectories that do not move: a chain that stays in place learns nothing."""
    return max(config.exploring_share, 1.0 - max(worth.min(), _LEAST_TRIED))


def _burn_in_draw(state, info, config):
    """Return the state after one more draw of the burn-in, which may end it."""
    past = state.walk
    arrival, log_scale = burn_in.remember(state.arrival, state.log_density), past.log_scale
    if info.move == WALK:
        error = info.accept_prob - noise.target_of(config.target_accept, past.noise)
        arrival, log_scale = burn_in.learn_scale(arrival, log_scale, error, config.noisy)
    state = state._replace(walk=past._replace(mean=state.position, log_scale=log_scale), arrival=arrival)
    is_late = state.iteration >= burn_in.longest(state.position.size)
    return _end_burn_in(state) if is_late or burn_in.has_arrived(arrival) else state


def _end_burn_in(state):
    """Return the state after burn-in, which is forgotten except for the size of its last steps."""
    past, best = state.walk, walk.optimal_scale(state.position.size)
    # From now on the factor is that of the posterior's covariance, of which the best steps are a known multiple.
    size = math.exp(past.log_scale) / best
    shape = past._replace(mean=state.position, factor=size * past.factor, log_scale=math.log(best), iteration=0)
    return state._replace(walk=shape, visited=append(state.visited, state.position), arrival=None)


def with_fit(state: State, fit: SurrogateFit, config: Config) -> State:
    """Return the state with a new surrogate, along which more moves go the more of them are accepted."""
    # A chain in burn-in keeps its walk, even where chains that it learns with have reached the bulk.
    shape = state.walk if state.arrival else state.walk._replace(mean=fit.shape[0], factor=fit.shape[1])
    share = _walk_share(state.worth, config)
    return state._replace(fit=fit, walk_share=share, num_fits=state.num_fits + 1, walk=shape)


def finish(state: State, config: Config) -> State:
    """Return the state for sampling after tuning, without what only learning needs, nor a surrogate that is no use."""
    is_used = state.fit is not None and state.worth.min() >= _LEAST_TRIED
    share = _walk_share(state.worth, config) if is_used else 1.0
    settled = state.walk._replace(noise=state.walk.noise._replace(next_probe=math.inf))
    evaluated = empty_history(0, state.position.size + 1)
    return state._replace(evaluated=evaluated, walk=settled, walk_share=share, is_weighed=not config.noisy)


def stretches(num_dims: int, num_tune: int) -> list[int]:
    """Return the lengths of the stretches between fits, in draws of each chain; they sum to ``num_tune``."""
    due = [t for t in range(num_tune) if refit_is_due(num_dims, t, num_tune)]
    return np.diff([0, *(t + 1 for t in due), num_tune]).tolist()


def run(
    rng: np.random.Generator, state: State, log_density: walk.LogDensity, config: Config, num_draws: int, settle
) -> State:
    """Return the state of one chain after a stretch; its draws and evaluations are remembered.

    ``settle`` is called after every draw with whether its proposal was accepted.
    """
    for _ in range(num_draws):
        state, info = step(rng, state, log_density, config)
        settle(info.accepted)
        state = learn_from(state, info, config)
    return state


@one_blas_thread
def fit_together(rng: np.random.Generator, states: Sequence[State], config: Config) -> list[State]:
    """Return the states with one surrogate and one shape of the walk learned from all; unchanged where that fails."""
    in_bulk = [s for s in states if s.arrival is None]
    fit = refit(rng, in_bulk, config) if in_bulk else None
    return [s if fit is None else with_fit(s, fit, config) for s in states]


@one_blas_thread
def frozen(states: Sequence[State], config: Config) -> State:
    """Return the state that every chain samples with after tuning; :func:`relocate` moves it to each chain."""
    states = [s for s in states if s.arrival is None] or states
    mean, factor = joint_shape(states)
    log_scale = float(np.mean([s.walk.log_scale for s in states]))
    shape = states[0].walk._replace(mean=mean, factor=factor, log_scale=log_scale)
    worth = np.mean([s.worth for s in states], axis=0)
    return finish(states[0]._replace(walk=shape, worth=worth, rejections=0), config)
