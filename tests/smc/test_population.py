import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.targets import banana
from pymc_kernel.scores import Finite
from pymc_kernel.smc import log_mean_exp
from pymc_kernel.smc import population as P

BANANA = banana(0.1, 25.0, num_dims=3)
TRUTH = 1.5 * math.log(2 * math.pi) + math.log(5.0)


def log_density(positions):
    return -0.5 * BANANA.level(positions)


def run(seed, config, num_particles=300, iterations=12, log_density=log_density):
    rng = np.random.default_rng(seed)
    wide = stats.norm(0.0, 8.0)
    start = 8.0 * rng.standard_normal((num_particles, 3))
    state = P.init(rng, start, log_density(start) - wide.logpdf(start).sum(axis=1))
    history = []
    for _ in range(iterations):
        state, info = P.step(rng, state, log_density, config)
        history.append(info)
    return state, history


@pytest.mark.parametrize("weights", ["mixture", pytest.param("own", marks=pytest.mark.long)])
def test_every_iteration_is_unbiased_with_a_noisy_density(weights):
    """Given its proposals, the mean weight of an iteration has the evidence as its expectation; noise sd 0.5."""
    config = P.Config(weights=weights, surrogate=Finite(num_features=30, regularization=1e-2))
    rng = np.random.default_rng(5)

    def normal(positions):
        return stats.norm(1.0, [3.0, 1.0, 2.0]).logpdf(positions).sum(axis=1)

    def noisy(positions):
        return normal(positions) + 0.5 * rng.standard_normal(len(positions)) - 0.125

    settled, _ = run(3, config, log_density=normal)
    ratios = np.array([math.exp(P.step(rng, settled, noisy, config)[1].log_evidence) for _ in range(100)])
    assert abs(ratios.mean() - 1.0) < 4 * ratios.std() / math.sqrt(100)


def test_weights_are_those_of_the_proposal_that_was_drawn_from(rng):
    """A flat log density: the log weights are minus the log proposal, which is written out here."""
    config = P.Config(drift="none", weights="mixture")
    settled, _ = run(3, config)
    state, _ = P.step(rng, settled, lambda x: np.zeros(len(x)), config)
    new, logs = state.positions[-300:], state.log_weights[-300:]
    factor = P._shape(settled.positions, P._tempered(settled.log_weights, 300))
    scales = 2.38 / math.sqrt(3) * np.array(P._SCALES)
    for y, log_weight in zip(new[:20], logs[:20], strict=True):
        parts = [
            share * stats.multivariate_normal(np.zeros(3), s**2 * factor @ factor.T).pdf(y - settled.particles).mean()
            for s, share in zip(scales, settled.shares, strict=True)
        ]
        assert log_weight == pytest.approx(-math.log(sum(parts)), abs=1e-8)


def test_clouds_drift_along_the_score():
    """Towards where it points, by delta Sigma score: a direction across all clouds, the noise of 2,000 averaged out."""
    towards = np.array([0.02, -0.1, 0.15])
    config = P.Config(drift=lambda x: np.tile(towards, (len(x), 1)), drift_size=0.5)
    settled, _ = run(3, config, num_particles=2000, iterations=6)
    state, _ = P.step(np.random.default_rng(1), settled, log_density, config)
    factor = P._shape(settled.positions, P._tempered(settled.log_weights, 2000))
    shift = np.linalg.solve(factor, (state.positions[-2000:] - settled.particles).mean(axis=0))
    wanted = 0.5 * towards @ factor
    assert np.linalg.norm(wanted) > 0.1
    assert np.linalg.norm(wanted) < P._LARGEST_DRIFT
    np.testing.assert_allclose(shift, wanted, atol=4 * 2.38 / math.sqrt(3 * 2000))


def test_shares_of_scales_are_learned(monkeypatch):
    monkeypatch.setattr(P, "_SCALES", (0.01, 0.7, 30.0))
    state, _ = run(2, P.Config())
    assert state.shares[1] > 0.8
    assert state.shares.min() > 0.04


def test_impossible_draws_have_no_weight_and_learning_goes_by_enough_of_the_others(rng):
    state, _ = run(4, P.Config(), log_density=lambda x: np.where(x[:, 0] > 0, log_density(x), -np.inf))
    assert np.isneginf(state.log_weights[state.positions[:, 0] <= 0]).all()
    assert log_mean_exp(state.log_weights) == pytest.approx(TRUTH - math.log(2), abs=0.25)
    logs = np.where(rng.random(2000) < 0.95, -np.inf, 30.0 * rng.standard_normal(2000))
    weights = P._tempered(logs, 100)
    assert 1.0 / (weights**2).sum() == pytest.approx(25.0, rel=0.15)
    few = np.full(2000, -np.inf)
    few[:20] = 50.0 * rng.standard_normal(20)
    assert 1.0 / (P._tempered(few, 1000) ** 2).sum() > 14


def test_bad_starts_are_refused(rng):
    with pytest.raises(ValueError, match="shape"):
        P.init(rng, np.zeros((5, 2)), np.zeros(4))
    with pytest.raises(ValueError, match="zero"):
        P.init(rng, np.zeros((5, 2)), np.full(5, -np.inf))
    state = P.init(rng, np.zeros((5, 2)), np.zeros(5))
    with pytest.raises(ValueError, match="one draw"):
        P.step(rng, state, lambda x: np.zeros(len(x)), P.Config())
