from types import SimpleNamespace

import numpy as np
import pymc as pm
import pytest
from scipy.signal import lfilter

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.exact_step import enough_transitions


def correlated(rng, correlation, num_draws=4000):
    """Return draws (n, 2) of which only the second parameter is correlated from draw to draw."""
    noise = rng.standard_normal((num_draws, 2))
    noise[:, 1] = lfilter([1.0], [1.0, -correlation], noise[:, 1])
    return noise


@pytest.mark.parametrize(("correlation", "number"), [(0.0, 2), (0.6, 4), (0.99, 10)])
def test_the_slowest_parameter_decides_how_many_transitions_a_draw_has(rng, correlation, number):
    """One effective draw of an autoregression takes (1 + r) / (1 - r) draws."""
    assert abs(enough_transitions(correlated(rng, correlation)) - number) <= 1


def test_the_way_to_the_posterior_does_not_count(rng):
    draws = correlated(rng, 0.0)
    draws[:1500] += np.linspace(100.0, 0.0, 1500)[:, None]
    assert enough_transitions(draws) <= 2


@pytest.mark.parametrize("draws", [[], np.zeros((3, 2)), np.zeros((100, 2))])
def test_where_nothing_is_known_of_the_chain_a_draw_has_most_transitions(draws):
    assert enough_transitions(draws) == 10


def test_settings_of_nuts_arrive():
    with pm.Model() as model:
        pm.Normal("x")
    model.emulation = SimpleNamespace(draws=np.zeros((5, 1)), rhat=1.0)
    with model:
        assert pk.EmulatedNUTS(model).target_accept == 0.95
        step = pk.EmulatedNUTS(model, target_accept=0.7, max_treedepth=3)
    assert (step.target_accept, step.max_treedepth) == (0.7, 3)
