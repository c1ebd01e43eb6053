import numpy as np
import pytest
from scipy import stats

from pymc_kernel import embeddings as E
from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.fitted_rule import calibration_of
from pymc_kernel.kernels import Gaussian
from tests.embeddings.pairs import EXACT
from tests.reference import grids


def moments(posterior):
    mean = posterior.weights @ posterior.points
    return mean, np.sqrt(posterior.weights @ (posterior.points - mean) ** 2)


def test_a_posterior_is_the_mean_and_residuals_of_the_others(rng):
    """Each residual by a regression without its point, of the weights of the rule at the observation, cut at zero."""
    latent, observed, y, ridge = rng.standard_normal((25, 2)), rng.standard_normal((25, 1)), np.array([[0.7]]), 0.01
    kernel = Gaussian(1.0)
    (posterior,) = KernelBayesRule(kernel, regularization=ridge, **EXACT).fit(latent, observed).posteriors(y)
    prior_mean, residuals = latent.mean(axis=0), np.empty((25, 2))
    for i in range(25):
        kept = np.arange(25) != i
        system = kernel(observed[kept]) + 25 * ridge * np.eye(24)
        weights = np.linalg.solve(system, kernel(observed[kept], observed[i : i + 1]))[:, 0]
        residuals[i] = latent[i] - prior_mean - weights @ (latent[kept] - prior_mean)
    weights = np.linalg.solve(kernel(observed) + 25 * ridge * np.eye(25), kernel(observed, y))[:, 0]
    mean = prior_mean + weights @ (latent - prior_mean)
    weights = np.maximum(weights + (1.0 - weights.sum()) / 25, 0.0)
    assert (weights == 0.0).any()
    np.testing.assert_allclose(posterior.points, (mean + residuals)[weights > 0.0], atol=1e-8)
    np.testing.assert_allclose(posterior.weights, weights[weights > 0.0] / weights.sum(), atol=1e-8)


def test_factors_of_zero_leave_points_out(rng):
    """Of the regression, of what it falls back to and of the residuals."""
    latent, observed, inside = rng.standard_normal((60, 2)) + 5.0, rng.standard_normal((60, 2)), np.arange(60) < 40
    settings = KernelBayesRule(Gaussian(1.0), regularization=0.01, **EXACT)
    whole, part = settings.fit(latent, observed), settings.fit(latent[inside], observed[inside])
    both = whole.refitted(inside / 1.0), part.refitted(np.ones(40))
    found, expected = (rule.posteriors([[0.2, 0.1]])[0] for rule in both)
    np.testing.assert_allclose(found.points, expected.points, atol=1e-6)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-6)


def test_an_observation_unlike_all_others_leaves_the_prior(rng):
    latent = np.array([3.0, -1.0]) + rng.standard_normal((300, 2)) * [1.0, 2.0]
    rule = KernelBayesRule(Gaussian(0.5)).fit(latent, rng.standard_normal((300, 1)), rng=0)
    mean, spread = moments(rule.posteriors([[50.0]])[0])
    np.testing.assert_allclose(mean, [3.0, -1.0], atol=0.4)
    np.testing.assert_allclose(spread, [1.0, 2.0], rtol=0.15)


def test_fewer_points_around_the_observation_make_a_narrow_posterior_narrower():
    """y = z^3 with noise of .3, whose posterior is a twentieth of the prior at 3; halved until 300 points are left."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(3000, 1))
    rule = KernelBayesRule(num_basis=100).fit(z, z**3 + 0.3 * rng.normal(size=(3000, 1)), rng=0)
    near = rule.near([3.0], np.random.default_rng(2))
    assert len(near.latent) == 375
    grid = np.linspace(-1.0, 4.0, 20_001)  # by quadrature
    mean, spread = grids.moments(grid, -0.5 * grid**2 - 0.5 * ((3.0 - grid**3) / 0.3) ** 2)
    (found, found_spread), (_, whole_spread) = (moments(r.posteriors([3.0])[0]) for r in (near, rule))
    assert found[0] == pytest.approx(mean, abs=0.3 * spread)
    assert spread < found_spread[0] < 1.8 * spread
    assert whole_spread[0] > 1.4 * found_spread[0]


def test_where_one_regression_fits_everywhere_all_points_tell():
    """Near the observation alone, posterior means would have the errors of an eighth of the points."""
    rng = np.random.default_rng(2)
    z = rng.standard_normal((3000, 5))
    rule = KernelBayesRule(num_basis=100).fit(z, z + rng.standard_normal((3000, 5)), rng=0)
    assert rule.near(np.full(5, 0.5), rng) is rule


def test_a_point_is_predicted_by_all_others(rng):
    """By a normal distribution around the mean that leaves it out, with the covariance of the others' residuals."""
    latent, observed = rng.standard_normal((30, 2)), rng.standard_normal((30, 1))
    rule = KernelBayesRule(Gaussian(1.0), regularization=0.01, **EXACT).fit(latent, observed)
    scores = []
    for i in (3, 17):
        weights = rule._shares(rule.weights(rule.observed[i : i + 1]))[0]
        weights[i] = 0.0
        covariance = (rule.residuals.T * weights) @ rule.residuals / weights.sum()
        scores.append(stats.multivariate_normal.logpdf(rule.residuals[i], np.zeros(2), covariance))
    assert rule.normal_score(np.array([3, 17])) == pytest.approx(np.mean(scores) + np.log(2.0 * np.pi))


def test_replicates_differ_by_the_error_of_learning():
    """The standard error of a mean with a local slope from n points is about 1 / sqrt(n) posterior spreads."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(800, 1))
    rule = KernelBayesRule().fit(z, z + 0.5 * rng.normal(size=(800, 1)), rng=0)
    mean, spread = moments(rule.posteriors([1.0])[0])
    means = [moments(rule.refitted(rng.standard_exponential(800)).posteriors([1.0])[0])[0] for _ in range(30)]
    assert 0.5 / np.sqrt(800) < np.std(means) / spread[0] < 4.0 / np.sqrt(800)
    np.testing.assert_allclose(moments(rule.refitted(np.full(800, 2.0)).posteriors([1.0])[0])[0], mean)


def test_of_tied_observations_no_row_is_nearer():
    """Points sorted by their parameter: the answer is that of any order."""
    rng = np.random.default_rng(5)
    z = np.sort(rng.normal(size=(2000, 1)), axis=0)
    x = (rng.random((2000, 1)) < 1.0 / (1.0 + np.exp(3.0 - 3.0 * z))).astype(float)
    near = KernelBayesRule().fit(z, x, rng=0).near(np.ones(1), rng)
    mean, spread = moments(near.posteriors([1.0])[0])
    exact = z[x == 1.0]
    assert mean[0] == pytest.approx(exact.mean(), abs=0.2 * exact.std())
    assert spread[0] == pytest.approx(exact.std(), rel=0.15)


def test_the_posterior_of_a_held_out_case_does_not_know_its_parameter(rng):
    """Tied observations are where leave-one-out means told a case its own parameter."""
    counts = rng.integers(0, 3, 200)
    latent = rng.standard_normal((200, 2)) + counts[:, None]
    other = latent.copy()
    other[17] = [50.0, -50.0]
    rule = KernelBayesRule(Gaussian(0.1), regularization=1e-3)
    rules = [rule.fit(values, counts[:, None], rng=1) for values in (latent, other)]
    found = [rule.held_out(np.array([3, 17]), np.random.default_rng(3))[1] for rule in rules]
    np.testing.assert_allclose(found[0].points, found[1].points)
    np.testing.assert_allclose(found[0].weights, found[1].weights)


def test_units_of_parameters_do_not_matter(rng):
    z, x = rng.normal(size=(400, 2)), rng.normal(size=(400, 2))
    found = []
    for unit in (1.0, np.array([1e-3, 1e6])):
        rule = KernelBayesRule(num_basis=60).fit(unit * z, z + x, rng=0)
        posterior = rule.near([1.0, 0.0], np.random.default_rng(1)).posteriors([1.0, 0.0])[0]
        found.append(np.array(moments(posterior)) / unit)
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_ranks_of_truths_are_uniform(rng):
    """Truths are one more draw of each posterior."""
    both = rng.normal(size=(2000, 1, 2)) + rng.normal(size=(2000, 10, 2))
    draws, truths = both[:, 1:], both[:, 0]
    found = calibration_of(draws, truths, rng)
    for ranks in (*found.ranks.T, found.regions):
        assert stats.kstest(ranks, "uniform").pvalue > 0.01
        # Tests of uniformity take a rank of zero or one as proof.
        assert ((ranks > 0.0) & (ranks < 1.0)).all()
    assert found.worst_gap() < 4.0
    # Equal values share their place.
    tied = calibration_of(np.round(draws), np.round(truths), rng)
    assert stats.kstest(tied.ranks[:, 0], "uniform").pvalue > 0.01
    narrow = calibration_of(0.5 * draws, truths, rng)
    assert stats.kstest(narrow.ranks[:, 0], "uniform").pvalue < 1e-6
    assert narrow.worst_gap() > 8.0


def test_calibration_has_errors_of_shares_and_no_units_and_says_its_largest_gap(rng):
    draws, truths, units = rng.standard_normal((150, 40, 2)), rng.standard_normal((150, 2)), np.array([1e-3, 1e6])
    found, other = (calibration_of(draws * u, truths * u, np.random.default_rng(3)) for u in (1.0, units))
    np.testing.assert_allclose(found.standard_error, np.sqrt(found.levels * (1.0 - found.levels) / 150))
    for name in ("ranks", "regions", "coverage", "tarp"):
        np.testing.assert_array_equal(getattr(found, name), getattr(other, name))
    gaps = np.column_stack([found.coverage, found.tarp]) - found.levels[:, None]
    assert found.worst_gap() == pytest.approx(np.abs(gaps / found.standard_error[:, None]).max())
    assert f"largest gap: {found.worst_gap():.1f} standard errors" in repr(found)


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


ESTIMATORS = {
    "rule": (E.KernelBayesRule(num_basis=30), lambda fit, y: fit.interval(y)),
    "original": (E.OriginalBayesRule(num_basis=30), lambda fit, y: fit.mean(y)),
    "ratio": (E.DensityRatio(num_basis=30), lambda fit, y: fit(y)),
    "conditional": (E.ConditionalMean(num_basis=30), lambda fit, y: fit.weights(y)),
    "filter": (E.KernelBayesFilter(state_kernel=0.5, num_basis=30), lambda fit, y: fit.filter(y).weights),
}


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_fit_is_its_seed_alone(name, rng):
    estimator, answer = ESTIMATORS[name]
    data = rng.standard_normal((600, 2)), rng.standard_normal((600, 2))
    generator = np.random.default_rng(1)
    first, second = estimator.fit(*data, rng=1), estimator.fit(*data, rng=generator)
    generator.random(100)  # what its caller draws afterwards
    expected = answer(first, data[1][:5])
    np.testing.assert_array_equal(answer(second, data[1][:5]), expected)
    np.testing.assert_array_equal(answer(first, data[1][:5]), expected)
    assert np.abs(answer(estimator.fit(*data), data[1][:5]) - expected).max() > 0.0  # another seed
