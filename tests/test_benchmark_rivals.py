"""Rival methods and formulas of the sources that the benchmarks bring along are right, or no comparison is fair."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import norm

from benchmarks import austerity, glass_acceptance, history_size, kbr_rotations, kbr_sources, lstm
from benchmarks.approximate_mcmc import make_data
from benchmarks.auto_encoder import AutoEncoder
from pymc_kernel.kernels import Gaussian
from tests.reference.differences import assert_derivative, score_matching_loss


def test_objective_of_the_auto_encoder_has_the_divergence(rng):
    fitted = AutoEncoder(0.5, 5).fit(rng.normal(size=(50, 3)), rng)
    x = rng.normal(size=(4, 3))
    assert fitted.objective(x) == pytest.approx(score_matching_loss(fitted, x), rel=1e-6)


def mean_log_ratio(data, theta, proposed):
    def log_likelihood(t):
        return np.logaddexp(norm.logpdf(data, t[0], 2.0), norm.logpdf(data, t.sum(), 2.0)).mean()

    return log_likelihood(proposed) - log_likelihood(theta)


def test_gradient_of_the_recurrent_network(rng):
    weights = lstm.start_weights(3, 2, (7, 4), 5, rng)
    x, y, step = rng.normal(size=(6, 8, 3)), rng.normal(size=(8, 2)), 1e-6
    gradient = lstm.loss_and_gradient(weights, x, y)[1]
    assert set(gradient) == set(weights)
    for name, value in weights.items():
        direction = rng.normal(size=value.shape)
        ends = [
            lstm.loss_and_gradient(weights | {name: value + sign * step * direction}, x, y)[0] for sign in (1.0, -1.0)
        ]
        assert (gradient[name] * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2.0 * step), rel=1e-5), name


def test_nearest_rotations_beat_others(rng):
    matrices = rng.normal(size=(50, 3, 3))  # half of them have a negative determinant
    nearest = kbr_rotations.nearest_rotations(matrices)
    np.testing.assert_allclose(np.linalg.det(nearest), 1.0)
    np.testing.assert_allclose(nearest @ nearest.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    others = Rotation.random(2000, rng=rng).as_matrix()
    best = np.einsum("nij,mij->nm", matrices, others).max(axis=1)
    assert ((matrices * nearest).sum(axis=(1, 2)) >= best).all()


def test_kalman_filter_in_information_form(rng):
    states = np.cumsum(rng.normal(size=(300, 2)), axis=0) * 0.1
    images = states @ rng.normal(size=(2, 6)) + 0.5 * rng.normal(size=(300, 6))
    learned = kbr_rotations.Kalman.learned(states, images, 0.1)
    residuals = kbr_rotations.least_squares(states, images)[1]
    noise = 0.9 * np.cov(residuals.T) + 0.1 * residuals.var(axis=0).mean() * np.eye(6)
    forward, image = learned.forward[1:].T, learned.image[1:].T
    mean, covariance = states.mean(axis=0), np.cov(states.T)
    for seen, filtered in zip(images[:50], learned.filter(images[:50]), strict=True):
        mean = learned.forward[0] + forward @ mean
        covariance = forward @ covariance @ forward.T + learned.process
        gain = covariance @ image.T @ np.linalg.inv(image @ covariance @ image.T + noise)
        mean = mean + gain @ (seen - learned.image[0] - image @ mean)
        covariance = covariance - gain @ image @ covariance
        np.testing.assert_allclose(filtered, mean, rtol=1e-8)


def test_acceptance_along_the_exact_score(rng):
    starts, momenta = rng.normal(size=(2, 20, 3))
    normal = SimpleNamespace(score=np.negative)
    whole = glass_acceptance.acceptance(normal, starts, momenta, lambda x: -0.5 * (x @ x))
    assert (whole > 0.99).all()
    lost = glass_acceptance.acceptance(normal, starts, momenta, lambda x: np.nan if x[0] > 1.0 else -0.5 * (x @ x))
    assert (lost < whole).all()
    assert (lost > 0.3).all()  # one that is lost does not take the others along


@pytest.mark.slow
def test_without_tolerance_austerity_decides_by_all_data(rng):
    data, order, critical = make_data(), np.arange(400), austerity.critical_values(0.0)
    for _ in range(20):
        theta, proposed = rng.normal(size=(2, 2))
        ratio = mean_log_ratio(data, theta, proposed)
        for threshold, expected in ((ratio - 1e-9, True), (ratio + 1e-9, False)):
            assert austerity.is_accepted(rng, theta, proposed, threshold, data, order, critical) == (expected, 400)


# -- formulas that are taken from the sources by their letter ----------------------------------------


def test_importance_weights_are_those_of_a_weighted_ridge():
    z, x, *_, ratio = kbr_sources.problem_of("weak", 2, 1)
    gram, across, n = Gaussian(1.5)(x), Gaussian(1.5)(x, x[:7]), len(z)
    expected = np.linalg.solve(np.diag(ratio) @ gram + n * 0.2 * np.eye(n), np.diag(ratio) @ across)
    np.testing.assert_allclose(kbr_sources.importance_weights(gram, across, ratio, 0.2), expected, atol=1e-10)


def test_least_squares_score_by_quadrature():
    points, width, grid = np.random.default_rng(0).standard_normal((9, 1)), 0.7, np.linspace(-9, 9, 4001)[:, None]

    def density(at, centers):
        return (np.exp(-0.5 * (at - centers.T) ** 2 / width**2) / (width * np.sqrt(2 * np.pi))).mean(axis=1)

    left_out = [density(points[[i]], np.delete(points, i, axis=0))[0] for i in range(9)]
    expected = (density(grid, points) ** 2).sum() * (grid[1, 0] - grid[0, 0]) - 2 * np.mean(left_out)
    assert kbr_sources.least_squares_score(points, width) == pytest.approx(expected, rel=1e-6)


def test_gradient_of_the_banana_by_differences():
    x = np.linspace(-2.0, 3.0, 8)
    assert_derivative(history_size.gradient(x), history_size.TARGET.log_density, x, atol=1e-6)
