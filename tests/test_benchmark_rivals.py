"""What the benchmarks bring along to compare with: it must be right, or the comparison is not."""

import math
import shutil

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks import austerity, bandwidth_ks, bandwidth_posterior, kbr_rotations, lstm
from benchmarks.approximate_mcmc import make_data, true_quantiles
from benchmarks.auto_encoder import AutoEncoder
from benchmarks.measures import PROBABILITIES, share_below


def test_auto_encoder_learns_the_score_of_a_normal_distribution(rng):
    noise = 0.7
    fitted = AutoEncoder(noise, 10).fit(rng.normal(size=(400, 2)), rng)
    x = rng.normal(size=(200, 2))
    expected = -x / (1.0 + noise**2)  # the best linear reconstruction is x / (1 + noise^2)
    assert np.sqrt(np.mean((fitted.score(x) - expected) ** 2)) < 0.2


def test_objective_of_the_auto_encoder_has_the_divergence(rng):
    fitted = AutoEncoder(0.5, 5).fit(rng.normal(size=(50, 3)), rng)
    x, step = rng.normal(size=(4, 3)), 1e-5
    divergence = sum(
        (fitted.score(x + step * row)[:, k] - fitted.score(x - step * row)[:, k]) / (2.0 * step)
        for k, row in enumerate(np.eye(3))
    )
    expected = (divergence + 0.5 * (fitted.score(x) ** 2).sum(axis=1)).mean()
    assert fitted.objective(x) == pytest.approx(expected, rel=1e-6)


def mean_log_ratio(data, theta, proposed):
    def log_likelihood(t):
        return np.logaddexp(norm.logpdf(data, t[0], 2.0), norm.logpdf(data, t.sum(), 2.0)).mean()

    return log_likelihood(proposed) - log_likelihood(theta)


def test_gradient_of_the_recurrent_network(rng):
    weights = lstm.start_weights(3, 2, 4, 5, rng)
    x, y, step = rng.normal(size=(6, 3, 3)), rng.normal(size=(6, 3, 2)), 1e-6
    gradient = lstm.loss_and_gradient(weights, x, y)[1]
    for name, value in weights.items():
        direction = rng.normal(size=value.shape)
        ends = [
            lstm.loss_and_gradient(weights | {name: value + sign * step * direction}, x, y)[0] for sign in (1.0, -1.0)
        ]
        assert (gradient[name] * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2.0 * step), rel=1e-5), name


def test_recurrent_network_remembers(rng):
    states = rng.normal(size=(600, 1))
    observed = np.column_stack([np.roll(states, 1), rng.normal(size=600)])  # the state is seen one step late
    states = np.roll(states, 2, axis=0)  # so it can be known from the observation before
    fitted = lstm.LSTM(num_embedded=8, num_hidden=16, max_steps=500).fit(states[:500], observed[:500], rng)
    assert np.mean((fitted.filter(observed[500:]) - states[500:])[1:] ** 2) < 0.3


def test_nearest_rotation_and_kalman_filter_of_a_camera(rng):
    rotations = kbr_rotations.sequence(200, rng)
    np.testing.assert_allclose(kbr_rotations.nearest_rotations(2.0 * rotations), rotations, atol=1e-12)
    noisy = kbr_rotations.nearest_rotations(rotations + 0.1 * rng.normal(size=rotations.shape))
    np.testing.assert_allclose(np.linalg.det(noisy), 1.0)
    observed = rotations.reshape(-1, 9) @ rng.normal(size=(9, 20)) + 1e-3 * rng.normal(size=(200, 20))
    flat = rotations.reshape(-1, 9)
    estimate = kbr_rotations.kalman(flat[:150], observed[:150], observed[150:])
    assert kbr_rotations.error(estimate.reshape(-1, 3, 3), rotations[150:]) < 1e-4


def test_without_tolerance_austerity_decides_by_all_data(rng):
    data, order, critical = make_data(), np.arange(400), austerity.critical_values(0.0)
    for _ in range(20):
        theta, proposed = rng.normal(size=(2, 2))
        ratio = mean_log_ratio(data, theta, proposed)
        for threshold, expected in ((ratio - 1e-9, True), (ratio + 1e-9, False)):
            assert austerity.is_accepted(rng, theta, proposed, threshold, data, order, critical) == (expected, 400)


def test_share_of_wrong_decisions_is_below_the_tolerance(rng):
    data, order, critical = make_data(), np.arange(400), austerity.critical_values(0.1)
    theta, proposed = np.array([0.0, 1.0]), np.array([0.1, 1.1])
    ratio = mean_log_ratio(data, theta, proposed)
    decisions = [austerity.is_accepted(rng, theta, proposed, ratio - 0.01, data, order, critical) for _ in range(2000)]
    wrong = np.mean([not accepted for accepted, _ in decisions])
    assert 0.01 < wrong < 0.35  # a tenth a look, some looks
    assert 20 < np.mean([seen for _, seen in decisions]) < 400


def test_chain_without_tolerance_has_the_true_quantiles(rng):
    draws = np.empty((20_000, 2))
    austerity.chain(rng, austerity.MODES[0], 3, make_data(), austerity.critical_values(0.0), draws)
    assert np.abs(share_below(draws, true_quantiles()) - PROBABILITIES[:, None]).max() < 0.04


def test_quadrature_of_a_bandwidth_against_a_finer_one():
    case = bandwidth_posterior.CASES["claw, isotropic"]
    x = case.data(0)
    fit = bandwidth_posterior.approximated(case, x)
    exact = bandwidth_posterior.by_quadrature(x, fit.posterior)
    lengths = np.linspace(1e-3, 400.0, 40_000)
    squared = (x - x.T) ** 2
    np.fill_diagonal(squared, np.inf)
    logs = np.array([
        np.log(np.exp(-0.5 * v * squared).sum(axis=1) * math.sqrt(v / (2.0 * math.pi)) / 49.0).sum()
        for v in lengths[::20]
    ]) - 0.01 * lengths[::20] + math.log(0.01)  # fmt: skip
    weights = np.exp(logs - logs.max())
    width = 20.0 * (lengths[1] - lengths[0])
    assert exact.log_evidence == pytest.approx(math.log(weights.sum() * width) + logs.max(), abs=1e-3)
    assert exact.mean_and_sd(0)[0] == pytest.approx(weights @ lengths[::20] / weights.sum(), rel=1e-3)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_rules_of_ks_are_covariances_in_the_units_of_the_data(rng):
    x = rng.normal(size=(100, 2)) * [1.0, 10.0]
    for covariance in bandwidth_ks.ks_rules(x).values():
        assert 50.0 < covariance[1, 1] / covariance[0, 0] < 200.0
    one = bandwidth_ks.ks_rules(x[:, :1])
    assert all(0.1 < math.sqrt(covariance[0, 0]) < 0.8 for covariance in one.values())
