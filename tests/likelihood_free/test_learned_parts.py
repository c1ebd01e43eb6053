"""The parts of the learned likelihood: features, evidence, the triangular map, residuals, functions of summaries."""

import numpy as np
import pytest
from scipy.stats import cauchy, expon, gamma, multivariate_normal, norm, uniform

from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_maps, choose_parameter_map
from pymc_kernel.likelihood_free.learned_likelihood.evidence import fit_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import ParameterMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Marginals, candidates
from pymc_kernel.likelihood_free.learned_likelihood.stages import Design, fit_coefficients, fit_log_sd
from pymc_kernel.likelihood_free.learned_likelihood.summaries import SummaryMap
from tests.reference.differences import assert_derivative, central_differences


@pytest.fixture
def rng():
    return np.random.default_rng(1)


@pytest.mark.parametrize("num_dims", [1, 3, 8])
def test_derivatives_of_features(num_dims, rng):
    z = rng.standard_normal((60, num_dims))
    features = make_features(z, rng, 5, 12, metric=0.5 * rng.standard_normal((num_dims, num_dims)))
    values = features(z)
    assert values.shape == (60, len(features.whitened()[0]))
    assert features.has_fine == (num_dims < 7)
    factors = rng.standard_normal(values.shape)
    found = features.pull_back(z, values, factors)
    assert_derivative(found, lambda p: (features(p) * factors).sum(axis=1), z, rtol=1e-5, atol=1e-6)


def test_whitened_bumps_have_the_kernel_as_covariance(rng):
    z = rng.uniform(-1.0, 1.0, (200, 2))
    features = make_features(z, rng, 5, 40)
    matrix, blocks = features.whitened()
    assert list(blocks)[-2:] == ["joint", "fine"]
    values = (features(z) @ matrix)[:, -blocks["joint"] - blocks["fine"] : -blocks["fine"]]
    squared = ((z[:, None] - z) ** 2).sum(axis=2) / 2.0
    np.testing.assert_allclose(values @ values.T, np.exp(-0.5 * squared), atol=0.02)


@pytest.mark.parametrize("kind", ["identity", "exp", "expit"])
def test_parameter_maps_are_standardized(kind):
    x = np.random.default_rng(1).standard_normal((50, 2))
    places = ParameterMap.of(x, (kind, "identity"))
    np.testing.assert_allclose(places(x).mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(places(x).std(axis=0), 1.0)
    np.testing.assert_allclose(places.slope(x), np.einsum("nii->ni", central_differences(places, x)), rtol=1e-6)


def test_evidence_leaves_out_what_has_no_effect(rng):
    x = np.hstack([np.ones((400, 1)), rng.standard_normal((400, 12))])
    y = 3.0 + x[:, 1:4] @ [1.0, -2.0, 0.5] + 0.5 * rng.standard_normal(400)
    sizes = np.array([3, 5, 4])
    fit = fit_blocks(x.T @ x, x.T @ y, y @ y, 400, sizes)
    assert np.isfinite(fit.precisions[0])
    assert np.isinf(fit.precisions[1:]).all()
    assert (fit.weights[4:] == 0.0).all()
    assert abs(np.sqrt(fit.noise) - 0.5) < 0.05
    part = x[:, :4]
    penalty = np.diag([0.0, *np.full(3, fit.precisions[0] * fit.noise)])
    np.testing.assert_allclose(fit.weights[:4], np.linalg.solve(part.T @ part + penalty, part.T @ y), rtol=1e-3)
    covariance = fit.factor.T @ fit.factor
    np.testing.assert_allclose(covariance, fit.noise * np.linalg.inv(part.T @ part + penalty), rtol=0.1, atol=1e-6)
    # Blocks that go out in the last iteration are out of everything.
    fit = fit_blocks(x.T @ x, x.T @ y, y @ y, 400, sizes, noise=0.25, iterations=2)
    left = np.isfinite(fit.precisions)
    assert left.sum() == 2
    assert len(fit.active) == 1 + sizes[left].sum()
    part, penalty = x[:, fit.active], np.repeat([0.0, *fit.precisions[left]], [1, *sizes[left]])
    covariance = np.linalg.inv(part.T @ part / 0.25 + np.diag(penalty))
    np.testing.assert_allclose(fit.factor.T @ fit.factor, covariance, atol=1e-10)
    np.testing.assert_allclose(fit.weights[fit.active], covariance @ part.T @ y / 0.25, rtol=1e-8)
    # A feature that is zero is left out.
    x = np.column_stack([x[:20, :2], np.zeros(20)])
    y = 5.0 * x[:, 1] + rng.standard_normal(20)
    fit = fit_blocks(x.T @ x, x.T @ y, y @ y, 20, [1, 1], start=np.array([np.nan, 0.7]))
    assert np.isinf(fit.precisions).tolist() == [False, True]


def test_precisions_have_the_largest_evidence():
    """More weights than responses: the density of these is normal; the constant has a prior that hardly counts."""
    rng = np.random.default_rng(2)
    x = np.hstack([np.ones((30, 1)), rng.standard_normal((30, 40))])
    y = x @ np.concatenate([[3.0], rng.standard_normal(20), 0.3 * rng.standard_normal(20)])
    y += 0.1 * rng.standard_normal(30)
    fit = fit_blocks(x.T @ x, x.T @ y, y @ y, 30, [20, 20], noise=0.01)

    def log_evidence(factors):
        prior = np.concatenate([[1e4], np.repeat(1.0 / (fit.precisions * factors), 20)])
        return multivariate_normal(np.zeros(30), (x * prior) @ x.T + 0.01 * np.eye(30)).logpdf(y)

    for factors in ([1.3, 1.0], [1.0, 1.3], [1 / 1.3, 1.0], [1.0, 1 / 1.3]):
        assert log_evidence(np.array(factors)) < log_evidence(np.ones(2))


def some_residuals(rng):
    marginals = Marginals.start(np.empty((1, 2)), 3)
    roots = np.array([[[1.0, 0.0], [0.5, 2.0]], [[0.3, 0.0], [-0.2, 0.5]]])
    joint = Joint(np.log([0.3, 0.7]), rng.standard_normal((2, 2)), roots)
    return [Marginals.start(np.empty((1, 2)), 1), marginals, joint, joint.scaled(1.7), marginals.scaled(0.4)]


@pytest.mark.parametrize("number", range(5))
def test_residuals_are_densities(number, rng):
    residuals = some_residuals(rng)[number]
    grid = np.linspace(-25.0, 25.0, 801)
    points = np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    density = np.exp(residuals.log_density_and_slope(points)[0])
    assert abs(density.sum() * (grid[1] - grid[0]) ** 2 - 1.0) < 2e-3
    some = 2.0 * rng.standard_normal((30, 2))
    slope = residuals.log_density_and_slope(some)[1]
    assert_derivative(slope, lambda p: residuals.log_density_and_slope(p)[0], some, rtol=1e-5, atol=1e-6)
    found = np.cov(residuals.sample(40_000, rng).T, bias=True)
    np.testing.assert_allclose(found, np.cov(points.T, aweights=density / density.sum()), atol=0.03 * found.max())


def test_probabilities_of_intervals(rng):
    mixture = Marginals.start(np.empty((1, 2)), 2)
    noise = np.array([[0.3, -1.0], [4.0, 30.0], [-60.0, 0.0]])
    below, above = np.full(noise.shape, 0.4), np.full(noise.shape, 0.6)
    below[0, 0] = np.inf
    found, to_noise, to_width = mixture.log_masses(noise, below, above)
    weights, sds = np.exp(mixture.log_weights[0]), mixture.sds[0]
    exact = weights @ norm.cdf((0.9 - mixture.means[0]) / sds)
    assert found[0, 0] == pytest.approx(np.log(exact), rel=1e-12)
    tail = weights * (norm.sf((3.6 - mixture.means[0]) / sds) - norm.sf((4.6 - mixture.means[0]) / sds))
    assert found[1, 0] == pytest.approx(np.log(tail.sum()), rel=1e-12)
    assert np.isfinite(found).all()
    near = rng.standard_normal((10, 2))
    below, above = below[:1, 1:] + 0.0 * near, above[:1, 1:] + 0.0 * near

    def mass(shift, widen):
        return mixture.log_masses(near + shift, below * np.exp(-widen), above * np.exp(-widen))[0]

    _, to_noise, to_width = mixture.log_masses(near, below, above)
    np.testing.assert_allclose(to_noise, (mass(1e-6, 0.0) - mass(-1e-6, 0.0)) / 2e-6, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(to_width, (mass(0.0, 1e-6) - mass(0.0, -1e-6)) / 2e-6, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["identity", "log", "log_shifted", "sqrt", "asinh"])
def test_functions_of_summaries_and_their_inverses(kind, rng):
    x = rng.lognormal(size=(100, 2))
    x[:, 1] = 3.0
    transform = SummaryMap.of(x, (kind,))
    values = transform(x)
    assert values.shape == (100, 1)
    np.testing.assert_allclose(transform.inverse(values), x, rtol=1e-10)
    numeric = (transform(x + 1e-6) - transform(x - 1e-6)) / 2e-6
    np.testing.assert_allclose(transform.log_slope(x), np.log(numeric), rtol=1e-4, atol=1e-4)


def test_the_function_that_makes_things_simple_is_found(rng):
    theta = rng.uniform(-4.0, 4.0, (600, 2))
    shown = np.stack([np.exp(0.5 * theta[:, 0]), 1.0 / (1.0 + np.exp(-theta[:, 1]))], axis=1)
    x = np.exp(theta[:, :1] + 0.3 * rng.standard_normal((600, 1)))
    plain = shown + 0.01 * rng.standard_normal(shown.shape)
    places = choose_parameter_map(theta, plain, rng)
    assert places.kinds[1] == "expit"
    same = ("identity", "identity")
    assert [m.kinds for m in choose_maps(theta, x, x, rng)] == [same, ("log",)]
    normal = theta[:, :1] + 0.3 * rng.standard_normal((600, 1))
    assert [m.kinds for m in choose_maps(theta, normal, normal, rng)] == [same, ("identity",)]


@pytest.mark.parametrize("seed", range(3))
def test_data_whose_scale_is_a_parameter_are_learned_in_logarithms(seed):
    """Raw means look simple beside the exponential of a log mean, and their spread then has a wild tail."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(0.0, 1.5, (2000, 1))
    means = np.exp(theta) * rng.gamma(5.0, 0.2, (2000, 1))
    fit = LearnedLikelihood(num_replicates=1).fit(theta[:1000], means[:1000], rng)
    right = gamma(5.0, scale=np.exp(theta[1000:]) / 5.0).logpdf(means[1000:])[:, 0]
    missing = right - fit.log_density(theta[1000:], means[1000:])
    assert missing.mean() < 0.05
    assert np.abs(missing).max() < 6.0


def test_proportions_are_learned_as_multiples_of_a_step_and_others_on_a_grid_are_found(rng):
    """A density of numbers on a grid has a wall beside each; under a wide prior most are nearly 0 or 1."""
    theta = rng.normal(0.0, 3.0, (1000, 1))
    chance = 1.0 / (1.0 + np.exp(-theta))
    shares = rng.binomial(20, chance) / 20
    fit = LearnedLikelihood(num_replicates=1).fit(theta, shares, rng)
    assert fit.summaries.whole.all()
    np.testing.assert_allclose(fit.summaries.step, 0.05)
    np.testing.assert_allclose(fit.summaries.inverse(fit.summaries(shares)), shares, atol=1e-12)
    grid = np.linspace(-6.0, 6.0, 1000)
    found = fit.log_densities(grid[:, None], np.arange(21)[:, None] / 20)
    curvature = np.abs(np.diff(found, 2, axis=1)) / (grid[1] - grid[0]) ** 2
    near = (found > found.max(axis=1, keepdims=True) - 10.0)[:, 1:-1]
    assert curvature[near].max() < 300.0
    # Probabilities add up to one, but for what lies beyond all that can be.
    np.testing.assert_allclose(np.exp(found[:, 300:700]).sum(axis=0), 1.0, atol=0.1)
    columns = [rng.standard_normal(200), rng.poisson(3.0, 200) / 7.0, rng.poisson(30.0, 200) * 1.0]
    columns.append(rng.integers(0, 1000, 200) / 1000 - 0.5)
    found = SummaryMap.of(np.stack(columns, axis=1))
    assert found.whole.tolist() == [False, True, True, True]
    np.testing.assert_allclose(found.step, [1.0, 1 / 7, 1.0, 0.001])


def test_what_follows_from_other_summaries_is_left_out(rng):
    """A copy, a sum in other units, a constant, and the last of three counts that have a total."""
    theta = rng.normal(size=(200, 2))
    shares = np.exp(np.column_stack([theta, np.zeros(200)]))
    counts = np.array([rng.multinomial(20, row / row.sum()) for row in shares]).astype(float)
    noisy = 100.0 + theta + 0.3 * rng.normal(size=(200, 2))
    own = np.column_stack([noisy, counts[:, :2]])
    everything = np.column_stack([own, noisy[:, 1], 1e6 * (noisy[:, 0] - noisy[:, 1]), np.full(200, 7.0), counts[:, 2]])
    settings = LearnedLikelihood(num_replicates=1)
    alone, whole = (settings.fit(theta, s, np.random.default_rng(2)) for s in (own, everything))
    assert whole.summaries.kept.tolist() == [True] * 4 + [False] * 4
    np.testing.assert_allclose(whole.log_density(theta, everything), alone.log_density(theta, own), rtol=1e-2)
    drawn = whole.sample(theta, rng)
    np.testing.assert_allclose(drawn[:, 5], 1e6 * (drawn[:, 0] - drawn[:, 1]), atol=1e-3)
    np.testing.assert_array_equal(drawn[:, 7], 20.0 - drawn[:, 2] - drawn[:, 3])  # without rounding
    for j in (4, 5, 6, 7):  # data that break it cannot be
        broken = everything[:5] + 1e-3 * np.abs(everything).max(axis=0) * (np.arange(8) == j)
        assert (whole.log_density(theta[:5], broken) == -np.inf).all()
    few = SummaryMap.of(rng.normal(size=(9, 12)))
    assert few.kept.all()
    noisy[0] = 1e9  # one simulation that explodes is no copy of another summary
    assert SummaryMap.of(noisy).kept.all()
    far = SummaryMap.of(1e6 + np.column_stack([theta, theta[:, 0] + 1e-2 * theta[:, 1], theta[:, 0]]))
    assert far.kept.tolist() == [True, True, False, False]
    assert not far.is_possible(1e6 + np.array([[1.0, 1.0, 1.01, 1.01]])).any()


def test_fractions_with_zeros_are_not_rooted(rng):
    """The slope of a square root is infinite at zero, and so would be the density of a zero."""
    parameters = rng.normal(size=(400, 1))
    summaries = np.sqrt(rng.poisson(np.exp(parameters)).astype(float))
    assert (summaries == 0.0).sum() > 50
    fit = LearnedLikelihood(num_replicates=0).fit(parameters, summaries, 2)
    assert fit.summaries.kinds != ("sqrt",)
    # The zeros are a narrow component of the residuals.
    assert fit.log_density(parameters, np.zeros(1)).max() < 10.0


@pytest.mark.parametrize(
    ("distribution", "largest"), [(expon(-1.0, 1.0), 0.05), (uniform(-1.7, 3.4), 0.05), (norm(), 0.02)]
)
def test_residuals_that_end_at_an_edge(distribution, largest, rng):
    """The best of the candidates is near the truth: .06 to .09 nats off by components of the same middle."""
    noise = distribution.rvs((800, 1), random_state=rng)
    fresh = distribution.rvs((20_000, 1), random_state=rng)
    scores = [m().log_densities(fresh).mean() for members in candidates(noise, np.ones(800), rng) for m in members]
    assert distribution.logpdf(fresh).mean() - max(scores) < largest


def test_components_of_quantiles_by_hand():
    noise = np.column_stack([np.arange(16.0), 1e6 * np.arange(16.0) ** 2])
    found = Marginals.of_quantiles(noise[np.random.default_rng(1).permutation(16)], 6)
    np.testing.assert_allclose(np.exp(found.log_weights), np.tile([2, 2, 4, 4, 2, 2], (2, 1)) / 16.0)
    np.testing.assert_allclose(found.means[0], [0.5, 2.5, 5.5, 9.5, 12.5, 14.5])
    np.testing.assert_allclose(found.sds[1, 0], noise[:2, 1].std())
    assert (Marginals.of_quantiles(cauchy.rvs(size=(64, 1), random_state=1), 6).sds > 0.0).all()
    assert (Marginals.of_quantiles(np.repeat([[0.0], [1.0]], 40, axis=0), 6).sds > 0.0).all()


@pytest.fixture
def design(rng):
    z = rng.standard_normal((2000, 1))
    return Design(make_features(z, rng, 6, 0), z)


def test_a_log_spread_is_learned_in_its_own_units(design, rng):
    """The steps that follow would mend a factor, so that no density shows it."""
    true = 0.3 + 0.5 * design.values[:, 1]  # the linear feature
    residuals = np.exp(true) * rng.standard_normal(len(true))
    weights, _ = fit_log_sd(design, residuals, np.ones(len(true)))
    assert np.abs(design.values @ weights - true).mean() < 0.05


def test_outliers_have_no_part_in_coefficients(design, rng):
    scaled = rng.standard_normal((2000, 2))
    scaled[:, 1] = 0.8 * scaled[:, 0] + 0.6 * scaled[:, 1]
    scaled[:20] = [100.0, 0.0]
    coefficients, _ = fit_coefficients(design, scaled, np.ones(2000))
    at = design.values[20:, : len(coefficients)] @ coefficients[:, 0]
    assert at.mean() == pytest.approx(0.8, abs=0.1)
