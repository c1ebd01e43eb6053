"""Formulas that benchmarks take from the sources by their letter."""

import numpy as np
import pytest

from benchmarks import history_size, kbr_sources
from pymc_kernel.kernels import Gaussian
from tests.reference.differences import central_differences


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
    expected = central_differences(history_size.TARGET.log_density, x)
    np.testing.assert_allclose(history_size.gradient(x), expected, atol=1e-6)
