"""Common random numbers: the seed of an estimate is part of the chain's state."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

import pymc_kernel as pk
from pymc_kernel.plugin.model.log_density import compile_log_density
from tests.plugin.models import abc_model, noisy_model, sample


def wavy_normal(rng, theta, observed):
    """Log of an estimate of exp(-theta^2 / 2): times 1 + 0.95 cos(2 theta + a uniform phase), which has mean one."""
    phase = rng.uniform(0.0, 2.0 * np.pi)
    return -0.5 * float(theta) ** 2 + np.log1p(0.95 * np.cos(2.0 * float(theta) + phase))


@pytest.mark.machine_code
@pytest.mark.long
def test_the_posterior_stays_exact():
    """Chains agree on mean zero and spread one: small Monte Carlo errors, and within 3.5 of them."""
    model = noisy_model(wavy_normal, reuse_noise=0.8)
    theta = sample(model, pk.KAMH, cores=1, draws=4000, tune=500)["posterior"]["theta"].values
    errors = [float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method=m)) for m in ("mean", "sd")]
    assert max(errors) < 0.05
    assert abs(theta.mean()) < 3.5 * errors[0]
    assert abs(theta.std() - 1.0) < 3.5 * errors[1]


def spread_of_log_ratio(reuse_noise):
    """Return the standard deviation of the noise in the log ratio of a proposal that lies nearby."""
    model = abc_model(epsilon=0.2, reuse_noise=reuse_noise)
    density = compile_log_density(model, model.value_vars, model.initial_point(), "a test")
    density.seed(np.random.default_rng(1))
    ratios = []
    for _ in range(400):
        here = density(np.array([0.6]))
        density.settle(True)
        ratios.append(density(np.array([0.601])) - here)
    return np.std(ratios)


def test_they_lower_the_noise_of_the_acceptance_ratio():
    assert spread_of_log_ratio(0.9) < 0.75 * spread_of_log_ratio(0.0)


def test_a_probability_of_one_is_refused():
    with pytest.raises(ValueError, match="reuse_noise"):
        abc_model(reuse_noise=1.0)
