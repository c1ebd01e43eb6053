"""Kernel HMC where a surrogate does not help, and of several chains."""

import math

import numpy as np
import pytest

from benchmarks.measures import smallest_bulk_ess
from benchmarks.targets import linear_regression
from pymc_kernel import scores as S
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import surrogate_fit
from tests.mcmc.chains import misled, run


@pytest.mark.slow
def test_two_modes(rng):
    """Modes four standard deviations apart, weights 0.3 and 0.7."""

    def log_density(x):
        return np.logaddexp(math.log(0.3) - 0.5 * ((x + 2) ** 2).sum(), math.log(0.7) - 0.5 * ((x - 2) ** 2).sum())

    draws, _ = run(kh, rng, log_density, [2.0, 2.0], tune=1500, draws=6000)
    assert (draws[:, 0] > 0).mean() == pytest.approx(0.7, abs=0.1)


def test_a_box(rng):
    """Uniform where the density is not zero: minus infinity at a third of the proposals."""
    draws, _ = run(kh, rng, lambda x: 0.0 if (np.abs(x) < 1).all() else -math.inf, np.zeros(3), tune=800, draws=5000)
    assert (np.abs(draws) < 1).all()
    size = smallest_bulk_ess(draws[None])
    assert size > 100
    np.testing.assert_allclose((draws < 0.5).mean(axis=0), 0.75, atol=5 * 0.45 / math.sqrt(size))


@pytest.mark.long
def test_the_way_in_does_not_spoil_what_is_learned(rng):
    """A regression with flat priors from zero, fifty standard deviations off: means, spreads and quantiles."""
    target = linear_regression(8)
    draws, _ = run(kh, rng, target.log_density, np.zeros(8), tune=900, draws=2000)
    exact = target.sample(rng, 50_000)
    spread = exact.std(axis=0)
    assert smallest_bulk_ess(draws[None]) > 400
    np.testing.assert_allclose((draws.mean(axis=0) - exact.mean(axis=0)) / spread, 0.0, atol=0.2)
    np.testing.assert_allclose(draws.std(axis=0) / spread, 1.0, atol=0.15)
    np.testing.assert_allclose((draws < np.quantile(exact, 0.05, axis=0)).mean(axis=0), 0.05, atol=0.04)
    np.testing.assert_allclose((draws > np.quantile(exact, 0.95, axis=0)).mean(axis=0), 0.05, atol=0.04)


def test_the_walk_keeps_its_step_when_learning_begins():
    factor, config = np.array([[3.0, 0.0], [1.0, 0.5]]), kh.Config()
    state = kh.init(np.zeros(2), 0.0, config)
    walk = state.walk._replace(factor=factor, log_scale=-2.0)
    info = kh.Info(False, 0.0, 1.0, state.position, 0.0, kh.TRAJECTORIES, 0.0, 0)
    after = kh.learn_from(state._replace(walk=walk, iteration=1000), info, config)
    assert after.arrival is None
    assert math.exp(after.walk.log_scale) == pytest.approx(am.optimal_scale(2))
    np.testing.assert_allclose(am.optimal_scale(2) * after.walk.factor, math.exp(-2.0) * factor)


def test_a_fit_that_fails_keeps_the_old_one(rng):
    state, config = misled(rng, S.Values())
    one = {name: getattr(state, name)._replace(count=1) for name in ("evaluated", "visited")}
    empty = state._replace(**one)
    assert surrogate_fit.refit(rng, [empty], config) is None


# -- several chains -----------------------------------------------------------------------------------------


def test_joint_shape_is_that_of_all_points(rng):
    config = kh.Config()
    groups = [rng.normal(size=(50, 2)) + m for m in ([0.0, 0.0], [5.0, 1.0])]
    states = []
    for points in groups:
        state = kh.init(points[0], 0.0, config)
        factor = np.linalg.cholesky(np.cov(points.T, bias=True))
        states.append(state._replace(walk=state.walk._replace(mean=points.mean(axis=0), factor=factor)))
    mean, factor = surrogate_fit.joint_shape(states)
    both = np.concatenate(groups)
    np.testing.assert_allclose(mean, both.mean(axis=0))
    np.testing.assert_allclose(factor @ factor.T, np.cov(both.T, bias=True))


def test_joint_shape_of_chains_on_a_line():
    """The covariance is singular in floating point: whether it factors may hang on no processor."""
    state = kh.init(np.zeros(2), 0.0, kh.Config())
    line = state._replace(walk=state.walk._replace(factor=np.array([[1e-6, 0.0], [1.0, 1e-9]])))
    _, factor = surrogate_fit.joint_shape([line, line])
    np.testing.assert_allclose(factor @ factor.T, [[1e-12, 1e-6], [1e-6, 1.0]], rtol=1e-8)
    assert (np.diag(factor) > 0.0).all()


def test_a_chain_does_not_begin_with_the_rejections_of_another():
    config = kh.Config()
    state = kh.init(np.zeros(2), 0.0, config)._replace(rejections=351)
    learned = kh.frozen([state, state], config)
    assert kh.relocate(learned, np.ones(2), -1.0).rejections == 0
