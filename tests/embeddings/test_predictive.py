from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings.predictive import (
    _BANDWIDTHS,
    Predictive,
    _largest_of_the_best,
    _log_normals,
    _own_factors,
    _race,
)


def fitted(residuals, observed):
    """Fit to residuals around a linear regression."""
    latent = residuals + observed[:, :1] * np.ones(residuals.shape[1])
    return Predictive.fit(
        latent, observed, residuals, np.full(len(latent), 1.0 / len(latent)), np.random.default_rng(2)
    )


def test_log_densities_equal_scipy(rng):
    factors = np.array([[[2.0, 0.0], [0.5, 1.0]], [[1.0, 0.0], [-1.0, 3.0]]])
    differences = rng.standard_normal((2, 2))
    expected = [
        stats.multivariate_normal(np.zeros(2), f @ f.T).logpdf(x) for f, x in zip(factors, differences, strict=True)
    ]
    np.testing.assert_allclose(_log_normals(differences, factors) - np.log(2.0 * np.pi), expected)
    one = [stats.multivariate_normal(np.zeros(2), factors[0] @ factors[0].T).logpdf(x) for x in differences]
    np.testing.assert_allclose(_log_normals(differences, factors[:1]) - np.log(2.0 * np.pi), one)


@pytest.mark.parametrize("along", ["overall", "own"])
def test_the_score_is_that_of_a_smoothed_leave_one_out_prediction(along, rng):
    latent = rng.standard_normal((60, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    law = fitted(latent - latent.mean(axis=0), rng.standard_normal((60, 1)))
    law = replace(law, share=1.0, smoothing=(along, 1.0))
    overall = np.cov(latent.T, bias=True) + np.diag(1e-12 + 1e-9 * np.var(latent, axis=0))
    others = np.delete(law.residuals, 7, axis=0)
    mean = others.mean(axis=0)
    lean = 2.0 / (2.0 + 59.0)
    covariance = (1.0 - lean) * np.cov(others.T, bias=True) + lean * overall
    found = law._surprise(7, overall, 3.0 * np.linalg.cholesky(overall))
    for bandwidth, score in zip(_BANDWIDTHS[along], found, strict=True):
        if along == "overall":
            width = bandwidth * (4.0 / (59.0 * 4.0)) ** (1.0 / 6.0)
            centres = mean + np.sqrt(1.0 - width**2) * (others - mean)
            covariances = np.broadcast_to(width**2 * covariance, (59, 2, 2))
        else:
            factors = bandwidth * _own_factors(others, np.full(59, 1.0 / 59.0), overall)
            centres, covariances = others, factors @ factors.transpose(0, 2, 1)
        inner = np.mean(
            [stats.multivariate_normal(c, v).pdf(law.residuals[7]) for c, v in zip(centres, covariances, strict=True)]
        )
        outer = stats.multivariate_normal(np.zeros(2), 9.0 * overall).pdf(law.residuals[7])
        expected = -np.log(0.99 * inner + 0.01 * outer) - np.log(2.0 * np.pi)
        assert score == pytest.approx(expected, abs=1e-6)


def test_smoothing_keeps_mean_and_covariance_and_no_draw_comes_twice(rng):
    latent = rng.standard_normal((300, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.3], [0.0, 0.0, 0.2]])
    law = fitted(latent - latent.mean(axis=0), rng.standard_normal((300, 2)))
    assert law.share == 1.0
    assert law.smoothing[0] == "overall"
    draws = law.sample(np.zeros((1, 3)), np.zeros((1, 2)), 40_000, np.random.default_rng(3))[0]
    assert len(np.unique(draws[:, 0])) == len(draws)
    exact = np.cov(law.residuals.T, bias=True)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=4.0 * np.sqrt(np.diag(exact).max() / 40_000))
    np.testing.assert_allclose(np.cov(draws.T), exact, atol=0.06 * np.diag(exact).max())


def test_thin_shapes_stay_thin(rng):
    angle = rng.uniform(0.0, 2.0 * np.pi, 350)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.normal(1.0, 0.01, (350, 1))
    law = fitted(ring, rng.standard_normal((350, 1)))
    assert law.smoothing[0] == "own"
    draws = law.sample(np.zeros((1, 2)), np.zeros((1, 1)), 5000, np.random.default_rng(3))[0]
    assert np.std(np.linalg.norm(draws, axis=1)) < 0.04


@pytest.fixture(scope="module")
def two_branches():
    """Fit to the two roots of a square, whose regression knows nothing of them."""
    n, rng = 1000, np.random.default_rng(4)
    observed = rng.uniform(0.3, 3.0, (n, 1))
    theta = rng.choice([-1.0, 1.0], (n, 1)) * np.sqrt(observed) + 0.01 * rng.standard_normal((n, 1))
    return Predictive.fit(theta, observed, theta, np.full(n, 1.0 / n), np.random.default_rng(2))


def test_branches_that_part_are_followed(two_branches):
    law = two_branches
    assert law.smoothing[0] == "moved"
    for y in (0.5, 1.0, 2.0):
        draws = law.sample(np.zeros((1, 1)), np.array([[y]]), 5000, np.random.default_rng(3))[0, :, 0]
        assert abs(np.mean(draws > 0.0) - 0.5) < 0.12  # a hundred neighbours
        assert np.abs(np.abs(draws) - np.sqrt(y)).mean() < 0.025
        low, high = law.quantiles(np.zeros((1, 1)), np.array([[y]]), np.array([0.05, 0.95]))[0, :, 0]
        assert (low, high) == pytest.approx((-np.sqrt(y), np.sqrt(y)), abs=0.04)
    # The test is of the moves: the same neighbours as they are lie far more widely.
    still = replace(law, smoothing=("own", 0.7))
    draws = still.sample(np.zeros((1, 1)), np.array([[1.0]]), 5000, np.random.default_rng(3))[0, :, 0]
    assert np.abs(np.abs(draws) - 1.0).mean() > 0.025


@pytest.mark.parametrize("along", ["own", "moved"])
def test_ties_in_the_data_are_bounded_in_memory(along, rng):
    n = 20_000
    counts = rng.integers(0, 2, (n, 1)).astype(float)
    residuals = rng.standard_normal((n, 1))
    law = Predictive(
        residuals, np.ones(n), counts, np.zeros(1), np.ones(1), "observed", 0.003, smoothing=(along, 1.0), scores={}
    )
    weights, _ = law._centres(np.array([1.0]))
    assert len(weights) <= 400
    draws = law.sample(np.zeros((1, 1)), np.ones((1, 1)), 4000, np.random.default_rng(3))
    assert np.std(draws) == pytest.approx(1.0, abs=0.2)


def test_a_law_that_is_clearly_behind_gets_no_further_cases(two_branches):
    law = two_branches
    laws = [replace(law, smoothing=("own", 1.0)) for _ in range(3)]
    noise, asked = np.random.default_rng(5).standard_normal((3, 400)), np.zeros(3, dtype=int)
    noise[1] = noise[0] + 1e-3 * noise[1]

    def surprise(of, case):
        i = next(i for i, other in enumerate(laws) if other is of)
        asked[i] += 1
        return [5.0 * (i == 2) + noise[i, case]] * 2

    found = _race(laws, np.arange(400), surprise)
    assert asked.tolist() == [400, 400, 25]
    assert [len(f) for f in found] == asked.tolist()


def test_a_law_left_out_early_is_scored_by_how_far_it_was_behind(two_branches, rng):
    laws = [replace(two_branches, share=share) for share in (0.1, 0.3, 1.0)]
    best = rng.standard_normal(400)
    best[:25] += 3.0  # hard cases, which all of them have
    found = [best, best + 0.05 * np.tile([1.0, -1.0], 200), best[:25] + 1.0]
    chosen, scores = _largest_of_the_best(laws, found)
    assert chosen is laws[1]  # as good, and larger
    assert scores == pytest.approx([best.mean(), found[1].mean(), best.mean() + 1.0], abs=0.03)


def test_what_is_scored_is_what_is_drawn(two_branches):
    """Without the point itself, the density of the draws at a training point is that of its score."""
    law, case = two_branches, 17
    others = np.delete(np.arange(len(law.weights)), case)
    without = replace(law, residuals=law.residuals[others], weights=law.weights[others], places=law.places[others])
    spread = np.cov(law.residuals.T, aweights=law.weights, bias=True).reshape(1, 1)
    column = _BANDWIDTHS["moved"].index(law.smoothing[1])
    score = law._surprise(case, spread, 3.0 * np.sqrt(spread))[column]
    x = law.places[case] * law.scale + law.location
    draws = without.sample(np.zeros((1, 1)), x[None], 1_000_000, np.random.default_rng(3))[0, :, 0]
    inside = np.abs(draws - law.residuals[case, 0]) < 0.0005
    wide = stats.norm(0.0, 3.0 * np.sqrt(spread[0, 0])).pdf(law.residuals[case, 0])
    density = 0.99 * inside.mean() / 0.001 + 0.01 * wide
    assert score + 0.5 * np.log(2.0 * np.pi) == pytest.approx(-np.log(density), abs=0.05)


def test_a_query_far_off_gets_the_law_of_the_edge(two_branches):
    edge, far = (
        two_branches.sample(np.zeros((1, 1)), np.array([[y]]), 1000, np.random.default_rng(3))[0] for y in (4.0, 1e12)
    )
    assert np.abs(far).max() < 1.2 * np.abs(edge).max() < 3.0


def test_few_points_with_weight(rng):
    latent, observed = rng.standard_normal((200, 2)), rng.standard_normal((200, 1))
    for alive in (1, 2, 20, 30):
        weights = np.zeros(200)
        weights[:alive] = 1.0
        law = Predictive.fit(latent, observed, latent, weights, np.random.default_rng(2))
        draws = law.sample(np.zeros((1, 2)), np.zeros((1, 1)), 50, np.random.default_rng(3))
        assert np.isfinite(draws).all()
        assert np.isfinite(list(law.scores.values())).all()
        if alive < 25:
            assert law.share == 1.0
