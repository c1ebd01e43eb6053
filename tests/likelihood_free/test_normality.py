import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free.estimates import normality_errors

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


def test_units_of_summaries_do_not_matter():
    draws, simulated, *_ = mean_square(3.0)
    errors = normality_errors(draws[:, None], simulated, np.array([1.0]))
    scaled = normality_errors(draws[:, None], [1e6 * rows for rows in simulated], np.array([1e6]))
    np.testing.assert_allclose(np.array(scaled), np.array(errors), rtol=1e-6)


def test_what_cannot_be_known_is_none():
    rng = np.random.default_rng(3)
    rows = list(rng.standard_normal((NUM_DRAWS, NUM_SIMULATIONS, 1)))
    assert normality_errors(np.zeros((NUM_DRAWS, 1)), rows, np.zeros(1)) is None
    assert normality_errors(rng.standard_normal((10, 1)), rows[:10], np.zeros(1)) is None
    constant = [np.ones((NUM_SIMULATIONS, 1))] * NUM_DRAWS
    assert normality_errors(rng.standard_normal((NUM_DRAWS, 1)), constant, np.ones(1)) is None
