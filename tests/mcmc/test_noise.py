import math

import numpy as np
import pytest
from scipy import optimize, stats

from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import noise
from pymc_kernel.scores import Values
from tests.mcmc.chains import run

WALKS = {"adaptive Metropolis": am, "Kameleon": ka}


class NoisyNormal:
    """Log of an unbiased estimate of exp(-|x|^2 / 2 / scale^2), with log-normal noise; counts its evaluations."""

    def __init__(self, sigma, seed, scale=1.0):
        self.sigma, self.scale, self.rng, self.calls = sigma, scale, np.random.default_rng([seed, 1]), 0

    def __call__(self, x):
        self.calls += 1
        found = -0.5 * float(x @ x) / self.scale**2
        return found - 0.5 * self.sigma**2 + self.sigma * self.rng.standard_normal() if self.sigma else found


def chain(module, config, density, num_dims, seed, num_tune, num_draws=0):
    rng = np.random.default_rng(seed)
    return run(module, rng, density, density.scale * rng.uniform(-1.0, 1.0, num_dims), config, num_tune, num_draws)


def ceiling_of(variance):
    """2 Phi(-sqrt(v / 2)): of steps of length zero."""
    return math.erfc(0.5 * math.sqrt(variance))


def test_variance_is_that_of_the_ceiling_and_no_ceiling_is_too_low_for_a_target():
    for variance in (0.01, 0.5, 1.5**2, 3.28, 9.0):
        assert noise.variance_of(ceiling_of(variance)) == pytest.approx(variance, rel=1e-9)
    assert 0.0 < noise.optimal_target(0.0) < noise.optimal_target(0.01) < 0.01


@pytest.mark.parametrize("variance", [0.0, 0.3, 1.0, 1.5**2, 3.28, 9.0])
def test_target_is_that_of_the_most_efficient_scale(variance):
    """The published limit for many dimensions, maximized numerically: .234 without noise, .07 at 3.28."""

    def accept(length):
        return 2.0 * stats.norm.cdf(-0.5 * math.sqrt(length**2 + 2.0 * variance))

    best = optimize.minimize_scalar(
        lambda s: -(s**2) * accept(s), bounds=(0.5, 6.0), method="bounded", options={"xatol": 1e-7}
    )
    found = noise.optimal_target(ceiling_of(variance))
    assert found == pytest.approx(accept(best.x), rel=1e-5)
    published = {0.0: 0.234, 3.28: 0.07}.get(variance, found)
    assert found == pytest.approx(published, abs=5e-4)


def test_probes_measure_the_ceiling(rng):
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


@pytest.mark.parametrize("module", WALKS.values(), ids=WALKS)
def test_an_exact_density_pays_nothing(module):
    density = NoisyNormal(0.0, 0)
    chain(module, module.Config(), density, 2, 3, 800, 200)
    assert density.calls == 1001


def test_walks_of_kernel_hmc_aim_lower_under_noise():
    config = kh.Config(Values(num_basis=50), noisy=True)
    density = NoisyNormal(1.7, 4)
    _, state = chain(kh, config, density, 2, 4, 160)
    assert state.walk.noise.num_probes >= 2
    before = state.walk
    info = kh.Info(False, 0.0, 1.0, state.position, 0.0, kh.WALK, 0.0, 0)
    after = kh.learn_from(state, info, config).walk
    fall = before.log_scale - after.log_scale
    assert fall == pytest.approx((1.0 + before.iteration) ** -0.6 * before.noise.target, rel=1e-9)


def test_a_small_target_is_reached_under_noise():
    """As long as the first covariance is most of what is learned, the scale has to make up for it."""
    density = NoisyNormal(1.5, 0, scale=1e-5)
    draws, _ = chain(am, am.Config(noisy=True), density, 1, 0, 1000, 2000)
    assert draws.std() == pytest.approx(1e-5, rel=0.35)
