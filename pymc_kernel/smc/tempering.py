"""Sequential Monte Carlo from a prior to a posterior through powers of the likelihood, on arrays.

Del Moral, Doucet and Jasra (2006); adaptive temperatures by bisection on the effective sample size. Moves are learned
from particles other than those that they move, see ``folds``; importance sampling ends a run, see ``importance``. The
states between the first and the last of a stage are not used (unlike in the waste-free SMC of Dau and Chopin 2022):
they made neither draws nor evidence better, see ``benchmarks.ablations``.
"""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_points, check_between, check_whole
from pymc_kernel.mcmc.surrogate_fit import NUM_EVALUATED
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.smc import folds, importance
from pymc_kernel.smc.moves import Evaluate, Evaluated, Hamiltonian, Moves, largest_correlation
from pymc_kernel.smc.weights import log_mean_exp, next_temperature, normalized, resample

_FEWEST_AT_MOST = 20  # default of ``max_moves`` in few dimensions
# Moves a stage and dimension. One move of a random walk at its best scale leaves a correlation of 1 - .66 / d (Roberts,
# Gelman and Gilks 1997), so that three a dimension leave a seventh.
_MOVES_A_DIMENSION = 3


@dataclass(frozen=True)
class Config:
    """Settings, validated once.

    Parameters
    ----------
    moves : Walk, Kameleon or Hamiltonian
    threshold : float
        Effective share of the particles after a step of temperature, in (0, 1).
    schedule : sequence of float, optional
        Fixed inverse temperatures instead, increasing to 1.
    min_moves : int
        Moves of every particle at each temperature, at least.
    max_moves : int, optional
        At most; by default three a dimension, and no less than twenty or than ``min_moves``.
    correlation : float
        Moves of a stage end when the correlation of positions before and after, the largest over coordinates, is below
        this.
    num_folds : int
        Parts of the particles, each of which is moved by what was learned from the others, see ``folds``; with 1 the
        evidence of few particles is too large.
    importance : bool
        Whether draws by importance sampling take the place of the last particles, where they are better, see
        :func:`finish`.
    """

    moves: Moves = field(default_factory=Hamiltonian)
    threshold: float = 0.5
    schedule: tuple[float, ...] | None = None
    min_moves: int = 4
    max_moves: int | None = None
    correlation: float = 0.2
    num_folds: int = 4
    importance: bool = True

    def __post_init__(self):
        if not all(callable(getattr(self.moves, name, None)) for name in ("fit", "propose", "adapt")):
            raise TypeError(f"moves must be a Walk, Kameleon or Hamiltonian, got {type(self.moves).__name__}.")
        check_between(threshold=self.threshold, correlation=self.correlation)
        check_whole(num_folds=self.num_folds, min_moves=self.min_moves)
        check_whole("max_moves", least=self.min_moves, max_moves=self.max_moves)
        if self.schedule is not None:
            schedule = np.asarray(self.schedule, dtype=float)
            is_vector = schedule.ndim == 1 and schedule.size > 0
            if not is_vector or schedule[-1] != 1.0 or (np.diff(schedule, prepend=0.0) <= 0.0).any():
                raise ValueError("schedule must be increasing inverse temperatures, the first above 0, the last 1.")

    def moves_at_most(self, num_dims: int) -> int:
        """Return the largest number of moves of a particle at one temperature."""
        if self.max_moves is not None:
            return self.max_moves
        return max(_FEWEST_AT_MOST, _MOVES_A_DIMENSION * num_dims, self.min_moves)


class State(NamedTuple):
    """What is carried from stage to stage."""

    particles: Evaluated  # (n, ...), equally weighted at the inverse temperature
    inverse_temperature: float
    log_evidence: float  # of the tempered density so far
    evaluated: Evaluated  # the latest evaluations, for surrogates
    learned: folds.Fitted | None  # by the moves
    stage: int


class Info(NamedTuple):
    """What a stage reports."""

    inverse_temperature: float
    log_evidence_increment: float
    ess_share: float  # effective share of the weights
    distinct_ancestors: float  # share of places among them
    accept: float  # mean over moves and particles
    surrogate_accept: float  # of surrogate moves alone; NaN where there were none
    correlation: float  # between before and after, largest over coordinates
    moves: int
    proposal_scale: float
    evaluations: int  # of this stage, without those of the first particles
    importance_ess: float = math.nan  # effective number of draws by importance sampling at the end


def init(particles: Evaluated) -> State:
    """Return the state at inverse temperature 0, of draws from the prior with both parts of their log density."""
    n = len(particles.positions)
    if n < 2 or particles.log_prior.shape != (n,) or particles.log_likelihood.shape != (n,):
        raise ValueError("at least two particles are needed, with one log prior and one log likelihood each.")
    as_points(particles.positions, "positions of the particles")
    return State(particles, 0.0, 0.0, particles, None, 0)


@one_blas_thread
def choose_temperature(state: State, config: Config) -> tuple[float, np.ndarray, float]:
    """Return the next inverse temperature, the particles' normalized weights there, and the log evidence gained."""
    if config.schedule is None:
        target = next_temperature(state.particles.log_likelihood, state.inverse_temperature, config.threshold)
    else:
        target = config.schedule[state.stage]
    increments = (target - state.inverse_temperature) * state.particles.log_likelihood
    increments = np.where(np.isnan(increments), -np.inf, increments)
    return target, normalized(increments), log_mean_exp(increments)


def _move(rng, particles, ancestors, evaluate, inverse_temperature, state, config):
    """Return particles moved with the tempered density invariant, evaluations, what was learned, and four measures."""
    moves = config.moves
    first = folds.split(len(ancestors), config.num_folds) if state.learned is None else state.learned.edges
    edges = folds.descend(first, ancestors, config.num_folds)
    learned = folds.fit(rng, moves, particles, state.evaluated, inverse_temperature, state.learned, edges)
    density = particles.log_density(inverse_temperature)
    current = Evaluated(*(a.copy() for a in particles))
    evaluations, rates, surrogate_rates = [state.evaluated], [], []
    for count in range(1, config.moves_at_most(current.positions.shape[1]) + 1):
        proposals = folds.propose(rng, moves, current.positions, learned)
        proposed = Evaluated(proposals.positions, *evaluate(proposals.positions))
        new_density = proposed.log_density(inverse_temperature)
        with np.errstate(invalid="ignore"):
            gain = new_density - density + proposals.log_ratio
        probability = np.where(gain < np.inf, np.exp(np.minimum(gain, 0.0)), 0.0)
        accepted = rng.random(len(probability)) < probability
        for old, new in zip((*current, density), (*proposed, new_density), strict=True):
            old[accepted] = new[accepted]
        learned = folds.adapt(moves, learned, proposals, probability)
        rates.append(probability.mean())
        if not proposals.is_exploring.all():
            surrogate_rates.append(probability[~proposals.is_exploring].mean())
        evaluations.append(proposed)
        correlation = largest_correlation(particles.positions, current.positions)
        if count >= config.min_moves and correlation <= config.correlation:
            break
    evaluations = Evaluated(*(np.concatenate(arrays)[-NUM_EVALUATED:] for arrays in zip(*evaluations, strict=True)))
    surrogate = float(np.mean(surrogate_rates)) if surrogate_rates else math.nan
    return current, evaluations, learned, (float(np.mean(rates)), surrogate, correlation, count)


@one_blas_thread
def rejuvenate(
    rng: np.random.Generator, state: State, evaluate: Evaluate, chosen: tuple[float, np.ndarray, float], config: Config
) -> tuple[State, Info]:
    """Return the state resampled and moved at a temperature from :func:`choose_temperature`, and what happened."""
    target, weights, gained = chosen
    n = len(state.particles.positions)
    ancestors = resample(rng, weights, n)  # in order, so that the offspring of one are next to each other
    start = state.particles.take(ancestors)
    particles, evaluated, learned, measures = _move(rng, start, ancestors, evaluate, target, state, config)
    share = 1.0 / (n * float((weights**2).sum()))
    # Positions, not indices: descendants of one ancestor that have not moved since count once.
    distinct = np.unique(start.positions[:, 0]).size / n
    info = Info(target, gained, share, distinct, *measures, config.moves.scale_of(learned.learned[0]), measures[-1] * n)
    evidence = state.log_evidence + gained
    return State(particles, target, evidence, evaluated, learned, state.stage + 1), info


def step(rng: np.random.Generator, state: State, evaluate: Evaluate, config: Config) -> tuple[State, Info]:
    """Return the state one temperature further, and what happened.

    Raises ``ValueError`` where the likelihood of all particles is zero, or they have collapsed into a subspace.
    """
    return rejuvenate(rng, state, evaluate, choose_temperature(state, config), config)


@one_blas_thread
def finish(
    rng: np.random.Generator, state: State, info: Info, evaluate: Evaluate, config: Config
) -> tuple[State, Info]:
    """Return the last state with draws and evidence by importance sampling, where these are better, and its report.

    As many draws are made as the last stage had evaluations. They are taken if they are worth as many independent ones
    as there are particles, n: then the evidence has a relative variance below 1 / n, which a stage with an effective
    share of one half adds by its weights alone.
    """
    if not config.importance:
        return state, info
    n = len(state.particles.positions)
    draws, log_weights, ess = importance.draw(rng, state.particles, state.evaluated, evaluate, info.evaluations)
    info = info._replace(evaluations=info.evaluations + len(log_weights), importance_ess=ess)
    if ess < n:
        return state, info
    evidence = log_mean_exp(log_weights)
    increment = info.log_evidence_increment + evidence - state.log_evidence
    particles = draws.take(resample(rng, normalized(log_weights), n))
    return state._replace(particles=particles, log_evidence=evidence), info._replace(log_evidence_increment=increment)


def sample(
    rng: np.random.Generator, particles: Evaluated, evaluate: Evaluate, config: Config
) -> tuple[State, list[Info]]:
    """Return the state at inverse temperature 1 and what each stage reported."""
    state, history = init(particles), []
    while state.inverse_temperature < 1.0:
        state, info = step(rng, state, evaluate, config)
        history.append(info)
    state, history[-1] = finish(rng, state, info, evaluate, config)
    return state, history
