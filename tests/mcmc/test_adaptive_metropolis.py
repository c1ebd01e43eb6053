import math
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
from scipy import optimize, stats

from benchmarks.targets import correlated_gaussian
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import noise
from pymc_kernel.mcmc.metropolis import append, empty_history, metropolis_accept, recent
from pymc_kernel.scores import Values
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
    points = rng.normal(size=(50, 3)) @ rng.normal(size=(3, 3))
    mean, factor, expected_mean, cov = np.zeros(3), np.eye(3), np.zeros(3), np.eye(3)
    for t, x in enumerate(points):
        gain = 3.0 / (t + 3.0 + 15.0)
        cov = (1 - gain) * cov + gain * (1 - gain) * np.outer(x - expected_mean, x - expected_mean)
        expected_mean = expected_mean + gain * (x - expected_mean)
        mean, factor = am.learn_shape(mean, factor, x, t)
    np.testing.assert_allclose(mean, expected_mean, rtol=1e-11)
    np.testing.assert_allclose(factor @ factor.T, cov, rtol=1e-10)


def test_switches_turn_learning_off_and_states_are_never_written_to(rng):
    target = correlated_gaussian(num_dims=3)
    fixed = am.Config(covariance=2.0 * np.eye(3), learn_covariance=False, scale=0.5, learn_scale=False)
    _, state = run(am, rng, target.log_density, np.zeros(3), fixed, 200, 1)
    np.testing.assert_array_equal(state.factor, np.sqrt(2.0) * np.eye(3))
    assert state.log_scale == np.log(0.5)
    config = am.Config()
    state = am.init(np.zeros(2), 0.0, config)
    copies = [np.copy(v) for v in state]
    for _ in range(50):
        following, info = am.step(rng, state, lambda x: -0.5 * float(x @ x), config)
        am.adapt(following, info, config)
    for value, copy in zip(state, copies, strict=True):
        np.testing.assert_array_equal(value, copy)


def test_frozen_transition_leaves_the_target_invariant(rng):
    target = correlated_gaussian(num_dims=3, condition=50.0)
    config = am.Config(covariance=np.diag([1.0, 0.3, 0.1]), scale=1.0)
    points, _ = moved(rng, target, partial(am.init, config=config), partial(am.step, config=config), 8000, 5)
    assert stats.kstest(target.level(points), stats.chi2(3).cdf).pvalue > 1e-4


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


def test_history_is_bounded_evenly_spaced_recent_and_an_older_one_keeps_what_it_held():
    history = counted(8, range(1, 1001))
    kept = history.buffer[: history.count, 0]
    assert history.buffer.shape == (8, 1)
    assert history.count > 3
    assert np.unique(np.diff(kept)).size == 1
    assert kept[-1] > 1000 - history.stride
    np.testing.assert_array_equal(recent(counted(100, range(30)))[:, 0], np.arange(10.0, 30.0))
    older = counted(16, range(5))
    newer = append(older, np.array([99.0]))
    np.testing.assert_array_equal(recent(older, 1.0)[:, 0], np.arange(5.0))
    assert recent(newer, 1.0)[-1, 0] == 99.0


def ceiling_of(variance):
    """2 Phi(-sqrt(v / 2)): of steps of length zero."""
    return math.erfc(0.5 * math.sqrt(variance))


@pytest.mark.parametrize("variance", [0.0, 0.01, 0.3, 0.5, 1.0, 1.5**2, 3.28, 9.0])
def test_target_is_that_of_the_most_efficient_scale(variance):
    """The published limit for many dimensions, maximized numerically: .234 without noise, .07 at 3.28."""
    assert noise.variance_of(ceiling_of(variance)) == pytest.approx(variance, rel=1e-9)

    def accept(length):
        return 2.0 * stats.norm.cdf(-0.5 * math.sqrt(length**2 + 2.0 * variance))

    best = optimize.minimize_scalar(
        lambda s: -(s**2) * accept(s), bounds=(0.5, 6.0), method="bounded", options={"xatol": 1e-7}
    )
    found = noise.optimal_target(ceiling_of(variance))
    assert found == pytest.approx(accept(best.x), rel=1e-5)
    published = {0.0: 0.234, 3.28: 0.07}.get(variance, found)
    assert found == pytest.approx(published, abs=5e-4)


def test_probes_measure_the_ceiling_and_none_is_too_low_for_a_target(rng):
    """Of a chain in its stationary distribution; estimates that are no numbers are never accepted."""
    sigma = 1.5
    for share, wrong in ((0.0, None), (0.2, -np.inf), (0.2, np.nan)):
        known = noise.unmeasured(True)
        for t in range(4000):
            again = rng.normal(-0.5 * sigma**2, sigma) if rng.random() > share else wrong
            known = noise.probe(known, t, rng.normal(0.5 * sigma**2, sigma), again)
        # A probe has a standard deviation of .36; the last ones count most, as 3,000 would.
        assert known.ceiling == pytest.approx((1.0 - share) * ceiling_of(sigma**2), abs=4 * 0.36 / math.sqrt(3000))
        assert known.target == noise.optimal_target(known.ceiling)
    assert 0.0 < noise.optimal_target(0.0) < noise.optimal_target(0.01) < 0.01


@pytest.mark.parametrize("module", [am, ka], ids=["adaptive Metropolis", "Kameleon"])
def test_an_exact_density_pays_nothing(module, rng):
    density = Mock(side_effect=lambda x: -0.5 * float(x @ x))
    run(module, rng, density, np.zeros(2), tune=800, draws=200)
    assert density.call_count == 1001


def test_walks_under_noise_aim_lower_and_reach_a_small_target(rng):
    def noisy(sd, scale=1.0):
        """Log of an unbiased estimate of exp(-|x|^2 / 2 / scale^2), with log-normal noise."""
        return lambda x: -0.5 * float(x @ x) / scale**2 + rng.normal(-0.5 * sd**2, sd)

    config = kh.Config(Values(num_basis=50), noisy=True)
    _, state = run(kh, rng, noisy(1.7), np.zeros(2), config, tune=160, draws=0)
    assert state.walk.noise.num_probes >= 2
    before = state.walk
    info = kh.Info(False, 0.0, 1.0, state.position, 0.0, kh.WALK, 0.0, 0)
    after = kh.learn_from(state, info, config).walk
    fall = before.log_scale - after.log_scale
    assert fall == pytest.approx((1.0 + before.iteration) ** -0.6 * before.noise.target, rel=1e-9)
    # As long as the first covariance is most of what is learned, the scale has to make up for it.
    draws, _ = run(am, rng, noisy(1.5, scale=1e-5), np.zeros(1), am.Config(noisy=True), tune=1000, draws=2000)
    assert draws.std() == pytest.approx(1e-5, rel=0.35)
