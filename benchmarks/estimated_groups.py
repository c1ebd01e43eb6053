"""Groups whose likelihoods are only estimated: ``pk.sample_khmc()``, exact chains that move group by group.

Twelve subjects of ``benchmarks.learned_parts``, whose levels of a drug share a random factor in each subject. It is
integrated out by importance sampling in each likelihood, with as many draws as give the log estimate a standard
deviation of .5 to 1 where the posterior is. That integral is known for normal logarithms, so that NUTS on the model
without noise is the truth. Estimates of each group count, those of the search too. Some two hours on one core.
"""

import logging
import time
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_parts import DRAWS, HOURS, STUCK, level, moments

NUM_GROUPS, NUM_CHAINS, BUDGET = 12, 4, 5000  # estimates of each group
NOISE, FACTOR_SD = 0.15, 0.3  # of the logarithms of single levels, and of the factor that those of a subject share
CENTER = np.log([1.5, 2.8, 32.0])


def _covariance(lib, noise):
    return noise**2 * lib.eye(HOURS.size) + FACTOR_SD**2 * lib.ones((HOURS.size, HOURS.size))


def estimate_with(num_draws):
    """Return a function with the log of an unbiased estimate for one subject.

    The factor is drawn near the mean residual, from a normal distribution three times as wide as the noise of that mean.
    It is not quite where the factor's posterior is, as importance densities are.
    """

    def log_estimate(rng, rates, noise, observed):
        residual = np.log(observed) - np.log(np.maximum(level(np.exp(rates)), 1e-9))
        z, sd = rng.standard_normal(num_draws), 3.0 * NOISE / np.sqrt(HOURS.size)
        factor = 0.8 * residual.mean() + sd * z
        log_terms = -0.5 * ((residual - factor[:, None]) ** 2).sum(axis=1) / noise**2 - HOURS.size * np.log(noise)
        log_terms += -0.5 * (factor / FACTOR_SD) ** 2 - np.log(FACTOR_SD) + 0.5 * z**2 + np.log(sd)
        return np.logaddexp.reduce(log_terms) - np.log(num_draws)

    return log_estimate


def _data(seed):
    """Return weights (groups,) and levels (groups, times)."""
    rng = np.random.default_rng([seed, 5])
    weights = 0.2 * rng.standard_normal(NUM_GROUPS)
    rates = CENTER + [0.4, 0.25, 0.2] * rng.standard_normal((NUM_GROUPS, 3))
    rates[:, 2] += 0.7 * weights
    factor = FACTOR_SD * rng.standard_normal((NUM_GROUPS, 1))
    noise = NOISE * rng.standard_normal((NUM_GROUPS, HOURS.size))
    return weights, level(np.exp(rates)) * np.exp(factor + noise)


def _symbolic_level(rates, dose=10.0):
    absorption, clearance, volume = (pt.exp(rates[:, i, None]) for i in range(3))
    loss = clearance / volume
    return dose / volume * absorption / (absorption - loss) * (pt.exp(-loss * HOURS) - pt.exp(-absorption * HOURS))


def groups(seed, is_exact, is_centred=True, has_noise=False):
    """Return a model of 43 parameters.

    Parameters
    ----------
    seed : int
    is_exact : bool
        Whether the likelihoods are known, in place of estimated.
    is_centred : bool
        Whether the rates themselves are parameters.
    has_noise : bool
        Whether the noise of single levels is a parameter, which all likelihoods have as an input, in place of the slope
        of the volume in the weight.
    """
    weights, observed = _data(seed)
    with pm.Model() as model:
        center = pm.Normal("center", [0.5, 1.0, 3.5], 1.0, shape=3)
        spread = pm.HalfNormal("spread", 0.5, shape=3)
        mean = center
        if not has_noise:
            slope = pm.Normal("slope", 0.0, 1.0)
            mean = center + slope * weights[:, None] * np.array([0.0, 0.0, 1.0])
        noise = pm.HalfNormal("noise", 0.3) if has_noise else NOISE
        if is_centred:
            rates = pm.Normal("rates", mean, spread, shape=(NUM_GROUPS, 3))
        else:
            rates = mean + spread * pm.Normal("effect", 0.0, 1.0, shape=(NUM_GROUPS, 3))
        if is_exact:
            covariance = _covariance(pt, noise)
            levels = pt.log(pt.maximum(_symbolic_level(rates), 1e-9))
            pm.MvNormal("y", levels, covariance, observed=np.log(observed))
        else:
            for i, of_group in enumerate(observed):
                log_estimate = estimate_with(4 + i // 3)
                pk.EstimatedLikelihood(f"y{i}", log_estimate, rates[i], noise, observed=of_group)
    return model
