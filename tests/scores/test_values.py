from itertools import accumulate

import numpy as np
import pytest

from benchmarks.targets import banana
from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel.mcmc import trajectory
from pymc_kernel.scores import value_regression
from pymc_kernel.scores.expansion import change_variables, radial_expansion, value_and_score
from tests.reference import slow_scores
from tests.reference.bananas import bent_draws, bent_log_density, bent_score
from tests.reference.differences import assert_derivative


def wavy(x):
    return np.sin(2 * x[:, 0]) - 0.5 * (x**2).sum(axis=1)


def some_data(rng, kernel, n=50):
    x = rng.normal(size=(n, 3))
    return value_regression.Regression(x, wavy(x), np.maximum(0.2 - wavy(x), 0.0), kernel)


HYPER = S.Hyperparameters(np.array([0.5, 0.7, 0.9]), 50.0, 8.0, 0.01, 1e-3)


@pytest.mark.parametrize("kernel", [K.Gaussian(), K.RationalQuadratic(alpha=2.0), K.Matern52()], ids=repr)
def test_gradient_of_the_marginal_likelihood(kernel, rng):
    data = some_data(rng, kernel)
    logs = HYPER.pack()
    _, gradient = data.negative_log_marginal(logs)
    assert_derivative(gradient, lambda x: data.negative_log_marginal(x)[0], logs, rtol=1e-5, atol=1e-5)


def test_marginal_likelihood_and_leave_one_out_by_dense_matrices(rng):
    data = some_data(rng, K.Gaussian(), n=20)
    noise = HYPER.nugget + HYPER.depth_noise * data.depth**2
    covariance = slow_scores.prior_covariance(data.whitened, data.whitened, HYPER) + np.diag(noise)
    expected = 0.5 * data.values @ np.linalg.solve(covariance, data.values) + 0.5 * np.linalg.slogdet(covariance)[1]
    assert data.negative_log_marginal(HYPER.pack())[0] == pytest.approx(expected)
    residuals = np.empty(20)
    for i in range(20):
        rest = np.delete(np.arange(20), i)
        weights = np.linalg.solve(covariance[np.ix_(rest, rest)], data.values[rest])
        residuals[i] = data.values[i] - covariance[i, rest] @ weights
    expected = np.sqrt(np.average(residuals**2, weights=np.exp(-0.25 * data.depth)))
    assert data.leave_one_out_error(HYPER) == pytest.approx(expected, rel=1e-8)


def test_quadratic_is_found_from_a_slow_walk_in_many_dimensions(rng):
    """The settings are learned from hardly more values than coefficients; a radial kernel leaves 0.06 and more."""
    sd = np.logspace(-3.0, 0.0, 20)
    steps = 0.2 * np.minimum(sd, 0.03) * rng.standard_normal((3000, 20))
    x = np.array(list(accumulate(steps, lambda z, step: np.clip(z + step, -3.0 * sd, 3.0 * sd))))
    fitted = S.Values().fit(x, -0.5 * ((x / sd) ** 2).sum(axis=1), rng, noisy=False)
    assert fitted.error < 0.01


@pytest.mark.parametrize("sd", [0.0, 0.5])
def test_surrogate_is_that_of_the_gaussian_process(sd, rng, monkeypatch):
    """The expansion, quadratic and compressed, against k(x, X) K^-1 y in as many words."""
    monkeypatch.setattr(value_regression, "_LEFT_OVER", 1e-8)
    x, places = rng.normal(size=(50, 3)), rng.normal(size=(6, 3))
    mean, factor = np.array([7.0, 0.0, -1.0]), np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, 0.3, 0.1]])
    values = wavy(x) + sd * rng.standard_normal(50)
    fitted = S.Values().fit(mean + x @ factor.T, values, rng, noisy=sd > 0.0, mean=mean, factor=factor)
    hyper = fitted.hyperparameters
    depth = np.maximum(np.quantile(values, 0.75) - values, 0.0)
    smooth = slow_scores.prior_covariance(x, x, hyper)
    noisy = smooth + np.diag(hyper.nugget + hyper.depth_noise * depth**2)
    cross = slow_scores.prior_covariance(places, x, hyper)
    expected = cross @ np.linalg.solve(noisy, values - np.quantile(values, 0.75))
    off = fitted.log_density(mean + places @ factor.T) - expected
    np.testing.assert_allclose(off - off.mean(), 0.0, atol=3e-3)


def test_units_of_columns_and_values_that_are_not_finite_do_not_matter(rng):
    x = rng.normal(size=(40, 2))
    values, units = wavy(x), np.array([1e-6, 1e6])
    one, other = (S.Values().fit(p, values, np.random.default_rng(0), noisy=False) for p in (x, x * units))
    np.testing.assert_allclose(other.log_density(x * units), one.log_density(x), atol=1e-2)
    x = rng.normal(size=(100, 2))
    values = wavy(x)
    spoilt = np.concatenate([values, [-np.inf, np.nan, -1e9]])
    more = np.concatenate([x, np.zeros((3, 2))])
    given = {"mean": np.zeros(2), "factor": np.eye(2)}
    one, other = S.Values().fit(x, values, **given), S.Values().fit(more, spoilt, **given)
    np.testing.assert_allclose(one.score(x), other.score(x))


def test_quadratic_targets_are_exact_and_compression_keeps_the_values(rng, monkeypatch):
    target = banana(0.1, 100.0, num_dims=8)
    x = target.sample(rng, 500) * 1.3
    values = np.array([target.log_density(p) for p in x])
    fitted = S.Values().fit(x, values, np.random.default_rng(1), noisy=False)
    fresh = target.sample(rng, 500)
    error = fitted.log_density(fresh) - [target.log_density(p) for p in fresh]
    assert np.median(np.abs(error - np.median(error))) < 0.15
    # The length scales find that the radial part concerns the first coordinates only.
    scales = fitted.hyperparameters.inverse_length_scale
    assert scales[2:].max() < 0.2 * scales[0]
    monkeypatch.setattr(value_regression, "_COMPRESSION", 1e-9)
    whole = S.Values().fit(x, values, np.random.default_rng(1), noisy=False)
    assert fitted.expansion.coefficients.size < whole.expansion.coefficients.size < 500
    near = values > values.max() - 10
    np.testing.assert_allclose(fitted.log_density(x[near]), whole.log_density(x[near]), atol=5e-3)


@pytest.mark.parametrize("sd", [0.0, 0.3, 1.5])
def test_noise_is_recognized(sd, rng):
    x = rng.normal(size=(400, 2))
    fitted = S.Values().fit(x, -0.5 * (x**2).sum(axis=1) + rng.normal(0, sd, 400), rng)
    # A part of the noise may pass for the model's own error at depth.
    assert 0.5 * sd < fitted.noise_sd < 1.2 * sd + 0.02
    np.testing.assert_allclose(fitted.score(x[:50]), -x[:50], atol=0.6 * sd + 0.1)


@pytest.fixture(params=["values", "cosines", "directions"])
def expansion(request, rng):
    x = rng.normal(size=(60, 3)) + 2.0
    if request.param == "values":
        return S.Values().fit(x, wavy(x - 2.0), rng).expansion
    estimator = S.Finite(K.Gaussian(2.0), num_features=30) if request.param == "cosines" else S.Nystrom(num_basis=5)
    return estimator.fit(x, rng=rng).expansion


def test_change_of_variables(expansion, rng):
    factor, mean = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3), rng.normal(size=3)
    moved = change_variables(expansion, factor, mean)
    old, new = np.empty(3), np.empty(3)
    differences = []
    for q in rng.normal(size=(5, 3)):
        differences.append(value_and_score(mean + factor @ q, expansion, old) - value_and_score(q, moved, new))
        np.testing.assert_allclose(new, factor.T @ old, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(differences, differences[0], rtol=1e-9)


# Below a vector, a vector, with points that the last one shares, panels of four vectors with and without a rest.
@pytest.mark.parametrize("num_points", [1, 7, 8, 9, 15, 31, 32, 33, 64, 75])
@pytest.mark.parametrize("num_dims", [1, 3, 9])
@pytest.mark.parametrize("far", [0.0, 60.0])
def test_values_and_scores_equal_the_slow_twin(num_points, num_dims, far, rng):
    points = rng.normal(size=(num_points, num_dims))
    turn, bend = rng.normal(size=(2, num_dims, num_dims))
    expansion = radial_expansion(
        K.Gaussian(1.7), points, rng.normal(size=num_points), transform=turn, center=rng.normal(size=num_dims),
        linear=rng.normal(size=num_dims), quadratic=-bend @ bend.T,
    )  # fmt: skip
    x, score = points[0] + far + rng.normal(size=num_dims), np.empty(num_dims)
    value, gradient = slow_scores.value_and_gradient(x, expansion)
    assert value_and_score(x, expansion, score) == pytest.approx(value, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(score, gradient, rtol=1e-11, atol=1e-11 * np.abs(gradient).max())


def test_step_size_of_a_gaussian(rng):
    """A standard normal surrogate: a step of about one keeps the energy."""
    zero = S.Lite(K.Gaussian(1.0), regularization=1e12, base="uniform").fit(rng.normal(size=(20, 4))).expansion
    normal = zero._replace(quadratic=-np.eye(4))
    starts, momenta = rng.normal(size=(400, 4)), rng.normal(size=(400, 4))
    step_size = trajectory.choose_step_size(starts, momenta, normal)
    assert 0.4 < step_size < 1.5


def test_scores_and_what_is_said_of_them(rng):
    x = bent_draws(rng, 400)
    values, truth = bent_log_density(x), bent_score(x)
    found = S.held_out_scores(x, values + 1e4, S.chain_folds(4, 100))
    off = np.sqrt(((found.scores - truth) ** 2).sum() / (truth**2).sum())
    assert off < 0.05
    assert off / 4.0 < found.score_error < 4.0 * off
    assert found.log_density_error < 0.05
    assert found.overlap > 0.99
    assert found.effective_share > 0.99
    assert found.num_values == 400
    assert found.weights.mean() == pytest.approx(1.0)


def test_repeated_draws_are_left_out_together_and_a_draw_has_no_say_in_its_own_score(rng):
    x = np.repeat(bent_draws(rng, 100), 3, axis=0)
    values = bent_log_density(x)
    found = S.held_out_scores(x, values, np.arange(300) % 4)
    once = S.held_out_scores(x[::3], values[::3], (np.arange(300) % 4)[::3])
    np.testing.assert_allclose(found.scores[::3], once.scores)
    assert found.num_values == 100
    x = bent_draws(rng, 200)
    values = bent_log_density(x)
    folds = S.chain_folds(2, 100)
    before = S.held_out_scores(x, values, folds)
    values[folds == 1] += rng.normal(size=(folds == 1).sum())
    after = S.held_out_scores(x, values, folds)
    np.testing.assert_array_equal(after.scores[folds == 1], before.scores[folds == 1])
    assert np.abs(after.scores[folds != 1] - before.scores[folds != 1]).max() > 0.01
    assert np.abs(after.weights - before.weights)[folds == 1].max() > 0.1


def test_noise_shows_in_the_weights_and_units_in_nothing(rng):
    x = bent_draws(rng, 300)
    values = bent_log_density(x)
    noise = rng.normal(0.0, 1.0, 300)
    folds = S.chain_folds(4, 75)
    found = S.held_out_scores(x, values + noise, folds, noisy=True)
    assert found.effective_share < 0.8
    assert np.corrcoef(np.log(found.weights), -noise)[0, 1] > 0.7
    scale = np.array([1e-6, 1e6])
    scaled = S.held_out_scores(x * scale, values + noise, folds, noisy=True)
    np.testing.assert_allclose(scaled.scores * scale, found.scores, rtol=1e-2, atol=1e-2)
    assert scaled.score_error == pytest.approx(found.score_error, rel=0.05)


def test_folds_are_spread_over_each_chain():
    folds = S.chain_folds(3, 100)
    assert folds.shape == (300,)
    first = folds[:100]
    assert all((first[a : a + 50] == k).any() for a in (0, 50) for k in range(4))
    assert (np.diff(first) != 0).sum() < 25  # in blocks
    assert (folds[100:200] == first).all()


@pytest.mark.parametrize(("message", "change"), [
    ("one number for each of 40 points", lambda values, folds: (values[:-1], folds)),
    ("all 40 different points are in one fold", lambda values, folds: (values, 0 * folds)),
    ("1 of 40 values are not finite", lambda values, folds: (np.r_[values[:-1], -np.inf], folds)),
])  # fmt: skip
def test_values_and_folds_without_meaning_are_refused(message, change, rng):
    x = bent_draws(rng, 40)
    with pytest.raises(ValueError, match=message):
        S.held_out_scores(x, *change(bent_log_density(x), S.chain_folds(1, 40)))
