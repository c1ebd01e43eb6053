import numpy as np
import pytest

from pymc_kernel.likelihood_free import regression_adjusted, rejection
from pymc_kernel.likelihood_free.held_out import Plan, _ranked_score, answer, held_out_answers, preferred
from pymc_kernel.likelihood_free.rejection import scale_adjusted


def test_a_case_is_predicted_from_the_others_alone(rng):
    latent, summaries = rng.standard_normal((300, 2)), rng.standard_normal((300, 1))
    plans = [Plan(0.1, "none"), Plan(0.3, "linear")]
    changed = latent.copy()
    changed[7] = 50.0
    answers, others = (held_out_answers(values, summaries, [7], plans) for values in (latent, changed))
    for plan, found, other in zip(plans, answers, others, strict=True):
        kept = np.arange(300) != 7
        count = round(plan.quantile * 300)
        near = rejection(summaries[kept], summaries[7], count / 299)
        points, weights = latent[kept][near.index], near.weights
        if plan.adjustment == "none":
            weights = np.full(count, 1.0 / count)
        else:
            points = regression_adjusted(points, summaries[kept][near.index], summaries[7], weights)
        np.testing.assert_allclose(found.errors[0], latent[7] - weights @ points, atol=1e-10)
        np.testing.assert_allclose(found.ranks[0], weights @ (points < latent[7]), atol=1e-10)
        np.testing.assert_allclose(other.errors[0] - found.errors[0], 50.0 - latent[7], atol=1e-9)


def test_scores_are_in_spreads_and_ties_count_half(rng):
    latent, summaries = np.column_stack([rng.standard_normal(200), np.zeros(200)]), rng.standard_normal((200, 1))
    found, scaled = (
        held_out_answers(values, summaries, np.arange(30), [Plan(0.2, "none")])[0]
        for values in (latent, latent * [1e6, 1.0])
    )
    np.testing.assert_allclose(found.ranks[:, 1], 0.5)
    np.testing.assert_allclose(scaled.scores, found.scores)
    # 2 E|Z| - E|Z - Z'| over 2, averaged over Z.
    assert found.scores.mean() == pytest.approx(1.0 / np.sqrt(np.pi), rel=0.3)


def test_ranked_score_against_all_pairs(rng):
    points, weights = rng.standard_normal((40, 2)), rng.dirichlet(np.ones(40))
    truth = np.array([0.3, -2.0])
    pairs = np.abs(points[:, None] - points)
    expected = weights @ np.abs(points - truth) - 0.5 * np.einsum("i,j,ijd->d", weights, weights, pairs)
    np.testing.assert_allclose(_ranked_score(points, weights, truth), expected, atol=1e-12)


def test_residuals_take_the_spread_at_the_observation(rng):
    """Noise of spread exp(s): residuals of all simulations as they are would be too narrow for s = 1."""
    summaries = rng.uniform(-1.0, 1.0, (4000, 1))
    latent = 2.0 * summaries + np.exp(summaries) * rng.standard_normal((4000, 1))
    at, weights = np.array([1.0]), np.full(4000, 1.0 / 4000)
    assert scale_adjusted(latent, summaries, at, weights).std() == pytest.approx(np.e, rel=0.1)
    assert regression_adjusted(latent, summaries, at, weights).std() < 0.6 * np.e


def test_few_residuals_are_not_too_narrow(rng):
    """Thirty simulations, ten summaries: residuals of a fit to themselves have .8 of their spread."""
    spreads = []
    for _ in range(200):
        summaries = rng.standard_normal((30, 10))
        latent = summaries[:, :1] + rng.standard_normal((30, 1))
        spreads.append(scale_adjusted(latent, summaries, np.zeros(10), np.full(30, 1 / 30)).var())
    assert np.sqrt(np.mean(spreads)) > 1.0


def test_a_plan_is_left_only_for_a_clearly_better_one(rng):
    scores, noise = rng.standard_normal(100), rng.standard_normal(100)
    noise = 0.1 * (noise - noise.mean())
    assert preferred([scores, scores - 0.015 + noise]) == 0  # a standard error and a half
    assert preferred([scores, scores - 0.015 + noise, scores - 0.5 + noise]) == 2


def test_factors_weigh_simulations(rng):
    latent, summaries = rng.standard_normal((100, 1)), rng.standard_normal((100, 1))
    factors = (np.arange(100) < 50).astype(float)
    found = answer(latent, summaries, np.zeros(1), Plan(0.5, "linear"), factors)
    assert found.weights.sum() == pytest.approx(1.0)
    assert (found.weights[found.index >= 50] == 0.0).all()
