"""Coverage on counts and rounded data, where leave-one-out means of tied observations told a case its own parameter."""

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings import KernelBayesRule


def rates(times):
    """Return a model of Poisson counts, rate ~ Gamma(2, 1/2), seen for each of ``times``."""

    def simulate(rng, n):
        rate = rng.gamma(2.0, 2.0, n)
        return np.log(rate)[:, None], rng.poisson(rate[:, None] * times).astype(float)

    return simulate, lambda x: (stats.gamma(2 + x.sum(), scale=1 / (0.5 + times.sum())), np.log, np.exp)


def rounded(rng, n):
    """Simulate a normal variable with noise of .5, rounded to a tenth."""
    theta = rng.standard_normal((n, 1))
    return theta, np.round(theta + 0.5 * rng.standard_normal((n, 1)), 1)


MODELS = {
    "two sums": rates(np.array([2.0, 3.0])),
    "five counts": rates(np.ones(5)),
    "rounded": (rounded, lambda x: (stats.norm(0.8 * x[0], np.sqrt(0.2)), np.asarray, np.asarray)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_intervals_hold_what_they_promise(name):
    """The exact posterior's mass in 95 % intervals, over 30 observations each, and their length."""
    simulate, posterior = MODELS[name]
    masses, lengths = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        latent, observed = simulate(rng, 2000)
        _, cases = simulate(rng, 30)
        rule = KernelBayesRule().fit(latent, observed, rng=seed)
        for case in cases:
            low, high = rule.near(case, rng).interval(case, 0.95)[0, 0]
            exact, latent_of, value_of = posterior(case)
            masses.append(np.diff(exact.cdf(value_of(np.array([low, high]))))[0])
            lengths.append((high - low) / np.ptp(latent_of(exact.ppf([0.025, 0.975]))))
    assert 0.92 < np.mean(masses) < 0.98
    assert np.mean(lengths) == pytest.approx(1.0, abs=0.1)
