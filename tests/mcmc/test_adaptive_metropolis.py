from functools import partial

import numpy as np
import pytest
from scipy import stats

from benchmarks.targets import correlated_gaussian
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc.metropolis import append, empty_history, metropolis_accept, recent
from tests.mcmc.chains import moved, run


def test_learns_covariance_and_acceptance_rate(rng):
    target = correlated_gaussian(num_dims=5, condition=100.0)
    draws, state = run(am, rng, target.log_density, np.zeros(5), tune=20_000, draws=20_000)
    learned = state.factor @ state.factor.T
    truth = np.cov(target.sample(rng, 100_000).T)
    # Relative eigenvalues of the learned covariance against the true one.
    ratio = np.linalg.eigvals(np.linalg.solve(truth, learned)).real
    assert ratio.min() > 0.6
    assert ratio.max() < 1.7
    accepted = (np.diff(draws[:, 0]) != 0).mean()
    assert accepted == pytest.approx(0.234, abs=0.03)


def test_running_moments_equal_the_weighted_sample(rng):
    """The rank-one recursion is the weighted mean and covariance that its gains say."""
    points = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    mean, factor, expected_mean, cov = np.zeros(3), np.eye(3), np.zeros(3), np.eye(3)
    for t, x in enumerate(points):
        gain = 3.0 / (t + 3.0 + 15.0)
        cov = (1 - gain) * cov + gain * (1 - gain) * np.outer(x - expected_mean, x - expected_mean)
        expected_mean = expected_mean + gain * (x - expected_mean)
        mean, factor = am.learn_shape(mean, factor, x, t)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-11)
    np.testing.assert_allclose(factor @ factor.T, cov, rtol=1e-10)


def test_switches_turn_learning_off(rng):
    target = correlated_gaussian(num_dims=3)
    fixed = am.Config(covariance=2.0 * np.eye(3), learn_covariance=False, scale=0.5, learn_scale=False)
    _, state = run(am, rng, target.log_density, np.zeros(3), fixed, 200, 1)
    np.testing.assert_array_equal(state.factor, np.sqrt(2.0) * np.eye(3))
    assert state.log_scale == np.log(0.5)


def test_frozen_transition_leaves_the_target_invariant(rng):
    target = correlated_gaussian(num_dims=3, condition=50.0)
    config = am.Config(covariance=np.diag([1.0, 0.3, 0.1]), scale=1.0)
    points = moved(rng, target, partial(am.init, config=config), partial(am.step, config=config), 8000, 5)
    assert stats.kstest(target.level(points), stats.chi2(3).cdf).pvalue > 1e-4


def test_states_are_never_written_to(rng):
    config = am.Config()
    state = am.init(np.zeros(2), 0.0, config)
    copies = [np.copy(v) for v in state]
    for _ in range(50):
        following, info = am.step(rng, state, lambda x: -0.5 * float(x @ x), config)
        am.adapt(following, info, config)
    for value, copy in zip(state, copies, strict=True):
        np.testing.assert_array_equal(value, copy)


def test_ratios_without_meaning_reject_and_a_covariance_that_is_not_symmetric_is_refused(rng):
    for ratio in (np.nan, np.inf, -np.inf):
        assert metropolis_accept(rng, ratio) == (False, 0.0)
    with pytest.raises(ValueError, match="symmetric"):
        am.Config(covariance=np.array([[1.0, 0.5], [0.0, 1.0]]))


def counted(capacity, numbers):
    history = empty_history(capacity, 1)
    for number in numbers:
        history = append(history, np.array([float(number)]))
    return history


def test_history_is_bounded_and_evenly_spaced():
    history = counted(8, range(1, 1001))
    kept = history.buffer[: history.count, 0]
    assert history.buffer.shape == (8, 1)
    assert history.count > 3
    assert np.unique(np.diff(kept)).size == 1
    assert kept[-1] > 1000 - history.stride


def test_recent_part_and_an_older_history_that_keeps_what_it_held():
    np.testing.assert_array_equal(recent(counted(100, range(30)))[:, 0], np.arange(10.0, 30.0))
    older = counted(16, range(5))
    newer = append(older, np.array([99.0]))
    np.testing.assert_array_equal(recent(older, 1.0)[:, 0], np.arange(5.0))
    assert recent(newer, 1.0)[-1, 0] == 99.0
