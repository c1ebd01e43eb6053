"""Common random numbers: the seed of an estimate is part of the chain's state."""

import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats

import pymc_kernel as pk
from pymc_kernel.plugin.model.log_density import compile_log_density
from tests.plugin.models import normal_simulator, same_draws, sample


def wavy_normal(rng, theta, observed):
    """Log of an estimate of exp(-theta^2 / 2): times 1 + 0.95 cos(2 theta + a uniform phase), which has mean one."""
    phase = rng.uniform(0.0, 2.0 * np.pi)
    return -0.5 * float(theta) ** 2 + np.log1p(0.95 * np.cos(2.0 * float(theta) + phase))


def wavy_model(reuse_noise):
    with pm.Model() as model:
        theta = pm.Flat("theta", initval=0.1)
        pk.EstimatedLikelihood("y", wavy_normal, theta, observed=np.zeros(1), reuse_noise=reuse_noise)
    return model


def abc_model(reuse_noise):
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        settings = {"epsilon": 0.2, "num_simulations": 5, "reuse_noise": reuse_noise}
        pk.KernelABC("y", normal_simulator, theta, observed=np.array([1.0]), **settings)
    return model


def is_exact(theta):
    """Return whether chains agree on mean zero and spread one: small Monte Carlo errors, and within 3.5 of them."""
    errors = [float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method=m)) for m in ("mean", "sd")]
    return max(errors) < 0.05 and abs(theta.mean()) < 3.5 * errors[0] and abs(theta.std() - 1.0) < 3.5 * errors[1]


def drawn(step, reuse_noise, seed=5):
    idata = sample(wavy_model(reuse_noise), step, cores=1, draws=4000, tune=500, seed=seed)
    return idata["posterior"]["theta"].values


@pytest.mark.parametrize("step", [pytest.param(pk.AdaptiveMetropolis, marks=pytest.mark.slow), pk.KAMH])
@pytest.mark.machine_code
def test_the_posterior_stays_exact(step):
    assert is_exact(drawn(step, 0.8))


def spread_of_log_ratio(reuse_noise):
    """Return the standard deviation of the noise in the log ratio of a proposal that lies nearby."""
    model = abc_model(reuse_noise)
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


def test_same_draws_for_any_number_of_cores():
    one = sample(abc_model(0.5), pk.KernelHMC, cores=1, draws=50, tune=100)
    assert same_draws(one, sample(abc_model(0.5), pk.KernelHMC, cores=2, draws=50, tune=100))


def test_a_probability_of_one_is_refused():
    with pytest.raises(ValueError, match="reuse_noise"):
        abc_model(1.0)
