"""Ranks of true parameters among posteriors of simulations like the data: right, shifted, narrow."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.rounds import CautiousRounds, LocalLikelihood
from pymc_kernel.rounds.checks import choose_match, simulated_ranks, summarized_ranks
from tests.reference.grids import moments
from tests.rounds.priors import NormalPrior, run

NOISE = np.array([0.3, 500.0])
UNIT = np.array([1.0, 1e3])
OBSERVED = np.array([0.4, -300.0])


def likelihood(log_density):
    """Return a likelihood of one function of parameters (n, d) and observed data."""
    each = lambda parameters, rows: np.stack([log_density(parameters, row) for row in rows])  # noqa: E731
    return SimpleNamespace(log_density=log_density, log_densities=each)


def normal(narrow=1.0, shift=0.0):
    """The likelihood of two normal means, or a wrong one."""
    return likelihood(lambda p, y: -0.5 * (((p - y) / NOISE + shift) ** 2).sum(axis=1) / narrow**2)


def folds_of(fit, n, number=5):
    return [(rows, fit) for rows in np.array_split(np.arange(n), number)]


def calibrated(fit, log_weights=None):
    rng = np.random.default_rng(1)
    parameters = rng.standard_normal((700, 2)) * UNIT
    summaries = rng.normal(parameters, NOISE)
    weights = None if log_weights is None else log_weights(parameters)
    return summarized_ranks(*simulated_ranks(parameters, summaries, OBSERVED, folds_of(fit, 700), rng, weights))


def test_ranks_of_a_right_likelihood_are_uniform_and_a_shifted_and_a_narrow_one_are_measured():
    found = calibrated(normal())
    assert 60 < found.num_cases < 700
    assert (np.abs(found.shift) < 3.0 * found.shift_error).all()
    assert (np.abs(np.log(found.spread)) < 3.0 * found.log_spread_error).all()
    # Weights are those of a prior that is shifted: ranks stay uniform, and the effective number falls.
    weighted = calibrated(normal(), log_weights=lambda parameters: 0.7 * parameters[:, 0])
    assert (np.abs(weighted.shift) < 3.2 * weighted.shift_error).all()
    assert (np.abs(np.log(weighted.spread)) < 3.2 * weighted.log_spread_error).all()
    assert weighted.num_cases < 0.95 * found.num_cases
    # Of a flat prior the posterior of the mean is shifted by minus one noise, which is about a posterior spread.
    np.testing.assert_allclose(calibrated(normal(shift=-0.6)).shift, -0.6, atol=0.2)
    assert (calibrated(normal(narrow=0.5)).spread > 1.5).all()  # twice, less what a case counts among few places
    assert 0.45 < calibrated(normal(narrow=2.0)).spread[0] < 0.7


def test_errors_at_the_observation_are_not_averaged_away_where_data_say_little():
    """All posteriors overlap; those of positive data are learned too high, those of negative data too low."""
    torn = likelihood(lambda p, y: stats.norm.logpdf(y, p - 0.8 * np.sign(y), 1.5).sum(axis=1))
    rng = np.random.default_rng(1)
    parameters = rng.standard_normal((1000, 1))
    summaries = rng.normal(parameters, 1.5)
    for place, wanted in ((1.5, -0.3), (-1.5, 0.3)):
        ranks = simulated_ranks(parameters, summaries, np.array([place]), folds_of(torn, 1000), rng)
        found = summarized_ranks(*ranks)
        assert found.shift[0] == pytest.approx(wanted, abs=0.15)
        assert abs(found.shift[0]) > 0.15


def test_chance_of_tails_by_the_binomial():
    ranks = np.full((200, 2), 0.5)
    ranks[:21, 0], ranks[:3, 1], ranks[3:13, 1] = 0.01, 0.99, 0.02
    found = summarized_ranks(ranks, np.full(200, 7.0))
    np.testing.assert_allclose(found.tails, [[0.105, 0.05], [0.0, 0.015]])
    count = stats.binom(200, 0.05)
    assert found.tail_chance[0, 0] == pytest.approx(count.sf(20))  # as many, or more
    assert found.tail_chance[1, 0] == pytest.approx(count.cdf(1))
    assert found.tail_chance[1, 1] == pytest.approx(count.cdf(4))
    assert 0.3 < found.tail_chance[0, 1] < 0.7
    weighted = summarized_ranks(ranks, np.where(np.arange(200) < 21, 2.0, 1.0))
    assert weighted.tails[0, 0] == pytest.approx(42.0 / 221.0)
    found = summarized_ranks(np.empty((0, 2)), np.empty(0))
    assert found.num_cases == 0
    assert np.isnan(found.shift).all()


def test_tails_are_counted_where_mean_and_spread_are_right():
    """A posterior that ends at an edge, learned as a normal one with its mean and its spread."""

    def edge(p, y):
        return np.where(y > p, (p - y) / 0.3, -np.inf).sum(axis=1)

    rng = np.random.default_rng(4)
    parameters = rng.standard_normal((1500, 1))
    summaries, found = parameters + rng.exponential(0.3, (1500, 1)), []
    for one in (edge, lambda p, y: stats.norm.logpdf(y - p, 0.3, 0.3).sum(axis=1)):
        ranks = simulated_ranks(parameters, summaries, np.array([0.3]), folds_of(likelihood(one), 1500), rng)
        found.append(summarized_ranks(*ranks))
    assert found[0].tail_chance.min() > 0.01
    assert found[1].tail_chance.min() < 1e-3
    assert np.log(found[1].spread[0]) < 4.0 * found[1].log_spread_error


def test_each_case_counts_once_among_the_places(rng):
    """Three simulations: ranks lie between what is below a place and that with the place's own weight."""
    wide = likelihood(lambda p, y: -0.1 * ((p - y) ** 2).sum(axis=1))
    parameters, summaries = np.array([[0.0], [1.0], [3.0]]), np.array([[0.5], [2.0], [-1.0]])
    weights = np.exp(-0.1 * (parameters[:, 0] - summaries) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    below, own = weights[2, :2].sum(), np.diagonal(weights)
    smallest, largest = np.ones(3), np.zeros(3)
    for _ in range(200):
        ranks, counts = simulated_ranks(parameters, summaries, np.zeros(1), [(np.arange(3), wide)], rng)
        assert (counts > 0.9).all()
        ranks = np.sort(ranks[:, 0])  # in the order of the parameters here, save for the chance within a weight
        smallest, largest = np.minimum(smallest, ranks), np.maximum(largest, ranks)
    np.testing.assert_allclose(smallest[0], 0.0, atol=0.02)
    np.testing.assert_allclose(largest[2], below + own[2], atol=0.02)
    np.testing.assert_allclose(smallest[2], below, atol=0.02)
    np.testing.assert_allclose(largest[0], own[0], atol=0.02)


def rounds_of(simulate, prior, observed, seed, number=300, **settings):
    config = CautiousRounds(number, num_particles=1000, **settings)
    return run(config, simulate, prior, np.array(observed), np.random.default_rng(seed))


@pytest.mark.long
def test_rounded_data_have_the_probability_of_a_match():
    """Noise is a tenth of the rounding, so that a density of the rounded numbers is a poor likelihood."""
    prior = NormalPrior(np.zeros(1), np.array([2.0]))
    draws, state = rounds_of(lambda rng, p: np.round(rng.normal(p, 0.1)), prior, [2.0], 3, 400, rounds=2)
    assert state.likelihood.match is not None
    grid = np.linspace(0.8, 3.2, 3001)
    density = stats.norm(0, 2).pdf(grid) * (stats.norm(grid, 0.1).cdf(2.5) - stats.norm(grid, 0.1).cdf(1.5))
    mean, spread = moments(grid, np.log(density))
    draws = draws.positions[:, 0]
    assert abs(draws.mean() - mean) < 0.15 * spread
    assert draws.std() == pytest.approx(spread, rel=0.15)  # 1.3 to 1.9 by the density alone
    for level in (0.05, 0.95):
        exact = np.interp(level, density.cumsum() / density.sum(), grid)
        assert abs(np.quantile(draws, level) - exact) < 0.25 * spread


def test_a_match_stands_for_a_density_that_is_wrong(rng):
    """Twenty of twenty, with a density whose logarithm is a third of theirs: held-out simulations choose the match."""

    wrong = SimpleNamespace(log_density=lambda parameters, observed: 7.0 * np.log(expit(parameters[:, 0])))
    parameters = rng.uniform(1.0, 6.0, (2000, 1))
    summaries = rng.binomial(20, expit(parameters)).astype(float)
    folds, local = folds_of(wrong, 2000, 4), LocalLikelihood(wrong, np.array([20.0]), None)
    learn = LearnedLikelihood(num_replicates=3).fit_chance
    given = parameters, summaries, np.ones(2000, dtype=bool)
    found, parts = choose_match(local, folds, *given, learn, rng)
    places = np.array([[1.5], [2.5], [3.5], [5.0]])
    exact = 20.0 * np.log(expit(places[:, 0]))
    np.testing.assert_allclose(found(places), exact, atol=0.05, rtol=0.15)  # where few match a logit is .25 off
    assert (summaries[np.concatenate([rows for rows, _ in parts])] == 20.0).all()
    # Data that nothing matches are left to the density.
    other = replace(local, observed=np.array([3.5]))
    assert choose_match(other, folds, *given, learn, rng)[0].match is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_event_leaves_no_tail(seed):
    """Ten counts without an event: beyond a rate of one is a twentieth of a thousandth of the posterior."""
    prior = NormalPrior(np.zeros(1), np.array([1.5]))
    draws, _ = rounds_of(lambda rng, p: rng.poisson(10.0 * np.exp(p)).astype(float), prior, [0.0], seed, number=1000)
    grid = np.linspace(-8.0, 4.0, 3001)
    density = stats.norm(0.0, 1.5).pdf(grid) * np.exp(-10.0 * np.exp(grid))
    cumulated = density.cumsum() / density.sum()
    draws = draws.positions[:, 0]
    for level in (0.05, 0.5, 0.95):
        assert abs(np.mean(draws < np.interp(level, cumulated, grid)) - level) < 0.1
    assert np.mean(draws > np.interp(0.999, cumulated, grid) + 0.7) < 0.002


@pytest.mark.long
def test_failures_that_depend_on_the_parameters_are_part_of_the_likelihood():
    def simulate(rng, parameters):
        summaries = rng.normal(parameters, 0.5)
        summaries[rng.random(len(parameters)) > expit(-3.0 * parameters[:, 0])] = np.nan
        return summaries

    prior = NormalPrior(np.zeros(1), np.ones(1))
    found = [rounds_of(simulate, prior, [1.0], seed, 500, rounds=2) for seed in range(4)]
    grid = np.linspace(-3.0, 3.0, 3001)
    log_density = stats.norm.logpdf(grid) + stats.norm(grid, 0.5).logpdf(1.0) + np.log(expit(-3.0 * grid))
    mean, spread = moments(grid, log_density)
    draws = [draws.positions[:, 0] for draws, _ in found]
    # Of four seeds, each of which is .2 spreads off; without the probability of success .8 to 1.1.
    assert abs(np.mean(draws) - mean) < 0.3 * spread
    assert np.mean(np.std(draws, axis=1)) == pytest.approx(spread, rel=0.25)
    assert all(state.rounds[-1].num_failed > 0 for _, state in found)
