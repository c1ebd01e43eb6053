"""The surrogate of a search: kernel regression on all values so far, and particles of its posterior.

Imports NumPy, siblings and lower floors only.
"""

from dataclasses import replace

import numpy as np

from pymc_kernel.linalg import mean_and_factor
from pymc_kernel.rounds.learned_posterior import LogPosterior, Region, drawn_from
from pymc_kernel.rounds.particles import ParticleSampler
from pymc_kernel.rounds.search_state import State
from pymc_kernel.scores.values import Values

__all__ = ["learned_state"]

_SPANS = 20.0  # spreads of the best values, that are learned without a log scale
_FAR_NOISE = 0.3  # standard deviation of a value below the window, in units of its distance from there
_FAILED_DEPTH = 3.0  # spans below the best, where a place without density is put
_LEAKY = 20.0  # nats of error of a batch of draws from the bulk, above which particles may have left it
_LEAKING = 2  # such batches in a row, after which particles say nothing of the bulk
_NEW_SEARCH = 1.25  # growth of the number of values after which all hyperparameters are searched for again
_DEEPEST = np.finfo(float).max ** 0.25  # nats below the best: squares of variances are still numbers
_PASSES = 3  # of a fit, each with the deep places that the one before has too high


def learned_state(
    rng: np.random.Generator, state: State, estimator: Values, sampler: ParticleSampler, noisy: bool
) -> State:
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
    region = Region(inverse, state.positions[noise == 0.0] @ inverse.T, float(np.sqrt(d) * state.radius))
    learned = LogPosterior(fit, unit, 0.0, state.prior, region, power)
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
    window = 4.0 * num_dims + 10.0
    fewest = int(0.75 * (num_dims + 1) * (num_dims + 2)) + 2 * num_dims + 10
    few = min(2 * num_dims + 6, max(num_dims + 3, ordered.size // 2), ordered.size)
    spread = ordered[0] - ordered[few - 1]
    span = max(min(ordered[0] - ordered[min(fewest, ordered.size) - 1], _SPANS * spread), window)
    depth = np.where(finite, ordered[0] - np.where(finite, log_density, 0.0), _FAILED_DEPTH * span)
    depth = np.minimum(depth, _DEEPEST)
    beyond = span * np.log1p(np.maximum(depth - span, 0.0) / span)
    bearable = 2.0 * num_dims + 6.0 + (6.0 if noisy else 0.0)
    power = min(1.0, bearable / max(spread, 1e-300))
    is_good = depth <= max((num_dims + 5.0) / power, spread)
    return ordered[0] - np.minimum(depth, span) - beyond, _FAR_NOISE * beyond, span / window, power, is_good


def _offset(learned, state, is_good):
    """Return the constant of the log likelihood that the surrogate leaves out, from good points."""
    good = is_good & np.isfinite(state.log_density)
    return float(np.median(state.log_likelihood[good] - learned.log_likelihood(state.positions[good])))
