"""Simulators with known posteriors, drawn anew for each seed: for ablations of methods that learn from simulations.

Parameters are standard normal, in two coordinates but for some families; each family has a simulator, the density of
what it simulates, and shapes and sizes that the seed draws. The posterior of one simulated observation is that of some
hundred thousand draws of the prior, resampled by their likelihood and moved by differential evolution (ter Braak 2006).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, ndtr, xlogy

__all__ = ["FAMILIES", "MATCHED", "Problem", "exact_draws", "problem_of"]

_NUM_PRIOR, _NUM_WALKERS, _NUM_STEPS = 200_000, 2000, 120  # half of the steps are kept


class Problem(NamedTuple):
    """A simulator with a standard normal prior of ``width`` parameters, and its log likelihood."""

    width: int
    simulate: Callable  # (rng, parameters (n, p)) -> data (n, q)
    log_likelihood: Callable  # (parameters (n, p), data (q,)) -> (n,)


def _normal(means_of, scales_of, width):
    """Return independent normal data whose means and scales depend on the parameters."""

    def simulate(rng, z):
        means = means_of(z)
        return means + scales_of(z) * rng.standard_normal(means.shape)

    def log_likelihood(z, x):
        scales = np.broadcast_to(scales_of(z), (len(z), len(x)))
        return (-0.5 * ((x - means_of(z)) / scales) ** 2 - np.log(scales)).sum(axis=1)

    return Problem(width, simulate, log_likelihood)


def linear(rng):
    """Normal data, linear in the parameters."""
    slopes, scale = rng.standard_normal((2, rng.integers(3, 7))), rng.uniform(0.3, 1.0)
    return _normal(lambda z: z @ slopes, lambda z: np.full((1, slopes.shape[1]), scale), 2)


def bends(rng):
    """Nine data that bend with three parameters, each in its own way, with noise that depends on them."""
    directions = rng.standard_normal((3, 9)) / np.sqrt(3.0)
    kinds, growth = rng.integers(4, size=9), 0.3 * rng.standard_normal((3, 1))
    shapes = (np.exp, lambda u: np.sin(2.0 * u), lambda u: u**2, lambda u: u + 0.3 * u**3)
    scale = rng.uniform(0.2, 0.5)

    def means(z):
        along = z @ directions
        return np.stack([shapes[k](along[:, j]) for j, k in enumerate(kinds)], axis=1)

    return _normal(means, lambda z: scale * np.exp(z @ growth), 3)


def growth(rng):
    """Ten raw data of a curve that saturates; they say much."""
    times, noise = np.sort(rng.uniform(0.2, 4.0, 10)), rng.uniform(0.05, 0.2)
    return _normal(
        lambda z: z[:, :1] + np.log(-np.expm1(-np.exp(0.5 * z[:, 1:]) * times)), lambda z: np.full((1, 10), noise), 2
    )


def modes(rng):
    """A square, whose sign is lost, and a wave."""
    noise, wave = rng.uniform(0.15, 0.4, 2), rng.uniform(0.3, 1.0)
    return _normal(
        lambda z: np.stack([z[:, 0] ** 2, z[:, 1] + wave * np.sin(2.0 * z[:, 0])], axis=1), lambda z: noise[None], 2
    )


def counts(rng):
    """Poisson counts with a logarithmic link."""
    slopes, shift = 0.7 * rng.standard_normal((2, 4)), rng.uniform(0.0, 1.5)

    def rates(z):
        return np.exp(shift + z @ slopes)

    return Problem(
        2,
        lambda rng, z: rng.poisson(rates(z)).astype(float),
        lambda z, x: (x * np.log(rates(z)) - rates(z)).sum(axis=1),
    )


def proportions(rng):
    """Successes in twenty trials, three times."""
    slopes, shift = rng.standard_normal((2, 3)), rng.uniform(-2.0, 1.0)

    def log_likelihood(z, x):
        chance = np.clip(expit(shift + z @ slopes), 1e-15, 1.0 - 1e-15)
        return (xlogy(x, chance) + xlogy(20.0 - x, 1.0 - chance)).sum(axis=1)

    return Problem(2, lambda rng, z: rng.binomial(20, expit(shift + z @ slopes)).astype(float), log_likelihood)


def tally(rng):
    """One number of events in a short time, or of successes in three trials: many simulations give just the data."""
    slopes, shift, is_rate = rng.standard_normal((2, 1)), rng.uniform(-1.0, 0.5), rng.random() < 0.5

    def simulate(rng, z):
        along = shift + z @ slopes
        return (rng.poisson(np.exp(along)) if is_rate else rng.binomial(3, expit(along))).astype(float)

    def log_likelihood(z, x):
        along = (shift + z @ slopes)[:, 0]
        return x * along - (np.exp(along) if is_rate else 3.0 * np.logaddexp(0.0, along))

    return Problem(2, simulate, log_likelihood)


def trials(rng):
    """Successes in twenty trials, often none or all of them."""
    slope = rng.uniform(1.0, 2.5)

    def log_likelihood(z, x):
        along = slope * z[:, 0]
        return x * along - 20.0 * np.logaddexp(0.0, along)

    return Problem(1, lambda rng, z: rng.binomial(20, expit(slope * z)).astype(float), log_likelihood)


def zeros(rng):
    """One Poisson count that is zero for another reason, too."""
    mean, slope = rng.uniform(0.0, 1.0), rng.uniform(0.5, 1.0)

    def simulate(rng, z):
        return rng.poisson(np.exp(mean + slope * z[:, :1])) * (rng.random((len(z), 1)) > expit(z[:, 1:])).astype(float)

    def log_likelihood(z, x):
        along, share = mean + slope * z[:, 0], expit(z[:, 1])
        count = np.exp(x * along - np.exp(along) - gammaln(x + 1.0))
        return np.log((1.0 - share) * count + share * (x == 0.0))

    return Problem(2, simulate, log_likelihood)


def rounded(rng):
    """A number whose noise is a tenth of what it is rounded to."""
    slope = rng.uniform(1.0, 2.5)

    def log_likelihood(z, x):
        away = 10.0 * (x - slope * z[:, 0])
        return np.log(np.maximum(ndtr(away + 5.0) - ndtr(away - 5.0), 1e-300))

    return Problem(1, lambda rng, z: np.round(slope * z + 0.1 * rng.standard_normal(z.shape)), log_likelihood)


def gamma_sample(rng):
    """A gamma sample of unknown shape and scale, by its sufficient summaries."""
    size = int(rng.integers(5, 30))

    def shape_scale(z):
        return np.exp(0.5 + 0.7 * z[:, 0]), np.exp(0.7 * z[:, 1])

    def simulate(rng, z):
        shape, scale = shape_scale(z)
        sample = np.maximum(rng.gamma(shape[:, None], scale[:, None], (len(z), size)), 1e-300)
        return np.stack([np.log(sample.mean(axis=1)), np.log(sample).mean(axis=1)], axis=1)

    def log_likelihood(z, x):
        shape, scale = shape_scale(z)
        return size * ((shape - 1.0) * x[1] - np.exp(x[0]) / scale - gammaln(shape) - shape * np.log(scale))

    return Problem(2, simulate, log_likelihood)


def edge(rng):
    """The largest and the mean of ten uniform numbers up to a bound, seen with noise: one side of it is an edge."""
    size, noise = int(rng.integers(5, 20)), rng.uniform(0.3, 1.0)

    def simulate(rng, z):
        largest = np.log(rng.random((len(z), size)).max(axis=1)) + 0.5 * z[:, 0]
        return np.stack([largest, z[:, 0] + z[:, 1] + noise * rng.standard_normal(len(z))], axis=1)

    def log_likelihood(z, x):
        inside = x[0] <= 0.5 * z[:, 0]
        return np.where(inside, -0.5 * size * z[:, 0] - 0.5 * ((x[1] - z.sum(axis=1)) / noise) ** 2, -np.inf)

    return Problem(2, simulate, log_likelihood)


def autoregression(rng):
    """An autoregressive series of order one that begins at zero, by its sufficient summaries."""
    length = int(rng.integers(20, 60))

    def simulate(rng, z):
        slope, series = np.tanh(z[:, 0]), np.zeros((length + 1, len(z)))
        for t in range(length):
            series[t + 1] = slope * series[t] + np.exp(0.5 * z[:, 1]) * rng.standard_normal(len(z))
        before, after = series[:-1], series[1:]
        first, second, last = (before**2).sum(axis=0), (before * after).sum(axis=0), (after**2).sum(axis=0)
        return np.stack([second / first, np.log(first), np.log(last)], axis=1)

    def log_likelihood(z, x):
        slope, first, last = np.tanh(z[:, 0]), np.exp(x[1]), np.exp(x[2])
        squares = last - 2.0 * slope * x[0] * first + slope**2 * first
        return -0.5 * squares / np.exp(z[:, 1]) - 0.5 * length * z[:, 1]

    return Problem(2, simulate, log_likelihood)


def heavy_tails(rng):
    """Six numbers with Student's noise of two degrees of freedom around one parameter, scaled by the other."""
    size = int(rng.integers(4, 9))

    def simulate(rng, z):
        return z[:, :1] + np.exp(0.5 * z[:, 1:]) * rng.standard_t(2.0, (len(z), size))

    def log_likelihood(z, x):
        scaled = (x - z[:, :1]) * np.exp(-0.5 * z[:, 1:])
        return -1.5 * np.log1p(0.5 * scaled**2).sum(axis=1) - 0.5 * size * z[:, 1]

    return Problem(2, simulate, log_likelihood)


def useless(rng):
    """Poisson counts, and twenty numbers that say nothing."""
    inner = counts(rng)

    def simulate(rng, z):
        return np.concatenate([inner.simulate(rng, z), rng.standard_normal((len(z), 20))], axis=1)

    return Problem(2, simulate, lambda z, x: inner.log_likelihood(z, x[:4]))


_ALL = (linear, bends, growth, modes, counts, proportions, gamma_sample, edge, autoregression, heavy_tails, useless)
FAMILIES = {family.__name__: family for family in _ALL}
MATCHED = {family.__name__: family for family in (tally, trials, zeros, rounded)}


def problem_of(family: str, seed: int, num_simulations: int, families: Mapping[str, Callable] = FAMILIES):
    """Return the problem of a seed, simulations (parameters, data), and data whose posterior is wanted."""
    rng = np.random.default_rng([seed, *family.encode()])
    problem = families[family](rng)
    latent = rng.standard_normal((num_simulations + 1, problem.width))
    data = problem.simulate(rng, latent)
    return problem, latent[1:], data[1:], data[0]


def exact_draws(problem: Problem, observed: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return draws (m, p) of the posterior."""

    def log_density(z):
        return problem.log_likelihood(z, observed) - 0.5 * (z**2).sum(axis=1)

    prior = rng.standard_normal((_NUM_PRIOR, problem.width))
    logs = problem.log_likelihood(prior, observed)
    weights = np.exp(logs - logs.max())
    here = prior[rng.choice(len(prior), size=_NUM_WALKERS, p=weights / weights.sum())]
    height, kept, half = log_density(here), [], _NUM_WALKERS // 2
    for step in range(_NUM_STEPS):
        for own, others in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
            pairs = rng.choice(half, size=(2, half))
            # Every tenth step may cross from mode to mode.
            scale = 1.0 if step % 10 == 0 else 2.38 / np.sqrt(2.0 * problem.width) * rng.uniform(0.2, 1.0, (half, 1))
            towards = here[others][pairs[0]] - here[others][pairs[1]]
            new = here[own] + scale * towards + 1e-6 * rng.standard_normal(towards.shape)
            new_height = log_density(new)
            accepted = np.log(rng.random(half)) < new_height - height[own]
            here[own] = np.where(accepted[:, None], new, here[own])
            height[own] = np.where(accepted, new_height, height[own])
        if step >= _NUM_STEPS // 2 and step % 4 == 0:
            kept.append(here.copy())
    return np.concatenate(kept)
