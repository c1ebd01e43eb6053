import math

import numpy as np
import pytest

from pymc_kernel.smc import weights as W


def test_resampling_is_unbiased(rng):
    weights = np.array([0.0, 0.05, 0.3, 0.0, 0.45, 0.2, 0.0])
    counts = np.array([np.bincount(W.resample(rng, weights, 5), minlength=7) for _ in range(20_000)])
    np.testing.assert_allclose(counts.mean(axis=0), 5 * weights, atol=4 * 1.2 / math.sqrt(20_000))
    assert (counts[:, weights == 0.0] == 0).all()


def test_counts_differ_by_less_than_one_from_their_means(rng):
    weights = rng.dirichlet(np.ones(50))
    for _ in range(50):
        counts = np.bincount(W.resample(rng, weights, 200), minlength=50)
        assert np.abs(counts - 200 * weights).max() <= 1.0


def test_resampling_ends_at_the_last_weight_that_counts(rng):
    weights = np.array([0.5, 0.5 - 1e-17, 0.0])
    assert W.resample(rng, weights / weights.sum(), 1000).max() <= 1


def test_effective_shares():
    assert W.effective_share(np.zeros(7)) == pytest.approx(1.0)
    assert W.effective_share(np.array([0.0, -np.inf, -np.inf, -np.inf])) == pytest.approx(0.25)
    assert W.effective_share(np.full(3, -np.inf)) == 0.0
    log = np.array([0.0, 1.0, -2.0])
    w = np.exp(log)
    assert W.effective_share(log + 800.0) == pytest.approx(w.sum() ** 2 / (3 * (w**2).sum()))


def test_log_mean_exp_and_normalized():
    log = np.array([-1000.0, -1001.0, -np.inf])
    assert W.log_mean_exp(log) == pytest.approx(-1000 + math.log((1 + math.exp(-1)) / 3))
    np.testing.assert_allclose(W.normalized(log), np.array([1, math.exp(-1), 0]) / (1 + math.exp(-1)))
    assert W.log_mean_exp(np.full(2, -np.inf)) == -np.inf
    for bad in (np.full(2, -np.inf), np.array([0.0, np.nan]), np.array([0.0, np.inf])):
        with pytest.raises(ValueError, match="finite weight"):
            W.normalized(bad)


def test_next_temperature_reaches_the_wanted_share(rng):
    likelihood = -50.0 * rng.standard_normal(500) ** 2
    beta = 0.0
    for _ in range(3):
        following = W.next_temperature(likelihood, beta, 0.5)
        assert W.effective_share((following - beta) * likelihood) == pytest.approx(0.5, abs=1e-6)
        beta = following
    assert W.next_temperature(1e-3 * likelihood, 0.9, 0.5) == 1.0


def test_next_temperature_where_most_particles_are_impossible(rng):
    likelihood = np.where(rng.random(1000) < 0.9, -np.inf, -20.0 * rng.standard_normal(1000) ** 2)
    step = W.next_temperature(likelihood, 0.0, 0.5)
    alive = likelihood[likelihood > -np.inf]
    assert W.effective_share(step * alive) == pytest.approx(0.5, abs=1e-6)
    with pytest.raises(ValueError, match="all 4 particles is zero"):
        W.next_temperature(np.full(4, -np.inf), 0.0, 0.5)
