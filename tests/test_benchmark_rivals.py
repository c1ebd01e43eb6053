"""Rival methods and formulas of the sources that the benchmarks bring along are right, or no comparison is fair."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats
from scipy.spatial.transform import Rotation

from benchmarks import austerity, evidence_rivals, glass_acceptance, history_size, kbr_rotations, kbr_sources, lstm
from benchmarks import targets as T
from benchmarks.approximate_mcmc import make_data
from benchmarks.auto_encoder import AutoEncoder
from benchmarks.pints_problems import annulus, cone, rosenbrock
from benchmarks.posteriors.drawn import drawn
from pymc_kernel.kernels import Gaussian
from tests.reference.differences import assert_derivative, central_differences, score_matching_loss
from tests.reference.grids import moments


def test_objective_of_the_auto_encoder_has_the_divergence(rng):
    fitted = AutoEncoder(0.5, 5).fit(rng.normal(size=(50, 3)), rng)
    x = rng.normal(size=(4, 3))
    assert fitted.objective(x) == pytest.approx(score_matching_loss(fitted, x), rel=1e-6)


def test_gradient_of_the_recurrent_network_and_of_the_banana(rng):
    weights = lstm.start_weights(3, 2, (7, 4), 5, rng)
    x, y, step = rng.normal(size=(6, 8, 3)), rng.normal(size=(8, 2)), 1e-6
    gradient = lstm.loss_and_gradient(weights, x, y)[1]
    assert set(gradient) == set(weights)
    for name, value in weights.items():
        direction = rng.normal(size=value.shape)
        moved = [weights | {name: value + sign * step * direction} for sign in (1.0, -1.0)]
        ends = [lstm.loss_and_gradient(one, x, y)[0] for one in moved]
        assert (gradient[name] * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2.0 * step), rel=1e-5), name
    x = np.linspace(-2.0, 3.0, 8)
    assert_derivative(history_size.gradient(x), history_size.TARGET.log_density, x, atol=1e-6)


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

    def mean_log_likelihood(t):
        return np.logaddexp(stats.norm.logpdf(data, t[0], 2.0), stats.norm.logpdf(data, t.sum(), 2.0)).mean()

    for _ in range(20):
        theta, proposed = rng.normal(size=(2, 2))
        ratio = mean_log_likelihood(proposed) - mean_log_likelihood(theta)
        for threshold, expected in ((ratio - 1e-9, True), (ratio + 1e-9, False)):
            assert austerity.is_accepted(rng, theta, proposed, threshold, data, order, critical) == (expected, 400)


def test_formulas_of_the_sources_weighted_ridge_and_least_squares_score():
    z, x, *_, ratio = kbr_sources.problem_of("weak", 2, 1)
    gram, across, n = Gaussian(1.5)(x), Gaussian(1.5)(x, x[:7]), len(z)
    expected = np.linalg.solve(np.diag(ratio) @ gram + n * 0.2 * np.eye(n), np.diag(ratio) @ across)
    np.testing.assert_allclose(kbr_sources.importance_weights(gram, across, ratio, 0.2), expected, atol=1e-10)
    points, width, grid = np.random.default_rng(0).standard_normal((9, 1)), 0.7, np.linspace(-9, 9, 4001)[:, None]

    def density(at, centers):
        return stats.norm.pdf(at, centers.T, width).mean(axis=1)

    left_out = [density(points[[i]], np.delete(points, i, axis=0))[0] for i in range(9)]
    expected = (density(grid, points) ** 2).sum() * (grid[1, 0] - grid[0, 0]) - 2 * np.mean(left_out)
    assert kbr_sources.least_squares_score(points, width) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("family", ["mixture", "ring"])
def test_evidence_of_what_a_seed_draws(rng, family):
    """By draws from a mixture of 500 Student kernels at exact draws."""
    target, draws = evidence_rivals.fresh(family, 3), drawn(family, 3).exact["x"]
    d = target.num_dims
    width = 500 ** (-1.0 / (d + 4.0)) * draws.std(axis=0)
    centers = draws[rng.choice(len(draws), 500, replace=False)]
    kernel = stats.multivariate_t(np.zeros(d), np.eye(d), df=5, seed=rng)
    x = centers[rng.integers(500, size=6000)] + width * kernel.rvs(6000).reshape(-1, d)
    density = np.mean([kernel.pdf((x - center) / width) for center in centers], axis=0) / np.prod(width)
    prior = stats.norm.logpdf(x, target.mean, target.spread).sum(axis=1)
    logs = prior + np.array([target.log_likelihood(row) for row in x]) - np.log(density)
    weights = np.exp(logs - logs.max())
    error = weights.std() / weights.mean() / math.sqrt(6000)
    assert error < 0.05
    assert math.log(weights.mean()) + logs.max() == pytest.approx(target.log_evidence, abs=4.0 * error)


def test_exact_draws_have_no_errors_but_those_of_chance(rng):
    target = evidence_rivals.banana()
    x = evidence_rivals.tempered.TARGET.sample(rng, 20_000)
    assert np.abs(target.errors(x, np.full(len(x), 1.0 / len(x)))).max() < 0.06
    half = np.where(x[:, 0] > 0.0, 1.0, 0.0)
    assert target.errors(x, half / half.sum())[0] == pytest.approx(math.sqrt(2.0 / math.pi), abs=0.05)


def test_draws_of_the_rosenbrock_density_on_its_rectangle_of_the_annulus_and_the_cone(rng):
    a, b = (grid.ravel() for grid in np.meshgrid(np.linspace(-2.0, 4.0, 3001), np.linspace(-1.0, 12.0, 3251)))
    log_density = -np.log(1.0 + (1.0 - a) ** 2 + 100.0 * (b - a**2) ** 2)
    for grid, column in zip((a, b), rosenbrock(rng, 100_000).T, strict=True):
        mean, spread = moments(grid, log_density)
        assert column.mean() == pytest.approx(mean, abs=0.015 * spread)
        assert column.std() == pytest.approx(spread, rel=0.015)
    radii = np.linalg.norm(annulus(rng, 100_000), axis=1)
    assert radii.mean() == pytest.approx(10.1, abs=0.015)  # (r0^2 + sigma^2) / r0
    radii, grid = np.linalg.norm(cone(rng, 100_000), axis=1), np.linspace(1e-6, 400.0, 400_001)
    assert radii.mean() == pytest.approx(moments(grid, np.log(grid) - grid**0.6)[0], rel=0.015)


WITH_LEVELS = [T.banana(0.1, 25.0, 3), T.correlated_gaussian(3), T.gamma_gaussian(3)]
OTHERS = [T.flower, T.ring, T.grid, T.funnel, T.ridge, T.bimodal, T.logistic_regression]
TARGETS = [*WITH_LEVELS, T.student(5.0, 3), *(make(num_dims=3) for make in OTHERS)]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_draws_come_from_the_density_and_levels_are_chi_square(target, rng):
    """E[grad log p . v + div v] = 0 for smooth fields v (Stein), by central differences of the density."""
    x = target.sample(rng, 1500)
    spread = x.std(axis=0)
    slopes = central_differences(lambda places: np.array([target.log_density(p) for p in places]), x)
    for i, slope in enumerate(slopes.T):
        if target.score is not None:
            np.testing.assert_allclose(target.score(x)[:, i], slope, atol=1e-4 * np.abs(slope).max())
        z = x / spread
        waves = np.sin(z).prod(axis=1)
        for field, derivative in ((waves, waves / np.tan(z[:, i])), (np.tanh(z[:, i]), 1 / np.cosh(z[:, i]) ** 2)):
            values = slope * field + derivative / spread[i]
            assert abs(values.mean()) < 4.5 * values.std() / np.sqrt(len(x))
    if target in WITH_LEVELS:
        assert stats.kstest(target.level(target.sample(rng, 5000)), stats.chi2(3).cdf).pvalue > 1e-3
