import math

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.chain_checks import _tail, coverage_of, is_missing_mass
from pymc_kernel.mcmc.metropolis import append
from pymc_kernel.mcmc.surrogate_fit import Learned, SurrogateFit
from pymc_kernel.scores import Values


def tail_of(log_weights):
    return _tail(np.exp(np.sort(log_weights) - log_weights.max()))


def test_the_shape_is_arviz_s(rng):
    for log_weights in (rng.standard_normal(1000), 1.2 * rng.exponential(size=1000), 3.0 * rng.standard_normal(300)):
        other = float(array_stats.psislw(log_weights.max() - log_weights)[1])
        assert tail_of(log_weights)[2] == pytest.approx(other, abs=0.05)


def test_weights_without_a_tail():
    assert tail_of(np.zeros(500)) is None
    assert not is_missing_mass(coverage_of(np.zeros(500)))
    assert not is_missing_mass(coverage_of(np.array([0.0, 10.0])))
    assert not is_missing_mass(coverage_of(np.full(500, np.nan)))


def test_heavy_weights_within_a_factor_of_two_of_each_other_are_no_trouble(rng):
    log_weights = np.log1p(1e-3 * stats.genpareto(1.2).rvs(1000, random_state=rng)).clip(max=0.6)
    log_weights[0] = -20.0  # nor is a place where the surrogate is far too high
    assert not is_missing_mass(coverage_of(log_weights))


def test_one_long_stay_does_not_hide_the_tail(rng):
    log_weights = np.log(stats.genpareto(1.2).rvs(1000, random_state=rng))
    held = np.concatenate([log_weights, np.full(400, log_weights.max())])
    assert tail_of(held) is None
    assert is_missing_mass(coverage_of(held))


def tuned(spread, rng, config):
    """A state after tuning whose surrogate is N(0, spread^2 I) in two dimensions."""
    points = rng.standard_normal((200, 2))
    surrogate = Values().fit(points, -0.5 * (points**2).sum(axis=1) / spread**2, rng, noisy=False)
    expansion, unit = surrogate.expansion, np.eye(2)
    learned = Learned(surrogate, Values(), 0.0)
    fit = SurrogateFit(np.zeros(2), unit, expansion, 0.5 * spread, 5, 4, learned, (np.zeros(2), unit))
    state = kh.init(np.zeros(2), 0.0, config)._replace(fit=fit, arrival=None)
    visited = state.visited
    for x in points:
        visited = append(visited, x)
    return kh.finish(state._replace(walk_share=0.1, visited=visited), config)


@pytest.mark.parametrize(("spread", "is_missing"), [(0.6, True), (1.0, False), (1.3, False)])
def test_a_chain_says_that_its_surrogate_is_too_narrow(spread, is_missing, rng):
    """A surrogate with three fifths of the spread has weights without a variance; a wider one has bounded ones."""
    config = kh.Config()
    state = tuned(spread, rng, config)
    log_weights = []
    for _ in range(1000):
        state, info = kh.step(rng, state, lambda x: -0.5 * x @ x, config)
        log_weights.append(info.log_weight)
    assert is_missing_mass(coverage_of(np.array(log_weights))) == is_missing
    here = state.log_density - state.fit.learned.surrogate.log_density(state.position[None])[0]
    assert info.log_weight == pytest.approx(here, abs=1e-6)
    # Estimates are as noisy as their weights.
    noisy = kh.Config(noisy=True)
    assert math.isnan(kh.step(rng, tuned(spread, rng, noisy), lambda x: -0.5 * x @ x, noisy)[1].log_weight)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_missing_mass_of_a_pareto_tail(power, rng):
    """P(w > t) = t^-p, so that n P(w > t) = t at t = n^(1 / (1 + p)). The weights have a median of 2^(1 / p)."""
    n = 20_000
    log_weights = stats.expon(scale=1.0 / power).rvs(n, random_state=rng)
    level = (2.0 ** (1.0 / power)) ** (1.0 / (1.0 + power)) * n ** (1.0 / (1.0 + power))
    assert coverage_of(log_weights).missing == pytest.approx(level**-power, rel=0.3)


def test_excess_is_that_of_the_largest_log_weight_over_the_median():
    assert coverage_of(np.linspace(0.0, 4.0, 201)).excess == pytest.approx(2.0)
