import math

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from pymc_kernel import smc
from pymc_kernel.mcmc import conditionally_normal
from pymc_kernel.smc import importance, tempering
from pymc_kernel.smc.weights import effective_share, log_mean_exp, normalized

NOTHING = tempering.Info(1.0, 0.0, *[math.nan] * 8)


def two_modes(x):
    """N(0, 5^2) beside a likelihood with modes .8 and .2 of the mass; its evidence is 3."""
    modes = [np.log(share) + stats.norm.logpdf(x, mean, 0.5).sum(axis=1) for share, mean in ((0.8, 4.0), (0.2, -4.0))]
    prior = stats.norm.logpdf(x, scale=5.0).sum(axis=1)
    return prior, math.log(3.0) + logsumexp(modes, axis=0) - prior


def draws_of_modes(rng, n, share):
    return np.where(rng.random((n, 1)) < share, 4.0, -4.0) + 0.5 * rng.normal(size=(n, 2))


def banana(x):
    """The same prior and a banana in four dimensions; its evidence is 3."""
    bent = np.column_stack([x[:, 0] / 3.0, x[:, 1] - 0.6 * (x[:, 0] ** 2 - 9.0), x[:, 2:] / 0.1])
    prior = stats.norm.logpdf(x, scale=5.0).sum(axis=1)
    return prior, math.log(3.0 / (3.0 * 0.1**2)) + stats.norm.logpdf(bent).sum(axis=1) - prior


def draws_of_banana(rng, n):
    x = rng.normal(size=(n, 4)) * [3.0, 1.0, 0.1, 0.1]
    x[:, 1] += 0.6 * (x[:, 0] ** 2 - 9.0)
    return x


def state_of(positions, evaluate):
    particles = smc.Evaluated(positions, *evaluate(positions))
    return smc.init(particles)._replace(inverse_temperature=1.0, log_evidence=7.0)


def finished(rng, positions, evaluate, size=4000):
    info = NOTHING._replace(evaluations=size, log_evidence_increment=2.0)
    return tempering.finish(rng, state_of(positions, evaluate), info, evaluate, smc.Config())


def test_modes_that_particles_have_in_wrong_shares_come_out_right(rng):
    state, info = finished(rng, draws_of_modes(rng, 1000, 0.5), two_modes)
    assert 1000 < info.importance_ess < 4000
    assert info.evaluations == 2 * 4000
    error = 1.0 / math.sqrt(info.importance_ess)
    assert abs(state.log_evidence - math.log(3.0)) < 4.0 * error
    # The increments still sum to the evidence.
    assert info.log_evidence_increment == pytest.approx(2.0 + state.log_evidence - 7.0)
    drawn = state.particles.positions
    assert len(drawn) == 1000
    assert abs((drawn[:, 0] > 0.0).mean() - 0.8) < 4.0 * math.sqrt(0.16) * (error + 1.0 / math.sqrt(1000))
    for mode in (drawn[drawn[:, 0] > 0.0] - 4.0, drawn[drawn[:, 0] < 0.0] + 4.0):
        assert stats.kstest(mode.ravel() / 0.5, "norm").pvalue > 1e-4
    np.testing.assert_array_equal(two_modes(drawn), state.particles[1:])


def test_a_banana_is_met_in_straight_coordinates(rng):
    """The mixture alone has an effective share of .36, with the straight one it is .64."""
    positions = draws_of_banana(rng, 1000)
    state, info = finished(rng, positions, banana)
    assert info.importance_ess > 0.55 * 4000
    assert abs(state.log_evidence - math.log(3.0)) < 4.0 / math.sqrt(info.importance_ess)
    drawn = state.particles.positions
    bent = drawn[:, 1] - 0.6 * (drawn[:, 0] ** 2 - 9.0)
    for column in (drawn[:, 0] / 3.0, bent, drawn[:, 2] / 0.1):
        assert stats.kstest(column, "norm").pvalue > 1e-4


def test_the_evidence_is_unbiased_for_an_estimated_likelihood(rng):
    particles = smc.Evaluated(draws_of_modes(rng, 300, 0.8), np.zeros(300), np.zeros(300))

    def noisy(x):
        prior, likelihood = two_modes(x)
        return prior, likelihood + rng.normal(-0.5, 1.0, len(x))

    found = [log_mean_exp(importance.draw(rng, particles, particles, noisy, 500)[1]) for _ in range(100)]
    ratios = np.exp(found) / 3.0
    assert abs(ratios.mean() - 1.0) < 4.0 * ratios.std() / math.sqrt(len(ratios)) < 0.05


def test_a_map_that_reaches_a_part_of_the_posterior_does_no_harm(rng, monkeypatch):
    """The coordinates of a scale end at its zero, and here the posterior goes on."""

    def both_signs(x):
        signs = [math.log(p) + stats.norm.logpdf(x[:, 0], s, 0.5) for p, s in ((0.9, 2.0), (0.1, -2.0))]
        given = stats.norm.logpdf(x[:, 1:], scale=np.abs(x[:, :1])).sum(axis=1)
        return np.zeros(len(x)), logsumexp(signs, axis=0) + given

    scale = rng.normal(2.0, 0.5, 2000)
    positions = np.column_stack([scale, rng.normal(size=(2000, 3)) * scale[:, None]])
    one_sign = positions[scale > 0.0]
    coordinates = conditionally_normal.fitted(one_sign, one_sign, sum(both_signs(one_sign)))
    assert coordinates.kind == (0, -2)
    positions[rng.random(2000) < 0.1] *= -1.0
    particles = smc.Evaluated(positions, *both_signs(positions))
    monkeypatch.setattr(conditionally_normal, "fitted", lambda *given: coordinates)
    monkeypatch.setattr(importance, "_ENOUGH", 1.0)
    draws, log_weights, _ = importance.draw(rng, particles, particles, both_signs, 8000)
    ess = 8000 * effective_share(log_weights)
    assert abs(log_mean_exp(log_weights)) < 4.0 / math.sqrt(ess)
    share = normalized(log_weights)[draws.positions[:, 0] < 0.0].sum()
    assert abs(share - 0.1) < 4.0 * 0.3 / math.sqrt(ess)


def test_particles_stay_where_importance_sampling_is_worth_less_or_left_out(rng):
    """In thirty dimensions along curves, and where all draws are impossible."""

    def curved(x):
        off = x[:, 1:] - np.sin(3.0 * x[:, :1])
        return -0.5 * x[:, 0] ** 2, -0.5 * (off**2).sum(axis=1) / 0.01

    first = rng.normal(size=(200, 1))
    positions = np.concatenate([first, np.sin(3.0 * first) + 0.1 * rng.normal(size=(200, 29))], axis=1)
    before = state_of(positions, curved)
    state, info = finished(rng, positions, curved, 800)
    assert info.importance_ess < 200
    assert (info.evaluations, info.log_evidence_increment) == (1600, 2.0)
    assert state.log_evidence == before.log_evidence
    np.testing.assert_array_equal(state.particles.positions, positions)

    def impossible(x):
        return np.zeros(len(x)), np.full(len(x), -np.inf)

    state, info = tempering.finish(rng, before, NOTHING._replace(evaluations=800), impossible, smc.Config())
    assert info.importance_ess == 0.0
    np.testing.assert_array_equal(state.particles.positions, positions)
    state = state_of(draws_of_modes(rng, 100, 0.5), two_modes)
    assert tempering.finish(rng, state, NOTHING, None, smc.Config(importance=False)) == (state, NOTHING)


def test_draws_that_miss_a_mode_of_the_particles_are_not_taken(rng):
    """A fifth of the mass in a ball that no draw of a single normal distribution hits: their own weights are alike."""
    center = 2.0 * np.eye(8)[0]

    def hidden(x):
        parts = [stats.norm.logpdf(x).sum(axis=1), stats.norm.logpdf(x, center, 0.1).sum(axis=1)]
        return np.zeros(len(x)), np.logaddexp(math.log(0.8) + parts[0], math.log(0.2) + parts[1])

    is_hidden = rng.random((300, 1)) < 0.2
    noise = rng.standard_normal((300, 8))
    positions = np.where(is_hidden, center + 0.1 * noise, noise)
    particles = smc.Evaluated(positions, *hidden(positions))
    draws, log_weights, ess = importance.draw(rng, particles, particles, hidden, 6000)
    assert effective_share(log_weights) > 0.1
    assert (np.abs(draws.positions - center) < 0.5).all(axis=1).mean() < 0.01
    assert ess < 10.0
    state, info = finished(rng, positions, hidden, 6000)
    assert info.importance_ess < 10.0
    assert state.log_evidence == 7.0
