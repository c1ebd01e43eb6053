"""Gradient-free Hamiltonian Monte Carlo along a surrogate that is learnt while the chain tunes.

Kernel HMC (Strathmann et al. 2015; Strathmann 2018, chapter 4) learns a gradient from the past of the chain, runs
leapfrog trajectories along it, and accepts with the true, or estimated and kept, log density. Departures:

- The surrogate is by default a regression on log-density values, which learns from rejected proposals too.
- Besides single trajectories there are chains of them: k Hamiltonian transitions on the surrogate alone are one
  proposal, accepted with pi(y) s(x) / (pi(x) s(y)), s the surrogate's density (Liu 2001, section 9.4.3). Where the
  surrogate is good, draws are nearly independent, for one evaluation each. Some of these chains run on the
  surrogate to the power 1/2: while tuning they evaluate the density in its tails, where the surrogate has to know
  it too, lest the chain should later stick where the surrogate is too low.
- A share of the moves are random-walk moves (adaptive Metropolis, and differences of visited points), so that a
  bad surrogate costs efficiency and neither correctness nor irreducibility.
- Until the log density has stopped rising nothing is learnt about the posterior: the way to it has a walk of its own,
  see ``burn_in``, and is forgotten.
- Each kind of move is measured while tuning, and the shares follow from that. After tuning all is frozen.
- Whether the surrogate covers the density is judged from the draws after tuning, see ``coverage``.
- In many dimensions trajectories run in the shape of the surrogate's quadratic part, where there are enough values to
  fit one, and not in that of the few places visited.

Imports NumPy, Numba and the lower floors only.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import ClassVar, NamedTuple

import numba
import numpy as np

from pymc_kernel.linalg import definite_cholesky, lower_times, solve_lower
from pymc_kernel.mcmc import adaptive_metropolis as walk
from pymc_kernel.mcmc import burn_in, noise
from pymc_kernel.mcmc.coverage import Coverage, coverage_of
from pymc_kernel.mcmc.history import History, append, empty_history
from pymc_kernel.mcmc.metropolis import checked_start, metropolis_accept
from pymc_kernel.mcmc.survey import survey
from pymc_kernel.mcmc.trajectory import choose_num_steps, choose_step_size, leapfrog, surrogate_chain, vary_step_size
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import (
    Expansion,
    KernelExpansion,
    change_variables,
    scaled_expansion,
    value_and_score,
)
from pymc_kernel.scores.validation import cross_validate
from pymc_kernel.scores.values import Values

__all__ = [
    "KINDS",
    "Config",
    "Fit",
    "Info",
    "State",
    "adapt",
    "bulk_of",
    "check_surrogate_moves",
    "coverage",
    "finish",
    "fit_scores",
    "init",
    "joint_shape",
    "learn_from",
    "places_to_survey",
    "refit",
    "refit_is_due",
    "relocate",
    "step",
    "with_fit",
]

#: Kinds of moves, in the order of their cost: ``Info.kind`` counts from 0.
KINDS = (
    "walk",
    "difference",
    "short trajectory",
    "trajectory",
    "4 trajectories",
    "16 trajectories",
    "8 trajectories on the flattened surrogate",
    "survey",
)
_WALK, _DIFFERENCE, _SHORT, _LONG, _FLATTENED, _SURVEY = 0, 1, 2, 3, 6, 7
_CHAIN_LENGTH = {4: 4, 5: 16, _FLATTENED: 8}
_SURROGATE = slice(_SHORT, _SURVEY)
_INVERSE_TEMPERATURE = 0.5  # of the flattened surrogate

_DIFFERENCE_SHARE = 0.3  # of the exploring moves; ter Braak and Vrugt (2008) for the moves themselves
_LEAST_DIFFERENCE_SHARE = 0.1
_FULL_DIFFERENCE_SHARE = 0.1  # of differences, taken at their full length: from mode to mode
_SURVEY_SHARE = 0.15  # of all moves while tuning, once there is a surrogate from values
_LARGEST_SURVEY = 60
_NUM_EVALUATED = 20_000  # evaluations remembered while tuning
_NUM_VISITED = 4000
_NUM_EXCESSES = 4000  # draws after tuning, of which every second one is dropped when they are full
_FIRST_FIT_DRAWS = 100
_GROWTH = 1.15  # of the number of draws from one fit to the next
_LAST_FIT_SHARE = 0.9  # of tuning; what is left measures the moves of the last fit
_LONGEST_BURN_IN = 0.5  # of tuning
_LEAST_LEARNT = 2  # draws in the bulk, for each dimension, before the first fit
_NEW_SEARCH_EVERY = 3  # fits; in between the search for hyperparameters goes on from the last ones
_FEW_ITERATIONS = 10
_RIDGE = 1e-9  # of each variance
_TRIALS = 100
_VALIDATION = 1000  # draws that cross-validation looks at
_MEMORY = 150.0  # moves of a kind that its measure is averaged over, 20 of them from before the last fit
_MEMORY_OF_OLD_FIT = 20.0
_NEARLY_BEST = 0.8  # what a few dozen moves cannot tell apart
_PREFERRED = (4, 5, 3, 2, 6)  # kinds, where they cannot be told apart: four trajectories are safe and cheap
# A surrogate's share is small unless its moves are measured this many times better than exploring. A regression on
# values has seen the density beyond the places visited; a score learnt from these knows nothing of what lies beyond.
_CLEARLY_BETTER_BY_VALUES, _CLEARLY_BETTER_BY_SCORES = 2.0, 5.0
_NEARLY_INDEPENDENT = 0.5  # a measure of one is that of independent draws
_SMALL_SHARE = 0.2  # leaves the random walk eight moves in ten, and so at least that much of its own efficiency
_LEAST_IN_BULK = 0.5  # of the draws since the burn-in, below which the chain counts as still on its way
_USELESS_SHARE = 0.15  # of the surrogate moves while tuning, to see whether a later surrogate is better
_SAFE_SHARE = 0.05  # of the surrogate moves after tuning, each for single trajectories and the flattened surrogate


def check_surrogate_moves(estimator, exploring_share, max_steps) -> None:
    """Raise where a setting that all moves along surrogates share is out of range."""
    if not callable(getattr(estimator, "fit", None)):
        raise TypeError(f"estimator must be one of pymc_kernel.scores, got {type(estimator).__name__}.")
    if not (isinstance(exploring_share, Real) and 0.0 < exploring_share <= 1.0):
        raise ValueError(f"exploring_share must be above 0 and at most 1, got {exploring_share!r}.")
    if not (isinstance(max_steps, int | np.integer) and max_steps >= 1):
        raise ValueError(f"max_steps must be a whole number >= 1, got {max_steps!r}.")


@dataclass(frozen=True)
class Config:
    """Settings of the sampler, validated once.

    Parameters
    ----------
    estimator
        One of ``pymc_kernel.scores``: ``Values``, or a score-matching estimator (``Lite``, ``Finite``, ``Nystrom``).
    exploring_share : float
        Share of random-walk moves in (0, 1]; with a useless surrogate it becomes 1 by itself.
    max_steps : int
        Longest trajectory in leapfrog steps. Steps cost microseconds, no evaluation.
    target_accept : float or "auto"
        Of the random walk, as of ``adaptive_metropolis``.
    noisy : bool
        Whether the log density is estimated: the surrogate then has to look for the size of the noise, and the random
        walk measures it by one more evaluation in ten of its moves while the chain tunes.
    covariance : ndarray (d, d), optional
        Of the random walk's proposal at the start; the identity by default.
    """

    learns_covariance: ClassVar[bool] = True
    estimator: object = field(default_factory=Values)
    exploring_share: float = 0.1
    max_steps: int = 60
    target_accept: float | str = "auto"
    noisy: bool = False
    covariance: np.ndarray | None = None

    def __post_init__(self):
        if self.covariance is not None:
            object.__setattr__(self, "covariance", walk.checked_covariance(self.covariance))
        check_surrogate_moves(self.estimator, self.exploring_share, self.max_steps)
        noise.check_target(self.target_accept)


class Fit(NamedTuple):
    """A surrogate and how to move along it; frozen between fits."""

    mean: np.ndarray  # (d,)
    factor: np.ndarray  # (d, d), lower: x = mean + factor q, and momenta of q have unit variance
    expansion: Expansion  # in q
    flattened: Expansion  # half of it
    step_size: float
    num_steps: int  # longest
    surrogate: KernelExpansion  # in x
    estimator: object  # with its settings chosen
    quality: float  # leave-one-out error of values, or held-out score-matching loss
    shape: tuple[np.ndarray, np.ndarray]  # mean (d,) and factor (d, d) of the places visited


class State(NamedTuple):
    """What is carried from draw to draw. Arrays are never written to, but for the free rows of histories."""

    position: np.ndarray  # (d,)
    log_density: float
    walk: walk.State
    evaluated: History  # (n, d + 1) proposals with a finite log density, and that
    visited: History  # since the burn-in
    levels: History  # (n, 1) log densities there
    arrival: burn_in.Arrival | None  # while the chain is on its way to the bulk; None after that
    archive: np.ndarray | None  # (n, d) points for difference moves; those visited where it is None
    survey: np.ndarray  # (k, d) places to evaluate while tuning, the most urgent first
    fit: Fit | None
    measures: np.ndarray  # (kinds, 2 d) squared jumps times acceptance, see :func:`_measure`
    counts: np.ndarray  # (kinds,)
    shares: np.ndarray  # (kinds,) probabilities of the kinds of moves
    iteration: int  # of the adaptation
    num_learnt: int  # draws that the shape of the walk is learnt from: those since the burn-in
    num_fits: int
    rejections: int  # in a row, up to now
    excesses: History | None  # (n, 1) log density less the surrogate at the draws after tuning, None while it lasts


class Info(NamedTuple):
    """What a draw reports."""

    accepted: bool
    accept_prob: float
    scale: float  # of the random walk, or the step size
    proposal: np.ndarray  # (d,)
    proposal_log_density: float
    kind: int  # index into KINDS
    energy_error: float  # true log density plus kinetic or surrogate part: minus the log acceptance ratio
    num_steps: int  # leapfrog steps


def init(position, log_density: float, config: Config) -> State:
    """Return the first state; errors as in ``adaptive_metropolis.init``."""
    position, log_density = checked_start(position, log_density)
    d = position.size
    first = walk.init(position, log_density, walk.Config(covariance=config.covariance, noisy=config.noisy))
    evaluated = append(empty_history(_NUM_EVALUATED, d + 1), np.append(position, log_density))
    kinds = len(KINDS)
    return State(
        position=position,
        log_density=log_density,
        walk=first,
        evaluated=evaluated,
        visited=empty_history(_NUM_VISITED, d),
        levels=empty_history(_NUM_VISITED, 1),
        arrival=burn_in.depart(d),
        archive=None,
        survey=np.empty((0, d)),
        fit=None,
        measures=np.zeros((kinds, 2 * d)),
        counts=np.zeros(kinds),
        shares=_exploring(kinds, 0.0),
        iteration=0,
        num_learnt=0,
        num_fits=0,
        rejections=0,
        excesses=None,
    )


def _exploring(num_kinds: int, difference_share: float) -> np.ndarray:
    shares = np.zeros(num_kinds)
    shares[_WALK], shares[_DIFFERENCE] = 1.0 - difference_share, difference_share
    return shares


def relocate(state: State, position, log_density: float) -> State:
    """Return the state moved to ``position`` with its log density, all that was learnt kept."""
    position, log_density = checked_start(position, log_density, state.position.size)
    excesses = None if state.excesses is None else empty_history(_NUM_EXCESSES, 1)
    return state._replace(position=position, log_density=log_density, excesses=excesses)


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _to_unit(factor, mean, position):
    """Return factor^-1 (position - mean)."""
    out = np.empty_like(position)
    solve_lower(factor, position - mean, out)
    return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _from_unit(factor, mean, whitened):
    """Return mean + factor whitened; no BLAS, whose threads would change the last bit from a hundred dimensions on."""
    out = np.empty_like(whitened)
    lower_times(factor, whitened, out)
    return mean + out


# -- one draw -------------------------------------------------------------------------------------------


def step(
    rng: np.random.Generator, state: State, log_density: Callable[[np.ndarray], float], config: Config
) -> tuple[State, Info]:
    """Return the next state and what happened; at most one evaluation of ``log_density``, or two to measure noise.

    With everything learnt held fixed, each kind of move leaves the target invariant, and so does their mixture:
    the walk and the difference are symmetric, a trajectory is reversible and preserves volume, a chain of
    trajectories is reversible with respect to the surrogate.
    """
    kind = int(np.searchsorted(np.cumsum(state.shares)[:-1], rng.random(), side="right"))
    if kind == _SURVEY and not len(state.survey):
        kind = _WALK
    if kind == _WALK:
        if state.walk.iteration >= state.walk.noise.next_probe:
            here = state.walk._replace(position=state.position, log_density=state.log_density)
            state = state._replace(walk=walk.probed(here, log_density))
        scale, num_steps, log_ratio = math.exp(state.walk.log_scale), 0, 0.0
        proposal = walk._move(state.position, state.walk.factor, scale, rng.standard_normal(state.position.size))
    elif kind == _DIFFERENCE:
        num_steps, log_ratio = 0, 0.0
        proposal, scale = _difference(rng, state)
    elif kind == _SURVEY:
        # Evaluated to learn from, never moved to.
        proposal, scale, num_steps, log_ratio = state.survey[0], math.nan, 0, -math.inf
        state = state._replace(survey=state.survey[1:])
    else:
        proposal, scale, num_steps, log_ratio = _along_surrogate(rng, state, kind)
    if np.array_equal(proposal, state.position):
        # The surrogate's own chain has not moved: there is nothing to evaluate.
        info = Info(False, 1.0, scale, proposal, state.log_density, kind, 0.0, num_steps)
        return _recorded(state._replace(rejections=state.rejections + 1)), info
    proposed = log_density(proposal) if np.isfinite(proposal).all() else -math.inf
    gain = proposed - state.log_density + log_ratio
    accepted, probability = metropolis_accept(rng, gain)
    info = Info(accepted, probability, scale, proposal, proposed, kind, -gain, num_steps)
    if accepted:
        return _recorded(state._replace(position=proposal, log_density=proposed, rejections=0)), info
    return _recorded(state._replace(rejections=state.rejections + 1)), info


def _recorded(state):
    """Return the state with one more draw in the record that :func:`coverage` judges."""
    if state.excesses is None or state.fit is None:
        return state
    here = _to_unit(state.fit.factor, state.fit.mean, state.position)
    value = value_and_score(here, state.fit.expansion, np.empty_like(here))
    return state._replace(excesses=append(state.excesses, np.array([state.log_density - value])))


def coverage(state: State) -> Coverage | None:
    """Return how far the surrogate covers the density, from the draws after tuning; None where it is not used.

    Nor where the log density is estimated: weights are then as noisy as the estimates.
    """
    if state.excesses is None or not state.excesses.count or not state.shares[_SURROGATE].sum() > 0.0:
        return None
    return coverage_of(state.excesses.buffer[: state.excesses.count, 0])


def _difference(rng, state):
    """Return x + g (a - b) + small noise, a and b visited points: differential evolution on the chain's own past."""
    d = state.position.size
    archive = state.visited.buffer[: state.visited.count] if state.archive is None else state.archive
    # Of a chain that never moved one place may be all there is.
    first, second = rng.choice(len(archive), 2, replace=len(archive) < 2)
    scale = 1.0 if rng.random() < _FULL_DIFFERENCE_SHARE else walk.optimal_scale(2 * d)
    difference = archive[first] - archive[second]
    return walk._move(state.position + scale * difference, state.walk.factor, 1e-3, rng.standard_normal(d)), scale


def _along_surrogate(rng, state, kind):
    fit = state.fit
    d = state.position.size
    here = _to_unit(fit.factor, fit.mean, state.position)
    longest = max(1, fit.num_steps // 4) if kind == _SHORT else fit.num_steps
    # Lengths between a half and all of the longest: no trajectory can come round to where it started every time.
    lengths = rng.integers((longest + 1) // 2, longest + 1, size=_CHAIN_LENGTH.get(kind, 1))
    momenta = rng.standard_normal((lengths.size, d))
    step_sizes = vary_step_size(rng, fit.step_size, lengths.size)
    if kind in _CHAIN_LENGTH:
        uniforms = rng.random(lengths.size)
        expansion = fit.expansion
        if kind == _FLATTENED:
            expansion, step_sizes = fit.flattened, step_sizes / math.sqrt(_INVERSE_TEMPERATURE)
        there, end, begin = surrogate_chain(here, momenta, uniforms, lengths, step_sizes, expansion)
        log_ratio = begin - end
        if np.array_equal(there, here):
            return state.position, fit.step_size, int(lengths.sum()), 0.0
    else:
        there, momentum, _ = leapfrog(here, momenta[0], step_sizes[0], lengths[0], fit.expansion)
        with np.errstate(over="ignore", invalid="ignore"):  # a trajectory that diverged
            log_ratio = 0.5 * (momenta[0] @ momenta[0] - momentum @ momentum)
    return _from_unit(fit.factor, fit.mean, there), fit.step_size, int(lengths.sum()), float(log_ratio)


# -- learning -------------------------------------------------------------------------------------------


def refit_is_due(num_dims: int, iteration: int, num_tune: int) -> bool:
    """Return whether a surrogate is to be learnt after draw ``iteration``, from 0, of a tuning phase.

    The first after 100 + 10 d draws (or three tenths of tuning), then whenever the chain is 15 % longer, so that
    the known region grows quickly; the last after nine tenths.
    """
    t = iteration + 1
    first = min(_FIRST_FIT_DRAWS + 10 * num_dims, int(0.3 * num_tune))
    last = int(_LAST_FIT_SHARE * num_tune)
    if not 1 <= first <= t <= last:
        return False

    def level(draws):
        return math.floor(math.log(draws / first) / math.log(_GROWTH))

    return t in (first, last) or level(t) > level(t - 1)


def adapt(rng: np.random.Generator, state: State, info: Info, config: Config, num_tune: int) -> State:
    """Return the state after the last draw has been learnt from; with a new surrogate where one is due.

    After ``num_tune`` draws nothing is learnt any more.
    """
    if state.iteration >= num_tune:
        return state
    due = refit_is_due(state.position.size, state.iteration, num_tune)
    state = learn_from(state, info, config)
    if state.arrival is not None and state.iteration >= _LONGEST_BURN_IN * num_tune:
        state = _arrived(state)
    if due and state.arrival is None and state.num_learnt >= _LEAST_LEARNT * state.position.size:
        learnt = refit(rng, [state], config)
        if learnt is not None:
            state = with_fit(state, learnt, config, places_to_survey(rng, [state], learnt)[0])
    return finish(state, config) if state.iteration == num_tune else state


def learn_from(state: State, info: Info, config: Config) -> State:
    """Return the state with walk, histories and measures moved on by one draw; O(d^2)."""
    evaluated = state.evaluated
    if math.isfinite(info.proposal_log_density):
        evaluated = append(evaluated, np.append(info.proposal, info.proposal_log_density))
    measures, counts = state.measures.copy(), state.counts.copy()
    counts[info.kind] = min(counts[info.kind] + 1.0, _MEMORY)
    measures[info.kind] += (_measure(state, info) - measures[info.kind]) / counts[info.kind]
    state = state._replace(evaluated=evaluated, measures=measures, counts=counts, iteration=state.iteration + 1)
    return _learn_shape(state, info, config) if state.arrival is None else _approach(state, info, config)


def _learn_shape(state, info, config):
    """Return the state with the walk and the places visited moved on by one draw in the bulk."""
    past = state.walk
    mean, factor = walk.learn_shape(past.mean, past.factor, state.position, state.num_learnt)
    log_scale, walks = past.log_scale, past.iteration
    if info.kind == _WALK:
        floor = walk.scale_floor(walk.Config(), past.noise, past.factor, state.num_learnt)
        log_scale = walk.learn_scale(past, info.accept_prob, config.target_accept, floor)
        walks += 1
    shares = state.shares
    if state.fit is None and state.num_learnt == 50 + state.position.size:
        shares = _exploring(len(KINDS), _DIFFERENCE_SHARE)
    return state._replace(
        walk=past._replace(mean=mean, factor=factor, log_scale=log_scale, iteration=walks),
        visited=append(state.visited, state.position),
        levels=append(state.levels, np.array([state.log_density])),
        shares=shares,
        num_learnt=state.num_learnt + 1,
    )


def _approach(state, info, config):
    """Return the state one draw nearer to the bulk, or there."""
    past = state.walk
    arrival = burn_in.remember(state.arrival, state.log_density)
    factor, log_scale = past.factor, past.log_scale
    if info.kind == _WALK:
        moved = state.position - past.mean if info.accepted else None
        error = info.accept_prob - noise.target_of(config.target_accept, past.noise)
        arrival, factor, log_scale = burn_in.learn_step(arrival, factor, log_scale, moved, error, config.noisy)
    state = state._replace(
        walk=past._replace(mean=state.position, factor=factor, log_scale=log_scale),
        visited=append(state.visited, state.position),
        levels=append(state.levels, np.array([state.log_density])),
        arrival=arrival,
    )
    is_late = state.iteration >= burn_in.longest(state.position.size)
    return _arrived(state) if is_late or burn_in.has_arrived(arrival) else state


def _arrived(state):
    """Return the state in which learning begins: the burn-in is forgotten, but for the size of its last steps."""
    d = state.position.size
    past = state.walk
    # The factor is that of the posterior from now on, of which the best steps are a known multiple.
    size = math.exp(past.log_scale) / walk.optimal_scale(d)
    shape = past._replace(
        mean=state.position, factor=size * past.factor, log_scale=math.log(walk.optimal_scale(d)), iteration=0
    )
    kinds = len(KINDS)
    return state._replace(
        walk=shape,
        visited=append(empty_history(_NUM_VISITED, d), state.position),
        levels=append(empty_history(_NUM_VISITED, 1), np.array([state.log_density])),
        measures=np.zeros((kinds, 2 * d)),
        counts=np.zeros(kinds),
        arrival=None,
    )


def _measure(state, info):
    """Return acceptance times squared jumps of the whitened z_i and of z_i^2, over twice their variance if Gaussian.

    In expectation one minus the autocorrelation. With the acceptance probability in place of what happened, a few
    dozen moves of a kind tell what it is worth. The state is the one after the draw, before it is remembered.
    """
    mean, factor = state.walk.mean, state.walk.factor
    if not info.accept_prob > 0.0 or not state.visited.count:
        return np.zeros(2 * state.position.size)
    after = _to_unit(factor, mean, info.proposal)
    before = _to_unit(factor, mean, state.visited.buffer[state.visited.count - 1])
    jumps = np.concatenate([(after - before) ** 2 / 2.0, (after**2 - before**2) ** 2 / 4.0])
    return info.accept_prob * jumps


@one_blas_thread
def refit(rng: np.random.Generator, states: Sequence[State], config: Config) -> Fit | None:
    """Return a surrogate learnt from what the chains have evaluated and visited, or None where that fails.

    Parameters
    ----------
    states
        One chain's, or several chains' that learn together.
    """
    previous = states[0].fit
    search = previous is None or states[0].num_fits % _NEW_SEARCH_EVERY == 0
    visited = bulk_of(states)
    shape = mean, factor = _recent_shape(states)
    try:
        if isinstance(config.estimator, Values):
            rows = np.concatenate([s.evaluated.buffer[: s.evaluated.count] for s in states])
            estimator = config.estimator
            surrogate = estimator.fit(
                rows[:, :-1],
                rows[:, -1],
                rng,
                mean=mean,
                factor=factor,
                start=None if previous is None else previous.surrogate.hyperparameters,
                only_start=not search,
                max_iterations=None if search else _FEW_ITERATIONS,
                noisy=config.noisy,
            )
            if surrogate.has_trend:
                mean, factor = _shape_of_trend(surrogate.expansion) or (mean, factor)
            expansion, quality = change_variables(surrogate.expansion, factor, mean), surrogate.error
        else:
            estimator, quality = config.estimator if previous is None else previous.estimator, math.nan
            whitened = np.linalg.solve(factor, (visited - mean).T).T
            if search:
                found = cross_validate(config.estimator, whitened[:: -(-len(whitened) // _VALIDATION)], rng=rng)
                estimator, quality = found.estimator, found.loss
            else:
                quality = previous.quality
            expansion, surrogate = fit_scores(rng, estimator, whitened, mean, factor)
    except (ValueError, np.linalg.LinAlgError):
        return None
    places = visited[rng.choice(len(visited), min(len(visited), _TRIALS), replace=False)]
    starts = np.ascontiguousarray(np.linalg.solve(factor, (places - mean).T).T)
    momenta = rng.standard_normal(starts.shape)
    step_size = choose_step_size(starts, momenta, expansion)
    num_steps = choose_num_steps(starts, momenta, step_size, config.max_steps, expansion)
    flattened = scaled_expansion(expansion, _INVERSE_TEMPERATURE)
    return Fit(mean, factor, expansion, flattened, step_size, num_steps, surrogate, estimator, quality, shape)


def _shape_of_trend(expansion) -> tuple[np.ndarray, np.ndarray] | None:
    """Return mean and factor of the normal distribution with the quadratic part of a surrogate; None if there is none.

    In many dimensions the covariance of the places visited is a poor one for as long as a chain tunes.
    """
    inverse = definite_cholesky(-expansion.quadratic[::-1, ::-1])
    if inverse is None:
        return None
    # With P = -quadratic and J the reversal of rows, J P J = L L', so that P^-1 = F F' for the lower F = J L^-T J.
    factor = np.ascontiguousarray(np.linalg.inv(inverse).T[::-1, ::-1])
    return expansion.centre + factor @ (factor.T @ expansion.linear), factor


def bulk_of(states: Sequence[State], fraction: float = 2.0 / 3.0) -> np.ndarray:
    """Return the places (n, d) that the chains have visited since they were in the bulk, see ``burn_in.bulk``."""
    return np.concatenate([burn_in.bulk(s.visited, s.levels, fraction) for s in states])


@one_blas_thread
def fit_scores(
    rng: np.random.Generator, estimator, whitened: np.ndarray, mean: np.ndarray, factor: np.ndarray
) -> tuple[Expansion, KernelExpansion]:
    """Return a surrogate by score matching of draws factor^-1 (x - mean), in these coordinates and in those of x."""
    distinct, repeats = np.unique(whitened, axis=0, return_counts=True)
    expansion = estimator.fit(distinct, repeats, rng=rng).expansion
    inverse = np.linalg.inv(factor)
    return expansion, KernelExpansion(change_variables(expansion, inverse, -inverse @ mean))


def _recent_shape(states):
    """Return mean and factor of the chains since they were in the bulk, or those of the walks with too few places.

    The way in from a far start would otherwise be part of the shape for as long as the chain tunes.
    """
    places = bulk_of(states, 1.0)
    d = places.shape[1]
    if len(np.unique(places[:, 0])) > 10 * d:
        covariance = np.atleast_2d(np.cov(places.T, bias=True))
        factor = definite_cholesky(covariance)
        if factor is not None:
            return places.mean(axis=0), factor
    return joint_shape(states)


@one_blas_thread
def joint_shape(states: Sequence[State]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (d,) and lower factor (d, d) of the covariance of what the chains have visited together."""
    if len(states) == 1:
        return states[0].walk.mean, states[0].walk.factor
    means = np.array([s.walk.mean for s in states])
    mean = means.mean(axis=0)
    covariance = np.mean([s.walk.factor @ s.walk.factor.T for s in states], axis=0)
    covariance += (means - mean).T @ (means - mean) / len(states)
    factor = definite_cholesky(covariance)
    if factor is None:  # places on a line
        factor = np.linalg.cholesky(covariance + np.diag(_RIDGE * np.diag(covariance)))
    return mean, factor


def with_fit(state: State, learnt: Fit, config: Config, places: np.ndarray | None = None) -> State:
    """Return the state with a new surrogate; all kinds of surrogate moves are tried from now on.

    Parameters
    ----------
    places : ndarray (k, d), optional
        To evaluate for the sake of the next surrogate, see :func:`places_to_survey`.
    """
    counts = state.counts.copy()
    counts[_SURROGATE] = np.minimum(counts[_SURROGATE], _MEMORY_OF_OLD_FIT)
    survey = np.empty((0, state.position.size)) if places is None else places
    # A chain that is still on its way, while others that it learns with have arrived, keeps its walk.
    shape = state.walk if state.arrival else state.walk._replace(mean=learnt.shape[0], factor=learnt.shape[1])
    state = state._replace(fit=learnt, counts=counts, num_fits=state.num_fits + 1, survey=survey, walk=shape)
    worth = state.measures.min(axis=1)
    exploring = max(worth[_WALK], worth[_DIFFERENCE])
    from_scores = not isinstance(config.estimator, Values)
    # A surrogate that has been tried and is worse than exploring gets a smaller part of the next stretch.
    if counts[_SURROGATE].min() >= 5 and worth[_SURROGATE].max() < exploring:
        share = _USELESS_SHARE
    elif from_scores and not _is_clearly_better(worth[_SURROGATE].max(), exploring, config):
        share = min(_SMALL_SHARE, 1.0 - config.exploring_share)
    else:
        share = 1.0 - config.exploring_share
    shares = (1.0 - share) * _exploring(len(KINDS), _DIFFERENCE_SHARE)
    shares[_SURROGATE] = share / (_SURVEY - _SHORT)
    if len(survey):
        shares *= 1.0 - _SURVEY_SHARE
        shares[_SURVEY] = _SURVEY_SHARE
    return state._replace(shares=shares)


def _is_clearly_better(worth, exploring, config):
    if isinstance(config.estimator, Values):
        return worth >= _CLEARLY_BETTER_BY_VALUES * exploring
    return worth >= min(_CLEARLY_BETTER_BY_SCORES * exploring, _NEARLY_INDEPENDENT)


@one_blas_thread
def places_to_survey(rng: np.random.Generator, states: Sequence[State], learnt: Fit) -> list[np.ndarray]:
    """Return for each chain the places it should evaluate before the next fit; none for a surrogate of scores."""
    if not hasattr(learnt.surrogate, "covariance"):
        return [np.empty((0, s.position.size)) for s in states]
    visited = bulk_of(states)
    starts = np.linalg.solve(learnt.factor, (visited - learnt.mean).T).T
    places = survey(rng, np.ascontiguousarray(starts), learnt, _LARGEST_SURVEY * len(states))
    return [places[c :: len(states)] for c in range(len(states))]


def finish(state: State, config: Config) -> State:
    """Return the state with the shares of moves for after tuning, and without what only learning needs.

    One kind of surrogate move, as good as the best as far as the measures can tell, gets what exploring and the two
    safe kinds (single trajectories, chains on the flattened surrogate) leave. A surrogate that is not clearly better
    than exploring gets two moves in ten, one that is worse gets none.
    """
    d = state.position.size
    settled = state.walk._replace(noise=noise.settled(state.walk.noise))
    excesses = None if config.noisy else empty_history(_NUM_EXCESSES, 1)
    state = state._replace(evaluated=empty_history(0, d + 1), survey=np.empty((0, d)), walk=settled, excesses=excesses)
    if state.fit is None and not state.shares[_DIFFERENCE]:
        return state  # too short for differences even
    worth = state.measures.min(axis=1)
    share = _surrogate_share(state, config, worth)
    # Alone with the walk, differences of visited points get no more than they are worth.
    is_alone = share == 0.0 and worth[_DIFFERENCE] < worth[_WALK]
    shares = (1.0 - share) * _exploring(len(KINDS), _LEAST_DIFFERENCE_SHARE if is_alone else _DIFFERENCE_SHARE)
    if share > 0.0:
        best = next(kind for kind in _PREFERRED if worth[kind] >= _NEARLY_BEST * worth[_SURROGATE].max())
        # A chain on the surrogate sticks where the surrogate is too low; these two find the way out.
        shares[[_LONG, _FLATTENED]] += _SAFE_SHARE * share
        shares[best] += (1.0 - 2.0 * _SAFE_SHARE) * share
    return state._replace(shares=shares)


def _surrogate_share(state, config, worth):
    """Return the share of surrogate moves after tuning, from what each kind of move is worth."""
    best, exploring = worth[_SURROGATE].max(), max(worth[_WALK], worth[_DIFFERENCE])
    if state.fit is None or best < exploring or not best > 0.0:
        return 0.0
    share = 1.0 - config.exploring_share
    # While the log density still rises, large jumps are the way in, and say nothing of how the chain will mix.
    in_bulk = len(burn_in.bulk(state.visited, state.levels))
    still_rises = in_bulk < _LEAST_IN_BULK * state.visited.count
    if still_rises or not _is_clearly_better(best, exploring, config):
        share = min(share, _SMALL_SHARE)
    return share
