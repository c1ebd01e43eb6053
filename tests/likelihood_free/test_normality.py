import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free.normality import normality_errors

NUM_DRAWS, NUM_SIMULATIONS = 2000, 50


def normal_approximation(means, spreads, observed, log_prior):
    """Return a function of a generator for draws from a posterior on a grid by normal summaries."""
    grid = np.linspace(0.05, 12.0, 20_000)
    log_density = stats.norm(means(grid), spreads(grid)).logpdf(observed) + log_prior(grid)
    weights = np.exp(log_density - log_density.max())
    return grid, weights / weights.sum()


def mean_square(shape, observed):
    """Return draws by the normal approximation of Gamma(shape, scale / shape) data, and moments by the true density."""
    grid, by_normal = normal_approximation(
        lambda s: s, lambda s: s / np.sqrt(shape), observed, lambda s: stats.lognorm(0.7).logpdf(s)
    )
    log_true = stats.gamma(shape, scale=grid / shape).logpdf(observed) + stats.lognorm(0.7).logpdf(grid)
    by_truth = np.exp(log_true - log_true.max())
    by_truth /= by_truth.sum()
    rng = np.random.default_rng(1)
    draws = rng.choice(grid, size=NUM_DRAWS, p=by_normal)
    simulated = list(rng.gamma(shape, draws[:, None, None] / shape, (NUM_DRAWS, NUM_SIMULATIONS, 1)))
    mean, spread = moments(grid, by_truth)
    approximate_mean, approximate_spread = moments(grid, by_normal)
    return draws, simulated, (mean - approximate_mean) / approximate_spread, np.log(spread / approximate_spread)


def moments(grid, weights):
    mean = weights @ grid
    return mean, np.sqrt(weights @ (grid - mean) ** 2)


@pytest.mark.parametrize("shape", [3.0, 8.0])
def test_errors_by_skewed_summaries_are_those_of_quadrature(shape):
    draws, simulated, shift, log_spread = mean_square(shape, 1.0)
    errors = normality_errors(draws[:, None], simulated, np.array([1.0]))
    # The kernel of .3 of the spread hides a tenth.
    assert errors.shift[0] == pytest.approx(shift, abs=0.12 * abs(shift) + 3.0 * errors.shift_error[0])
    assert errors.log_spread[0] == pytest.approx(
        log_spread, abs=0.12 * abs(log_spread) + 3.0 * errors.log_spread_error[0]
    )
    assert abs(shift) > 0.2 or shape > 3.0


@pytest.mark.parametrize("width", [1, 9])
def test_normal_summaries_have_no_errors(width):
    rng = np.random.default_rng(2)
    positions = rng.standard_normal((NUM_DRAWS, 2))
    into = rng.standard_normal((2, width))
    means = positions @ into
    simulated = [m + rng.standard_normal((NUM_SIMULATIONS, width)) @ np.diag(1.0 + np.arange(width)) for m in means]
    errors = normality_errors(positions, simulated, np.zeros(width))
    assert (np.abs(errors.shift) < 0.05 + 3.0 * errors.shift_error).all()
    assert (np.abs(errors.log_spread) < 0.05 + 3.0 * errors.log_spread_error).all()


def test_units_of_summaries_do_not_matter():
    draws, simulated, *_ = mean_square(3.0, 1.0)
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
