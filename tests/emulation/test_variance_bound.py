import numpy as np
import pytest

from pymc_kernel.emulation import fit_outputs, noisy_variance, variance_bound
from pymc_kernel.kernels import Gaussian
from pymc_kernel.scores.value_regression import covariance_of, variance_of


def value_at(bound, fit, inputs):
    """The bound (n,) at inputs (n, k), with the covariances written out."""
    z, k = fit.scaled(inputs, inside=False), inputs.shape[1]
    scaled = [x * fit.inverse_length_scale for x in (z, bound.points)]
    squared = ((scaled[0][:, None] - scaled[1]) ** 2).sum(axis=2)
    covariance = np.exp(-0.5 * squared) + bound.quadratic * (1.0 + z @ bound.points.T / k) ** 2
    own = 1.0 + bound.quadratic * (1.0 + (z**2).sum(axis=1) / k) ** 2
    return own - ((covariance @ bound.reduction.T) ** 2).sum(axis=1)


@pytest.fixture(scope="module")
def learned():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1.0, 1.0, (60, 2))
    outputs = np.column_stack([np.sin(2.0 * inputs[:, 0]), inputs[:, 0] * np.cos(3.0 * inputs[:, 1])])
    return inputs, fit_outputs(inputs, outputs, rng)


def test_by_all_rows_it_is_the_posterior_variance(learned):
    inputs, fit = learned
    new, hyper = np.random.default_rng(1).uniform(-1.5, 1.5, (50, 2)), fit.hyperparameters
    z, points = fit.scaled(new, inside=False), fit.points / fit.inverse_length_scale
    explained = np.linalg.solve(fit.factor, covariance_of(hyper, Gaussian(), points, z))
    exact = variance_of(hyper, z) - (explained**2).sum(axis=0)
    np.testing.assert_allclose(value_at(variance_bound(fit, inputs), fit, new), exact, atol=1e-8, rtol=1e-2)
    assert exact.max() > 1e-4


def test_it_bounds_the_variance_and_is_close_near_its_rows_only(learned):
    inputs, fit = learned
    near = inputs[inputs[:, 0] > 0.0]
    bound = variance_bound(fit, near)
    new = np.random.default_rng(2).uniform(-1.0, 1.0, (200, 2))
    exact = fit._relative_sd(fit.scaled(new, inside=False)) ** 2
    by_few = value_at(bound, fit, new)
    assert (by_few > exact - 1e-6).all()
    is_near = new[:, 0] > 0.2
    assert np.median(by_few[is_near]) < 1e-4 < np.median(by_few[new[:, 0] < -0.5])


def test_it_has_at_most_128_rows():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-1.0, 1.0, (400, 3))
    fit = fit_outputs(inputs, np.sin(9.0 * inputs).sum(axis=1), rng)
    bound = variance_bound(fit, inputs)
    assert bound.points.shape == (128, 3)
    assert value_at(bound, fit, inputs).min() > -1e-6


def test_of_noisy_values_it_is_the_posterior_variance():
    rng = np.random.default_rng(3)
    inputs = rng.normal(0.0, 1.0, (120, 2))
    values = -0.5 * (inputs**2).sum(axis=1) + np.sin(2.0 * inputs[:, 0]) + rng.standard_normal(120)
    fit = fit_outputs(inputs, values[:, None], rng, is_log_likelihood=True, is_noisy=True)
    hyper, new = fit.hyperparameters, rng.normal(0.0, 1.5, (50, 2))
    z, at = fit.scaled(inputs, inside=False), fit.scaled(new, inside=False)
    across = covariance_of(hyper, Gaussian(), z, at)
    explained = np.linalg.solve(covariance_of(hyper, Gaussian(), z, z) + hyper.nugget * np.eye(120), across)
    exact = variance_of(hyper, at) - (across * explained).sum(axis=0)
    np.testing.assert_allclose(value_at(noisy_variance(fit), fit, new), exact, rtol=0.01)
    assert exact.max() > 3.0 * exact.min()
