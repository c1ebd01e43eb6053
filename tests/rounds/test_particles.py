import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from pymc_kernel.rounds import sample_particles
from tests.rounds.priors import NormalPrior, UniformPrior


def thinned_p_value(draws, distribution):
    """Return the p-value of a goodness of fit; particles are nearly independent after their last moves."""
    return stats.kstest(draws[:2000], distribution.cdf).pvalue


@pytest.mark.parametrize("power", [1.0, 0.25])
def test_conjugate_normal_with_its_evidence(power):
    scale = np.array([1e-4, 1.0, 1e5])
    prior = NormalPrior(2.0 * scale, 3.0 * scale)
    noise, data = 0.2 * scale / np.sqrt(power), np.array([3.0, -1.0, 9.0]) * scale

    def log_likelihood(parameters):
        return stats.norm.logpdf(parameters, data, 0.2 * scale).sum(axis=1)

    found = sample_particles(np.random.default_rng(1), prior, log_likelihood, 2500, power)
    precision = 1.0 / prior.spread**2 + 1.0 / noise**2
    mean, spread = (prior.mean / prior.spread**2 + data / noise**2) / precision, precision**-0.5
    for j in range(3):
        assert thinned_p_value(found.positions[:, j], stats.norm(mean[j], spread[j])) > 1e-3
    np.testing.assert_allclose((found.positions.std(axis=0) / spread), 1.0, atol=0.06)
    # A normal density to a power is a wider one times a number.
    factor = ((1.0 - power) * np.log(np.sqrt(2.0 * np.pi) * 0.2 * scale) - 0.5 * np.log(power)).sum()
    exact = stats.norm(prior.mean, np.hypot(prior.spread, noise)).logpdf(data).sum() + factor
    assert abs(found.log_evidence - exact) < 0.15
    np.testing.assert_allclose(found.log_likelihood, log_likelihood(found.positions), rtol=1e-12)
    assert found.correlation < 0.1


def test_two_modes_keep_their_weights():
    prior = NormalPrior(np.zeros(2), np.full(2, 10.0))
    modes, spreads, weights = np.array([[-6.0, 2.0], [5.0, 0.0]]), np.array([0.1, 0.5]), np.array([0.15, 0.85])

    def log_likelihood(parameters):
        parts = stats.norm.logpdf(parameters[:, None], modes, spreads[:, None]).sum(axis=2)
        return np.logaddexp(*(parts + np.log(weights)).T)

    found = sample_particles(np.random.default_rng(2), prior, log_likelihood, 2000)
    evidence = weights * stats.norm(0.0, np.hypot(10.0, spreads[:, None])).pdf(modes).prod(axis=1)
    share = (found.positions[:, 0] < 0.0).mean()
    assert share == pytest.approx(evidence[0] / evidence.sum(), abs=0.035)
    assert found.log_evidence == pytest.approx(np.log(evidence.sum()), abs=0.14)
    narrow = found.positions[found.positions[:, 0] < 0.0]
    np.testing.assert_allclose(narrow.std(axis=0), 0.1, rtol=0.15)


def test_bounded_parameters():
    ill, tested = np.array([0, 19, 7]), 20

    def log_likelihood(parameters):
        return stats.binom.logpmf(ill, tested, expit(parameters)).sum(axis=1)

    found = sample_particles(np.random.default_rng(3), UniformPrior(3), log_likelihood, 2000)
    for j in range(3):
        exact = stats.beta(1 + ill[j], 1 + tested - ill[j])
        assert thinned_p_value(expit(found.positions[:, j]), exact) > 1e-3
    assert found.log_evidence == pytest.approx(3 * np.log(1.0 / (tested + 1)), abs=0.14)


def test_funnel():
    class Funnel:
        is_proper = True

        def draw(self, rng, size):
            depth = rng.normal(0.0, 2.0, size)
            return np.column_stack([depth, rng.standard_normal((size, 2)) * np.exp(0.5 * depth)[:, None]])

        def log_density(self, parameters):
            width = np.exp(0.5 * parameters[:, :1])
            inner = stats.norm.logpdf(parameters[:, 1:], 0.0, width).sum(axis=1)
            return stats.norm.logpdf(parameters[:, 0], 0.0, 2.0) + inner

    data = np.array([0.3, -0.1])

    def log_likelihood(parameters):
        return stats.norm.logpdf(data, parameters[:, 1:], 0.2).sum(axis=1)

    found = sample_particles(np.random.default_rng(4), Funnel(), log_likelihood, 2000)
    grid = np.linspace(-12.0, 12.0, 4001)
    density = stats.norm(0.0, np.hypot(np.exp(0.5 * grid[:, None]), 0.2)).pdf(data).prod(axis=1)
    density *= stats.norm(0, 2).pdf(grid)
    cdf = np.cumsum(density) / density.sum()
    assert stats.kstest(found.positions[:2000, 0], lambda v: np.interp(v, grid, cdf)).pvalue > 1e-3
    assert found.log_evidence == pytest.approx(np.log(density.sum() * (grid[1] - grid[0])), abs=0.14)


def test_places_without_likelihood_are_left():
    prior = NormalPrior(np.zeros(1), np.ones(1))

    def log_likelihood(parameters):
        return np.where(parameters[:, 0] > 1.0, 0.0, np.where(parameters[:, 0] > 0.0, np.nan, np.inf))

    found = sample_particles(np.random.default_rng(5), prior, log_likelihood, 2000)
    assert (found.positions > 1.0).all()
    assert found.log_evidence == pytest.approx(np.log(stats.norm.sf(1.0)), abs=0.2)
    assert thinned_p_value(found.positions[:, 0], stats.truncnorm(1.0, np.inf)) > 1e-3
