import tracemalloc

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint
from pymc_kernel.smc.moves import fit_mixture

MEANS = np.array([[0.0, 1.0], [300.0, -2.0]])
COVARIANCES = np.array([[[4.0, 1.0], [1.0, 1.0]], [[100.0, -3.0], [-3.0, 0.2]]])
MIXTURE = Joint(np.log([0.3, 0.7]), MEANS, np.linalg.inv(np.linalg.cholesky(COVARIANCES)))


def test_density_is_that_of_scipy(rng):
    points = MIXTURE.sample(600, rng)  # more than one block
    first, second = (stats.multivariate_normal(*moments) for moments in zip(MEANS, COVARIANCES, strict=True))
    exact = np.log(0.3 * first.pdf(points) + 0.7 * second.pdf(points))
    np.testing.assert_allclose(MIXTURE.log_densities(points), exact, rtol=1e-10)


def test_draws_are_from_the_density(rng):
    points = MIXTURE.sample(40_000, rng)
    left = points[:, 0] < 100.0
    assert left.mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_allclose(np.cov(points[~left].T), COVARIANCES[1], rtol=0.05, atol=0.1)
    np.testing.assert_allclose(points[left].mean(axis=0), MEANS[0], atol=0.06)


def test_draws_in_many_dimensions_take_no_matrix_each(rng):
    wide = Joint(np.zeros(1), np.zeros((1, 100)), np.eye(100)[None])
    tracemalloc.start()
    points = wide.sample(5000, rng)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 5 * points.nbytes


def test_a_fit_finds_parts_that_are_apart_and_covers_them(rng):
    points = MIXTURE.sample(3000, rng)
    fit = fit_mixture(rng, points)
    gain = MIXTURE.log_densities(points) - fit.log_densities(points)
    assert gain.mean() < 0.35  # nats: tails are heavier on purpose
    assert gain.max() < 2.5


@pytest.mark.parametrize("points", [np.zeros((5, 2)), np.ones((40, 3)), np.eye(6)])
def test_degenerate_points_give_a_density(points, rng):
    fit = fit_mixture(rng, points)
    assert np.isfinite(fit.log_densities(fit.sample(10, rng))).all()
