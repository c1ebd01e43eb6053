import numpy as np
import pytest
from scipy.spatial.distance import cdist

from pymc_kernel import kernels as K
from pymc_kernel.errors import NotDifferentiableError
from pymc_kernel.kernels import base, profiles
from tests.reference import slow_kernels as slow
from tests.reference.differences import assert_derivative

SCALE = np.array([0.7, 1.9, 1.2])
DOT = [K.Linear(SCALE, constant=0.3), K.Polynomial(SCALE, degree=3)]
RADIAL = [
    K.Gaussian(SCALE), K.RationalQuadratic(SCALE, alpha=1.7), K.InverseMultiquadric(SCALE),
    K.InverseMultiquadric(SCALE, beta=0.8), K.Matern32(SCALE), K.Matern52(SCALE), K.Laplace(SCALE),
]  # fmt: skip
RNG = np.random.default_rng(1)
SMOOTH = [*DOT, *RADIAL[:-1]]


def name(kernel):
    return f"{type(kernel).__name__} {kernel.shape_parameters}"


@pytest.fixture
def points(rng):
    return rng.normal(size=(7, 3)), rng.normal(size=(5, 3))


@pytest.mark.parametrize("kernel", [*DOT, *RADIAL], ids=name)
def test_values_equal_the_textbook_formula(kernel, points, monkeypatch):
    x, y = points
    np.testing.assert_allclose(kernel(x, y), slow.twin(kernel, x, y)[0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(kernel.diagonal(x), np.diag(kernel(x)), rtol=1e-12)
    monkeypatch.setattr(base, "_ROWS", 3)
    np.testing.assert_allclose(kernel.dot(x, y[:, 0], y[:]), kernel(x, y) @ y[:, 0], rtol=1e-10)


@pytest.mark.parametrize("kernel", SMOOTH, ids=name)
def test_derivatives_equal_finite_differences_and_are_finite_where_points_coincide(kernel, points):
    x, y = points
    assert_derivative(kernel.gradient(x, y), lambda a: slow.twin(kernel, a, y)[0], x, 1e-4, atol=1e-6, rtol=1e-6)
    gradient = kernel.gradient(x[:1])
    assert np.isfinite(gradient).all()
    assert not isinstance(kernel, K.RadialKernel) or (gradient == 0.0).all()


def test_many_rows_on_threads_equal_one_thread(rng):
    x, y = rng.normal(size=(3000, 4)), rng.normal(size=(200, 4))
    whole = K.Gaussian(1.3)(x, y)
    parts = np.concatenate([K.Gaussian(1.3)(x[i : i + 10], y) for i in range(0, 3000, 10)])
    np.testing.assert_array_equal(whole, parts)


@pytest.mark.parametrize("kernel", RADIAL, ids=name)
def test_random_features_approximate_the_kernel(kernel, points, rng):
    x, y = points
    features = K.random_fourier_features(kernel, 40_000, 3, rng)
    # 35 values with standard deviation below 1 / sqrt(m): six of them is a false alarm of about 1e-7.
    np.testing.assert_allclose(features(x) @ features(y).T, kernel(x, y), atol=6 / np.sqrt(40_000))


def test_median_heuristic(rng):
    points = rng.normal(size=(40, 3))
    distances = cdist(points, points)[np.triu_indices(40, 1)]
    assert K.median_distance(points) == pytest.approx(np.median(distances), rel=1e-12)
    many = rng.normal(size=(5000, 3))
    approximate = K.median_distance(many, np.random.default_rng(1))
    assert approximate == K.median_distance(many, np.random.default_rng(1))
    assert approximate == pytest.approx(K.median_distance(many, max_points=5000), rel=0.05)
    assert K.Gaussian("median").resolve(points).length_scale == K.median_distance(points)
    kernel = K.Gaussian(2.0)
    assert kernel.resolve(points) is kernel
    repeated = np.concatenate([np.zeros((30, 2)), rng.normal(size=(4, 2))])
    assert K.median_distance(repeated) > 0


@pytest.mark.parametrize(("error", "message", "call"), [
    (ValueError, "resolve", lambda: K.Gaussian("median")(np.zeros((2, 2)))),
    (ValueError, "2 entries", lambda: K.Gaussian([1.0, 2.0])(np.zeros((2, 3)))),
    (ValueError, "must agree", lambda: K.Gaussian()(np.zeros((2, 3)), np.zeros((2, 2)))),
    (ValueError, "shape", lambda: K.Gaussian()(np.zeros((0, 3)))),
    (ValueError, "rng", lambda: K.median_distance(np.zeros((2000, 2)))),
    (ValueError, "agree", lambda: K.random_fourier_features(K.Gaussian(), 3, 2, RNG)(np.zeros((1, 3)))),
    (NotDifferentiableError, "not smooth enough", lambda: K.Laplace(1.0).gradient(np.zeros((2, 3)))),
    (TypeError, "radial", lambda: K.random_fourier_features(K.Linear(), 3, 2, RNG)),
])  # fmt: skip
def test_bad_input_and_what_a_kernel_does_not_have_are_named(error, message, call):
    with pytest.raises(error, match=message):
        call()


def test_arrays_of_the_user_are_copied():
    length_scale = np.ones(2)
    kernel = K.Gaussian(length_scale)
    length_scale[:] = 5.0
    np.testing.assert_array_equal(kernel.length_scale, 1.0)


def test_exponential_to_the_last_places(rng):
    x = np.concatenate([rng.uniform(-700, 700, 2000), rng.normal(size=2000), [0.0, -0.0, -1e-300]])
    out = x.copy()
    profiles.exp_in_place(out)
    np.testing.assert_allclose(out, np.exp(x), rtol=5e-16)
    far = np.array([-1e4, -np.inf])
    profiles.exp_in_place(far)
    assert (far < 1e-300).all()


@pytest.mark.parametrize("kernel", [*RADIAL[:4], K.RationalQuadratic(alpha=1.0)], ids=name)
def test_derivatives_at_once_are_those_apart(kernel, rng):
    argument = np.append(rng.gamma(1.0, 3.0, size=39) + 1e-3, 0.0)
    found, expected = np.empty((3, 40)), np.empty(40)
    profiles.fill_derivatives(kernel.family, *kernel.shape_parameters, argument, *found)
    for order in range(3):
        profiles.fill_profile(kernel.family, *kernel.shape_parameters, order, argument, expected)
        np.testing.assert_allclose(found[order], expected, rtol=1e-13)


def test_profile_derivatives_of_every_order():
    s, h = np.array([0.1, 0.9, 3.0]), 1e-5
    smooth = (K.Gaussian(1.0), K.RationalQuadratic(1.0, alpha=0.7), K.InverseMultiquadric(1.0))
    for kernel in (*smooth, K.Matern32(1.0), K.Matern52(1.0), K.Laplace(1.0)):

        def derivative(order, at, kernel=kernel):
            out = np.empty(3)
            profiles.fill_profile(kernel.family, *kernel.shape_parameters, order, at, out)
            return out

        for order in range(1, 5 if kernel in smooth else 3):
            expected = (derivative(order - 1, s + h) - derivative(order - 1, s - h)) / (2 * h)
            np.testing.assert_allclose(derivative(order, s), expected, rtol=1e-7)
