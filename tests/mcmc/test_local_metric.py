import numpy as np
import pytest

from benchmarks.targets import banana
from pymc_kernel.mcmc.local_metric import local_factor


def shape_of(points):
    """Return the local covariance, and the global one."""
    covariance = np.atleast_2d(np.cov(points.T, bias=True))
    factor = local_factor(points, np.linalg.cholesky(covariance))
    return factor @ factor.T, covariance


def spread(matrix):
    """Return the largest over the smallest eigenvalue."""
    values = np.linalg.eigvalsh(matrix)
    return values[-1] / values[0]


def test_a_normal_sample_has_its_own_covariance(rng):
    mixing = np.array([[1.0, 0.0, 0.0], [3.0, 0.5, 0.0], [0.0, 0.0, 20.0]])
    local, covariance = shape_of(rng.normal(size=(2000, 3)) @ mixing.T)
    np.testing.assert_allclose(np.linalg.eigvals(np.linalg.solve(covariance, local)), np.ones(3), atol=0.1)


def test_far_modes_have_the_shape_of_one(rng):
    modes = rng.normal(size=(1000, 3)) * [1.0, 3.0, 3.0] + 100.0 * rng.integers(2, size=(1000, 1)) * [1.0, 0.0, 0.0]
    local, covariance = shape_of(modes)
    assert covariance[0, 0] / covariance[1, 1] > 200.0
    assert 0.1 < local[0, 0] / local[1, 1] < 0.4  # 1 / 9 and no less: neighborhoods are round before they are small


@pytest.mark.parametrize("seed", range(5))
def test_parallel_lines_keep_the_last_shape_that_has_a_width(seed):
    """Each neighborhood lies on a line; the covariance of all points does not."""
    lines = np.repeat(np.arange(4.0), 200)
    points = np.column_stack([np.random.default_rng(seed).normal(size=800), lines]) * [0.1, 100.0]
    for turn in (np.eye(2), np.array([[1.0, 0.3], [0.7, 2.0]])):
        factor = local_factor(points @ turn, np.linalg.cholesky(np.cov((points @ turn).T)))
        assert np.isfinite(factor).all()
        assert (np.diag(factor) > 0.0).all()


def test_a_bent_ridge_is_thin(rng):
    """Across six straight coordinates of unit spread the banana is as thick as they are, its covariance is not."""
    points = banana(0.1, 100.0).sample(rng, 1000)
    local, covariance = shape_of(points)
    others = np.diag(local)[2:].mean()
    assert local[1, 1] / others < 0.5 * covariance[1, 1] / covariance[2, 2]
    assert spread(local) < 0.7 * spread(covariance)


def test_coordinates_do_not_matter(rng):
    points = banana(0.1, 100.0).sample(rng, 300)[:, :3]
    mixing = np.array([[1.0, 0.0, 0.0], [3.0, 0.5, 0.0], [-1.0, 2.0, 20.0]])
    expected = mixing @ shape_of(points)[0] @ mixing.T
    np.testing.assert_allclose(shape_of(points @ mixing.T + 5.0)[0], expected, rtol=1e-6)


def test_its_size_is_that_of_the_whole(rng):
    local, covariance = shape_of(banana(0.1, 100.0).sample(rng, 400))
    np.testing.assert_allclose(np.trace(np.linalg.solve(local, covariance)), len(local), rtol=1e-9)


def test_repeated_and_few_places(rng):
    points = rng.normal(size=(200, 3))
    np.testing.assert_allclose(shape_of(np.repeat(points, 4, axis=0))[0], shape_of(points)[0], rtol=1e-9)
    few = np.repeat(points[:10], 100, axis=0)
    local, covariance = shape_of(few)
    np.testing.assert_allclose(local, covariance, rtol=1e-9)
