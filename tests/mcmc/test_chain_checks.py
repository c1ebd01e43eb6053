"""What chains say of themselves: mass that a surrogate misses, modes that no draw is near, ends that are none."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

from benchmarks.targets import banana, funnel
from pymc_kernel.mcmc import chain_checks
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.chain_checks import KnownPlaces, coverage_of, is_missing_mass, missed, open_ends, other_hills
from tests.mcmc.chains import taught
from tests.reference.exact_draws import autoregressive


def tail_of(log_weights):
    return chain_checks._tail(np.exp(np.sort(log_weights) - log_weights.max()))


def test_the_shape_is_arviz_s_and_weights_that_are_no_trouble(rng):
    for log_weights in (rng.standard_normal(1000), 1.2 * rng.exponential(size=1000), 3.0 * rng.standard_normal(300)):
        other = float(array_stats.psislw(log_weights.max() - log_weights)[1])
        assert tail_of(log_weights)[2] == pytest.approx(other, abs=0.05)
    # Without a tail, not a number, or heavy but within a factor of two of each other.
    assert tail_of(np.zeros(500)) is None
    heavy = np.log1p(1e-3 * stats.genpareto(1.2).rvs(1000, random_state=rng)).clip(max=0.6)
    heavy[0] = -20.0  # nor is a place where the surrogate is far too high
    for log_weights in (np.zeros(500), np.array([0.0, 10.0]), np.full(500, np.nan), heavy):
        assert not is_missing_mass(coverage_of(log_weights))


def test_missing_mass_is_seen_where_a_surrogate_has_no_density_and_behind_one_long_stay(rng):
    some = np.concatenate([rng.standard_normal(1800), np.full(200, np.inf)])
    assert coverage_of(some).missing >= 0.1
    assert is_missing_mass(coverage_of(some))
    log_weights = np.log(stats.genpareto(1.2).rvs(1000, random_state=rng))
    held = np.concatenate([log_weights, np.full(400, log_weights.max())])
    assert tail_of(held) is None
    assert is_missing_mass(coverage_of(held))


def tuned(spread, rng, config):
    """A state after tuning whose surrogate is N(0, spread^2 I) in two dimensions."""
    points = rng.standard_normal((200, 2))
    state = taught(rng, points, -0.5 * (points**2).sum(axis=1) / spread**2, config)
    return kh.finish(kh.relocate(state, np.zeros(2), 0.0), config)


@pytest.mark.parametrize(("spread", "is_missing"), [(0.6, True), (1.0, False), (1.3, False)])
def test_a_chain_says_that_its_surrogate_is_too_narrow(spread, is_missing, rng):
    """A surrogate with three fifths of the spread has weights without a variance; a wider one has bounded ones."""
    config = kh.Config()
    state = tuned(spread, rng, config)
    log_weights = []
    for _ in range(1000):
        state, info = kh.step(rng, state, lambda x: -0.5 * x @ x, config)
        log_weights.append(info.log_weight)
    assert is_missing_mass(coverage_of(np.array(log_weights))) == is_missing
    here = state.log_density - state.fit.learned.surrogate.log_density(state.position[None])[0]
    assert info.log_weight == pytest.approx(here, abs=1e-6)
    # Estimates are as noisy as their weights.
    noisy = kh.Config(noisy=True)
    assert math.isnan(kh.step(rng, tuned(spread, rng, noisy), lambda x: -0.5 * x @ x, noisy)[1].log_weight)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_missing_mass_of_a_pareto_tail(power, rng):
    """P(w > t) = t^-p, so that n P(w > t) = t at t = n^(1 / (1 + p)). The weights have a median of 2^(1 / p)."""
    n = 20_000
    log_weights = stats.expon(scale=1.0 / power).rvs(n, random_state=rng)
    level = (2.0 ** (1.0 / power)) ** (1.0 / (1.0 + power)) * n ** (1.0 / (1.0 + power))
    assert coverage_of(log_weights).missing == pytest.approx(level**-power, rel=0.3)
    assert coverage_of(np.linspace(0.0, 4.0, 201)).excess == pytest.approx(2.0)  # the largest over the median


def two_modes(x):
    """A fifth of the mass at -3, the rest at 3; standard deviations of .2."""
    return float(np.logaddexp(np.log(0.2) - 12.5 * (x[0] + 3.0) ** 2, np.log(0.8) - 12.5 * (x[0] - 3.0) ** 2))


def values_at(positions, log_density):
    return np.array([log_density(x) for x in positions])


def evaluated(positions, log_density):
    positions = np.asarray(positions, dtype=float)
    return KnownPlaces(positions, values_at(positions, log_density))


def missed_of(positions, draws, log_density, *noise):
    """Return the one of these positions that no draw is near, if there is one."""
    levels = values_at(draws, log_density)
    return missed(evaluated(positions, log_density), draws, levels, log_density, *noise)


def test_a_mode_that_no_draw_is_near_is_found_and_a_place_that_is_not_likely_is_none(rng):
    draws = 3.0 + 0.2 * rng.standard_normal((200, 1))
    assert missed_of([[2.9], [0.0], [-3.1]], draws, two_modes) == pytest.approx(-3.1)
    assert missed_of([[0.0], [-1.0], [8.0]], draws, two_modes) is None
    levels = values_at(draws, two_modes)
    draws[:4] = -3.0
    assert missed(evaluated([[2.9], [0.0], [-3.1]], two_modes), draws, levels, two_modes) is None


def test_the_other_sign_of_a_product_is_found_however_wide_the_draws_are(rng):
    """Modes of a b = 1 +- .05, whose nearest draws are as near as others of their own mode."""

    def log_density(x):
        return -0.5 * float(x @ x) - 200.0 * (x[0] * x[1] - 1.0) ** 2

    a = np.exp(0.6 * rng.standard_normal(300))
    draws = np.column_stack([a, (1.0 + 0.05 * rng.standard_normal(300)) / a])
    places = [[1.0, 1.0], [-1.0, -1.0], [-0.5, -2.0]]
    assert missed_of(places, draws, log_density) == pytest.approx([-1.0, -1.0])
    assert missed_of(places, np.concatenate([draws, -draws]), log_density) is None


@pytest.mark.parametrize("width", [0.1, 1.0])
def test_thin_shells_raise_no_alarm(rng, width):
    """Of radius ten in five dimensions: chords leave the shell, also those between draws."""

    def log_density(x):
        return -0.5 * ((np.linalg.norm(x) - 10.0) / width) ** 2

    def draws_of_shell(n):
        x = rng.standard_normal((n, 5))
        return x / np.linalg.norm(x, axis=1)[:, None] * (10.0 + width * rng.standard_normal((n, 1)))

    found = [missed_of(draws_of_shell(21), draws_of_shell(200), log_density) for _ in range(20)]
    assert sum(place is not None for place in found) <= 2


def test_noise_makes_no_valleys_and_hides_none(rng):
    """Log densities are estimates, of which the draws and the places have the luckiest."""

    def with_noise(log_density, sd):
        return lambda x: log_density(x) + sd * rng.standard_normal()

    estimate, alarms = with_noise(lambda x: -0.5 * float(x @ x), 1.0), 0
    for _ in range(50):
        draws = rng.standard_normal((200, 2))
        levels = values_at(draws, estimate) + 1.0
        places = evaluated(rng.standard_normal((50, 2)), estimate)
        alarms += missed(places, draws, levels, estimate, 1.0) is not None
    assert alarms <= 2

    estimate = with_noise(two_modes, 0.5)
    places, draws = evaluated([[-3.0]], estimate), 3.0 + 0.2 * rng.standard_normal((200, 1))
    levels = values_at(draws, estimate)
    assert missed(places, draws, levels, estimate, 0.5) == pytest.approx(-3.0)
    assert missed(places, draws, levels, estimate) is None  # by the same noise draws seem to be cut off
    never = Mock()
    assert missed(places, draws, levels, never, math.nan) is None
    assert not never.called


@pytest.mark.parametrize("num_dims", [1, 3, 10, 40])
def test_independent_points_of_the_target_raise_no_alarm(rng, num_dims):
    """Units a thousand apart, correlations of .9, and points that are themselves draws of the target."""
    factor = np.linalg.cholesky(np.full((num_dims, num_dims), 0.9) + 0.1 * np.eye(num_dims))
    factor *= np.logspace(-3, 3, num_dims)[:, None]
    precision = np.linalg.inv(factor @ factor.T)

    def log_density(x):
        return -0.5 * float(x @ precision @ x)

    for _ in range(50):
        places, draws = (rng.standard_normal((n, num_dims)) @ factor.T for n in (50, 100))
        assert missed_of(places, draws, log_density) is None


def test_the_other_hill_is_climbed_and_only_that(rng):
    places = evaluated([[2.8], [-1.9], [3.3], [-1.5], [0.4]], two_modes)
    counted = Mock(side_effect=two_modes)
    tops = other_hills(places, counted, np.array([2.0]), 100, rng)
    assert tops.positions[:, 0] == pytest.approx([-3.0], abs=0.2)
    assert tops.log_densities[0] == two_modes(tops.positions[0])
    assert counted.call_count <= 100
    assert not other_hills(places, two_modes, np.array([2.0]), 29, rng).positions.size


def test_climbs_are_in_units_of_the_target_and_end_with_the_budget(rng):
    """Five modes that are millions apart: three climbs of thirty evaluations, and six to see that the hills are new."""
    centers = 1e6 * np.array([0.0, 10.0, 30.0, 70.0, 150.0])
    peaks = Mock(side_effect=lambda x: -12.5e-12 * float(((x[0] - centers) ** 2).min()))
    places = evaluated(centers[:, None] + 3e5, peaks)
    peaks.reset_mock()
    tops = other_hills(places, peaks, np.array([1e6]), 100, rng)
    assert len(tops.positions) == 3
    assert peaks.call_count == 96
    assert tops.log_densities.min() > -0.1 > places.log_densities.max()


def test_one_hill_costs_an_evaluation_a_place_and_places_without_density_are_left_out(rng):
    counted = Mock(side_effect=lambda x: -0.5 * float(x @ x))
    places = evaluated(rng.standard_normal((20, 5)), counted)
    counted.reset_mock()
    assert len(other_hills(places, counted, np.ones(5), 1000, rng).positions) == 0
    assert counted.call_count == 19
    places = KnownPlaces(np.array([[0.0], [1.0], [2.0]]), np.array([np.nan, -np.inf, -1.0]))
    assert len(other_hills(places, lambda x: -1.0, np.ones(1), 100, rng).positions) == 0
    draws = 2.0 + 0.1 * rng.standard_normal((100, 1))
    assert missed(places, draws, np.full(100, -1.0), lambda x: -1.0) is None


def test_the_arms_of_a_banana_are_no_missed_modes_and_too_few_draws_tell_nothing(rng):
    target = banana(0.5, 4.0, 2)
    places = evaluated([[0.0, -2.0], [3.0, 2.0], [-3.0, 2.0]], target.log_density)
    tops = other_hills(places, target.log_density, np.array([2.0, 1.0]), 1000, rng)
    draws = target.sample(rng, 500)
    for some in (places, tops):
        assert missed_of(some.positions, draws, target.log_density) is None
    for draws in (np.linspace(3.0, 3.98, 99)[:, None], np.full((200, 1), 3.0)):
        assert missed_of([[-3.0]], draws, two_modes) is None


def curved(x):
    """A ridge of unit width along x0 ~ N(0, 50^2), bent in the second coordinate."""
    return -0.5 * ((x[0] / 50.0) ** 2 + (x[1] + 0.1 * x[0] ** 2) ** 2 + x[2:] @ x[2:])


def along_the_ridge(rng, first):
    """Draws along the first coordinate, slowly: up and down it, five draws for a way."""
    draws = rng.standard_normal((len(first), 6))
    ways = np.sort(first.reshape(-1, 5), axis=1)
    ways[1::2] = ways[1::2, ::-1]
    draws[:, 0] = first = ways.ravel()
    draws[:, 1] -= 0.1 * first**2
    return draws


@pytest.mark.parametrize("seed", range(5))
def test_walls_across_a_ridge_are_found_and_its_own_ends_are_not(seed):
    rng = np.random.default_rng(seed)

    def ends_of(first):
        draws = along_the_ridge(rng, first)
        return open_ends(rng, draws[None], values_at(draws, curved)[None], curved)

    assert ends_of(50.0 * rng.standard_normal(2000)) == []
    walls = ends_of(rng.uniform(-30.0, 30.0, 2000))
    assert [wall.coordinate for wall in walls] == [0, 0]
    assert sorted(wall.end for wall in walls) == pytest.approx([-30.0, 30.0], abs=0.2)
    assert all(wall.missing > 0.02 for wall in walls)


FUNNEL = funnel(9, 3.0)  # its density rises towards the neck, where the marginal density falls
TAILS = {
    "normal": stats.norm(),
    "Laplace": stats.laplace(),
    "Student t with two degrees": stats.t(2.0),
    "logarithm of an exponential": stats.gumbel_l(),
    "logit of a uniform": stats.logistic(),
    "funnel": SimpleNamespace(
        rvs=lambda shape, random_state: FUNNEL.sample(random_state, shape[0]),
        logpdf=lambda x: np.apply_along_axis(FUNNEL.log_density, -1, x)[..., None],
    ),
}


@pytest.mark.parametrize("name", TAILS)
def test_right_draws_have_no_open_end(name, rng):
    """Three coordinates, or nine, both ends, of four hundred and of four thousand draws."""
    for size in (400, 4000):
        draws = TAILS[name].rvs((size, 3), random_state=rng)
        log_densities = TAILS[name].logpdf(draws).sum(axis=1)
        assert open_ends(rng, draws[None], log_densities[None], lambda x: TAILS[name].logpdf(x).sum()) == []


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.99])
def test_a_tail_of_few_visits_is_no_wall(correlation):
    """Chains so slow that each sees a tail a few times: it is short by chance."""
    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        draws = np.array([autoregressive(rng, correlation, 1000, 1) for _ in range(4)])
        found += bool(open_ends(rng, draws, -0.5 * draws[:, :, 0] ** 2, lambda x: -0.5 * float(x @ x)))
    assert found <= 1


def test_too_few_draws_and_chains_that_stand_are_not_judged_and_raise_nothing(rng):
    never = Mock(side_effect=AssertionError)
    assert open_ends(rng, rng.standard_normal((3, 15, 2)), np.zeros((3, 15)), never) == []
    assert open_ends(rng, np.ones((1, 1000, 2)), np.zeros((1, 1000)), never) == []
    # Two places only near each end: a chain that hardly moves has no path to follow.
    draws = np.repeat([[-1.0, 0.0], [0.0, 1.0], [0.5, 2.0], [1.0, 0.0]], 150, axis=0)[None]
    assert open_ends(rng, draws, np.zeros((1, 600)), lambda x: -np.inf) == []
