import numpy as np
import pymc as pm
import pytest

from pymc_kernel.plugin.emulation.chains import Chains


def two_powers(power):
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 3.0)
        pm.Normal("y", x, 1.0, observed=2.0)
    rng = np.random.default_rng(1)
    chains = Chains(model)
    chains.begin(np.zeros((2, 1)), np.ones(1), rng)
    explorers = chains.tempered(np.zeros((2, 1)), np.ones(1), rng)
    explorers.set_power(power)
    return chains, explorers


def places(chains):
    return chains.places[:, 0]


def test_a_power_tempers_the_likelihood_alone():
    chains, explorers = two_powers(0.25)
    x = np.array([0.7])
    prior, likelihood = -0.5 * (0.7 / 3.0) ** 2 - np.log(3.0), -0.5 * 1.3**2
    constant = -0.5 * np.log(2.0 * np.pi)
    assert chains.log_density(x) == pytest.approx(prior + likelihood + 2.0 * constant)
    assert explorers.log_density(x) == pytest.approx(prior + 0.25 * likelihood + 1.25 * constant)


def test_places_are_exchanged_by_the_ratio_of_both_densities():
    chains, explorers = two_powers(0.25)
    rng = np.random.default_rng(2)
    chains.go_to(np.full((2, 1), -3.0))
    explorers.go_to(np.full((2, 1), 2.0))
    chains.exchange(explorers, rng)  # the likelihood is larger where the explorers are
    np.testing.assert_array_equal(places(chains), 2.0)
    np.testing.assert_array_equal(places(explorers), -3.0)
    count = 0
    for _ in range(500):
        chains.go_to(np.full((2, 1), 2.0))
        explorers.go_to(np.full((2, 1), 1.0))
        chains.exchange(explorers, rng)
        count += (places(chains) == 1.0).sum()
    probability = np.exp(0.75 * -0.5)
    assert count / 1000 == pytest.approx(probability, abs=4.0 * np.sqrt(probability * (1.0 - probability) / 1000))
