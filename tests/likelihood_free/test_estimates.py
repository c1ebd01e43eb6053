from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free import (
    log_kernel_abc,
    log_normal_unbiased,
    log_synthetic,
    regression_adjusted,
    rejection,
    simulate_repeatedly,
)
from pymc_kernel.likelihood_free.estimates import normality_errors

OBSERVED = np.array([0.4, -0.3])
COVARIANCE = np.array([[1.0, 0.5], [0.5, 2.0]])


def simulated(m, rng):
    return rng.multivariate_normal(np.zeros(2), COVARIANCE, size=m)


def standard_errors(values, truth):
    return (np.mean(values) - truth) / (np.std(values) / np.sqrt(len(values)))


@pytest.mark.parametrize("factor", [np.array([0.5, 0.8]), np.array([[0.6, 0.0], [0.3, 0.7]])])
def test_kernel_abc_is_unbiased(factor):
    """Summaries N(0, C) seen with normal noise of covariance LL': a normal density of covariance C + LL'."""
    rng = np.random.default_rng(0)
    root = np.diag(factor) if factor.ndim == 1 else factor
    truth = stats.multivariate_normal(np.zeros(2), COVARIANCE + root @ root.T).pdf(OBSERVED)
    values = [np.exp(log_kernel_abc(simulated(3, rng), OBSERVED, factor, 3)) for _ in range(4000)]
    assert abs(standard_errors(values, truth)) < 4.0


def test_failures_count_as_zero_and_are_counted():
    found, factor = simulated(4, np.random.default_rng(1)), np.ones(2)
    of_four, of_eight = (log_kernel_abc(found, OBSERVED, factor, number) for number in (4, 8))
    assert of_eight == pytest.approx(of_four - np.log(2))
    assert log_kernel_abc(np.empty((0, 2)), OBSERVED, factor, 3) == -np.inf
    one, *others = np.array([[1.0], [np.nan], [np.inf], [2.0]])
    found = simulate_repeatedly(Mock(side_effect=[one, ValueError("no"), *others]), None, 5)
    np.testing.assert_array_equal(np.ravel(found.summaries), [1.0, 2.0])
    assert found.failed == 3
    assert str(found.first_error) == "no"


def test_synthetic_likelihood_is_the_normal_density():
    found = simulated(50, np.random.default_rng(2))
    for settings, share in (((), 1.0), ((0.3,), 0.7)):
        covariance = np.cov(found.T) * np.array([[1.0, share], [share, 1.0]])
        exact = stats.multivariate_normal(found.mean(axis=0), covariance).logpdf(OBSERVED)
        assert log_synthetic(found, OBSERVED, *settings) == pytest.approx(exact, rel=1e-10)
    assert log_synthetic(found[:2], OBSERVED) == -np.inf


@pytest.mark.parametrize("seed", range(8))
def test_estimates_from_dependent_summaries_are_zero_however_they_round(seed):
    """Two simulations of two summaries, three of which one is twice there, a summary that is the sum of two others."""
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.uniform(-6.0, 6.0, size=3)
    found = rng.normal(size=(30, 3)) + 3.0
    assert log_synthetic(found[:2, :2] * scales[:2], OBSERVED) == -np.inf
    assert log_synthetic(found[[0, 1, 1], :2] * scales[:2], OBSERVED) == -np.inf
    found[:, 2] = found[:, 0] + rng.normal() * found[:, 1]
    assert log_synthetic(found * scales, np.ones(3)) == -np.inf
    assert log_normal_unbiased(found * scales, found.mean(axis=0) * scales) == -np.inf
    assert np.isfinite(log_synthetic(found[:2, :2], OBSERVED, 0.5))


@pytest.mark.parametrize("m", [7, pytest.param(15, marks=pytest.mark.long)])
def test_unbiased_normal_density(m):
    """And the plug-in estimate is seen to be biased."""
    rng = np.random.default_rng(3)
    truth = stats.multivariate_normal(np.zeros(2), COVARIANCE).pdf(OBSERVED)
    draws = [simulated(m, rng) for _ in range(4000)]
    values = [np.exp(log_normal_unbiased(s, OBSERVED)) for s in draws]
    assert abs(standard_errors(values, truth)) < 4.0
    assert standard_errors([np.exp(log_synthetic(s, OBSERVED)) for s in draws], truth) > 5.0
    assert log_normal_unbiased(draws[0], np.array([50.0, 0.0])) == -np.inf
    assert log_normal_unbiased(draws[0][:5], OBSERVED) == -np.inf


NUM_DRAWS, NUM_SIMULATIONS = 2000, 50


def mean_square(shape):
    """Return draws by the normal approximation of Gamma(shape, scale / shape) data, and what the true density moves."""
    grid = np.linspace(0.05, 12.0, 20_000)
    scales = stats.lognorm.pdf(grid, 0.7)
    by_normal = scales * stats.norm.pdf(1.0, grid, grid / np.sqrt(shape))
    by_truth = scales * stats.gamma.pdf(1.0, shape, scale=grid / shape)
    by_normal, by_truth = by_normal / by_normal.sum(), by_truth / by_truth.sum()
    rng = np.random.default_rng(1)
    draws = rng.choice(grid, size=NUM_DRAWS, p=by_normal)
    simulated = list(rng.gamma(shape, draws[:, None, None] / shape, (NUM_DRAWS, NUM_SIMULATIONS, 1)))
    truth, approximate = statistics(grid, by_truth), statistics(grid, by_normal)
    moved = (truth - approximate) / approximate[1]
    moved[1] = np.log(truth[1] / approximate[1])
    return draws, simulated, moved


def statistics(grid, weights):
    """Return mean, spread, 5 % and 95 % quantile."""
    mean = weights @ grid
    ends = np.interp([0.05, 0.95], weights.cumsum(), grid)
    return np.array([mean, np.sqrt(weights @ (grid - mean) ** 2), *ends])


@pytest.mark.parametrize("shape", [3.0, 8.0])
def test_errors_by_skewed_summaries_are_those_of_quadrature(shape):
    draws, simulated, moved = mean_square(shape)
    found, errors = normality_errors(draws[:, None], simulated, np.array([1.0]))
    # The kernel of .2 of the spread hides a twentieth.
    assert (np.abs(found[:, 0] - moved) < 0.06 * np.abs(moved) + 3.0 * errors[:, 0]).all()
    assert (np.abs(moved) > 0.2).any() or shape > 3.0
    assert (errors < [[0.06], [0.06], [0.1], [0.15]]).all()
    scaled = normality_errors(draws[:, None], [1e6 * rows for rows in simulated], np.array([1e6]))
    np.testing.assert_allclose(scaled, (found, errors), rtol=1e-6)


@pytest.mark.parametrize("width", [1, 9])
def test_normal_summaries_have_no_errors(width):
    rng = np.random.default_rng(2)
    into, spreads = rng.standard_normal((2, width)), 1.0 + np.arange(width)
    covariance = np.linalg.inv(np.eye(2) + (into / spreads**2) @ into.T)
    positions = rng.multivariate_normal(np.zeros(2), covariance, NUM_DRAWS)
    means = positions @ into
    simulated = [m + rng.standard_normal((NUM_SIMULATIONS, width)) * spreads for m in means]
    moved, errors = normality_errors(positions, simulated, np.zeros(width))
    assert (np.abs(moved) < 0.05 + 3.0 * errors).all()


def test_what_cannot_be_known_is_none():
    rng = np.random.default_rng(3)
    rows = list(rng.standard_normal((NUM_DRAWS, NUM_SIMULATIONS, 1)))
    assert normality_errors(np.zeros((NUM_DRAWS, 1)), rows, np.zeros(1)) is None
    assert normality_errors(rng.standard_normal((10, 1)), rows[:10], np.zeros(1)) is None
    constant = [np.ones((NUM_SIMULATIONS, 1))] * NUM_DRAWS
    assert normality_errors(rng.standard_normal((NUM_DRAWS, 1)), constant, np.ones(1)) is None


def test_the_nearest_are_accepted_and_exact_hits_have_equal_weights(rng):
    summaries = rng.standard_normal((500, 3))
    observed = np.array([0.5, -0.2, 1.0])
    found = rejection(summaries, observed, 0.1)
    distances = np.linalg.norm(summaries - observed, axis=1)
    assert sorted(found.index) == sorted(np.argsort(distances)[:50])
    assert found.epsilon == pytest.approx(np.sort(distances)[49])
    assert found.weights.sum() == pytest.approx(1.0)
    # Epanechnikov's kernel, whose edge is a fiftieth beyond the farthest of fifty.
    expected = 1.0 - (np.sort(distances)[:50] / (1.02 * found.epsilon)) ** 2
    np.testing.assert_allclose(found.weights, expected / expected.sum())
    found = rejection(np.zeros((10, 2)), np.zeros(2), 0.5)
    np.testing.assert_allclose(found.weights, 0.2)
    assert len(rejection(np.zeros((10, 2)), np.zeros(2), 1e-6).index) == 2


def test_adjustment_removes_a_linear_relation_and_survives_few_simulations(rng):
    summaries = rng.standard_normal((200, 2))
    noise = rng.standard_normal((200, 1))
    slope = np.array([[2.0], [-1.0]])
    observed = np.array([0.3, 0.4])
    weights = rng.uniform(0.5, 1.0, 200)
    latent = 1.0 + summaries @ slope + noise
    design = np.hstack([np.ones((200, 1)), summaries - observed])
    beta = np.linalg.solve(design.T * weights @ design, design.T * weights @ latent)  # the normal equations
    expected = latent - (summaries - observed) @ beta[1:]
    np.testing.assert_allclose(regression_adjusted(latent, summaries, observed, weights), expected, atol=1e-10)
    summaries = rng.standard_normal((3, 8))
    found = regression_adjusted(rng.standard_normal((3, 2)), summaries, np.zeros(8), np.full(3, 1 / 3))
    assert np.isfinite(found).all()
