import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp, softmax

from pymc_kernel import smc
from pymc_kernel.smc import weights as W

DATA = np.array([1.2, -0.3, 2.0])
# theta ~ N(0, 3^2) in each of three coordinates, y ~ N(theta, 0.5^2).
TRUTH = stats.norm(0.0, math.hypot(3.0, 0.5)).logpdf(DATA).sum()


def evaluate(positions):
    prior = -0.5 * (positions**2).sum(axis=1) / 9.0 - 3 * math.log(3.0 * math.sqrt(2 * math.pi))
    likelihood = -2.0 * ((positions - DATA) ** 2).sum(axis=1) - 3 * math.log(0.5 * math.sqrt(2 * math.pi))
    return prior, likelihood


def run(seed, moves, num_particles=1000, evaluate=evaluate, **settings):
    rng = np.random.default_rng(seed)
    start = 3.0 * rng.standard_normal((num_particles, 3))
    particles = smc.Evaluated(start, *evaluate(start))
    return smc.sample(rng, particles, evaluate, smc.Config(moves, **settings))


def test_particles_forget_where_they_began_in_many_dimensions():
    """Twenty moves left a correlation of .7 in 25 dimensions, and means a tenth of a standard deviation off."""
    num_dims, num_particles = 25, 1000

    def normal(positions):
        squares = -0.5 * (positions**2).sum(axis=1)
        return squares - num_dims / 2 * math.log(2.0 * math.pi), squares

    rng = np.random.default_rng(3)
    positions = rng.standard_normal((num_particles, num_dims))
    state, history = smc.sample(rng, smc.Evaluated(positions, *normal(positions)), normal, smc.Config(smc.Walk()))
    # It is .14 after three moves a dimension (Roberts, Gelman and Gilks 1997), and .032 the error for 1,000 particles.
    assert max(info.correlation for info in history) < 0.3
    assert max(info.moves for info in history) <= 3 * num_dims
    np.testing.assert_allclose(state.particles.positions.std(axis=0).mean(), math.sqrt(0.5), rtol=0.03)
    np.testing.assert_allclose(state.log_evidence, -num_dims / 2 * math.log(2.0), atol=0.1)


class _Impossible(smc.Walk):
    """A walk whose proposal ratio says that no place can be left."""

    def propose(self, rng, positions, learned):
        proposals = super().propose(rng, positions, learned)
        return proposals._replace(log_ratio=np.full(len(positions), -np.inf))


def test_a_schedule_is_followed_and_moves_are_accepted_by_the_proposal_ratio():
    schedule = {"schedule": (0.5, 1.0), "min_moves": 1, "max_moves": 1}
    _, history = run(0, smc.Walk(), 50, **schedule)
    assert [info.inverse_temperature for info in history] == [0.5, 1.0]
    assert all(info.accept > 0.0 for info in history)
    _, history = run(0, _Impossible(), 50, **schedule)
    assert all(info.accept == 0.0 for info in history)


@pytest.mark.long
def test_the_evidence_is_unbiased_with_a_fixed_schedule_and_a_noisy_likelihood():
    """Nothing is learned, so the mean of the estimates is the evidence; noise of standard deviation 0.7 in the log."""
    plain = smc.Walk(learn_covariance=False, learn_scale=False, scale=0.7)
    noise = np.random.default_rng(7)

    def noisy(positions):
        prior, likelihood = evaluate(positions)
        return prior, likelihood + 0.7 * noise.standard_normal(len(positions)) - 0.7**2 / 2

    schedule = (0.05, 0.2, 0.5, 1.0)
    settings = {"schedule": schedule, "min_moves": 3, "max_moves": 3}
    ratios = np.exp([run(seed, plain, 100, noisy, **settings)[0].log_evidence - TRUTH for seed in range(300)])
    assert abs(ratios.mean() - 1.0) < 4 * ratios.std() / math.sqrt(300)


def test_what_a_stage_reports():
    state, history = run(1, smc.Walk())
    assert [info.inverse_temperature for info in history] == sorted(info.inverse_temperature for info in history)
    assert history[-1].inverse_temperature == state.inverse_temperature == 1.0
    assert all(info.ess_share == pytest.approx(0.5, abs=1e-3) for info in history[:-1])
    assert sum(info.log_evidence_increment for info in history) == pytest.approx(state.log_evidence)
    *before, last = history
    assert all(4 <= info.moves <= 20 for info in history)
    assert all(info.evaluations == 1000 * info.moves and math.isnan(info.importance_ess) for info in before)
    assert last.evaluations == 2 * 1000 * last.moves
    assert 1000 < last.importance_ess <= 1000 * last.moves
    assert all(info.correlation <= 0.2 for info in history if info.moves < 20)
    assert all(math.isnan(info.surrogate_accept) for info in history)
    assert len(state.particles.positions) == 1000
    assert 3 <= len(state.learned.edges) - 1 <= 6


@pytest.mark.parametrize(("call", "message"), [
    (lambda: smc.Config(min_moves=5, max_moves=3), "max_moves must be a whole number >= 5"),
    (lambda: smc.Config(schedule=(0.5, 0.2, 1.0)), "increasing"),
    (lambda: smc.Config(schedule=(0.0, 1.0)), "the first above 0"),
    (lambda: smc.init(smc.Evaluated(np.zeros((3, 2)), np.zeros(3), np.zeros(2))), "at least two particles"),
    (lambda: W.next_temperature(np.full(4, -np.inf), 0.0, 0.5), "likelihood of all 4 particles is zero"),
])  # fmt: skip
def test_settings_and_particles_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_resampling_is_unbiased_and_counts_differ_by_less_than_one_from_their_means(rng):
    weights = np.array([0.0, 0.05, 0.3, 0.0, 0.45, 0.2, 0.0])
    counts = np.array([np.bincount(W.resample(rng, weights, 5), minlength=7) for _ in range(20_000)])
    np.testing.assert_allclose(counts.mean(axis=0), 5 * weights, atol=4 * 1.2 / math.sqrt(20_000))
    assert (counts[:, weights == 0.0] == 0).all()
    weights = rng.dirichlet(np.ones(50))
    for _ in range(50):
        counts = np.bincount(W.resample(rng, weights, 200), minlength=50)
        assert np.abs(counts - 200 * weights).max() <= 1.0
    weights = np.array([0.5, 0.5 - 1e-17, 0.0])  # the last one is never chosen
    assert W.resample(rng, weights / weights.sum(), 1000).max() <= 1


def test_effective_shares_and_means():
    for logs in (np.array([800.0, 801.0, 798.0]), np.array([-1000.0, -1001.0, -np.inf])):
        weights = softmax(logs)
        np.testing.assert_allclose(W.normalized(logs), weights)
        assert W.effective_share(logs) == pytest.approx(1.0 / (3 * (weights**2).sum()))
        assert W.log_mean_exp(logs) == pytest.approx(logsumexp(logs) - math.log(3))
    assert W.effective_share(np.full(3, -np.inf)) == 0.0
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
    likelihood = np.where(rng.random(1000) < 0.9, -np.inf, -20.0 * rng.standard_normal(1000) ** 2)
    step = W.next_temperature(likelihood, 0.0, 0.5)
    alive = likelihood[likelihood > -np.inf]
    assert W.effective_share(step * alive) == pytest.approx(0.5, abs=1e-6)
