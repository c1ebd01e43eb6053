"""Funnels, whole and cut, and the map that makes them straight.

Exact draws of Neal's funnel, v ~ N(0, 3^2), x_i ~ N(0, exp(v)), and of a two-level one, as the horseshoe prior's.
"""

import numpy as np
import pytest

from pymc_kernel import stein
from pymc_kernel.stein.straighten import choose_drivers, divide, straighten
from tests.reference.exact_draws import autoregressive, banana, funnel, funnel_scores, horseshoe, p_values

INDEPENDENT = {"thin": 1, "flip_probability": 0.5}


@pytest.mark.parametrize(("n", "d"), [(1000, 10), (1000, 3)])
def test_a_cut_funnel_is_rejected(n, d):
    """A quarter is missing. Linear standardization does not see it: its p-values are the negative control."""
    straight, linear = [], []
    for seed in range(6):
        draws, scores = funnel(np.random.default_rng([seed, n, d]), n, d, lowest=-2.0)
        test = stein.ksd_test(draws, scores, num_replicates=200, **INDEPENDENT)
        straight.append(test.p_value)
        assert test.ksd > test.null_quantiles[1]
        if (n, d) == (1000, 10):
            linear.append(stein.ksd_test(draws, scores, num_replicates=200, how="whiten", **INDEPENDENT).p_value)
    assert max(straight) <= 0.01
    assert (n, d) != (1000, 10) or np.mean(np.array(linear) <= 0.05) < 0.5


def effects(rng, n, d):
    """Effects around an unknown mean: mu, log tau, where tau is half Cauchy, d times theta_i ~ N(mu, tau^2)."""
    mu, tau, behind = rng.standard_normal(n), np.abs(rng.standard_cauchy(n)), rng.standard_normal((n, d))
    down = -behind / tau[:, None]
    of_tau = (behind**2 - 1.0).sum(axis=1) + 1.0 - 2.0 * tau**2 / (1.0 + tau**2)
    draws = np.column_stack([mu, np.log(tau), mu[:, None] + tau[:, None] * behind])
    return draws, np.column_stack([-mu - down.sum(axis=1), of_tau, down])


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda r: funnel(r, 100, 5),
        lambda r: funnel(r, 400, 2),
        lambda r: horseshoe(r, 300, 5),
        lambda r: effects(r, 250, 8),
    ],
)
def test_level_on_exact_funnels_with_1000_repetitions(make):
    assert 0.03 <= np.mean(p_values(make, 1000, 12, **INDEPENDENT) <= 0.05) <= 0.07


@pytest.mark.slow
def test_level_on_funnels_of_correlated_draws():
    """An exact chain: all normal variables behind the funnel are autoregressive."""

    def make(rng):
        behind = autoregressive(rng, 0.7, 500, 4)
        draws = np.column_stack([3.0 * behind[:, 0], np.exp(1.5 * behind[:, :1]) * behind[:, 1:]])
        return draws, funnel_scores(draws)

    assert 0.02 <= np.mean(p_values(make, 400, 13) <= 0.05) <= 0.085


def test_a_straight_funnel_is_a_normal_distribution(rng):
    """The normal variables behind the funnel come back, and their scores, whatever the units and the center."""
    behind = rng.standard_normal((2000, 5))
    draws, scores = funnel(rng, 2000, 6, noise=behind)
    units, shift = np.array([1e-6, 1e6, 3.0, 1.0, 0.1, 1e3]), np.array([1e-5, -1e7, 10.0, 0.0, 0.0, 7.0])
    for x, s in ((draws, scores), (shift + units * draws, scores / units)):
        straight, pulled = stein.standardize(x, s)
        for i in range(5):
            assert np.corrcoef(straight[:, i + 1], behind[:, i])[0, 1] > 0.99
        assert (np.sqrt(np.mean((pulled + straight) ** 2, axis=0)) < 0.25).all()


def test_scores_follow_the_map(rng):
    """Of exact draws E[s' f + f'] is zero for any f: here the driver and a driven coordinate, and bounded functions."""
    draws, scores = funnel(rng, 200_000, 3)
    behind = np.exp(-0.5 * draws[:, 0]) * draws[:, 1]
    draws[:, 1] += draws[:, 2] + 2.0  # the center of one is the other
    scores[:, 2] -= scores[:, 1]
    moved, pulled, log_det = divide(draws, scores, 0, np.array([1]), np.array([2]))
    assert np.corrcoef(moved[:, 1], behind)[0, 1] > 0.99
    assert log_det == pytest.approx(0.0, abs=0.3)
    for k in range(3):
        x = moved[:, k] / moved[:, k].std()
        for f, slope in ((np.tanh(x), 1.0 - np.tanh(x) ** 2), (np.sin(x), np.cos(x))):
            terms = pulled[:, k] * moved[:, k].std() * f + slope
            assert abs(terms.mean()) < 4.5 * terms.std() / np.sqrt(len(terms))


def test_what_is_no_funnel_is_left_alone():
    for seed in range(8):
        rng = np.random.default_rng([seed, 15])
        mixing = rng.standard_normal((6, 6))
        normal = rng.standard_normal((400, 6))
        correlated = autoregressive(rng, 0.7, 600, 6)
        skew = np.log(rng.gamma(3.0, size=(400, 6)))
        cases = [
            (normal @ mixing.T, -np.linalg.solve(mixing.T, normal.T).T),
            (correlated, -correlated),
            (skew, 3.0 - np.exp(skew)),
            banana(rng, 400),
            (burn_in := normal + 6.0 * (np.arange(400) < 80)[:, None], -burn_in),  # scores say funnel, draws do not
            (normal[:40], np.exp(5.0 * normal[:40, ::-1])),  # too few to say
        ]
        for draws, scores in cases:
            assert straighten(draws, scores)[0] is draws
        few = normal[:60]  # whose largest correlations are by chance
        assert (choose_drivers(few, -few) == -1).all()


def test_drivers_are_not_driven(rng):
    draws, scores = horseshoe(rng, 1000, 3)
    driver = choose_drivers(draws, scores)
    assert (driver[:4] == -1).all()
    assert all(driver[4 + k] in (0, 1 + k) for k in range(3))


def test_centers_are_known_more_closely_than_the_neck_is_wide():
    """By what draws and scores say together; those that made the drivers' scores small were off by 1.5 widths."""
    errors = []
    for seed in range(10):
        draws, scores = funnel(np.random.default_rng(seed), 200, 5)
        lowest = draws[:, 0].argmin()
        unit = draws[:, 1:] * np.exp(-0.5 * draws[:, :1])
        draws[:, 1:] += [1.0, 2.0, 3.0, 4.0]
        moved = divide(draws, scores, 0, np.arange(1, 5), np.empty(0, dtype=int))[0][:, 1:]
        scale = (moved.std(axis=0) / unit.std(axis=0))[None]
        errors.append(np.abs(moved[lowest] / scale - unit[lowest]))
    assert np.mean(errors) < 0.4
