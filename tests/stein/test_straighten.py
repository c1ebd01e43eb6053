"""Funnels and long tails, whole and cut, and the maps that make them straight.

Exact draws of Neal's funnel, v ~ N(0, 3^2), x_i ~ N(0, exp(v)), and of a two-level one, as the horseshoe prior's.
"""

import numpy as np
import pytest
from scipy.stats import gamma

from pymc_kernel import stein
from pymc_kernel.stein.straighten import choose_drivers, divide, normal_margins, straighten, stretch
from tests.reference import exact_draws as exact
from tests.reference.differences import assert_derivative


def test_a_straight_funnel_is_a_normal_distribution(rng):
    """The normal variables behind the funnel come back, and their scores, whatever the units and the center."""
    behind = rng.standard_normal((2000, 5))
    draws, scores = exact.funnel(rng, 2000, 6, noise=behind)
    units, shift = np.array([1e-6, 1e6, 3.0, 1.0, 0.1, 1e3]), np.array([1e-5, -1e7, 10.0, 0.0, 0.0, 7.0])
    for x, s in ((draws, scores), (shift + units * draws, scores / units)):
        straight, pulled = stein.standardize(x, s)
        for i in range(5):
            assert np.corrcoef(straight[:, i + 1], behind[:, i])[0, 1] > 0.99
        assert (np.sqrt(np.mean((pulled + straight) ** 2, axis=0)) < 0.25).all()


def assert_scores(draws, scores):
    """Of exact draws E[s' f + f'] is zero for any f: here for x itself and for two bounded functions."""
    for f, slope in ((draws, 1.0), (np.tanh(draws), 1.0 - np.tanh(draws) ** 2), (np.sin(draws), np.cos(draws))):
        terms = scores * f + slope
        assert (np.abs(terms.mean(axis=0)) < 4.5 * terms.std(axis=0) / np.sqrt(len(terms))).all()


def test_scores_follow_the_map(rng):
    """Of the driver and a driven coordinate of a funnel, and of margins with long tails."""
    draws, scores = exact.funnel(rng, 200_000, 3)
    behind = np.exp(-0.5 * draws[:, 0]) * draws[:, 1]
    draws[:, 1] += draws[:, 2] + 2.0  # the center of one is the other
    scores[:, 2] -= scores[:, 1]
    moved, pulled, log_det = divide(draws, scores, 0, np.array([1]), np.array([2]))
    assert np.corrcoef(moved[:, 1], behind)[0, 1] > 0.99
    assert log_det == pytest.approx(0.0, abs=0.3)
    assert_scores(moved / moved.std(axis=0), pulled * moved.std(axis=0))
    for make in (exact.log_scale, exact.log_gamma, exact.cauchy):
        draws, scores = make(rng, 200_000, 1)
        moved, pulled = normal_margins(draws, scores)
        assert moved is not draws
        assert_scores(moved, pulled)


def test_what_is_no_funnel_is_left_alone():
    for seed in range(8):
        rng = np.random.default_rng([seed, 15])
        mixing = rng.standard_normal((6, 6))
        normal = rng.standard_normal((400, 6))
        correlated = exact.autoregressive(rng, 0.7, 600, 6)
        skew = np.log(rng.gamma(3.0, size=(400, 6)))
        cases = [
            (normal @ mixing.T, -np.linalg.solve(mixing.T, normal.T).T),
            (correlated, -correlated),
            (skew, 3.0 - np.exp(skew)),
            exact.banana(rng, 400),
            (burn_in := normal + 6.0 * (np.arange(400) < 80)[:, None], -burn_in),  # scores say funnel, draws do not
            (normal[:40], np.exp(5.0 * normal[:40, ::-1])),  # too few to say
        ]
        for draws, scores in cases:
            assert straighten(draws, scores)[0] is draws
        few = normal[:60]  # whose largest correlations are by chance
        assert (choose_drivers(few, -few) == -1).all()


def test_drivers_are_not_driven_and_centers_are_known_more_closely_than_the_neck_is_wide(rng):
    draws, scores = exact.horseshoe(rng, 1000, 3)
    driver = choose_drivers(draws, scores)
    assert (driver[:4] == -1).all()
    assert all(driver[4 + k] in (0, 1 + k) for k in range(3))
    # By what draws and scores say together; those that made the drivers' scores small were off by 1.5 widths.
    errors = []
    for seed in range(10):
        draws, scores = exact.funnel(np.random.default_rng(seed), 200, 5)
        lowest = draws[:, 0].argmin()
        unit = draws[:, 1:] * np.exp(-0.5 * draws[:, :1])
        draws[:, 1:] += [1.0, 2.0, 3.0, 4.0]
        moved = divide(draws, scores, 0, np.arange(1, 5), np.empty(0, dtype=int))[0][:, 1:]
        scale = (moved.std(axis=0) / unit.std(axis=0))[None]
        errors.append(np.abs(moved[lowest] / scale - unit[lowest]))
    assert np.mean(errors) < 0.4


def without_lowest_tenth(draws, scores):
    kept = draws[:, 0] > np.quantile(draws[:, 0], 0.1)
    return draws[kept], scores[kept]


@pytest.mark.parametrize(("make", "largest", "most_whitened"), [
    (lambda rng: exact.funnel(rng, 1000, 10, lowest=-2.0), 0.01, 0.5),
    (lambda rng: exact.funnel(rng, 1000, 3, lowest=-2.0), 0.01, None),
    (lambda rng: without_lowest_tenth(*exact.log_scale(rng, 800, 2)), 0.02, 0.7),
    (lambda rng: without_lowest_tenth(*exact.log_gamma(rng, 800, 2)), 0.02, 0.7),
], ids=["funnel", "funnel of three", "log scale", "log gamma"])  # fmt: skip
def test_what_is_cut_is_rejected(make, largest, most_whitened):
    """A quarter of a funnel is missing. Whitened coordinates do not see it: their p-values are the negative control."""
    found = {how: exact.p_values(make, 6, 1, how=how, **exact.INDEPENDENT) for how in ("straighten", "whiten")}
    assert found["straighten"].max() <= largest
    assert most_whitened is None or np.mean(found["whiten"] <= 0.05) < most_whitened


def test_tails_become_those_of_a_normal_distribution(rng):
    """Scores are nearly minus the draws, whatever the units; coordinates keep their places and directions."""
    for make, least in ((exact.log_scale, 0.93), (exact.log_gamma, 0.93), (exact.cauchy, 0.5)):
        draws, scores = make(rng, 2000, 2)
        units = np.array([1e-6, 1e6])
        straight, pulled = stein.standardize(3.0 + units * draws, scores / units)
        plain = stein.standardize(draws, scores, "whiten")
        for i in range(2):
            assert np.corrcoef(plain[0][:, i], -plain[1][:, i])[0, 1] < 0.7 * least + 0.05
            assert np.corrcoef(straight[:, i], -pulled[:, i])[0, 1] > least
            assert (np.diff(straight[np.argsort(plain[0][:, i]), i]) > -1e-2).all()
        np.testing.assert_allclose(straight.std(axis=0), 1.0)


def test_what_is_normal_is_left_alone_and_scores_of_another_size_than_the_draws(rng):
    for seed in range(8):
        rng = np.random.default_rng([seed, 16])
        normal = rng.standard_normal((400, 4))
        moved = exact.shifted(rng, 500, 3)
        cases = [(normal, -normal), (moved, -moved), (normal[:199], np.exp(normal[:199])), (normal, np.zeros((400, 4)))]
        for draws, scores in cases:
            assert normal_margins(draws, scores)[0] is draws
    # The bound by Cauchy and Schwarz means nothing there.
    draws, scores = exact.log_scale(rng, 400, 2)
    for factor in (0.25, 1.0, 4.0):
        assert (normal_margins(draws, factor * scores)[0] is draws) == (factor != 1.0)


@pytest.mark.parametrize(("n", "is_stretched"), [(300, False), (600, True)])
def test_only_a_clear_gain_is_taken(n, is_stretched):
    """Quantiles of a log-gamma distribution of shape 5: the best map of the list gains 6.8 nats for 300, 14 for 600."""
    draws = np.log(gamma.ppf((np.arange(n)[:, None] + 0.5) / n, 5.0))
    assert (normal_margins(draws, 5.0 - np.exp(draws))[0] is not draws) == is_stretched


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 2.0), (1.4, 0.25)])
def test_the_map_and_its_derivatives(a, b):
    """Differences; a = b = 1 changes nothing; growth in the tails."""
    u = np.linspace(-8.0, 8.0, 33)[:, None]
    moved, slope, bend = stretch(u, a, b)
    assert_derivative(slope[..., None], lambda x: stretch(x, a, b)[0], u, rtol=1e-7)
    assert_derivative(bend[..., None], lambda x: stretch(x, a, b)[1], u, rtol=1e-5, atol=1e-8)
    if a == b == 1.0:
        np.testing.assert_allclose(moved, u, rtol=1e-12, atol=1e-12)
    far = stretch(np.array([-2e6, -1e6, 1e6, 2e6]), a, b)[0]
    np.testing.assert_allclose(np.log2([far[3] / far[2], far[0] / far[1]]), [a, b], rtol=1e-3)


def test_odd_numbers_are_survived(rng):
    """Numbers beyond reason, scores of zero, two values only, funnels and bananas: a finite answer."""
    draws, scores = exact.log_scale(rng, 300, 3)
    odd, huge = draws.copy(), scores.copy()
    odd[0, 0], huge[1, 1] = -1e200, 1e100
    two = np.where(rng.random((300, 1)) < 0.5, -1.0, 1.0)
    neck, pull = exact.funnel(rng, 300, 4)
    neck[0, 0] = 1e9
    cases = [
        (odd, huge), (np.hstack([draws, two]), np.hstack([scores, two])), (neck, pull),
        (1e-200 * draws, scores), (draws, 1e-200 * scores), exact.banana(rng, 300), exact.funnel(rng, 300, 3),
        (neck, np.zeros_like(pull)),
        (np.hstack([neck, two]), np.hstack([pull, np.zeros((300, 1))])),
        (np.hstack([two, neck]), np.hstack([two, pull])),
        (neck[1:], np.exp(100.0 * rng.standard_normal((299, 1))) * pull[1:]),
    ]  # fmt: skip
    for x, s in cases:
        assert all(np.isfinite(a).all() for a in normal_margins(x, s))
        assert not 1e-150 < np.abs(x).max() < 1e150 or all(np.isfinite(a).all() for a in stein.standardize(x, s))
