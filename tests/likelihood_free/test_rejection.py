import numpy as np
import pytest

from pymc_kernel.likelihood_free import regression_adjusted, rejection


def test_the_nearest_are_accepted(rng):
    summaries = rng.standard_normal((500, 3))
    observed = np.array([0.5, -0.2, 1.0])
    found = rejection(summaries, observed, 0.1)
    distances = np.linalg.norm(summaries - observed, axis=1)
    assert sorted(found.index) == sorted(np.argsort(distances)[:50])
    assert found.epsilon == pytest.approx(np.sort(distances)[49])
    assert found.weights.sum() == pytest.approx(1.0)
    # Epanechnikov's kernel, whose edge is a fiftieth beyond the farthest of fifty.
    expected = 1.0 - (np.sort(distances)[:50] / (1.02 * found.epsilon)) ** 2
    np.testing.assert_allclose(found.weights, expected / expected.sum())


def test_exact_hits_have_equal_weights():
    found = rejection(np.zeros((10, 2)), np.zeros(2), 0.5)
    np.testing.assert_allclose(found.weights, 0.2)
    assert len(rejection(np.zeros((10, 2)), np.zeros(2), 1e-6).index) == 2


def test_adjustment_removes_a_linear_relation(rng):
    summaries = rng.standard_normal((200, 2))
    noise = rng.standard_normal((200, 1))
    slope = np.array([[2.0], [-1.0]])
    observed = np.array([0.3, 0.4])
    weights = rng.uniform(0.5, 1.0, 200)
    # Without noise every draw lands on the regression's value.
    exact = regression_adjusted(1.0 + summaries @ slope, summaries, observed, weights)
    np.testing.assert_allclose(exact, 1.0 + observed @ slope[:, 0], atol=1e-10)
    # The slow twin: normal equations.
    latent = 1.0 + summaries @ slope + noise
    design = np.hstack([np.ones((200, 1)), summaries - observed])
    beta = np.linalg.solve(design.T * weights @ design, design.T * weights @ latent)
    expected = latent - (summaries - observed) @ beta[1:]
    np.testing.assert_allclose(regression_adjusted(latent, summaries, observed, weights), expected, atol=1e-10)


def test_fewer_simulations_than_summaries_do_not_fail(rng):
    summaries = rng.standard_normal((3, 8))
    found = regression_adjusted(rng.standard_normal((3, 2)), summaries, np.zeros(8), np.full(3, 1 / 3))
    assert np.isfinite(found).all()
