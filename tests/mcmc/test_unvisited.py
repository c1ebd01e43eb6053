import numpy as np
import pytest

from benchmarks.targets import banana
from pymc_kernel.mcmc.chain_checks import KnownPlaces, missed, other_hills


def two_modes(x):
    """A fifth of the mass at -3, the rest at 3; standard deviations of .2."""
    return float(np.logaddexp(np.log(0.2) - 12.5 * (x[0] + 3.0) ** 2, np.log(0.8) - 12.5 * (x[0] - 3.0) ** 2))


def evaluated(positions, log_density):
    return KnownPlaces(positions, np.array([log_density(p) for p in positions]))


def test_a_mode_that_no_draw_is_near_is_found(rng):
    places = evaluated(np.array([[2.9], [0.0], [-3.1]]), two_modes)
    draws = 3.0 + 0.2 * rng.standard_normal((200, 1))
    levels = np.array([two_modes(x) for x in draws])
    assert missed(places, draws, levels) == pytest.approx(-3.1)
    draws[:4] = -3.0
    assert missed(places, draws, levels) is None


def test_a_place_that_is_not_likely_is_no_mode(rng):
    places = evaluated(np.array([[0.0], [-1.0], [8.0]]), two_modes)
    draws = 3.0 + 0.2 * rng.standard_normal((200, 1))
    assert missed(places, draws, np.array([two_modes(x) for x in draws])) is None


def test_too_few_draws_or_a_chain_that_stands_tell_nothing():
    places = evaluated(np.array([[-3.0]]), two_modes)
    assert missed(places, np.full((99, 1), 3.0) + 0.01 * np.arange(99)[:, None], np.full(99, -0.2)) is None
    assert missed(places, np.full((200, 1), 3.0), np.full(200, -0.2)) is None


@pytest.mark.parametrize("num_dims", [1, 3, 10, 40])
def test_independent_points_of_the_target_raise_no_alarm(rng, num_dims):
    """Units a thousand apart, correlations of .9, and points that are themselves draws of the target."""
    factor = np.linalg.cholesky(np.full((num_dims, num_dims), 0.9) + 0.1 * np.eye(num_dims))
    factor *= np.logspace(-3, 3, num_dims)[:, None]
    precision = np.linalg.inv(factor @ factor.T)

    def log_density(x):
        return -0.5 * float(x @ precision @ x)

    alarms = 0
    for _ in range(50):
        places = evaluated(rng.standard_normal((50, num_dims)) @ factor.T, log_density)
        draws = rng.standard_normal((100, num_dims)) @ factor.T
        alarms += missed(places, draws, np.array([log_density(x) for x in draws])) is not None
    assert alarms == 0


def test_the_other_hill_is_climbed_and_only_that(rng):
    places = evaluated(np.array([[2.8], [-1.9], [3.3], [-1.5], [0.4]]), two_modes)
    calls = []

    def counted(x):
        calls.append(x)
        return two_modes(x)

    tops = other_hills(places, counted, np.array([2.0]), 100, rng)
    assert tops.positions[:, 0] == pytest.approx([-3.0], abs=0.2)
    assert tops.log_densities[0] == two_modes(tops.positions[0])
    assert len(calls) <= 100
    assert not other_hills(places, two_modes, np.array([2.0]), 29, rng).positions.size


def test_climbs_are_in_units_of_the_target_and_end_with_the_budget(rng):
    """Five modes that are millions apart: three climbs of thirty evaluations, and six to see that the hills are new."""
    centers, calls = 1e6 * np.array([0.0, 10.0, 30.0, 70.0, 150.0]), []

    def peaks(x):
        calls.append(x)
        return -12.5e-12 * float(((x[0] - centers) ** 2).min())

    places = evaluated(centers[:, None] + 3e5, peaks)
    calls.clear()
    tops = other_hills(places, peaks, np.array([1e6]), 100, rng)
    assert len(tops.positions) == 3
    assert len(calls) == 96
    assert tops.log_densities.min() > -0.1 > places.log_densities.max()


def test_one_hill_costs_an_evaluation_a_place(rng):
    places = evaluated(rng.standard_normal((20, 5)), lambda x: -0.5 * float(x @ x))
    calls = []

    def counted(x):
        calls.append(x)
        return -0.5 * float(x @ x)

    assert len(other_hills(places, counted, np.ones(5), 1000, rng).positions) == 0
    assert len(calls) == 19


def test_the_arms_of_a_banana_are_no_missed_modes(rng):
    target = banana(0.5, 4.0, 2)
    places = evaluated(np.array([[0.0, -2.0], [3.0, 2.0], [-3.0, 2.0]]), target.log_density)
    tops = other_hills(places, target.log_density, np.array([2.0, 1.0]), 1000, rng)
    draws = target.sample(rng, 500)
    levels = np.array([target.log_density(x) for x in draws])
    assert missed(places, draws, levels) is None
    assert missed(tops, draws, levels) is None


def test_places_without_density_are_left_out(rng):
    places = KnownPlaces(np.array([[0.0], [1.0], [2.0]]), np.array([np.nan, -np.inf, -1.0]))
    assert len(other_hills(places, lambda x: -1.0, np.ones(1), 100, rng).positions) == 0
    draws = 2.0 + 0.1 * rng.standard_normal((100, 1))
    assert missed(places, draws, np.full(100, -1.0)) is None
