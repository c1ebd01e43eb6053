"""The targets of tests and studies: draws, densities and scores belong together."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import targets as T
from tests.reference.differences import central_differences

TARGETS = [
    T.banana(0.1, 25.0, 3),
    T.flower(num_dims=3),
    T.correlated_gaussian(3),
    T.gamma_gaussian(3),
    T.ring(3),
    T.grid(3),
    T.student(5.0, 3),
    T.funnel(3),
    T.ridge(3),
    T.bimodal(3),
    T.logistic_regression(3),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_draws_come_from_the_density(target, rng):
    """E[grad log p . v + div v] = 0 for smooth fields v (Stein), by central differences of the density."""
    x = target.sample(rng, 1500)
    spread = x.std(axis=0)
    slopes = central_differences(lambda places: np.array([target.log_density(p) for p in places]), x)
    for i, slope in enumerate(slopes.T):
        if target.score is not None:
            np.testing.assert_allclose(target.score(x)[:, i], slope, atol=1e-4 * np.abs(slope).max())
        z = x / spread
        for field, derivative in ((np.sin(z).prod(axis=1), None), (np.tanh(z[:, i]), 1 / np.cosh(z[:, i]) ** 2)):
            if derivative is None:
                derivative = field / np.tan(z[:, i])
            values = slope * field + derivative / spread[i]
            assert abs(values.mean()) < 4.5 * values.std() / np.sqrt(len(x))


@pytest.mark.parametrize("target", TARGETS[:1] + TARGETS[2:4], ids=lambda t: t.name)
def test_levels_are_chi_square(target, rng):
    assert stats.kstest(target.level(target.sample(rng, 5000)), stats.chi2(3).cdf).pvalue > 1e-3
