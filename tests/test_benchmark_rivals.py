"""Rival methods that the benchmarks bring along must be correct, or the comparison is not fair."""

import math
import shutil
import subprocess

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from scipy.stats import norm

from benchmarks import austerity, bandwidth_ks, bandwidth_posterior, glass_acceptance, kbr_rotations, lstm
from benchmarks.approximate_mcmc import make_data, true_quantiles
from benchmarks.auto_encoder import AutoEncoder
from benchmarks.measures import PROBABILITIES, share_below
from tests.reference.differences import central_differences


@pytest.mark.slow
def test_auto_encoder_learns_the_score_of_a_normal_distribution(rng):
    noise = 0.7
    fitted = AutoEncoder(noise, 10).fit(rng.normal(size=(400, 2)), rng)
    x = rng.normal(size=(200, 2))
    expected = -x / (1.0 + noise**2)  # the best linear reconstruction is x / (1 + noise^2)
    assert np.sqrt(np.mean((fitted.score(x) - expected) ** 2)) < 0.2


def test_objective_of_the_auto_encoder_has_the_divergence(rng):
    fitted = AutoEncoder(0.5, 5).fit(rng.normal(size=(50, 3)), rng)
    x = rng.normal(size=(4, 3))
    divergence = np.einsum("nii->n", central_differences(fitted.score, x))
    expected = (divergence + 0.5 * (fitted.score(x) ** 2).sum(axis=1)).mean()
    assert fitted.objective(x) == pytest.approx(expected, rel=1e-6)


def mean_log_ratio(data, theta, proposed):
    def log_likelihood(t):
        return np.logaddexp(norm.logpdf(data, t[0], 2.0), norm.logpdf(data, t.sum(), 2.0)).mean()

    return log_likelihood(proposed) - log_likelihood(theta)


def test_gradient_of_the_recurrent_network(rng):
    weights = lstm.start_weights(3, 2, (7, 4), 5, rng)
    x, y, step = rng.normal(size=(6, 8, 3)), rng.normal(size=(8, 2)), 1e-6
    gradient = lstm.loss_and_gradient(weights, x, y)[1]
    assert set(gradient) == set(weights)
    for name, value in weights.items():
        direction = rng.normal(size=value.shape)
        ends = [
            lstm.loss_and_gradient(weights | {name: value + sign * step * direction}, x, y)[0] for sign in (1.0, -1.0)
        ]
        assert (gradient[name] * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2.0 * step), rel=1e-5), name


@pytest.mark.slow
def test_recurrent_network_remembers(rng):
    states = rng.normal(size=(700, 1))
    observed = np.column_stack([np.roll(states, -2), rng.normal(size=700)])  # a state is seen two steps before its time
    fitted = lstm.LSTM(num_hidden=16, max_steps=400).fit(states[:600], observed[:600], rng)
    assert np.mean((fitted.filter(observed[600:]) - states[600:])[3:] ** 2) < 0.4


def test_nearest_rotations_beat_others(rng):
    matrices = rng.normal(size=(50, 3, 3))  # half of them have a negative determinant
    nearest = kbr_rotations.nearest_rotations(matrices)
    np.testing.assert_allclose(np.linalg.det(nearest), 1.0)
    np.testing.assert_allclose(nearest @ nearest.transpose(0, 2, 1), np.broadcast_to(np.eye(3), (50, 3, 3)), atol=1e-12)
    others = Rotation.random(2000, rng=rng).as_matrix()
    best = np.einsum("nij,mij->nm", matrices, others).max(axis=1)
    assert ((matrices * nearest).sum(axis=(1, 2)) >= best).all()


def test_kalman_filter_in_information_form(rng):
    states = np.cumsum(rng.normal(size=(300, 2)), axis=0) * 0.1
    images = states @ rng.normal(size=(2, 6)) + 0.5 * rng.normal(size=(300, 6))
    learned = kbr_rotations.Kalman.learned(states, images, 0.1)
    residuals = kbr_rotations.least_squares(states, images)[1]
    noise = 0.9 * np.cov(residuals.T) + 0.1 * residuals.var(axis=0).mean() * np.eye(6)
    forward, image = learned.forward[1:].T, learned.image[1:].T
    mean, covariance = states.mean(axis=0), np.cov(states.T)
    for seen, filtered in zip(images[:50], learned.filter(images[:50]), strict=True):
        mean = learned.forward[0] + forward @ mean
        covariance = forward @ covariance @ forward.T + learned.process
        gain = covariance @ image.T @ np.linalg.inv(image @ covariance @ image.T + noise)
        mean = mean + gain @ (seen - learned.image[0] - image @ mean)
        covariance = covariance - gain @ image @ covariance
        np.testing.assert_allclose(filtered, mean, rtol=1e-8)


class StandardNormal:
    """Its own score."""

    def score(self, x):
        return -x


def test_acceptance_along_the_exact_score(rng):
    starts, momenta = rng.normal(size=(2, 20, 3))
    whole = glass_acceptance.acceptance(StandardNormal(), starts, momenta, lambda x: -0.5 * (x @ x))
    assert (whole > 0.99).all()
    lost = glass_acceptance.acceptance(
        StandardNormal(), starts, momenta, lambda x: np.nan if x[0] > 1.0 else -0.5 * (x @ x)
    )
    assert (lost < whole).all()
    assert (lost > 0.3).all()  # one that is lost does not take the others along


@pytest.mark.slow
def test_without_tolerance_austerity_decides_by_all_data(rng):
    data, order, critical = make_data(), np.arange(400), austerity.critical_values(0.0)
    for _ in range(20):
        theta, proposed = rng.normal(size=(2, 2))
        ratio = mean_log_ratio(data, theta, proposed)
        for threshold, expected in ((ratio - 1e-9, True), (ratio + 1e-9, False)):
            assert austerity.is_accepted(rng, theta, proposed, threshold, data, order, critical) == (expected, 400)


@pytest.mark.slow
def test_wrong_decisions_of_austerity_are_rare(rng):
    data, order, critical = make_data(), np.arange(400), austerity.critical_values(0.1)
    theta, proposed = np.array([0.0, 1.0]), np.array([0.1, 1.1])
    ratio = mean_log_ratio(data, theta, proposed)
    decisions = [austerity.is_accepted(rng, theta, proposed, ratio - 0.01, data, order, critical) for _ in range(2000)]
    wrong = np.mean([not accepted for accepted, _ in decisions])
    assert 0.01 < wrong < 0.35  # a tenth a look, some looks
    assert 20 < np.mean([seen for _, seen in decisions]) < 400


@pytest.mark.slow
def test_chain_without_tolerance_has_the_true_quantiles(rng):
    draws = np.empty((8000, 2))
    austerity.chain(rng, austerity.MODES[0], 3, make_data(), austerity.critical_values(0.0), draws)
    assert np.abs(share_below(draws, true_quantiles()) - PROBABILITIES[:, None]).max() < 0.06


def test_quadrature_of_a_bandwidth_against_a_finer_one():
    x = bandwidth_posterior.CLAW_CASE.data(50, 0)
    fit = bandwidth_posterior.CLAW_CASE.approximated(x)
    exact = bandwidth_posterior.by_quadrature(x, fit.posterior)
    precisions = np.linspace(1e-3, 400.0, 40_000)
    squared = (x - x.T) ** 2
    np.fill_diagonal(squared, np.inf)
    logs = np.array([
        np.log(np.exp(-0.5 * v * squared).sum(axis=1) * math.sqrt(v / (2.0 * math.pi)) / 49.0).sum()
        for v in precisions[::20]
    ]) - 0.01 * precisions[::20] + math.log(0.01)  # fmt: skip
    weights = np.exp(logs - logs.max())
    width = 20.0 * (precisions[1] - precisions[0])
    assert exact.log_evidence == pytest.approx(math.log(weights.sum() * width) + logs.max(), abs=1e-3)
    assert exact.mean_and_sd(0)[0] == pytest.approx(weights @ precisions[::20] / weights.sum(), rel=1e-3)


HAS_KS = (
    shutil.which("Rscript") and not subprocess.run(["Rscript", "-e", "library(ks)"], capture_output=True).returncode
)


@pytest.mark.skipif(not HAS_KS, reason="R with ks is no dependency: the rule is tested where it is installed")
@pytest.mark.parametrize("num_dims", [1, 2])
def test_rules_of_ks_are_covariances_in_the_units_of_the_data(rng, num_dims):
    x = rng.normal(size=(60, num_dims))
    for one, ten in zip(bandwidth_ks.ks_rules(x).values(), bandwidth_ks.ks_rules(10.0 * x).values(), strict=True):
        np.testing.assert_allclose(ten, 100.0 * one, rtol=0.02)
