from unittest.mock import Mock

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free import (
    log_kernel_abc,
    log_normal_unbiased,
    log_synthetic,
    simulate_repeatedly,
)

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


def test_failures_count_as_zero():
    rng = np.random.default_rng(1)
    found = simulated(4, rng)
    factor = np.ones(2)
    assert log_kernel_abc(found, OBSERVED, factor, 8) == pytest.approx(
        log_kernel_abc(found, OBSERVED, factor, 4) - np.log(2)
    )
    assert log_kernel_abc(np.empty((0, 2)), OBSERVED, factor, 3) == -np.inf


def test_synthetic_likelihood_is_the_normal_density():
    rng = np.random.default_rng(2)
    found = simulated(50, rng)
    distribution = stats.multivariate_normal(found.mean(axis=0), np.cov(found.T))
    assert log_synthetic(found, OBSERVED) == pytest.approx(distribution.logpdf(OBSERVED), rel=1e-10)
    shrunk = np.cov(found.T) * np.array([[1.0, 0.7], [0.7, 1.0]])
    distribution = stats.multivariate_normal(found.mean(axis=0), shrunk)
    assert log_synthetic(found, OBSERVED, 0.3) == pytest.approx(distribution.logpdf(OBSERVED), rel=1e-10)
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


def test_failing_simulators_are_counted():
    one, *others = np.array([[1.0], [np.nan], [np.inf], [2.0]])
    found = simulate_repeatedly(Mock(side_effect=[one, ValueError("no"), *others]), None, 5)
    np.testing.assert_array_equal(np.ravel(found.summaries), [1.0, 2.0])
    assert found.failed == 3
    assert str(found.first_error) == "no"
