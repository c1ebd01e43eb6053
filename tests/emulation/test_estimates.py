"""Log likelihoods learned from noisy estimates."""

import numpy as np
import pytest

from pymc_kernel.emulation import fit_estimates
from pymc_kernel.emulation.estimates import held_out_estimates


def estimates(rng, sd=0.7):
    """Inputs near and far (120, 2), estimates of a log likelihood with noise in proportion to depth, and the truth."""
    inputs = np.concatenate([0.3 * rng.standard_normal((80, 2)), 6.0 * rng.standard_normal((40, 2))])
    clean = -10.0 * (inputs**2).sum(axis=1)
    return inputs, clean + (sd - 0.05 * clean) * rng.standard_normal(120), clean


def test_noise_is_learned_and_what_is_deep_stays_deep(rng):
    inputs, values, _ = estimates(rng)
    fit = fit_estimates(inputs, values, rng)
    near = 0.3 * rng.standard_normal((50, 2))
    assert (fit(near)[:, 0] + 10.0 * (near**2).sum(axis=1)).std() < 0.5
    assert 0.3 < np.sqrt(fit.hyperparameters.nugget) < 1.5
    assert fit(np.array([[5.0, -5.0]]))[0, 0] < -30.0
    assert fit(np.array([[3.0, 3.0]]))[0, 0] < fit(near).min() - 10.0


def test_the_mean_is_that_of_the_whole_process(rng):
    """By a dense solution with all rows; pivots leave a hundredth."""
    inputs = 0.3 * rng.standard_normal((60, 2))
    values = -10.0 * (inputs**2).sum(axis=1) + rng.standard_normal(60)  # within 18 nats: none is moved
    fit = fit_estimates(inputs, values, rng)
    h, z = fit.hyperparameters, fit.scaled(inputs, inside=False)
    scaled = z * h.inverse_length_scale
    squared = ((scaled[:, None] - scaled) ** 2).sum(axis=2)
    smooth = h.radial * np.exp(-0.5 * squared) + h.quadratic * (1.0 + z @ z.T / 2) ** 2
    depth = np.clip(np.quantile(values, 0.75) - values, 0.0, 18.0)
    noise = h.nugget + h.depth_noise * depth**2
    low = values.min()
    dense = low + smooth @ np.linalg.solve(smooth + np.diag(noise), values - low)
    np.testing.assert_allclose(fit(inputs)[:, 0], dense, atol=0.02)
    variance = np.diag(smooth) - np.diag(smooth @ np.linalg.solve(smooth + np.diag(noise), smooth))
    random = fit.random_at(inputs[:20])
    drawn = np.array([random(rng)[:, 0] for _ in range(4000)])
    np.testing.assert_allclose(drawn.std(axis=0), np.sqrt(variance[:20]), rtol=0.1)


def test_rows_left_out_are_predicted_without_them(rng):
    inputs, values, clean = estimates(rng)
    fit = fit_estimates(inputs, values, rng)
    folds = np.arange(120) % 5
    predicted = held_out_estimates(fit, inputs, values[:, None], folds)[:80, 0]
    assert (predicted - clean[:80]).std() < 0.6
    moved = values.copy()
    moved[:3] += 5.0
    again = held_out_estimates(fit, inputs, moved[:, None], np.where(np.arange(120) < 3, 0, 1))[:3, 0]
    before = held_out_estimates(fit, inputs, values[:, None], np.where(np.arange(120) < 3, 0, 1))[:3, 0]
    assert np.abs(again - before).max() < 0.5  # their own values do not count, but for the largest of all


def test_other_shapes_are_refused(rng):
    with pytest.raises(ValueError, match="as many rows"):
        fit_estimates(np.zeros((4, 1)), np.zeros(5), rng)
    with pytest.raises(ValueError, match="all coincide"):
        fit_estimates(np.ones((4, 1)), np.zeros(4), rng)
