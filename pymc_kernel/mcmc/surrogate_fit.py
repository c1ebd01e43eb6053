"""Fits of a surrogate to chains or particles, with the trajectories to move along it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_points, check_whole
from pymc_kernel.linalg import definite_cholesky, lower_times, ridged_cholesky, solve_lower, whiten
from pymc_kernel.machine_code import compiled
from pymc_kernel.mcmc import conditionally_normal
from pymc_kernel.mcmc.conditionally_normal import ConditionallyNormal
from pymc_kernel.mcmc.metropolis import recent, shape_of
from pymc_kernel.mcmc.trajectory import LONGEST, choose_chain_length, choose_step_size, random_chains
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import Expansion, KernelExpansion, change_variables
from pymc_kernel.scores.validation import cross_validate

NUM_EVALUATED = 20_000  # evaluations of a density remembered to learn from
_TRIALS = 100  # starts of the trajectories that choose step size and length
_VALIDATION = 1000  # draws that cross-validation looks at
_NEW_SEARCH_EVERY = 3  # fits; those in between start from the last settings only

type Shape = tuple[np.ndarray, np.ndarray]  # mean (d,) and lower factor (d, d) of the covariance of draws


class Learned(NamedTuple):
    """A surrogate, and what the next fit begins with."""

    surrogate: KernelExpansion
    estimator: object  # with its settings chosen
    quality: float  # leave-one-out error of values, or held-out score-matching loss


@dataclass(frozen=True)
class StraightenedSurrogate:
    """A surrogate that was learned in other coordinates, as a function of the density's own."""

    surrogate: KernelExpansion  #: in the straightened coordinates
    coordinates: ConditionallyNormal  #: the map to them

    @property
    def num_dims(self) -> int:
        """The dimension d of the points."""
        return self.surrogate.num_dims

    def log_density(self, x) -> np.ndarray:
        """Return the log density up to a constant at each row of ``x`` (n, d), shape (n,). O(n m d)."""
        straight, log_det = self.coordinates.straighten(as_points(x, "x", num_dims=self.num_dims))
        return self.surrogate.log_density(straight) + log_det

    def score(self, x) -> np.ndarray:
        """Return the gradient of the log density at each row of ``x`` (n, d), shape (n, d). O(n m d)."""
        x = as_points(x, "x", num_dims=self.num_dims)
        return self.coordinates.pull_back(x, self.surrogate.score(self.coordinates.straighten(x)[0]))


class SurrogateFit(NamedTuple):
    """A surrogate and how to move along it; frozen between fits."""

    mean: np.ndarray  # (d,)
    factor: np.ndarray  # (d, d), lower: x = mean + factor q, and momenta of q have unit variance
    expansion: Expansion  # in q
    step_size: float  # the largest
    num_steps: int  # leapfrog steps of a trajectory
    chain_length: int  # trajectories of a proposal
    learned: Learned
    shape: Shape  # of the draws
    coordinates: ConditionallyNormal | None = None  # that the fit is in; those of the density without

    @property
    def surrogate(self) -> KernelExpansion | StraightenedSurrogate:
        """The surrogate in the coordinates of the density."""
        learned = self.learned.surrogate
        return learned if self.coordinates is None else StraightenedSurrogate(learned, self.coordinates)


@compiled
def to_unit(factor, mean, positions):
    """Return factor^-1 (x - mean) for the rows x of ``positions`` (n, d); bitwise the same for any number of rows."""
    out = positions - mean
    for i in range(len(out)):
        solve_lower(factor, out[i], out[i])
    return out


@compiled
def _from_unit(factor, mean, whitened):
    """Return mean + factor q for the rows q of ``whitened`` (n, d); without BLAS, whose rounding depends on n."""
    out = np.empty_like(whitened)
    for i in range(len(out)):
        lower_times(factor, whitened[i], out[i])
        out[i] += mean
    return out


def check_surrogate_moves(estimator, exploring_share, max_steps) -> None:
    """Raise where a setting that all moves along surrogates share is out of range."""
    # Score matching needs the system of equations besides the fit: ``Full`` has none of a bounded size.
    needed = {"values": ["fit"], "draws": ["fit", "system"]}.get(getattr(estimator, "learns_from", None))
    if needed is None or not all(callable(getattr(estimator, name, None)) for name in needed):
        raise TypeError(f"surrogate must be Values, Lite, Finite or Nystrom of pymc_kernel.scores, not {estimator!r}.")
    if not (isinstance(exploring_share, Real) and 0.0 < exploring_share <= 1.0):
        raise ValueError(f"exploring_share must be above 0 and at most 1, got {exploring_share!r}.")
    check_whole(max_steps=max_steps)


@one_blas_thread
def learn(
    rng, estimator, draws: np.ndarray, places: np.ndarray, values: np.ndarray, shape: Shape,
    previous: Learned | None = None, *, search: bool = True, noisy: bool = False,
) -> Learned | None:  # fmt: skip
    """Return a surrogate fitted to evaluations or draws, or None where the fit fails.

    The estimator, of ``pymc_kernel.scores``, learns from draws (n, d) of the bulk, or from values (m,) of the log
    density, estimates where ``noisy``, at places (m, d). It works in coordinates of a shape: mean (d,) and lower factor
    (d, d) of the covariance of the draws. Without a full ``search`` its settings are those of the ``previous`` fit, or
    start from them.
    """
    mean, factor = shape
    try:
        if estimator.learns_from == "values":
            start = None if previous is None else previous.surrogate.hyperparameters
            surrogate = estimator.fit(
                places, values, rng, mean=mean, factor=factor, start=start, search=search, noisy=noisy,
            )  # fmt: skip
            return Learned(surrogate, estimator, surrogate.error)
        whitened = whiten(draws, mean, factor)
        if search or previous is None:
            chosen = cross_validate(estimator, whitened[:: -(-len(whitened) // _VALIDATION)], rng=rng)
            estimator, quality = chosen.estimator, chosen.loss
        else:
            estimator, quality = previous.estimator, previous.quality
        distinct, repeats = np.unique(whitened, axis=0, return_counts=True)
        expansion, inverse = estimator.fit(distinct, repeats, rng=rng).expansion, np.linalg.inv(factor)
        surrogate = KernelExpansion(change_variables(expansion, inverse, -inverse @ mean))
        return Learned(surrogate, estimator, quality)
    except (ValueError, np.linalg.LinAlgError):
        return None


def refined_shape(shape: Shape, learned: Learned) -> Shape:
    """Return the mean and factor for trajectories: those of the surrogate's quadratic part, where it was fitted first.

    In many dimensions the covariance of the visited positions is poor while a chain tunes.
    """
    if not getattr(learned.surrogate, "has_trend", False):
        return shape
    expansion = learned.surrogate.expansion
    inverse = definite_cholesky(-expansion.quadratic[::-1, ::-1])
    if inverse is None:
        return shape
    # With P = -quadratic and J the reversal of rows, J P J = L L', so that P^-1 = F F' for the lower F = J L^-T J.
    factor = np.ascontiguousarray(np.linalg.inv(inverse).T[::-1, ::-1])
    return expansion.center + factor @ (factor.T @ expansion.linear), factor


@one_blas_thread
def tuned(rng: np.random.Generator, learned: Learned, shape: Shape, draws: np.ndarray, max_steps: int) -> SurrogateFit:
    """Return a surrogate with step size, length and number of its trajectories, in the coordinates of a shape.

    They are chosen by trajectories from some of the draws (n, d), of the bulk; no density is evaluated.
    """
    mean, factor = shape
    expansion = change_variables(learned.surrogate.expansion, factor, mean)
    places = draws[rng.choice(len(draws), min(len(draws), _TRIALS), replace=False)]
    starts = whiten(places, mean, factor)
    momenta = rng.standard_normal(starts.shape)
    step_size = choose_step_size(starts, momenta, expansion)
    num_steps = min(max_steps, math.ceil(LONGEST / step_size))
    chain_length = choose_chain_length(rng, starts, step_size, num_steps, expansion)
    return SurrogateFit(mean, factor, expansion, step_size, num_steps, chain_length, learned, shape)


def along(rng: np.random.Generator, positions: np.ndarray, fit: SurrogateFit) -> tuple[np.ndarray, np.ndarray]:
    """Return proposals (n, d) from positions (n, d) by chains of trajectories on the surrogate.

    Also the log ratios (n,) of the surrogate, before to after.
    """
    here, log_det = in_unit(fit, positions)
    ends, values, firsts = random_chains(rng, here, fit.chain_length, fit.step_size, fit.num_steps, fit.expansion)
    with np.errstate(all="ignore"):  # trajectories that diverged
        places = _from_unit(fit.factor, fit.mean, ends)
        if fit.coordinates is not None:
            places, log_det_there = fit.coordinates.bend(places)
            log_det = log_det - log_det_there
        return places, firsts - values + log_det


def in_unit(fit: SurrogateFit, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions (n, d) in the coordinates q of the fit, and log determinants (n,), but for a constant."""
    straight, log_det = positions, np.zeros(len(positions))
    if fit.coordinates is not None:
        straight, log_det = fit.coordinates.straighten(positions)
    return to_unit(fit.factor, fit.mean, straight), log_det


@one_blas_thread
def refit(rng: np.random.Generator, states: Sequence, config) -> SurrogateFit | None:
    """Return a surrogate learned from what one chain, or several, have evaluated and visited; None where that fails."""
    previous = states[0].fit
    search = previous is None or states[0].num_fits % _NEW_SEARCH_EVERY == 0
    draws = np.concatenate([recent(s.visited) for s in states])
    everything = np.concatenate([recent(s.visited, 1.0) for s in states])
    of_walk = joint_shape(states)
    # From all draws since burn-in alike, as the walks' shapes still contain the burn-in from a far start.
    shape = shape_of(everything, of_walk)
    rows = np.concatenate([s.evaluated.buffer[: s.evaluated.count] for s in states])
    places, values = rows[:, :-1], rows[:, -1]
    coordinates, before = None, previous and previous.coordinates
    if config.surrogate.learns_from == "values" and (search or before):
        coordinates = conditionally_normal.fitted(everything, places, values, None if search else before)
    if coordinates:
        (draws, _), (everything, _) = coordinates.straighten(draws), coordinates.straighten(everything)
        with np.errstate(over="ignore", invalid="ignore"):  # far out
            places, log_det = coordinates.straighten(places)
        near = (np.abs(places) < conditionally_normal.FARTHEST).all(axis=1)
        places, values = places[near], (values - log_det)[near]
        shape = shape_of(everything, (np.zeros(places.shape[1]), np.eye(places.shape[1])))
    if (coordinates and coordinates.kind) != (before and before.kind):  # settings elsewhere say nothing
        previous, search = None, True
    learned = learn(
        rng, config.surrogate, draws, places, values, shape, previous and previous.learned,
        search=search, noisy=config.noisy,
    )  # fmt: skip
    if learned is None:
        return None
    fit = tuned(rng, learned, refined_shape(shape, learned), draws, config.max_steps)
    return fit._replace(shape=of_walk, coordinates=coordinates)


@one_blas_thread
def joint_shape(states: Sequence) -> Shape:
    """Return the shape of what the chains have visited together."""
    if len(states) == 1:
        return states[0].walk.mean, states[0].walk.factor
    means = np.array([s.walk.mean for s in states])
    mean = means.mean(axis=0)
    covariance = np.mean([s.walk.factor @ s.walk.factor.T for s in states], axis=0)
    covariance += (means - mean).T @ (means - mean) / len(states)
    factor = definite_cholesky(covariance)
    return mean, ridged_cholesky(covariance) if factor is None else factor  # places on a line have none
