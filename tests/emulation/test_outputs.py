import numpy as np
import pytest

from pymc_kernel.emulation import fit_outputs
from pymc_kernel.emulation.outputs import held_out_outputs
from pymc_kernel.kernels import Gaussian
from pymc_kernel.scores.value_regression import Hyperparameters, Regression
from tests.reference import slow_scores
from tests.reference.differences import assert_derivative, central_differences

HYPER = Hyperparameters(np.array([0.5, 0.7]), 1.0, 8.0, 1e-3, 1e-7)


def curves(x):
    """Four outputs of two positive inputs, over five decades."""
    times = np.array([0.5, 1.0, 3.0, 9.0])
    return 10.0 / x[:, :1] * np.exp(-x[:, 1:] * times)


def positive(rng, n, spread=0.4):
    return np.exp(np.array([1.0, -0.5]) + spread * rng.standard_normal((n, 2)))


def test_marginal_likelihood_and_gradient_of_outputs_are_those_of_normal_ones_with_their_best_amplitudes(rng):
    z, values = rng.normal(size=(30, 2)), rng.normal(size=(30, 3)) * [1.0, 10.0, 0.1]
    data = Regression(z, values, np.zeros(30), Gaussian())
    expected = slow_scores.negative_log_marginal(z, values, HYPER)
    logs = HYPER.pack()
    found, gradient = data.negative_log_marginal(logs)
    assert found == pytest.approx(expected)
    assert_derivative(gradient, lambda x: data.negative_log_marginal(x)[0], logs, rtol=1e-4, atol=1e-4)


def test_predictions_are_those_of_a_gaussian_process_and_held_out_outputs_those_of_a_fit_without_them(rng):
    x, new, folds = rng.uniform(-1.0, 1.0, (24, 2)), rng.uniform(-1.0, 1.0, (7, 2)), np.arange(24) % 3
    # With some noise, so that the twin's inverse has correct digits.
    values = np.stack([np.sin(3.0 * x[:, 0]), x[:, 0] * x[:, 1] - 3.0], axis=1) + 0.03 * rng.normal(size=(24, 2))
    fit = fit_outputs(x, values, rng)

    def mean(rows, at):
        return slow_scores.posterior_mean(fit.scaled(x[rows]), values[rows], at, fit.hyperparameters)

    np.testing.assert_allclose(fit(new), mean(folds >= 0, fit.scaled(new)), rtol=1e-5, atol=1e-5)
    left, margin = folds == 1, 0.25 * np.ptp(x[folds != 1], axis=0)
    inside = np.clip(x[left], x[~left].min(axis=0) - margin, x[~left].max(axis=0) + margin)
    held_out = held_out_outputs(fit, x, values, folds)[left]
    np.testing.assert_allclose(held_out, mean(~left, fit.scaled(inside, inside=False)), rtol=1e-5, atol=1e-5)


def test_exponentials_are_learned_by_their_logarithms_to_the_border_of_positive_inputs(rng):
    fit = fit_outputs(x := positive(rng, 30), curves(x), rng)
    assert fit.log_inputs.all()
    assert fit.log_outputs.all()
    new = positive(rng, 200, 0.2)
    assert np.sqrt(((fit(new) / curves(new) - 1.0) ** 2).mean()) < 0.02
    new = positive(rng, 5)
    new[:, 0], at_border = [-2.0, -1e-9, 0.0, 1e-200, -1e200], new.copy()
    at_border[:, 0] = np.exp(np.log(x[:, 0]).min() - 0.25 * np.ptp(np.log(x[:, 0])))
    np.testing.assert_allclose(fit(new), fit(at_border), rtol=1e-9)


def test_a_quadratic_is_exact_and_ends_a_quarter_of_the_range_beyond_the_points(rng):
    x = rng.normal(size=(30, 3))

    def quadratic(x):
        return (1.0 + x @ [1.0, -2.0, 0.5] + x[:, 0] * x[:, 2] - x[:, 1] ** 2)[:, None]

    fit = fit_outputs(x, quadratic(x), rng)
    new = 3.0 * rng.normal(size=(50, 3))
    margin = 0.25 * np.ptp(x, axis=0)
    expected = quadratic(np.clip(new, x.min(axis=0) - margin, x.max(axis=0) + margin))
    np.testing.assert_allclose(fit(new), expected, atol=0.02)


SUM = np.array([1.0, -0.7, 0.4, 1.2, -1.0, 0.6])


def waves(x):
    """Two outputs that depend on one sum of six inputs."""
    return np.stack([np.sin(x @ SUM), np.cos(x @ SUM)], axis=1)


def test_what_changes_in_one_direction_is_learned_along_it_where_the_outputs_matter(rng):
    x, new = rng.normal(size=(60, 6)), 0.5 * rng.normal(size=(200, 6))
    near = np.full(60, True)
    fit, axes = (fit_outputs(x, waves(x), np.random.default_rng(1), near=n) for n in (near, None))
    along = SUM * x.std(axis=0)
    assert abs(fit.rotation[:, 0] @ along) > 0.95 * np.linalg.norm(along)
    assert np.abs(fit(new) - waves(new)).mean() < 0.2 * np.abs(axes(new) - waves(new)).mean()
    np.testing.assert_allclose(fit.rotation @ fit.rotation.T, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(fit.scaled(x, inside=False), (x - fit.center) / fit.scale @ fit.rotation)
    held_out = held_out_outputs(fit, x, waves(x), np.arange(60) % 10)
    assert np.abs(held_out - waves(x)).mean() < 0.2  # the outermost are far from all others
    assert np.array_equal(axes.rotation, np.eye(6))
    here = np.arange(60) < 14  # directions are chosen where the outputs matter
    chosen = fit_outputs(x, waves(x), np.random.default_rng(1), near=here).rotation
    np.testing.assert_allclose(chosen, axes.directions_of_change(axes.scaled(x[here], inside=False)))
    assert np.array_equal(fit_outputs(x[:, :1], waves(x), rng, near=near).rotation, [[1.0]])


def test_directions_of_change_are_those_of_the_slopes(rng):
    x = rng.normal(size=(40, 3))
    fit = fit_outputs(x, np.stack([np.sin(x[:, 0]) + x[:, 1] * x[:, 2], np.exp(0.3 * x[:, 1])], axis=1), rng)
    z = fit.scaled(x[:7])
    amplitude = np.sqrt((fit.directions**2).sum(axis=0))
    slopes = [central_differences(lambda p, j=j: fit._mean(p[None])[0, j] / amplitude[j], q) for q in z for j in (0, 1)]
    _, vectors = np.linalg.eigh(np.array(slopes).T @ np.array(slopes))
    found = fit.directions_of_change(z)
    np.testing.assert_allclose(np.abs(np.diag(found.T @ vectors[:, ::-1])), 1.0, atol=1e-4)


def depths(x):
    """A log likelihood that falls off like an exponential on one side, by thousands of nats."""
    return (0.5 * x - np.exp(2.0 * x)).sum(axis=1, keepdims=True)


def test_what_is_deep_of_a_log_likelihood_is_learned_on_a_log_scale(rng):
    x, new = rng.uniform(-3.0, 4.0, (60, 2)), rng.uniform(-3.0, 0.5, (200, 2))
    fit = fit_outputs(x, depths(x), np.random.default_rng(1), is_log_likelihood=True)
    plain = fit_outputs(x, depths(x), np.random.default_rng(1))
    span = np.log(1000.0)  # of a thousand draws of a normal distribution in two dimensions one is deeper
    np.testing.assert_allclose(fit.span, span)
    assert plain.span == np.inf
    error, before = ((fit(new) - depths(new)).std() for fit in (fit, plain))
    assert error < 1.0
    assert before > 10.0 * error
    deep = np.array([[3.8, 3.9], [3.9, 0.0]])
    below = depths(x).max() - depths(deep)
    assert (depths(x).max() - fit(deep) > 40.0).all()
    np.testing.assert_allclose(depths(x).max() - fit(deep), span + span * np.log(below / span), rtol=0.1)
    held_out = held_out_outputs(fit, x, depths(x), np.arange(60) % 10)
    is_shallow = depths(x).max() - depths(x) < span
    assert (held_out - depths(x))[is_shallow].std() < 2.0


@pytest.mark.parametrize("ripples", [0.0, 5.0])
def test_a_log_likelihood_that_is_as_smooth_far_out_is_learned_as_it_is(ripples, rng):
    """A log scale makes all values alike, which is no merit by itself: densities are those of the values."""
    x = 5.0 * rng.normal(size=(40, 3))
    values = -(x**2).sum(axis=1, keepdims=True) + ripples * np.sin(2.0 * x).sum(axis=1, keepdims=True)
    assert fit_outputs(x, values, rng, is_log_likelihood=True).span == np.inf


@pytest.mark.parametrize(("sign", "falls"), [(-1.0, True), (1.0, False)])
def test_beyond_its_range_a_log_likelihood_may_fall_but_not_rise(sign, falls, rng):
    """Held at the border, it would have no finite integral; a trend that rises would be a mode of its own."""
    x = rng.uniform(-1.0, 1.0, (30, 2))
    values, beyond = sign * (x**2).sum(axis=1, keepdims=True), np.array([[9.0, 0.3], [-9.0, 8.0]])
    fit, plain = (fit_outputs(x, values, rng, is_log_likelihood=is_log) for is_log in (True, False))
    at_the_border = np.clip(beyond, fit.low * fit.scale + fit.center, fit.high * fit.scale + fit.center)
    known = beyond if falls else at_the_border
    np.testing.assert_allclose(fit(beyond), sign * (known**2).sum(axis=1, keepdims=True), rtol=1e-3)
    np.testing.assert_allclose(plain(beyond), plain(at_the_border))


def test_more_outputs_than_rows_and_a_constant_one(rng):
    times = np.linspace(0.0, 5.0, 2000)
    x, new = positive(rng, 30), positive(rng, 50, 0.2)
    fit = fit_outputs(x, 3.0 - x[:, :1] * np.exp(-x[:, 1:] * times), rng)
    np.testing.assert_allclose(fit(new), 3.0 - new[:, :1] * np.exp(-new[:, 1:] * times), atol=0.02)
    x = rng.normal(size=(20, 2))
    fit = fit_outputs(x, np.stack([np.full(20, 7.0), x[:, 0]], axis=1), rng)
    np.testing.assert_allclose(fit(2.0 * x)[:, 0], 7.0)


def test_of_many_rows_few_are_kept_and_bad_arrays_are_refused(rng):
    x = rng.uniform(-1.0, 1.0, (1500, 1))
    fit = fit_outputs(x, np.sin(2.0 * x), rng)
    assert len(fit.points) < 100
    np.testing.assert_allclose(fit(x), np.sin(2.0 * x), atol=1e-4)
    with pytest.raises(ValueError, match="as many rows"):
        fit_outputs(np.ones((3, 1)), np.ones((4, 1)), rng)
    with pytest.raises(ValueError, match="all coincide"):
        fit_outputs(np.ones((5, 2)), np.ones((5, 1)), rng)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_units_do_not_matter(scale, rng):
    x, new = positive(rng, 30), positive(rng, 10)
    ours = fit_outputs(x, curves(x), np.random.default_rng(1))(new)
    other = fit_outputs(scale * x, curves(x) / scale, np.random.default_rng(1))(scale * new)
    np.testing.assert_allclose(scale * other, ours, rtol=1e-3)


def test_errors_of_outputs_that_are_alike_are_alike(rng):
    x, new = np.linspace(-2.0, 2.0, 9)[:, None], np.array([[3.0], [4.0]])
    values = np.hstack([np.sin(x), 2.0 * np.sin(x), np.cos(3.0 * x)])
    fit = fit_outputs(x, values, rng)
    random = fit.random_at(new)
    errors = np.array([random(rng) - fit._mean(fit.scaled(new, inside=False)) for _ in range(500)])
    for place in (0, 1):
        correlation = np.corrcoef(errors[:, place].T)
        assert correlation[0, 1] > 0.999
        assert abs(correlation[0, 2]) < 0.9
    between_places = np.corrcoef(errors[:, 0, 0], errors[:, 1, 0])[0, 1]
    assert abs(between_places) < 4.0 / np.sqrt(500)


def test_outputs_as_they_may_be_have_the_spread_of_a_gaussian_process(rng):
    x, new = positive(rng, 25), positive(rng, 40)
    fit = fit_outputs(x, curves(x), rng)
    random = fit.random_at(new)
    versions = np.log([random(rng) for _ in range(400)])
    assert fit.log_outputs.all()
    moved = np.log(curves(x)) - np.log(curves(x)).mean(axis=0)
    places = np.concatenate([fit.scaled(x, inside=False), z := fit.scaled(new, inside=False)])
    covariance = slow_scores.prior_covariance(places, places, fit.hyperparameters)
    gram, cross = covariance[:25, :25] + fit.hyperparameters.nugget * np.eye(25), covariance[:25, 25:]
    variance = np.diag(covariance)[25:] - (cross * np.linalg.solve(gram, cross)).sum(axis=0)
    amplitude = np.sqrt((moved * np.linalg.solve(gram, moved)).sum(axis=0) / 25)
    spread = versions.std(axis=0)
    np.testing.assert_allclose(spread, np.sqrt(variance)[:, None] * amplitude, rtol=0.2)
    inside = ((z >= fit.low) & (z <= fit.high)).all(axis=1)
    assert inside.any()
    means, atol = versions[:, inside].mean(axis=0), 4.0 * spread[inside].max() / 20.0
    np.testing.assert_allclose(means, np.log(fit(new[inside])), atol=atol)


def probabilities(x):
    """Three probabilities of two inputs."""
    logits = np.stack([np.zeros(len(x)), np.sin(x[:, 0]), 2.0 * np.sin(x[:, 0]) - x[:, 1]], axis=1)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_positive_outputs_with_one_sum_keep_it(rng):
    x = rng.normal(size=(30, 2))
    fit, new = fit_outputs(x, 2.0 * probabilities(x), rng), rng.normal(size=(200, 2))
    assert fit.log_outputs.all()
    np.testing.assert_allclose(fit(new).sum(axis=1), 2.0, rtol=1e-12)
    np.testing.assert_allclose(fit.random_at(new)(rng).sum(axis=1), 2.0, rtol=1e-12)
    assert np.sqrt(((fit(new) - 2.0 * probabilities(new)) ** 2).mean()) < 0.05
    # Temperatures near 300: their sum is nearly the same, but so are they.
    x = rng.normal(size=(30, 2))
    outputs = 300.0 + 0.001 * np.stack([np.sin(x[:, 0]), x[:, 1], x[:, 0] * x[:, 1]], axis=1)
    assert fit_outputs(x, outputs, rng).total == 0.0
    assert fit_outputs(x, probabilities(x)[:, :1], rng).total == 0.0  # one output alone


def test_rows_of_a_matrix_each_keep_their_sum(rng):
    def two_rows(x):
        return np.hstack([probabilities(x), probabilities(x[:, ::-1])])

    x = rng.normal(size=(40, 2))
    fit, new = fit_outputs(x, two_rows(x), rng, block=3), rng.normal(size=(200, 2))
    np.testing.assert_allclose(fit(new).reshape(200, 2, 3).sum(axis=2), 1.0, rtol=1e-12)
    np.testing.assert_allclose(held_out_outputs(fit, x, two_rows(x), np.arange(40) % 5)[:, 3:].sum(axis=1), 1.0)
    assert np.sqrt(((fit(new) - two_rows(new)) ** 2).mean()) < 0.05
