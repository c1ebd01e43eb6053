"""Kernel HMC along a surrogate that is given: nothing is learned, and the target stays invariant whatever it is."""

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.surrogate_fit import emulated
from tests.mcmc.chains import only


def target(x):
    """A normal distribution of spreads 1 and 2, log density (...,) at (..., 2)."""
    return -0.5 * (x[..., 0] ** 2 + (x[..., 1] / 2.0) ** 2)


def wrong(x):
    """A surrogate of it in another place, of another width, with a bend."""
    return -0.5 * ((x[..., 0] - 0.5) ** 2 / 0.7 + (x[..., 1] / 2.3) ** 2) + 0.3 * np.sin(x[..., 0] + x[..., 1])


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(600, 2)) * [0.84, 2.3] + [0.5, 0.0]
    config = kh.Config()
    fit = emulated(rng, wrong, draws, config.max_steps)
    return kh.with_given(draws[0], 0.0, fit, config), config


def test_it_emulates_a_log_density_where_its_draws_are(given):
    x = np.random.default_rng(1).normal(size=(300, 2)) * [0.84, 2.3] + [0.5, 0.0]
    errors = given[0].fit.learned.surrogate.log_density(x) - wrong(x)
    assert errors.std() < 0.01


@pytest.mark.parametrize("kind", [kh.TRAJECTORIES, "all"])
def test_one_draw_leaves_the_target_invariant(given, kind):
    state, config = given
    if kind != "all":
        state = only(state, kind)
    rng = np.random.default_rng(2)
    starts = rng.normal(size=(3000, 2)) * [1.0, 2.0]
    ends, accepted = np.empty_like(starts), 0
    for i, x in enumerate(starts):
        after, info = kh.step(rng, kh.relocate(state, x, target(x)), target, config)
        ends[i], accepted = after.position, accepted + info.accepted
    assert accepted > 0.3 * len(starts)
    for column, spread in zip(ends.T, (1.0, 2.0), strict=True):
        assert stats.kstest(column / spread, "norm").pvalue > 1e-3


def test_draws_in_a_plane_are_an_error():
    with pytest.raises(ValueError, match="plane"):
        emulated(np.random.default_rng(0), wrong, np.ones((50, 2)), 10)
