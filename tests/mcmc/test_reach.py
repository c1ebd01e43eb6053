"""Ends of draws that are not ends of the density."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.targets import funnel
from pymc_kernel.mcmc.chain_checks import open_ends


def curved(x):
    """A ridge of unit width along x0 ~ N(0, 50^2), bent in the second coordinate."""
    return -0.5 * ((x[0] / 50.0) ** 2 + (x[1] + 0.1 * x[0] ** 2) ** 2 + x[2:] @ x[2:])


def along_the_ridge(rng, first):
    """Draws along the first coordinate, slowly: up and down it, fifty draws for a way."""
    draws = rng.standard_normal((len(first), 6))
    ways = np.sort(first.reshape(-1, 50), axis=1)
    ways[1::2] = ways[1::2, ::-1]
    draws[:, 0] = first = ways.ravel()
    draws[:, 1] -= 0.1 * first**2
    return draws


@pytest.mark.parametrize("seed", range(5))
def test_walls_across_a_ridge_are_found_and_its_own_ends_are_not(seed):
    rng = np.random.default_rng(seed)
    whole = along_the_ridge(rng, 50.0 * rng.standard_normal(2000))
    part = along_the_ridge(rng, rng.uniform(-30.0, 30.0, 2000))
    found = {}
    for name, draws in (("whole", whole), ("part", part)):
        found[name] = open_ends(rng, draws[None], np.array([[curved(x) for x in draws]]), curved)
    assert found["whole"] == []
    assert {(end.coordinate, math.copysign(1.0, end.end)) for end in found["part"]} == {(0, 1.0), (0, -1.0)}
    assert all(abs(end.end) == pytest.approx(27.0, abs=1.5) for end in found["part"])
    assert all(end.ratio > 0.5 for end in found["part"])


TAILS = {
    "normal": stats.norm(),
    "Laplace": stats.laplace(),
    "Student t with two degrees": stats.t(2.0),
    "logarithm of an exponential": stats.gumbel_l(),
    "logit of a uniform": stats.logistic(),
}


@pytest.mark.parametrize("name", TAILS)
def test_right_draws_have_no_open_end(name, rng):
    """Three coordinates, six ends, of four hundred and of four thousand draws."""
    for size in (400, 4000):
        draws = TAILS[name].rvs((size, 3), random_state=rng)
        log_densities = TAILS[name].logpdf(draws).sum(axis=1)
        assert open_ends(rng, draws[None], log_densities[None], lambda x: TAILS[name].logpdf(x).sum()) == []


def test_a_funnel_has_no_open_end(rng):
    """The density rises towards the neck, the marginal density falls."""
    target = funnel(9, 3.0)
    draws = target.sample(rng, 4000)
    log_densities = np.array([target.log_density(x) for x in draws])
    assert open_ends(rng, draws[None], log_densities[None], target.log_density) == []


def test_a_tail_of_few_visits_is_no_wall():
    """Chains so slow that each sees a tail a few times: short ones by chance, as in one of four of these runs."""

    def normal(x):
        return -0.5 * float(x @ x)

    found = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        draws = np.zeros((1000, 1))
        draws[0] = rng.standard_normal()
        for t in range(1, 1000):  # an effective size of 50
            draws[t] = 0.9 * draws[t - 1] + np.sqrt(1.0 - 0.9**2) * rng.standard_normal()
        found += bool(open_ends(rng, draws[None], -0.5 * (draws.T**2), normal))
    assert found <= 1


def test_too_few_draws_and_chains_that_stand_are_not_judged(rng):
    def never(x):
        raise AssertionError

    assert open_ends(rng, rng.standard_normal((3, 100, 2)), np.zeros((3, 100)), never) == []
    assert open_ends(rng, np.ones((1, 1000, 2)), np.zeros((1, 1000)), never) == []


def test_chains_that_hardly_move_have_no_path_to_follow_and_raise_nothing(rng):
    """Two places only near each end."""
    draws = np.repeat([[-1.0, 0.0], [0.0, 1.0], [0.5, 2.0], [1.0, 0.0]], 150, axis=0)[None]
    assert open_ends(rng, draws, np.zeros((1, 600)), lambda x: -np.inf) == []
