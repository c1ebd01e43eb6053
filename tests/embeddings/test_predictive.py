from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings.choice import (
    CrossFit,
    Fold,
    candidate_losses,
    close_to_best,
    largest_share_of_best,
    may_be_chosen,
    race,
)
from pymc_kernel.embeddings.posterior import Regression
from pymc_kernel.embeddings.predictive import (
    BANDWIDTHS,
    Predictive,
    Settings,
    covariance,
    near,
    own_covariances,
    residual_mixture,
    squared_distances,
)


def everywhere(residuals, observed, weights=None):
    """Return settings chosen for residuals around a regression that knows nothing, and the predictive."""
    n = len(residuals)
    weights = np.ones(n) if weights is None else weights
    rng = np.random.default_rng(2)
    fold_of = rng.permutation(np.arange(n) % 5)

    def make_fold(k):
        return Fold(
            weights * (fold_of != k), residuals, residuals, {"observed": observed, "predicted": residuals * 0.0}
        )

    cases = rng.permutation(np.flatnonzero(weights))[:100]
    choice = CrossFit(fold_of, make_fold, weights).choose(cases, equal=True)
    return choice, Predictive(residuals, weights, observed, choice.settings)


@pytest.mark.parametrize("along", ["overall", "own"])
def test_the_score_is_that_of_a_smoothed_prediction_from_the_others(along, rng):
    residuals = rng.standard_normal((60, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    weights = np.ones(60)
    weights[7] = 0.0
    fold = Fold(weights, residuals, residuals, {"observed": rng.standard_normal((60, 1))})
    (found,) = candidate_losses(fold, [Settings("observed", 1.0, along)], 7)
    others = np.delete(residuals, 7, axis=0)
    overall = covariance(others, np.full(59, 1.0 / 59.0))
    mean, lean = others.mean(axis=0), 2.0 / (2.0 + 59.0)
    shrunk = (1.0 - lean) * np.cov(others.T, bias=True) + lean * overall
    for bandwidth, score in zip(BANDWIDTHS[along], found, strict=True):
        if along == "overall":
            width = bandwidth * (4.0 / (59.0 * 4.0)) ** (1.0 / 6.0)
            centers = mean + np.sqrt(1.0 - width**2) * (others - mean)
            covariances = np.broadcast_to(width**2 * shrunk, (59, 2, 2))
        else:
            own = own_covariances(others, np.full(59, 1.0 / 59.0), overall)
            factors = bandwidth * np.linalg.cholesky(np.moveaxis(own, 2, 0))
            centers, covariances = others, factors @ factors.transpose(0, 2, 1)
        inner = np.mean(
            [stats.multivariate_normal(c, v).pdf(residuals[7]) for c, v in zip(centers, covariances, strict=True)]
        )
        outer = stats.multivariate_normal(np.zeros(2), 9.0 * overall).pdf(residuals[7])
        expected = -np.log(0.99 * inner + 0.01 * outer) - np.log(2.0 * np.pi)
        assert score == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("metric", ["observed", "predicted"])
def test_nothing_that_scores_a_case_depends_on_its_parameter(metric, rng):
    """Tied observations are where leave-one-out means told a case its own parameter."""
    n = 200
    counts = rng.integers(0, 3, n)
    latent, features = rng.standard_normal((n, 2)) + counts[:, None], np.eye(3)[counts]
    weights = rng.uniform(0.5, 1.5, n)
    other = latent.copy()
    other[17] = [50.0, -50.0]
    settings = Settings(metric, 0.3, "own", 1.0)
    found = []
    for values in (latent, other):
        regression = Regression(features, values, np.ones(2), counts[:, None] / 1.0, weights, weights, 1e-3, None)
        cross_fit = regression.cross_fit(np.random.default_rng(3))
        ranks = cross_fit.held_out(settings, np.array([17])).ranks
        fold = cross_fit.fold_without(17)
        found.append((ranks, fold.places[metric], fold.residuals, fold.weights))
    assert np.abs(found[0][0] - found[1][0]).max() > 0.2  # the truth itself has moved
    for before, after in zip(found[0][1:], found[1][1:], strict=True):
        np.testing.assert_array_equal(before, after)


def test_factors_of_zero_leave_points_out(rng):
    """Of the fit, of what it falls back to and of the residuals."""
    features, latent = rng.standard_normal((60, 3)), rng.standard_normal((60, 2)) + 5.0
    weights, inside = rng.uniform(0.5, 1.5, 60), np.arange(60) < 40
    whole, part = (
        Regression(features[i], latent[i], np.ones(2), features[i], weights[i], weights[i], 0.1, None)
        for i in (np.ones(60, dtype=bool), inside)
    )
    fit, predictive = whole.predictive(Settings(), inside.astype(float))
    np.testing.assert_allclose(fit.means(features), part.fit.means(features))
    np.testing.assert_allclose(predictive.weights, np.where(inside, weights, 0.0))
    np.testing.assert_allclose(predictive.residuals[inside], part.fit.residuals())


def test_smoothing_keeps_mean_and_covariance_and_no_draw_comes_twice(rng):
    residuals = rng.standard_normal((300, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.3], [0.0, 0.0, 0.2]])
    residuals -= residuals.mean(axis=0)
    choice, predictive = everywhere(residuals, rng.standard_normal((300, 2)))
    assert (choice.settings.share, choice.settings.along) == (1.0, "overall")
    draws = predictive.at(np.zeros(2)).sample(40_000, np.random.default_rng(3))
    assert len(np.unique(draws[:, 0])) == len(draws)
    exact = np.cov(residuals.T, bias=True)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=4.0 * np.sqrt(np.diag(exact).max() / 40_000))
    np.testing.assert_allclose(np.cov(draws.T), exact, atol=0.06 * np.diag(exact).max())


def test_thin_shapes_stay_thin(rng):
    angle = rng.uniform(0.0, 2.0 * np.pi, 240)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * rng.normal(1.0, 0.01, (240, 1))
    choice, predictive = everywhere(ring, rng.standard_normal((240, 1)))
    assert choice.settings.along == "own"
    draws = predictive.at(np.zeros(1)).sample(5000, np.random.default_rng(3))
    assert np.std(np.linalg.norm(draws, axis=1)) < 0.05


@pytest.fixture(scope="module")
def two_branches():
    """Fit to the two roots of a square, whose regression knows nothing of them."""
    n, rng = 1000, np.random.default_rng(4)
    observed = rng.uniform(0.3, 3.0, (n, 1))
    theta = rng.choice([-1.0, 1.0], (n, 1)) * np.sqrt(observed) + 0.01 * rng.standard_normal((n, 1))
    return everywhere(theta, observed)[1]


def test_branches_that_part_are_followed(two_branches):
    assert two_branches.settings.along == "moved"
    for y in (0.5, 1.0, 2.0):
        posterior = two_branches.at(np.array([y]))
        draws = posterior.sample(5000, np.random.default_rng(3))[:, 0]
        assert abs(np.mean(draws > 0.0) - 0.5) < 0.12  # a hundred neighbors
        assert np.abs(np.abs(draws) - np.sqrt(y)).mean() < 0.025
        low, high = posterior.quantiles(np.array([0.2, 0.8]))[:, 0]
        assert (low, high) == pytest.approx((-np.sqrt(y), np.sqrt(y)), abs=0.04)
    # The test is of the moves: the same neighbors as they are lie far more widely.
    still = replace(two_branches, settings=two_branches.settings._replace(along="own", bandwidth=0.7))
    draws = still.at(np.array([1.0])).sample(5000, np.random.default_rng(3))[:, 0]
    assert np.abs(np.abs(draws) - 1.0).mean() > 0.025


@pytest.mark.parametrize("along", ["own", "moved"])
def test_ties_in_the_data_are_bounded_in_memory(along, rng):
    n = 20_000
    counts = rng.integers(0, 2, (n, 1)).astype(float)
    residuals = rng.standard_normal((n, 1))
    posterior = Predictive(residuals, np.ones(n), counts, Settings("observed", 0.003, along)).at(np.ones(1))
    assert len(posterior.weights) <= 250
    assert np.std(posterior.sample(4000, np.random.default_rng(3))) == pytest.approx(1.0, abs=0.2)


def test_settings_that_are_clearly_behind_get_no_further_cases():
    candidates = [Settings(share=share, along="own") for share in (0.3, 0.1, 0.03)]
    noise, asked = np.random.default_rng(5).standard_normal((3, 200)), np.zeros(3, dtype=int)
    noise[1] = noise[0] + 1e-3 * noise[1]

    def losses_of(running, case):
        indices = [candidates.index(r) for r in running]
        asked[indices] += 1
        return [np.full(2, 5.0 * (i == 2) + noise[i, case]) for i in indices]

    found = race(candidates, np.arange(200), np.ones(200), losses_of)
    assert asked.tolist() == [200, 200, 12]
    assert [len(f) for f in found] == asked.tolist()


def test_settings_behind_a_larger_share_get_no_further_cases(rng):
    """A tenth behind with next to no error: not clearly behind, but never to be taken in place of the larger share."""
    shares = np.array([1.0, 0.3, 0.3, 0.1])
    losses = rng.standard_normal(200)[:, None] + [0.0, 0.1, -0.1, -0.05] + 1e-3 * rng.standard_normal((200, 4))
    assert close_to_best(losses, np.ones(200), 2.0, 50.0).all()
    # The last is ahead of the first, but behind one that is larger, too.
    assert may_be_chosen(losses, np.ones(200), shares).tolist() == [True, False, True, False]
    # After ten cases one unseen case could turn all of it round.
    assert may_be_chosen(losses[:9], np.ones(9), shares).all()


def test_settings_left_out_early_are_scored_by_how_far_they_were_behind(rng):
    settings = [Settings(share=share) for share in (0.1, 0.3, 1.0)]
    best = rng.standard_normal(400)
    best[:25] += 3.0  # hard cases, which all of them have
    losses = [best, best + 0.05 * np.tile([1.0, -1.0], 200), best[:25] + 1.0]
    chosen, scores = largest_share_of_best(settings, losses, np.ones(400))
    assert chosen is settings[1]  # as good, and larger
    assert scores == pytest.approx([best.mean(), losses[1].mean(), best.mean() + 1.0], abs=0.03)


def test_weights_of_cases_count():
    losses = np.array([[0.0, 1.0]] * 50 + [[1.0, 0.0]] * 50)
    heavy = np.r_[np.full(50, 9.0), np.ones(50)]
    assert close_to_best(losses, heavy, 1.0).tolist() == [True, False]
    assert close_to_best(losses, heavy[::-1], 1.0).tolist() == [False, True]


def test_few_standard_errors_are_near():
    """Three tenths behind, with a standard error of a tenth."""
    behind = 0.3 + np.tile([1.0, -1.0], 50)
    losses = np.column_stack([np.zeros(100), behind])
    assert close_to_best(losses, np.ones(100), 2.0).tolist() == [True, False]
    assert close_to_best(losses, np.ones(100), 4.0).tolist() == [True, True]


def test_neighbors_count_less_the_farther_they_are(rng):
    """Epanechnikov's weights, of the nearest thirty of a hundred points, times their own."""
    weights, squared = rng.random(100) + 0.1, rng.permutation(np.arange(100.0))
    expected = weights * np.maximum(0.0, 1.0 - squared / 30.0)
    np.testing.assert_allclose(near(weights, squared, 0.3), expected)


def test_a_query_far_off_gets_the_posterior_of_the_edge(two_branches):
    edge, far = (two_branches.at(np.array([y])).sample(1000, np.random.default_rng(3)) for y in (4.0, 1e12))
    assert np.abs(far).max() < 1.2 * np.abs(edge).max() < 3.0


def test_few_points_with_weight(rng):
    residuals, observed = rng.standard_normal((200, 2)), rng.standard_normal((200, 1))
    for alive in (1, 2, 20, 30):
        weights = np.zeros(200)
        weights[:alive] = 1.0
        for share in (1.0, 0.3):
            predictive = Predictive(residuals, weights, observed, Settings("observed", share, "own"))
            assert np.isfinite(predictive.at(np.zeros(1)).sample(50, np.random.default_rng(3))).all()


def test_ties_are_ties_whatever_their_means_are_rounded_to(rng):
    places = np.full((100, 2), [0.3, -0.7])
    places[:50] *= 1.0 + 2e-16
    places[90:] += 1.0
    squared = squared_distances(places, np.array([0.3, -0.7]))
    np.testing.assert_array_equal(near(np.ones(100), squared, 0.3), np.arange(100) < 90)


def test_neighbors_that_are_all_as_far_off_are_not_everybody():
    squared = np.r_[np.full(40, 1.0), np.full(60, 9.0)]
    np.testing.assert_array_equal(near(np.ones(100), squared, 0.3), squared < 2.0)


@pytest.mark.parametrize("num_columns", [1, 3])
@pytest.mark.parametrize("is_tied", [False, True], ids=["distinct", "tied"])
def test_losses_equal_those_of_the_mixtures_that_answers_come_from(num_columns, is_tied, rng):
    """The choice is by compiled loops, the answer by matrices: the same densities for every kind of settings."""
    n = 300
    observed = rng.standard_normal((n, 2))
    observed = np.round(observed) if is_tied else observed
    residuals = rng.standard_normal((n, num_columns)) * np.exp(observed[:, :1]) + 0.3 * observed[:, 1:]
    weights = rng.uniform(0.5, 1.5, n)
    weights[:40] = 0.0
    residuals[3] += 30.0  # a case far outside
    fold = Fold(weights, residuals, residuals + 0.1, {"observed": observed})
    candidates = [Settings("observed", share, along) for share in (1.0, 0.3, 0.1) for along in BANDWIDTHS]
    candidates = [c for c in candidates if c.share < 1.0 or c.along != "moved"]
    for case in (0, 3, 7):
        outside = fold.log_density_outside(case)
        found = candidate_losses(fold, candidates, case)
        for settings, losses in zip(candidates, found, strict=True):
            for bandwidth, loss in zip(BANDWIDTHS[settings.along], losses, strict=True):
                one = residual_mixture(
                    residuals, weights, observed, observed[case], settings._replace(bandwidth=bandwidth), fold.overall
                )
                (inner,) = one.log_density(fold.errors[case][None]) + 0.5 * num_columns * np.log(2.0 * np.pi)
                assert loss == pytest.approx(-np.logaddexp(np.log(0.99) + inner, outside), abs=1e-10)
