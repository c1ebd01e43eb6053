"""Log likelihoods learned from noisy estimates."""

import numpy as np
import pytest

from pymc_kernel.emulation import fit_outputs
from pymc_kernel.emulation.outputs import held_out_outputs
from pymc_kernel.scores.value_regression import log_excess
from tests.reference import slow_scores


def learned(inputs, values, rng):
    return fit_outputs(inputs, values[:, None], rng, is_log_likelihood=True, is_noisy=True)


def estimates(rng, sd=0.7):
    """Inputs near and far (120, 2), estimates of a log likelihood with noise in proportion to depth, and the truth."""
    inputs = np.concatenate([0.3 * rng.standard_normal((80, 2)), 6.0 * rng.standard_normal((40, 2))])
    clean = -10.0 * (inputs**2).sum(axis=1)
    return inputs, clean + (sd - 0.05 * clean) * rng.standard_normal(120), clean


def test_noise_is_learned_and_what_is_deep_stays_deep(rng):
    inputs, values, _ = estimates(rng)
    fit = learned(inputs, values, rng)
    near = 0.3 * rng.standard_normal((50, 2))
    assert (fit(near)[:, 0] + 10.0 * (near**2).sum(axis=1)).std() < 0.5
    assert fit(np.array([[5.0, -5.0]]))[0, 0] < -30.0
    assert fit(np.array([[3.0, 3.0]]))[0, 0] < fit(near).min() - 10.0


def test_what_is_deep_counts_on_a_log_scale():
    """Beyond ten: with a slope of one at first, and ten more at e times ten."""
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


def test_the_mean_is_that_of_the_whole_process(rng):
    """By a dense solution with all rows; pivots leave a hundredth."""
    inputs = 0.3 * rng.standard_normal((60, 2))
    values = -10.0 * (inputs**2).sum(axis=1) + rng.standard_normal(60)
    fit = learned(inputs, values, rng)
    h, z = fit.hyperparameters, fit.scaled(inputs, inside=False)
    smooth = slow_scores.prior_covariance(z, z, h)
    noise = h.nugget * np.eye(60)
    dense = values.mean() + smooth @ np.linalg.solve(smooth + noise, values - values.mean())
    assert np.isinf(fit.span)
    np.testing.assert_allclose(fit(inputs)[:, 0], dense, atol=0.02)
    variance = np.diag(smooth) - np.diag(smooth @ np.linalg.solve(smooth + noise, smooth))
    random = fit.random_at(inputs[:20])
    drawn = np.array([random(rng)[:, 0] for _ in range(4000)]) / np.sqrt((fit.directions**2).sum())
    np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(variance[:20]), rtol=0.1)


def test_rows_left_out_are_predicted_without_them(rng):
    inputs, values, clean = estimates(rng)
    fit = learned(inputs, values, rng)
    predicted = held_out_outputs(fit, inputs, values[:, None], np.arange(120) % 5)[:80, 0]
    assert (predicted - clean[:80]).std() < 0.6
    moved, folds = values.copy(), np.where(np.arange(120) < 3, 0, 1)
    moved[:3] += 5.0
    again, before = (held_out_outputs(fit, inputs, v[:, None], folds)[:3, 0] for v in (moved, values))
    assert np.abs(again - before).max() < 0.5  # their own values do not count, but for the largest of all
