import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings.mixture import Mixture, log_normals

FACTORS = np.array([[[2.0, 0.0], [0.5, 1.0]], [[1.0, 0.0], [-1.0, 3.0]]])


@pytest.fixture(params=["own factors", "one factor"])
def mixture(request):
    factors = FACTORS if request.param == "own factors" else FACTORS[:1]
    return Mixture(np.array([0.3, 0.7]), np.array([[0.0, 1.0], [4.0, -2.0]]), factors)


def densities(mixture):
    factors = np.broadcast_to(mixture.factors, (2, 2, 2))
    return [stats.multivariate_normal(c, f @ f.T) for c, f in zip(mixture.centers, factors, strict=True)]


def test_log_densities_equal_scipy(rng):
    differences = rng.standard_normal((2, 2))
    expected = [
        stats.multivariate_normal(np.zeros(2), f @ f.T).logpdf(x) for f, x in zip(FACTORS, differences, strict=True)
    ]
    np.testing.assert_allclose(log_normals(differences, FACTORS) - np.log(2.0 * np.pi), expected)
    one = [stats.multivariate_normal(np.zeros(2), FACTORS[0] @ FACTORS[0].T).logpdf(x) for x in differences]
    np.testing.assert_allclose(log_normals(differences, FACTORS[:1]) - np.log(2.0 * np.pi), one)


def test_density_moments_and_quantiles_are_those_of_the_mixture(mixture, rng):
    points = 3.0 * rng.standard_normal((7, 2))
    expected = np.log(sum(w * d.pdf(points) for w, d in zip(mixture.weights, densities(mixture), strict=True)))
    np.testing.assert_allclose(mixture.log_density(points), expected)
    draws = mixture.sample(200_000, rng)
    mean, covariance = mixture.moments()
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.03)
    np.testing.assert_allclose(np.cov(draws.T), covariance, rtol=0.03, atol=0.05)
    quantiles = mixture.quantiles(np.array([0.025, 0.5]))
    np.testing.assert_allclose([mixture.cumulative(q)[0] for q in quantiles], [0.025, 0.5], atol=1e-9)
    np.testing.assert_allclose(np.quantile(draws, [0.025, 0.5], axis=0), quantiles, atol=0.06)


def test_an_affine_map_moves_densities_by_its_jacobian(mixture, rng):
    scale, shift = np.array([1e-6, 1e6]), np.array([3.0, -1e7])
    points = rng.standard_normal((5, 2))
    mapped = mixture.mapped(scale, shift)
    expected = mixture.log_density(points) - np.log(scale).sum()
    np.testing.assert_allclose(mapped.log_density(points * scale + shift), expected, rtol=1e-6)
