import math

import numpy as np
import pytest

from benchmarks.targets import banana, linear_regression
from pymc_kernel.mcmc import burn_in
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.history import append, empty_history


def remembered(levels, num_dims=2):
    arrival = burn_in.depart(num_dims)
    for level in levels:
        arrival = burn_in.remember(arrival, level)
    return arrival


def test_a_chain_that_rises_has_not_arrived():
    assert not burn_in.has_arrived(remembered(np.linspace(-1000.0, 0.0, 400)))
    assert not burn_in.has_arrived(remembered([0.0] * 10))
    # Risen long ago: what is remembered is bounded, and flat.
    arrival = remembered(np.minimum(np.linspace(-1000.0, 500.0, 400), 0.0))
    assert burn_in.has_arrived(arrival)
    assert len(arrival.levels) < 100


def histories(levels):
    places, values = empty_history(1000, 1), empty_history(1000, 1)
    for i, level in enumerate(levels):
        places, values = append(places, np.array([float(i)])), append(values, np.array([level]))
    return places, values


def test_the_bulk_of_a_rising_chain_is_its_last_sixth(rng):
    assert burn_in.bulk(*histories(np.arange(600.0)))[0, 0] == pytest.approx(500.0, abs=1.0)
    # A jump: what came before it is forgotten, what came after is kept, whatever the noise.
    levels = np.where(np.arange(900) < 300, -50.0, 0.0) + rng.standard_normal(900)
    assert 300.0 <= burn_in.bulk(*histories(levels))[0, 0] < 320.0
    assert len(burn_in.bulk(*histories(levels), fraction=0.5)) == 450


def test_all_of_a_chain_without_a_burn_in_is_its_bulk(rng):
    assert len(burn_in.bulk(*histories(rng.standard_normal(600)))) > 580
    assert len(burn_in.bulk(*histories(np.zeros(600)))) == 600


def test_the_covariance_follows_the_steps_that_were_accepted(rng):
    """Steps along one line: the walk becomes long in that direction, and no wider in the other."""
    arrival, factor, log_scale = burn_in.depart(2), np.eye(2), 0.0
    for _ in range(200):
        step = np.array([1.0, 1.0]) * rng.standard_normal()
        arrival, factor, _ = burn_in.learn_step(arrival, factor, log_scale, step, 0.0, noisy=False)
    covariance = factor @ factor.T
    along, across = np.array([1.0, 1.0]) / math.sqrt(2.0), np.array([1.0, -1.0]) / math.sqrt(2.0)
    assert along @ covariance @ along > 0.5
    assert across @ covariance @ across < 1e-3
    _, same, smaller = burn_in.learn_step(arrival, factor, log_scale, None, -0.234, noisy=False)
    assert same is factor
    assert smaller == pytest.approx(-0.234 / 2.0)
    # The first steps are as quick as those of any walk.
    first = burn_in.learn_step(burn_in.depart(50), np.eye(50), 0.0, None, -0.234, noisy=False)
    assert first[2] == pytest.approx(-0.234)


def test_steps_without_a_direction_leave_the_covariance_as_it_is(rng):
    """The path of independent steps has their variance: 30,000 of them, of which every fourth tells something new."""
    arrival, factor, d = burn_in.depart(3), np.eye(3), 3
    paths, sizes = [], []
    for _ in range(30_000):
        # In the units of the first factor, as if the target had this covariance.
        arrival, factor, _ = burn_in.learn_step(arrival, factor, 0.0, rng.standard_normal(d), 0.0, noisy=False)
        paths.append(arrival.path)
        sizes.append((factor**2).sum() / d)
    np.testing.assert_allclose(np.cov(np.array(paths).T), np.eye(d), atol=0.06)
    assert np.mean(sizes) == pytest.approx(1.0, abs=0.06)


def test_a_chain_that_noise_holds_fast_keeps_its_scale():
    arrival, factor, log_scale = burn_in.depart(2), np.eye(2), 0.0
    for _ in range(60):
        arrival, factor, log_scale = burn_in.learn_step(arrival, factor, log_scale, None, -0.234, noisy=True)
    assert math.exp(log_scale) > 0.05


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("target", [linear_regression(8), banana(0.1, 100.0, 20)], ids=["regression", "banana"])
def test_a_chain_from_a_poor_start_arrives_within_some_hundred_draws(target, seed):
    rng, config = np.random.default_rng(seed), kh.Config()
    some = target.sample(rng, 500)
    start = np.zeros(8) if target.num_dims == 8 else rng.standard_normal(20) * some.std(axis=0)
    state = kh.init(start, target.log_density(start), config)
    for _ in range(800):
        state, info = kh.step(rng, state, target.log_density, config)
        state = kh.learn_from(state, info, config)
    assert state.arrival is None
    typical = np.quantile([target.log_density(x) for x in some], 0.001)
    assert state.log_density > typical
    levels = state.levels.buffer[: state.levels.count, 0]
    # What is left of the way in is a small part of what the walk learns from.
    assert (levels > typical).mean() > 0.8


def test_a_chain_that_starts_in_the_bulk_soon_begins_to_learn(rng):
    config = kh.Config()
    state = kh.init(rng.standard_normal(5), 0.0, config)
    for _ in range(150):
        state, info = kh.step(rng, state, lambda x: -0.5 * x @ x, config)
        state = kh.learn_from(state, info, config)
    assert state.arrival is None
    assert state.num_learned > 50
