"""Levels are tested with the false-alarm rate of the test of the test below 1 in 1,000 for each."""

from functools import partial

import numpy as np
import pytest
from scipy.special import softmax

from pymc_kernel import stein
from pymc_kernel.smc import resample
from pymc_kernel.stein.draws import as_chains, merge_repeats
from pymc_kernel.stein.goodness_of_fit import corrected
from tests.reference import exact_draws as exact

EXACT, CHAINS = (0.03, 0.07), (0.02, 0.08)  # bounds of the share; of 1,000 repetitions it has an error of .7 %
MARGINS = exact.INDEPENDENT | {"coordinates": True}
LEVELS = {  # seed, bounds, settings, draws and scores
    "normal": (3, EXACT, exact.INDEPENDENT, lambda r: exact.normal(r.standard_normal((200, 2)))),
    "normal, margins": (3, EXACT, MARGINS, lambda r: exact.normal(r.standard_normal((200, 2)))),
    "correlation .5": (3, CHAINS, {}, lambda r: exact.normal(exact.autoregressive(r, 0.5, 3000, 2))),
    "correlation .9": (3, CHAINS, {}, lambda r: exact.normal(exact.autoregressive(r, 0.9, 3000, 2))),
    "funnel": (12, EXACT, exact.INDEPENDENT, lambda r: exact.funnel(r, 100, 5)),
    "funnel of two": (12, EXACT, exact.INDEPENDENT, lambda r: exact.funnel(r, 400, 2)),
    "horseshoe": (12, EXACT, exact.INDEPENDENT, lambda r: exact.horseshoe(r, 300, 5)),
    "effects": (12, EXACT, exact.INDEPENDENT, lambda r: exact.effects(r, 250, 8)),
    "correlated funnel": (13, (0.02, 0.085), {}, exact.correlated_funnel),
} | {
    f"{make.__name__} of {n}": (17, EXACT, exact.INDEPENDENT, partial(make, n=n, d=2))
    for make in (exact.log_scale, exact.log_gamma, exact.cauchy)
    for n in (100, 200, 300)
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_level(name):
    seed, (low, high), settings, make = LEVELS[name]
    assert low <= np.mean(exact.p_values(make, 1000, seed, **settings) <= 0.05) <= high


@pytest.mark.long
def test_several_chains_have_signs_of_their_own():
    """Thirty short chains: p-values with a mean of 1/2, of a standard error of .032; shared signs give .6."""

    def make(rng):
        return exact.normal(np.stack([exact.autoregressive(rng, 0.7, 30, 2) for _ in range(30)]))

    assert abs(exact.p_values(make, 80, 3).mean() - 0.5) < 0.1


@pytest.mark.parametrize("d", [2, 25])
def test_power_of_ours(d):
    rng = np.random.default_rng(2)
    for _ in range(5):
        draws = exact.shifted(rng, 500, d)
        assert stein.ksd_test(draws, -draws, num_replicates=100, rng=rng).p_value <= 0.1


def test_a_share_is_blamed_on_its_coordinate(rng):
    draws = rng.standard_normal((1000, 4))
    scores = -draws.copy()
    scores[:, 2] -= 0.4
    test = stein.ksd_test(draws, scores, coordinates=True, rng=rng)
    assert abs(test.shares.sum() - 1.0) < 1e-12
    assert test.shares.argmax() == 2
    assert test.margin_p_values[2] < 0.01
    assert (test.margin_p_values[[0, 1, 3]] > 0.01).all()
    alone = stein.ksd_test(draws, scores, rng=rng)
    assert alone.p_value == (1 + (alone.null >= alone.ksd).sum()) / 1001
    assert abs(test.ksd**2 - stein.ksd_squared(draws, scores)) < 1e-12
    assert (test.null_quantiles < test.ksd).all()


def test_thinning_and_signs_follow_the_correlation(rng):
    independent = stein.ksd_test(x := rng.standard_normal((1000, 2)), -x)
    assert (independent.thin, independent.flip_probability) == (1, 0.5)
    slow = stein.ksd_test(x := exact.autoregressive(rng, 0.95, 4000, 2), -x)
    assert 20 <= slow.thin <= 60
    assert slow.flip_probability == 0.1
    assert slow.num_draws == -(-4000 // slow.thin)
    assert stein.choose_thinning(x, (4000,)) == slow.thin


def test_wrong_weights_of_modes_are_not_seen_and_weights_put_scores_of_another_density_right(rng):
    """What the docstrings warn of: an even mixture far apart, drawn 9 to 1, passes; a shifted mode does not."""
    side = np.where(rng.random(1000) < 0.9, 1.0, -1.0)
    draws = 8.0 * side + rng.standard_normal(1000)
    scores = 8.0 * np.tanh(8.0 * draws) - draws
    assert stein.ksd_test(draws, scores).p_value > 0.05
    assert stein.ksd_test(draws + 0.5, 8.0 * np.tanh(8.0 * (draws + 0.5)) - draws - 0.5).p_value < 0.01
    draws, scores, weights = of_another_density(rng)
    assert stein.ksd_test(draws, scores).p_value < 0.01
    assert stein.ksd_test(draws, scores, weights=weights).p_value > 0.05
    assert stein.ksd_test(draws, scores, weights=1e3 * weights.ravel()).p_value > 0.05
    moved = of_another_density(rng, shift=0.3)
    assert stein.ksd_test(*moved[:2], weights=moved[2]).p_value < 0.01


def of_another_density(rng, shift=0.0, n=1000):
    """Draws of N(shift, 1) with scores of q = N(0.4, 1.2^2), and q over the standard normal density p."""
    draws = shift + rng.standard_normal((4, n // 4, 1))
    scores = -(draws - 0.4) / 1.44
    log_ratio = 0.5 * draws**2 - 0.5 * (draws - 0.4) ** 2 / 1.44
    return draws, scores, np.exp(log_ratio[..., 0])


def test_weighted_discrepancy_is_the_sum_over_weighted_pairs(rng):
    draws, scores, weights = of_another_density(rng, n=200)
    test = stein.ksd_test(draws, scores, weights=weights, thin=2, coordinates=True)
    draws, scores, weights = (part[:, ::2] for part in (draws, scores, weights))
    weights = weights.ravel() / weights.mean()
    matrix = stein.stein_matrix(draws, scores)
    assert test.ksd**2 == pytest.approx(weights @ matrix @ weights / len(weights) ** 2, rel=1e-10)
    assert test.null.mean() == pytest.approx(np.sqrt((weights**2) @ np.diag(matrix)) / len(weights), rel=0.3)
    equal = stein.ksd_test(draws, scores, weights=np.full(100, 7.0), rng=np.random.default_rng(1))
    plain = stein.ksd_test(draws, scores, rng=np.random.default_rng(1))
    np.testing.assert_allclose(equal.null, plain.null, rtol=1e-10)


@pytest.mark.parametrize("weights", [np.ones(49), np.full(50, -1.0), np.zeros(50), np.full(50, np.nan)])
def test_weights_without_meaning_are_refused(weights, rng):
    with pytest.raises(ValueError, match="weights must"):
        stein.ksd_test(*exact.normal(rng.standard_normal((50, 2))), weights=weights)


def test_p_values_are_corrected_for_all_tests(rng):
    """Of the joint statistic and the margins' by hand; none is below that of all together."""
    joint, margins = rng.gamma(5.0, size=1001), rng.gamma(2.0, size=(4, 1001))
    margins[2, 0] = 14.0
    p_value, of_margins = corrected(joint, margins)
    roots = np.cbrt(margins)
    largest = ((roots - roots.mean(axis=1, keepdims=True)) / roots.std(axis=1, keepdims=True)).max(axis=0)
    own = np.minimum(*((x[:, None] <= x).mean(axis=1) for x in (joint, largest)))
    assert p_value == pytest.approx((own <= own[0]).mean())
    assert of_margins.argmin() == 2
    assert p_value == of_margins[2] < 0.02
    assert (of_margins >= p_value).all()
    quiet = [corrected(rng.gamma(5.0, size=400), rng.gamma(2.0, size=(20, 400)))[0] for _ in range(1000)]
    assert 0.03 < np.mean(np.array(quiet) <= 0.05) < 0.07


@pytest.mark.parametrize("error", [lambda x: 0.9 * x, lambda x: np.where(x < 0.0, 0.85 * x, x)])
def test_an_error_of_one_of_twenty_coordinates_is_seen(error):
    """The joint test alone is the negative control."""
    with_margins, joint = [], []
    for seed in range(2):
        draws = np.random.default_rng([seed, 20]).standard_normal((2000, 20))
        draws[:, 3] = error(draws[:, 3])
        test = stein.ksd_test(draws, -draws, coordinates=True, num_replicates=300)
        with_margins.append(test.p_value)
        joint.append((test.null >= test.ksd).mean())
        assert test.margin_p_values.argmin() == 3
    assert max(with_margins) <= 0.05
    assert np.mean(joint) > 0.05


def resampled(rng, n, d, how, scale=1.0):
    """Draws of N(0, scale^2 I) by importance resampling from 1,000 of a wider distribution, in two chains."""
    wide = 1.5 * rng.standard_normal((1000, d))
    weights = softmax(-0.5 * (wide**2).sum(axis=1) * (1.0 - 1.5**-2))
    rows = resample(rng, weights, n) if how == "systematic" else rng.choice(1000, n, p=weights)
    return scale * wide[rows].reshape(2, n // 2, d)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["multinomial", "systematic"])
def test_level_and_power_for_draws_that_repeat(how):
    """In any order; 60 repetitions. With signs of its own for each repeat, all right draws were rejected."""
    right, wrong = [], []
    for seed in range(60):
        rng = np.random.default_rng([seed, 21])
        draws = resampled(rng, 600, 3, how)
        right.append(stein.ksd_test(draws, -draws, coordinates=True, num_replicates=200).p_value)
        if seed < 10:
            draws = resampled(rng, 600, 3, how, scale=0.75)
            wrong.append(stein.ksd_test(draws, -draws, coordinates=True, num_replicates=200).p_value)
    assert np.mean(np.array(right) <= 0.05) <= 0.15
    assert np.mean(np.array(wrong) <= 0.05) >= 0.8


def test_repeats_are_one_draw_and_their_scores_averaged(rng):
    """They differ where variables that are not tested do."""
    draws, scores = rng.standard_normal((2, 50, 1))
    chains = as_chains([draws[[0, 1, 1, 2]], draws[[2, 3, 1]]], [scores[:4], scores[4:7]])
    merged = merge_repeats(chains)
    np.testing.assert_array_equal(merged.draws, draws[:4])
    np.testing.assert_allclose(merged.weights, np.array([1, 3, 2, 1]) / 1.75)
    np.testing.assert_allclose(merged.scores[1], scores[[1, 2, 6]].mean(axis=0))
    np.testing.assert_allclose(merged.scores[2], scores[[3, 4]].mean(axis=0))
    assert merged.lengths == (3, 1)
    different = as_chains(draws, scores)
    assert merge_repeats(different) is different


def test_draws_without_weight_are_no_draws(rng):
    """Every other weight is zero, those that thinning by two would leave; with all but one, nothing is left to test."""
    draws, weights = rng.standard_normal((400, 2)), np.tile([0.0, 1.0], 200)
    test = stein.ksd_test(draws, -draws, weights=weights, thin=2)
    other = stein.ksd_test(draws[1::2], -draws[1::2], thin=2)
    assert test.num_draws == 100
    assert (test.ksd, test.p_value) == (other.ksd, other.p_value)
    with pytest.raises(ValueError, match="two different draws of positive weight"):
        stein.ksd_test(draws, -draws, weights=np.arange(400) == 7)


def test_what_normal_draws_have_does_not_follow_the_draws(rng):
    """Root of twice the coordinates over the draws; the band by random signs follows the draws that are judged."""
    draws = rng.standard_normal((500, 4))
    right, wrong = stein.ksd_test(draws, -draws), stein.ksd_test(draws, -3.0 * draws)
    assert right.normal_ksd == wrong.normal_ksd == pytest.approx(np.sqrt(8.0 / 500.0))
    assert right.null_quantiles[0] < right.normal_ksd < right.null_quantiles[1]
    assert wrong.null_quantiles[0] > 1.5 * wrong.normal_ksd
