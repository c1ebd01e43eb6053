"""Thinning, control functionals, two samples."""

import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel import stein
from pymc_kernel.stein import uses
from tests.reference.exact_draws import autoregressive
from tests.reference.slow_kernels import greedy_choice


@pytest.mark.parametrize(("num_dims", "spread"), [(1, 0.99), (3, 0.94), (10, 0.84)])
def test_thinned_draws_spread_less_in_more_dimensions(num_dims, spread, rng):
    """As the documentation says."""
    draws = rng.standard_normal((4000, num_dims))
    few = draws[stein.stein_thin(draws, -draws, 100)]
    assert few.std(axis=0).mean() == pytest.approx(spread, abs=0.02)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [None, K.Gaussian(np.array([1.0, 2.0, 0.5]))], ids=["default", "scaled"])
def test_thinning_equals_the_slow_twin(kernel, threads, rng, monkeypatch):
    monkeypatch.setattr(uses, "_THREADED", 0 if threads == 2 else 10**9)
    monkeypatch.setattr(uses, "num_threads", lambda: threads)
    draws = rng.standard_normal((700, 3)) * 1.3 + 0.5
    matrix = stein.stein_matrix(draws, -draws, kernel)
    assert stein.stein_thin(draws, -draws, 60, kernel).tolist() == greedy_choice(matrix, 60)


def test_thinned_draws_fit_better_than_evenly_spaced_ones(rng):
    draws = np.concatenate([rng.standard_normal((200, 2)) + 6.0, autoregressive(rng, 0.9, 800, 2)])  # burn-in first
    z, s = stein.standardize(draws, -draws)
    chosen = stein.stein_thin(draws, -draws, 40)
    even = np.linspace(0, 999, 40).astype(int)
    ours, theirs = (stein.ksd_squared(z[i], s[i], how="none") for i in (chosen, even))
    assert ours < 0.2 * theirs
    assert (chosen >= 200).mean() > 0.9


@pytest.mark.long
def test_control_functionals_are_right_and_better(rng):
    """Means over 20 repetitions: no bias, and at most a fifth of the plain variance for smooth functions."""
    errors = []
    for _ in range(20):
        draws = rng.standard_normal((400, 2))
        values = np.column_stack([draws[:, 0], draws[:, 1] ** 2, np.sin(draws.sum(axis=1))])
        found = stein.controlled_expectation(values, draws, -draws)
        errors.append([found.value - [0, 1, 0], found.mean - [0, 1, 0]])
    ours, plain = np.array(errors).transpose(1, 0, 2)
    assert (ours.var(axis=0) < 0.2 * plain.var(axis=0)).all()
    assert (np.abs(ours.mean(axis=0)) < 4 * ours.std(axis=0) / np.sqrt(20) + 1e-3).all()


def test_control_of_rough_functions_leaves_the_mean_and_weights_take_the_bias_of_another_density(rng):
    draws = rng.standard_normal((300, 5))
    values = rng.standard_normal(300)  # nothing to do with the draws
    found = stein.controlled_expectation(values, draws, -draws)
    assert abs(found.value[0] - values.mean()) < 0.3 * values.std() / np.sqrt(300) + 1e-12
    with pytest.raises(ValueError, match="one row for each"):
        stein.controlled_expectation(values[:7], draws, -draws)
    # Scores of N(0.3, 1) for a standard normal density: without weights the control itself is off.
    draws = rng.standard_normal((1000, 1))
    weights = np.exp(0.3 * draws[:, 0])  # of both densities' ratio, up to a constant
    wrong = stein.controlled_expectation(draws, draws, 0.3 - draws)
    found = stein.controlled_expectation(draws, draws, 0.3 - draws, weights=weights)
    assert wrong.value[0] > 0.2
    assert abs(found.value[0]) < 0.1
    assert found.variance_ratio[0] < 0.5


@pytest.mark.parametrize("kernel", [K.Polynomial(degree=3), K.Sum([K.Gaussian(2.0), K.Laplace(1.0)])])
def test_two_sample_statistics_equal_the_definition(rng, kernel):
    first, second = rng.standard_normal((40, 3)), rng.standard_normal((60, 3)) + 0.2
    xx, yy, xy = kernel(first), kernel(second), kernel(first, second)
    biased = xx.mean() + yy.mean() - 2 * xy.mean()
    assert abs(stein.mmd_squared(first, second, kernel) - biased) < 1e-10
    off = (xx.sum() - np.trace(xx)) / (40 * 39) + (yy.sum() - np.trace(yy)) / (60 * 59) - 2 * xy.mean()
    assert abs(stein.mmd_squared(first, second, kernel, statistic="U") - off) < 1e-10
    assert abs(stein.mmd_test(first, second, kernel, thin=1).mmd ** 2 - biased) < 1e-10
    with pytest.raises(ValueError, match="must agree"):
        stein.mmd_squared(first, second[:, :1], kernel)


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 300), pytest.param(0.9, 2000, marks=pytest.mark.slow)])
@pytest.mark.long
def test_two_sample_level_and_power(correlation, n):
    rng = np.random.default_rng(9)
    level, power = [], []
    for _ in range(100):
        first, second = (autoregressive(rng, correlation, n, 2) for _ in range(2))
        level.append(stein.mmd_test(first, second, num_replicates=200, rng=rng).p_value)
        if len(power) < 20:
            power.append(stein.mmd_test(first, second + 1.0, num_replicates=200, rng=rng).p_value)
    assert 0.01 <= np.mean(np.array(level) <= 0.05) <= 0.13
    assert np.mean(np.array(power) <= 0.05) > 0.9


def test_two_sample_replicates_are_as_large_as_the_statistic():
    """Where no two draws are alike, the squared statistic is 1/n + 1/m; so is the mean of its replicates."""
    draws = np.arange(70.0)[:, None]
    chains = draws[:30], draws[30:]
    test = stein.mmd_test(*chains, K.Gaussian(0.01), thin=1, flip_probability=0.1, num_replicates=3000)
    assert abs(test.mmd**2 - (1 / 30 + 1 / 40)) < 1e-12
    assert abs((test.null**2).mean() / test.mmd**2 - 1.0) < 0.03
