"""Kernels and Cholesky factors on every kind of array, against the formulas in extended precision."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import kernels as K
from pymc_kernel import linalg
from tests.fuzz.strategies import arrays, dimensions, kept, powers, seeds, sizes
from tests.reference.slow_kernels import twin

RADIAL = [K.Gaussian, K.RationalQuadratic, K.InverseMultiquadric, K.Matern32, K.Matern52, K.Laplace]
DOT = [K.Linear, K.Polynomial]
NAMES = ("x", "y", "points", "length_scale")


@st.composite
def kernels(draw, num_dims, families=(*RADIAL, *DOT)):
    scale = draw(powers())
    if num_dims and draw(st.booleans()):
        scale = np.full(num_dims, scale) * draw(st.sampled_from([1.0, 3.0]))
    return draw(st.sampled_from(families))(scale)


@st.composite
def cases(draw, families=(*RADIAL, *DOT)):
    """A kernel with two sets of points of its dimension."""
    d = draw(dimensions())
    kernel = draw(kernels(d, families))
    return kernel, draw(arrays((draw(sizes()), d))), draw(arrays((draw(sizes()), d)))


@given(cases())
def test_values_are_those_of_the_formula(case):
    kernel, x, y = case
    result = kept(lambda: kernel(x, y), NAMES)
    if result is not None and np.finfo(np.longdouble).maxexp > 2000:
        with np.errstate(all="ignore"):
            expected, size = twin(kernel, x, y)
            # Cancellation in a scalar product leaves an error of its largest terms' rounding.
            slack = 1e-13 * size * (1 if isinstance(kernel, K.Linear) else 3 * (1 + size) ** 2)
            slack = slack if type(kernel) in DOT else 1e-300
            off = np.abs(result - expected) - (1e-11 * np.abs(expected) + slack)
            np.testing.assert_array_equal(np.isinf(result), np.abs(expected) > np.finfo(float).max)
        assert (off[np.isfinite(result)] <= 0).all()


@given(case=cases(), data=st.data(), rng=seeds())
def test_gradients_weighted_sums_diagonals_and_length_scales(case, data, rng):
    kernel, x, y = case
    kept(lambda: kernel.gradient(x, y), (*NAMES, type(kernel).__name__))
    weights = data.draw(arrays((data.draw(st.sampled_from([len(y), len(y), len(y), 2])),)))
    names = (*NAMES, "weights", type(kernel).__name__)
    total = kept(lambda: kernel.dot(x, weights, y), names)
    if total is not None:
        np.testing.assert_allclose(total, kernel(x, y) @ np.asarray(weights, float), rtol=1e-12)
    diagonal = kept(lambda: kernel.diagonal(x), NAMES)
    if diagonal is not None:
        np.testing.assert_allclose(diagonal, np.diag(kernel(x)), rtol=1e-12)
    median = kept(lambda: K.median_distance(x, rng), NAMES)
    assert median is None or 0.0 < median < np.inf
    resolved = kept(lambda: type(kernel)("median").resolve(x, rng), NAMES)
    assert (resolved is None) == (median is None)


@given(cases())
def test_kernels_of_kernels(case):
    kernel, x, y = case
    total = kept(lambda: K.Sum([kernel, K.Gaussian()])(x, y), NAMES)
    if total is not None:
        np.testing.assert_allclose(total, kernel(x, y) + K.Gaussian()(x, y), rtol=1e-12)
    d = np.shape(x)[-1]
    parts = [type(kernel)(1.0), K.Gaussian(2.0)]
    product = kept(lambda: K.Product(parts, [slice(0, 1), slice(d - 1, d)])(x, y), NAMES)
    if product is not None:
        a, b = np.asarray(x, float), np.asarray(y, float)
        np.testing.assert_allclose(product, parts[0](a[:, :1], b[:, :1]) * parts[1](a[:, -1:], b[:, -1:]), rtol=1e-12)


@given(case=cases(RADIAL), num_features=st.integers(-1, 5), rng=seeds())
def test_random_features(case, num_features, rng):
    kernel, x, y = case
    names = (*NAMES, "num_features", "num_dims")
    features = kept(lambda: K.random_fourier_features(kernel, num_features, np.shape(x)[-1], rng), names)
    if features is not None:
        found = kept(lambda: features(x), names)
        assert found is None or np.abs(found).max() <= np.sqrt(2.0 / num_features) + 1e-12
        kept(lambda: K.FeatureKernel(features)(x, y), names)


@pytest.mark.parametrize("wrong", ["text", [["a", "b"]], [[1.0], [1.0, 2.0]], np.array([[1j]]), None, 3.0, object()])
@pytest.mark.parametrize("function", [K.Gaussian(), K.Gaussian().diagonal, K.Linear(), K.median_distance])
def test_what_is_no_array_of_points_is_named(function, wrong):
    assert kept(lambda: function(wrong), NAMES) is None


@st.composite
def semidefinite(draw):
    """A positive semi-definite matrix (n, n) of any rank, with units of its own in each row."""
    rng, n = draw(seeds()), draw(st.integers(1, 5))
    root = rng.standard_normal((n, draw(st.integers(0, 6))))
    if draw(st.booleans()):
        root = root[rng.integers(0, n, size=n)]
    units = np.full(n, draw(powers())) if draw(st.booleans()) else 10.0 ** rng.integers(-60, 61, size=n)
    return root @ root.T * units * units[:, None], units


def correlations(matrix):
    scales = np.sqrt(np.maximum(np.diag(matrix), 1e-300))
    return matrix / scales / scales[:, None]


@given(case=semidefinite())
def test_definite_or_said_not_to_be(case):
    matrix, units = case
    factor = linalg.definite_cholesky(matrix)
    other = linalg.definite_cholesky(matrix / units / units[:, None])
    near_the_edge = np.linalg.cond(correlations(matrix)) > 1e9
    assert near_the_edge or (factor is None) == (other is None)
    if factor is not None:
        scaled = factor / np.sqrt(np.diag(matrix))[:, None]
        np.testing.assert_allclose(scaled @ scaled.T, correlations(matrix), atol=1e-12)
    elif (np.diag(matrix) > 0.0).all():
        assert near_the_edge


@given(case=semidefinite())
def test_jitter_is_small(case):
    matrix = case[0]
    size = np.trace(matrix) / len(matrix)
    if not 1e-290 < size < 1e290:
        return
    factor = linalg.jittered_cholesky(matrix)
    np.testing.assert_allclose(factor @ factor.T / size, matrix / size, atol=1e-6)
