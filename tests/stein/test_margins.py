"""Long tails: exact draws and cut ones, and the map that makes margins nearly normal."""

import numpy as np
import pytest
from scipy.stats import gamma

from pymc_kernel import stein
from pymc_kernel.stein.straighten import normal_margins, stretch
from tests.reference.exact_draws import banana, funnel, p_values, shifted

INDEPENDENT = {"thin": 1, "flip_probability": 0.5}
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


def test_scores_follow_the_map(rng):
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
