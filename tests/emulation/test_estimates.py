"""Log likelihoods learned from noisy estimates, and bounds of the variance of what is learned."""

import numpy as np
import pytest

from pymc_kernel.emulation import fit_outputs, noisy_variance, variance_bound
from pymc_kernel.kernels import Gaussian
from pymc_kernel.scores.value_regression import covariance_of, log_excess, variance_of
from tests.reference import slow_scores


def learned(inputs, values, rng):
    return fit_outputs(inputs, values[:, None], rng, is_log_likelihood=True, is_noisy=True)


def test_noise_is_learned_and_what_is_deep_stays_deep_on_a_log_scale(rng):
    inputs = np.concatenate([0.3 * rng.standard_normal((80, 2)), 6.0 * rng.standard_normal((40, 2))])
    clean = -10.0 * (inputs**2).sum(axis=1)
    fit = learned(inputs, clean + (0.7 - 0.05 * clean) * rng.standard_normal(120), rng)  # noise grows with the depth
    near = 0.3 * rng.standard_normal((50, 2))
    assert (fit(near)[:, 0] + 10.0 * (near**2).sum(axis=1)).std() < 0.5
    assert fit(np.array([[5.0, -5.0]]))[0, 0] < -30.0
    assert fit(np.array([[3.0, 3.0]]))[0, 0] < fit(near).min() - 10.0
    # Beyond ten: with a slope of one at first, and ten more at e times ten.
    found = log_excess(np.array([3.0, 10.0, 10.001, 10.0 * np.e]), 10.0)
    np.testing.assert_allclose(found, [0.0, 0.0, 0.001, 10.0], rtol=1e-4)


@pytest.mark.parametrize("sd", [0.3, 3.0])
def test_the_size_of_the_noise_is_known(sd, rng):
    inputs = 0.3 * rng.standard_normal((200, 2))
    fit = learned(inputs, -10.0 * (inputs**2).sum(axis=1) + sd * rng.standard_normal(200), rng)
    amplitude = np.sqrt((fit.directions**2).sum())
    assert 0.8 * sd < np.sqrt(fit.hyperparameters.nugget) * amplitude < 1.25 * sd
    # More noise than there is of what it hides, which exact outputs never have.
    assert fit.hyperparameters.nugget > 1.0


def value_at(bound, fit, inputs):
    """The bound (n,) at inputs (n, k), with the covariances written out."""
    z, k = fit.scaled(inputs, inside=False), inputs.shape[1]
    scaled = [x * fit.inverse_length_scale for x in (z, bound.points)]
    squared = ((scaled[0][:, None] - scaled[1]) ** 2).sum(axis=2)
    covariance = np.exp(-0.5 * squared) + bound.quadratic * (1.0 + z @ bound.points.T / k) ** 2
    own = 1.0 + bound.quadratic * (1.0 + (z**2).sum(axis=1) / k) ** 2
    return own - ((covariance @ bound.reduction.T) ** 2).sum(axis=1)


def test_by_all_rows_it_is_the_posterior_variance_by_some_a_bound_that_is_close_near_them(rng):
    inputs, new = rng.uniform(-1.0, 1.0, (60, 2)), rng.uniform(-1.5, 1.5, (200, 2))
    outputs = np.column_stack([np.sin(2.0 * inputs[:, 0]), inputs[:, 0] * np.cos(3.0 * inputs[:, 1])])
    fit = fit_outputs(inputs, outputs, rng)
    z, points = fit.scaled(new, inside=False), fit.points / fit.inverse_length_scale
    across = np.linalg.solve(fit.factor, covariance_of(fit.hyperparameters, Gaussian(), points, z))
    without_noise = variance_of(fit.hyperparameters, z) - (across**2).sum(axis=0)
    np.testing.assert_allclose(value_at(variance_bound(fit, inputs), fit, new), without_noise, atol=1e-8, rtol=1e-2)
    assert without_noise.max() > 1e-4
    by_few = value_at(variance_bound(fit, inputs[inputs[:, 0] > 0.0]), fit, new)
    assert (by_few > fit._relative_sd(z) ** 2 - 1e-6).all()
    is_near = new[:, 0] > 0.2
    assert np.median(by_few[is_near]) < 1e-4 < np.median(by_few[new[:, 0] < -0.5])
    inputs = rng.uniform(-1.0, 1.0, (400, 3))
    fit = fit_outputs(inputs, np.sin(9.0 * inputs).sum(axis=1), rng)
    bound = variance_bound(fit, inputs)
    assert bound.points.shape == (128, 3)
    assert value_at(bound, fit, inputs).min() > -1e-6


def test_mean_draws_and_variance_by_noisy_values_are_those_of_the_whole_process(rng):
    """By a dense solution with all rows; pivots leave a hundredth."""
    inputs = 0.3 * rng.standard_normal((60, 2))
    values = -10.0 * (inputs**2).sum(axis=1) + rng.standard_normal(60)
    fit = learned(inputs, values, rng)
    hyper, new = fit.hyperparameters, np.concatenate([inputs, 0.45 * rng.standard_normal((50, 2))])
    z, at = fit.scaled(inputs, inside=False), fit.scaled(new, inside=False)
    across = slow_scores.prior_covariance(at, z, hyper)
    weights = np.linalg.solve(across[:60] + hyper.nugget * np.eye(60), across.T).T
    assert np.isinf(fit.span)
    mean = values.mean() + weights[:60] @ (values - values.mean())
    np.testing.assert_allclose(fit(inputs)[:, 0], mean, atol=0.02)
    exact = variance_of(hyper, at) - (across * weights).sum(axis=1)
    np.testing.assert_allclose(value_at(noisy_variance(fit), fit, new), exact, rtol=0.01)
    assert exact.max() > 3.0 * exact.min()
    random = fit.random_at(inputs[:20])
    drawn = np.array([random(rng)[:, 0] for _ in range(4000)]) / np.sqrt((fit.directions**2).sum())
    np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(exact[:20]), rtol=0.1)
