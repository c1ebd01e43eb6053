"""Funnels and long tails, whole and cut, and the maps that make them straight.

Exact draws of Neal's funnel, v ~ N(0, 3^2), x_i ~ N(0, exp(v)), and of a two-level one, as the horseshoe prior's.
"""

import numpy as np
import pytest
from scipy.stats import gamma

from pymc_kernel import stein
from pymc_kernel.stein.straighten import choose_drivers, divide, normal_margins, straighten, stretch
from tests.reference.exact_draws import autoregressive, banana, funnel, funnel_scores, horseshoe, p_values, shifted

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


# -- long tails: exact draws and cut ones, and the map that makes margins nearly normal ----------------------

HOW = "straighten", "whiten"


def log_scale(rng, n, d):
    """Logarithms of half-normal variables: an exponential tail below."""
    draws = np.log(np.abs(rng.standard_normal((n, d))))
    return draws, 1.0 - np.exp(2.0 * draws)


def log_gamma(rng, n, d):
    draws = np.log(rng.gamma(0.3, size=(n, d)))
    return draws, 0.3 - np.exp(draws)


def cauchy(rng, n, d):
    draws = rng.standard_cauchy((n, d))
    return draws, -2.0 * draws / (1.0 + draws**2)


def cut(draws, scores):
    """Without the lowest tenth of the first coordinate."""
    kept = draws[:, 0] > np.quantile(draws[:, 0], 0.1)
    return draws[kept], scores[kept]


@pytest.mark.parametrize("make", [log_scale, log_gamma])
def test_a_cut_tail_is_rejected(make):
    """Whitened coordinates do not see it: their p-values are the negative control."""
    found = {how: p_values(lambda rng: cut(*make(rng, 800, 2)), 6, 1, how=how, **INDEPENDENT) for how in HOW}
    assert found["straighten"].max() <= 0.02
    assert np.mean(found["whiten"] <= 0.05) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("make", [log_scale, log_gamma, cauchy])
@pytest.mark.parametrize("n", [100, 200, 300])
def test_level_on_exact_draws_with_long_tails_and_1000_repetitions(make, n):
    found = p_values(lambda rng: make(rng, n, 2), 1000, 17, **INDEPENDENT)
    assert 0.03 <= np.mean(found <= 0.05) <= 0.07


def test_tails_become_those_of_a_normal_distribution(rng):
    """Scores are nearly minus the draws, whatever the units; coordinates keep their places and directions."""
    for make, least in ((log_scale, 0.93), (log_gamma, 0.93), (cauchy, 0.5)):
        draws, scores = make(rng, 2000, 2)
        units = np.array([1e-6, 1e6])
        straight, pulled = stein.standardize(3.0 + units * draws, scores / units)
        plain = stein.standardize(draws, scores, "whiten")
        for i in range(2):
            assert np.corrcoef(plain[0][:, i], -plain[1][:, i])[0, 1] < 0.7 * least + 0.05
            assert np.corrcoef(straight[:, i], -pulled[:, i])[0, 1] > least
            assert (np.diff(straight[np.argsort(plain[0][:, i]), i]) > -1e-2).all()
        np.testing.assert_allclose(straight.std(axis=0), 1.0)


def test_what_is_normal_is_left_alone():
    for seed in range(8):
        rng = np.random.default_rng([seed, 16])
        normal = rng.standard_normal((400, 4))
        moved = shifted(rng, 500, 3)
        cases = [(normal, -normal), (moved, -moved), (normal[:199], np.exp(normal[:199])), (normal, np.zeros((400, 4)))]
        for draws, scores in cases:
            assert normal_margins(draws, scores)[0] is draws


@pytest.mark.parametrize(("n", "is_stretched"), [(300, False), (600, True)])
def test_only_a_clear_gain_is_taken(n, is_stretched):
    """Quantiles of a log-gamma distribution of shape 5: the best map of the list gains 6.8 nats for 300, 14 for 600."""
    draws = np.log(gamma.ppf((np.arange(n)[:, None] + 0.5) / n, 5.0))
    assert (normal_margins(draws, 5.0 - np.exp(draws))[0] is not draws) == is_stretched


def test_scores_of_another_size_than_the_draws_are_left_alone(rng):
    """The bound by Cauchy and Schwarz means nothing there."""
    draws, scores = log_scale(rng, 400, 2)
    for factor in (0.25, 1.0, 4.0):
        assert (normal_margins(draws, factor * scores)[0] is draws) == (factor != 1.0)


@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.5, 2.0), (1.4, 0.25)])
def test_the_map_and_its_derivatives(a, b):
    """Differences; a = b = 1 changes nothing; growth in the tails."""
    u, h = np.linspace(-8.0, 8.0, 33), 1e-5
    moved, slope, bend = stretch(u, a, b)
    np.testing.assert_allclose(slope, (stretch(u + h, a, b)[0] - stretch(u - h, a, b)[0]) / (2 * h), rtol=1e-7)
    np.testing.assert_allclose(
        bend, (stretch(u + h, a, b)[1] - stretch(u - h, a, b)[1]) / (2 * h), rtol=1e-5, atol=1e-8
    )
    if a == b == 1.0:
        np.testing.assert_allclose(moved, u, rtol=1e-12, atol=1e-12)
    far = stretch(np.array([-2e6, -1e6, 1e6, 2e6]), a, b)[0]
    np.testing.assert_allclose(np.log2([far[3] / far[2], far[0] / far[1]]), [a, b], rtol=1e-3)


def test_scores_follow_the_map_of_margins(rng):
    """Of exact draws E[s' f + f'] is zero for any f: here for x', its square and its sine."""
    for make in (log_scale, log_gamma, cauchy):
        draws, scores = make(rng, 200_000, 1)
        moved, pulled = normal_margins(draws, scores)
        assert moved is not draws
        for f, slope in ((moved, 1.0), (np.tanh(moved), 1.0 - np.tanh(moved) ** 2), (np.sin(moved), np.cos(moved))):
            terms = pulled * f + slope
            assert abs(terms.mean()) < 4.5 * terms.std() / np.sqrt(len(terms))


def test_odd_numbers_are_survived(rng):
    """Numbers beyond reason, scores of zero, two values only, funnels and bananas: a finite answer."""
    draws, scores = log_scale(rng, 300, 3)
    odd, huge = draws.copy(), scores.copy()
    odd[0, 0], huge[1, 1] = -1e200, 1e100
    two = np.where(rng.random((300, 1)) < 0.5, -1.0, 1.0)
    neck, pull = funnel(rng, 300, 4)
    neck[0, 0] = 1e9
    cases = [
        (odd, huge), (np.hstack([draws, two]), np.hstack([scores, two])), banana(rng, 300), funnel(rng, 300, 3),
        (1e-200 * draws, scores), (draws, 1e-200 * scores), (neck, pull), (neck, np.zeros_like(pull)),
        (np.hstack([neck, two]), np.hstack([pull, np.zeros((300, 1))])),
        (np.hstack([two, neck]), np.hstack([two, pull])),
        (neck[1:], np.exp(100.0 * rng.standard_normal((299, 1))) * pull[1:]),
    ]  # fmt: skip
    for x, s in cases:
        assert all(np.isfinite(a).all() for a in normal_margins(x, s))
        assert not 1e-150 < np.abs(x).max() < 1e150 or all(np.isfinite(a).all() for a in stein.standardize(x, s))
