"""The surrogate of a search with few evaluations: its state, the learned posterior, particles of it.

Kernel regression on all values so far is believed within a region around good points. Imports NumPy and the lower
floors only.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_kernel.linalg import mean_and_factor
from pymc_kernel.mcmc.chain_checks import OpenEnd
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior
from pymc_kernel.scores.value_regression import log_excess, window_of
from pymc_kernel.scores.values import FittedValues, Hyperparameters, Values
from pymc_kernel.smc.normal_mixture import NormalMixture, fit_mixture

_PENALTY = 8.0  # a whitened unit beyond the region costs four nats, two cost sixteen
_FEWEST_PARTICLES = 1000
_ROWS = 2000  # points at a time, which bounds the memory of distances


class BelievedRegion(NamedTuple):
    """Where the surrogate is believed: within a radius of good points, in whitened units."""

    inverse: np.ndarray  # (d, d), of the whitening factor
    points: np.ndarray  # (k, d), whitened
    radius: float

    def distance(self, positions: np.ndarray) -> np.ndarray:
        """Return the distance (m,) to the nearest good point."""
        return np.sqrt(_nearest(positions @ self.inverse.T, self.points))


class Support(NamedTuple):
    """Where there is a density: next to places that have one, in whitened units."""

    inverse: np.ndarray  # (d, d), of the whitening factor
    inside: np.ndarray  # (n, d), whitened places with a density
    outside: np.ndarray  # (k, d), those without

    def contains(self, positions: np.ndarray) -> np.ndarray:
        """Return whether the nearest place of each position (m, d) has a density."""
        whitened = positions @ self.inverse.T
        return _nearest(whitened, self.inside) <= _nearest(whitened, self.outside)


def _nearest(positions, points):
    """Return the squared distance (m,) to the nearest point."""
    squares = (points**2).sum(axis=1)
    nearest = np.empty(len(positions))
    for a in range(0, len(positions), _ROWS):
        part = positions[a : a + _ROWS]
        squared = (part**2).sum(axis=1)[:, None] + squares - 2.0 * part @ points.T
        nearest[a : a + _ROWS] = squared.min(axis=1)
    return np.maximum(nearest, 0.0)


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """The learned log posterior density: the prior's, plus a surrogate of the log likelihood, within a region.

    Attributes
    ----------
    fit : FittedValues
        Of the log likelihood in units of ``unit`` nats.
    unit, offset : float
    prior : Prior
    region : BelievedRegion
    power : float
        Of the likelihood; below one until the bulk is found.
    is_careful : bool
        Whether half of the surrogate's variance is taken off. For a log density with normal errors that is its harmonic
        mean: draws keep away from where nobody looked, and where it is known nothing changes.
    ceiling : float
        The highest log density that careful draws believe in; what is predicted above it counts as much below it. In
        the corner of a narrow valley a surrogate can be many of its own standard deviations too high.
    support : Support, optional
        None where every place that was evaluated has a density. A smooth surrogate cannot fall to zero at a wall.
    """

    fit: FittedValues
    unit: float
    offset: float
    prior: Prior
    region: BelievedRegion
    power: float
    is_careful: bool = False
    ceiling: float = np.inf
    support: Support | None = None

    def log_likelihood(self, positions: np.ndarray) -> np.ndarray:
        """Return the surrogate (m,) at positions (m, d)."""
        return self.unit * self.fit.log_density(positions) + self.offset

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log prior plus surrogate (m,), without power or region."""
        return self.prior.log_density(positions) + self.log_likelihood(positions)

    def covariance(self, positions: np.ndarray) -> np.ndarray:
        """Return the posterior covariance (m, m) of the surrogate, in squared nats."""
        return self.unit**2 * self.fit.covariance(positions)

    def height(self, positions: np.ndarray) -> np.ndarray:
        """Return the log density (m,) without power, less the penalty beyond the region."""
        beyond = np.maximum(self.region.distance(positions) - self.region.radius, 0.0)
        return self.log_density(positions) - 0.5 * _PENALTY * beyond**2

    def caution(self, positions: np.ndarray) -> np.ndarray:
        """Return what caution takes off the log density (m,): half of the surrogate's variance."""
        starts = range(0, len(positions), _ROWS)
        return 0.5 * self.unit**2 * np.concatenate([self.fit.variance(positions[a : a + _ROWS]) for a in starts])

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return draws (size, d) of the density that particles follow, by particles from around the good points."""
        good = self.region.points @ np.linalg.inv(self.region.inverse).T
        return drawn_from(rng, self, good, ParticleSampler(max(size, _FEWEST_PARTICLES))).positions[:size]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the log density (m,) that particles follow; -inf where it is no number."""
        out = np.full(len(positions), -np.inf)
        beyond = np.full(len(positions), np.inf)
        finite = np.isfinite(positions).all(axis=1)
        with np.errstate(all="ignore"):
            beyond[finite] = np.maximum(self.region.distance(positions[finite]) - self.region.radius, 0.0)
            near = beyond <= 10.0 * self.region.radius  # further out surrogates may overflow
            if self.support is not None:
                near[near] = self.support.contains(positions[near])
            if near.any():
                out[near] = self.prior.log_density(positions[near]) + self.power * self.log_likelihood(positions[near])
                if self.is_careful:
                    out[near] = np.minimum(out[near], 2.0 * self.ceiling - out[near])
                out[near] -= 0.5 * _PENALTY * beyond[near] ** 2
                if self.is_careful:
                    out[near] -= self.caution(positions[near])
        return np.where(np.isfinite(out), out, -np.inf)


class _Start(NamedTuple):
    """Where particles begin: a mixture of normals around good points and, where it has draws, the prior, in halves.

    In the neck of a hierarchy the mixture can be too low by any factor, and the posterior is no higher than the prior
    times the largest likelihood: so no particle has a weight that is unbounded (Hesterberg 1995). With either half
    alone it would be at most twice as good as with both.
    """

    mixture: NormalMixture
    prior: Prior

    is_proper = True

    def draw(self, rng, size):
        if not self.prior.is_proper:
            return self.mixture.sample(rng, size)
        number = size // 2
        return rng.permutation(np.concatenate([self.prior.draw(rng, number), self.mixture.sample(rng, size - number)]))

    def log_density(self, positions):
        log_mixture = self.mixture.log_density(positions)
        if not self.prior.is_proper:
            return log_mixture
        return np.logaddexp(log_mixture, self.prior.log_density(positions)) - np.log(2.0)


def drawn_from(rng, learned: LogPosterior, base: np.ndarray, sampler: ParticleSampler) -> Draws:
    """Return draws of a learned posterior by way of powers, from the prior and from around ``base`` (n, d)."""
    return sampler.sample_density(rng, _Start(fit_mixture(rng, base), learned.prior), learned)


# -- what a search carries from batch to batch ---------------------------------------------------------


class SearchBatch(NamedTuple):
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
    log_evidence: float
    """Of the surrogate that its fresh draws came from."""
    known_evidence: float
    """The same, as far as caution leaves it; NaN of a batch from elsewhere."""
    is_elsewhere: bool = False
    """Whether it was proposed by a second search, or lies beyond the ends of the draws."""


class SearchedEnd(NamedTuple):
    """An end of the draws, beyond which is evaluated at the first few places."""

    coordinate: int
    end: float
    """The quantile of the draws."""
    draws: np.ndarray
    """(k, d), beyond the quantile."""
    places: np.ndarray
    """(k, d), the same draws shifted outward."""


class SearchState(NamedTuple):
    """What is carried from batch to batch."""

    prior: Prior
    positions: np.ndarray
    """(n, d), all that were evaluated."""
    log_prior: np.ndarray
    log_likelihood: np.ndarray
    """(n,), -inf where there is none."""
    proposed: np.ndarray
    """(b, d), to be evaluated next."""
    num_start: int
    """Of the evaluations, the first ones, that are draws of the prior."""
    num_fresh: int = 0
    """Of those proposed, draws from the surrogate's posterior."""
    is_climbing: bool = True
    learned: LogPosterior | None = None
    particles: np.ndarray | None = None
    """(m, d), of the learned posterior at its power."""
    log_evidence: float = np.nan
    """Of the learned posterior at its power."""
    hyperparameters: Hyperparameters | None = None
    searched_at: int = 0
    """Number of values when all hyperparameters were last searched for."""
    radius: float = 1.0
    """Of the region, in units of sqrt(d)."""
    batches: tuple[SearchBatch, ...] = ()
    rival: "SearchState | None" = None
    """A second search, from other starting points, that learns from its own values alone."""
    is_rivals_turn: bool = False
    """Whether it proposed the next places."""
    next_rival: int = 0
    """Number of evaluations from which on another one may begin."""
    ends: tuple[SearchedEnd, ...] = ()
    """Beyond which the proposed places lie."""
    open_ends: tuple[OpenEnd, ...] | None = None
    """Of the draws at the last look beyond them; None before."""

    @property
    def log_density(self) -> np.ndarray:
        """The log posterior density (n,), up to its constant."""
        return self.log_prior + self.log_likelihood


# -- learning from all values so far -------------------------------------------------------------------

_SPANS = 20.0  # spreads of the best values, that are learned without a log scale
_FAR_NOISE = 0.3  # standard deviation of a value below the window, in units of its distance from there
_FAILED_DEPTH = 3.0  # spans below the best, where a place without density is put
_LEAKY = 20.0  # nats of error of a batch of draws from the bulk, above which particles may have left it
_LEAKING = 2  # such batches in a row, after which particles say nothing of the bulk
_NEW_SEARCH = 1.25  # growth of the number of values after which all hyperparameters are searched for again
_DEEPEST = np.finfo(float).max ** 0.25  # nats below the best: squares of variances are still numbers
_PASSES = 3  # of a fit, each with the deep places that the one before has too high


def learned_state(
    rng: np.random.Generator, state: SearchState, estimator: Values, sampler: ParticleSampler, noisy: bool
) -> SearchState:
    """Return the state with a surrogate of all values, and particles of it; as it was where they are too few."""
    count, d = state.positions.shape
    if np.isfinite(state.log_density).sum() < d + 3:
        return state
    values, noise, unit, power, is_good = _bounded(state.log_density, d, noisy)
    base = _base(state, is_good)
    coordinates = mean_and_factor(base)
    if coordinates is None:
        return state
    is_searched = state.hyperparameters is None or count >= _NEW_SEARCH * state.searched_at
    fit = _fitted(rng, state, values, noise, unit, coordinates, is_searched, estimator, noisy)
    inverse = np.linalg.inv(coordinates[1])
    region = BelievedRegion(inverse, state.positions[noise == 0.0] @ inverse.T, float(np.sqrt(d) * state.radius))
    finite, support = np.isfinite(state.log_density), None
    if not noisy and not finite.all():  # an estimate of zero is chance: there may be a likelihood all the same
        whitened = state.positions @ inverse.T
        support = Support(inverse, whitened[finite], whitened[~finite])
    learned = LogPosterior(fit, unit, 0.0, state.prior, region, power, support=support)
    learned = replace(learned, offset=_offset(learned, state, is_good))
    draws = drawn_from(rng, learned, base, sampler)
    return state._replace(
        learned=learned,
        particles=draws.positions,
        log_evidence=draws.log_evidence,
        hyperparameters=fit.hyperparameters,
        searched_at=count if is_searched else state.searched_at,
    )


def _base(state, is_good):
    """Return the places (m, d) whose mean and covariance are the coordinates, and from which particles begin."""
    near = state.positions[is_good]
    # Particles that leaked to where the values are far lower would widen the coordinates, and with them the region.
    own = [batch for batch in state.batches if not batch.is_elsewhere][-_LEAKING:]
    is_leaky = len(own) == _LEAKING and all(batch.power >= 1.0 and batch.error > _LEAKY for batch in own)
    return near if state.particles is None or is_leaky else np.concatenate([state.particles, near])


def _fitted(rng, state, values, noise, unit, coordinates, is_searched, estimator, noisy):
    """Return the regression on all values that say something, deep ones only where it would be too high."""
    mean, factor = coordinates
    known = np.where(np.isfinite(state.log_prior), state.log_prior, 0.0)
    is_used, start, search = noise == 0.0, state.hyperparameters, is_searched
    for _ in range(_PASSES):
        fit = estimator.fit(
            state.positions[is_used],
            (values - known)[is_used] / unit,
            rng,
            mean=mean,
            factor=factor,
            start=start,
            search=search,
            noisy=noisy,
            known=known[is_used] / unit,
            noise=noise[is_used] / unit,
        )
        start, search = fit.hyperparameters, False
        is_high = _too_high(fit, unit, state.positions, values, known, noise, is_used)
        if not noisy:
            is_high &= np.isfinite(state.log_density)  # a wall is not smooth, see Support
        if not is_high.any():
            break
        is_used = is_used | is_high
    return fit


def _too_high(fit, unit, positions, values, known, noise, is_used):
    """Return which deep places (n,) that were not used have a surrogate above the values of those that were.

    How deep a place is tells a smooth surrogate little; where it is deep by itself it had better not be told.
    """
    deep = np.flatnonzero(~is_used)
    out = np.zeros(len(values), dtype=bool)
    if deep.size:
        exact = noise == 0.0
        at = np.concatenate([np.flatnonzero(exact), deep])
        predicted = unit * fit.log_density(positions[at]) + known[at]
        level = predicted[: exact.sum()] - values[exact]  # the constant, as good values have it
        lowest = values[exact].min() + np.median(level)
        out[deep] = predicted[exact.sum() :] > lowest
    return out


def _bounded(log_density, num_dims, noisy):
    """Return log densities whose range can be learned, their known noise, the unit, the power, and what is good.

    What lies deeper below the best than the window (or than as many values as a quadratic needs) is put on a log scale
    with a noise to match: the surrogate need only know that it is low there, and must know that.
    """
    finite = np.isfinite(log_density)
    if not finite.any():
        return log_density, np.zeros(log_density.size), 1.0, 1.0, finite
    ordered = np.sort(log_density[finite])[::-1]
    ordered = np.maximum(ordered, ordered[0] - _DEEPEST)
    window = window_of(num_dims)
    fewest = int(0.75 * (num_dims + 1) * (num_dims + 2)) + 2 * num_dims + 10
    few = min(2 * num_dims + 6, max(num_dims + 3, ordered.size // 2), ordered.size)
    spread = ordered[0] - ordered[few - 1]
    span = max(min(ordered[0] - ordered[min(fewest, ordered.size) - 1], _SPANS * spread), window)
    depth = np.where(finite, ordered[0] - np.where(finite, log_density, 0.0), _FAILED_DEPTH * span)
    depth = np.minimum(depth, _DEEPEST)
    beyond = log_excess(depth, span)
    bearable = 2.0 * num_dims + 6.0 + (6.0 if noisy else 0.0)
    power = min(1.0, bearable / max(spread, 1e-300))
    is_good = depth <= max((num_dims + 5.0) / power, spread)
    return ordered[0] - np.minimum(depth, span) - beyond, _FAR_NOISE * beyond, span / window, power, is_good


def _offset(learned, state, is_good):
    """Return the constant of the log likelihood that the surrogate leaves out, from good points."""
    good = is_good & np.isfinite(state.log_density)
    return float(np.median(state.log_likelihood[good] - learned.log_likelihood(state.positions[good])))
