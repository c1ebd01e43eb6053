"""A quadratic that is fitted by itself where there are more coefficients than the hyperparameters are learned from."""

import numpy as np
import pytest

from benchmarks.targets import correlated_gaussian
from pymc_kernel import scores as S
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.surrogate_fit import refit
from tests.mcmc.chains import seen

NUM_DIMS = 24  # a quadratic has 325 coefficients
PLACE = np.linspace(-2.0, 3.0, NUM_DIMS)


def evaluations(rng, num_points):
    """Places in a part of the bulk, and the log density of a Gaussian of condition 1000 around ``PLACE``."""
    target = correlated_gaussian(NUM_DIMS)
    points = PLACE + 0.3 * target.sample(rng, num_points) + 0.05 * rng.standard_normal((num_points, NUM_DIMS))
    return target, points, np.array([target.log_density(x - PLACE) for x in points])


@pytest.mark.parametrize(
    ("num_points", "noisy", "is_exact"), [(400, False, True), (360, False, False), (400, True, False)]
)
def test_a_gaussian_is_exact_once_there_are_enough_values(num_points, noisy, is_exact, rng):
    target, points, values = evaluations(rng, num_points)
    fitted = S.Values(max_iterations=5).fit(points, values, rng, noisy=noisy)
    assert fitted.has_trend == is_exact
    draws = target.sample(rng, 200)
    errors = fitted.log_density(PLACE + draws) - [target.log_density(x) for x in draws]
    assert (errors.std() < 0.05) == is_exact


def test_trajectories_run_in_the_shape_of_the_quadratic(rng):
    target, points, values = evaluations(rng, 400)
    config = kh.Config(S.Values(max_iterations=5))
    state = seen(kh.init(points[0], values[0], config), points, values)
    learned = refit(rng, [state], config)
    exact = np.cov(target.sample(rng, 100_000).T)
    np.testing.assert_allclose(learned.factor @ learned.factor.T, exact, atol=0.02 * exact.max())
    np.testing.assert_allclose(learned.factor, np.tril(learned.factor), atol=1e-12)
    np.testing.assert_allclose(learned.mean, PLACE, atol=0.02)
    # The walk keeps to what was visited.
    walk = kh.with_fit(state, learned, config).walk
    assert np.trace(walk.factor @ walk.factor.T) < 0.5 * np.trace(exact)
    np.testing.assert_allclose(walk.mean, points.mean(axis=0), atol=0.1)


def test_a_quadratic_without_a_maximum_is_no_shape(rng):
    _, points, values = evaluations(rng, 400)
    config = kh.Config(S.Values(max_iterations=5))
    saddle = values + 40.0 * (points[:, 0] - PLACE[0]) ** 2
    learned = refit(rng, [seen(kh.init(points[0], saddle[0], config), points, saddle)], config)
    assert learned.learned.surrogate.has_trend
    assert learned.factor is learned.shape[1]
