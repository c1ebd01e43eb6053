import math

import numpy as np
import pytest

from benchmarks.targets import banana, linear_regression
from pymc_kernel.mcmc import burn_in
from pymc_kernel.mcmc import kernel_hmc as kh


def remembered(levels, num_dims=2):
    arrival = burn_in.Arrival(num_dims)
    for level in levels:
        arrival = burn_in.remember(arrival, level)
    return arrival


def test_a_chain_that_rises_has_not_arrived():
    assert not burn_in.has_arrived(remembered(np.linspace(-1000.0, 0.0, 400)))
    assert not burn_in.has_arrived(remembered([0.0] * 10))
    arrival = remembered(np.minimum(np.linspace(-1000.0, 500.0, 400), 0.0))  # risen long ago: bounded, and flat
    assert burn_in.has_arrived(arrival)
    assert len(arrival.levels) < 100


def test_the_scale_falls_at_a_speed_that_does_not_vanish_and_stays_where_noise_holds_a_chain_fast():
    assert burn_in.learn_scale(burn_in.Arrival(2, (), 200), 0.0, -0.234, noisy=False)[1] == pytest.approx(-0.234 / 2.0)
    # The first steps are as quick as those of any walk.
    assert burn_in.learn_scale(burn_in.Arrival(50), 0.0, -0.234, noisy=False)[1] == pytest.approx(-0.234)
    arrival, log_scale = burn_in.Arrival(2), 0.0
    for _ in range(60):
        arrival, log_scale = burn_in.learn_scale(arrival, log_scale, -0.234, noisy=True)
    assert math.exp(log_scale) > 0.05


def learning(rng, target, start, num_steps):
    state, config = kh.init(start, target(start), kh.Config()), kh.Config()
    for _ in range(num_steps):
        state, info = kh.step(rng, state, target, config)
        state = kh.learn_from(state, info, config)
    assert state.arrival is None
    return state


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("target", [linear_regression(8), banana(0.1, 100.0, 20)], ids=["regression", "banana"])
def test_a_chain_from_a_poor_start_arrives_within_some_hundred_draws(target, seed):
    rng = np.random.default_rng(seed)
    some = target.sample(rng, 500)
    start = np.zeros(8) if target.num_dims == 8 else rng.standard_normal(20) * some.std(axis=0)
    state = learning(rng, target.log_density, start, 800)
    typical = np.quantile([target.log_density(x) for x in some], 0.001)
    assert state.log_density > typical
    levels = np.array([target.log_density(x) for x in state.visited.buffer[: state.visited.count]])
    # What is left of the way in is a small part of what the walk learns from.
    assert (levels > typical).mean() > 0.8


def test_a_chain_that_starts_in_the_bulk_soon_begins_to_learn(rng):
    assert learning(rng, lambda x: -0.5 * x @ x, rng.standard_normal(5), 150).num_learned > 50
