from unittest.mock import Mock

import numpy as np
import pytest
from scipy.linalg.lapack import dpotrf

from pymc_kernel import linalg


def test_cholesky_update_solves_and_dot_products_of_every_length(rng):
    a = rng.normal(size=(6, 6))
    matrix = a @ a.T + np.eye(6)
    factor = matrix.copy()
    assert linalg.cholesky_in_place(factor)
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix), rtol=1e-12, atol=1e-13)
    vector, out = rng.normal(size=6), np.empty(6)
    linalg.lower_times(factor, vector, out)
    np.testing.assert_allclose(out, factor @ vector, rtol=1e-12)
    linalg.solve_lower(factor, out, out)
    np.testing.assert_allclose(out, vector, rtol=1e-11)
    linalg.cholesky_update(factor, vector.copy())
    np.testing.assert_allclose(factor, np.linalg.cholesky(matrix + np.outer(vector, vector)), rtol=1e-11, atol=1e-13)
    assert not linalg.cholesky_in_place(np.diag([1.0, -1.0]))
    assert not linalg.cholesky_in_place(np.array([[np.nan]]))
    for n in (1, 2, 7, 8, 9, 31, 32, 33, 100, 1000):
        left, right = rng.normal(size=(2, n))
        assert abs(linalg.dot_product(left, right) - left @ right) < 1e-12


@pytest.mark.parametrize("disturbance", [0.0, 1e-16, 3e-16])
@pytest.mark.parametrize("d", [2, 3, 8])
def test_a_singular_matrix_is_singular_whichever_way_it_was_rounded(d, disturbance, rng):
    """Covariances of coordinates of which one depends on the others, on any scales, disturbed by rounding."""
    came_to_an_end = 0
    for _ in range(100):
        a = rng.normal(size=(d, d + 3))
        dependent = rng.integers(d)
        a[dependent] = 0.0
        a[dependent] = rng.normal(size=d) @ a
        scales = 10.0 ** rng.uniform(-8.0, 8.0, size=d)
        noise = rng.choice([-1.0, 1.0], size=(d, d))
        matrix = (a @ a.T) * np.outer(scales, scales) * (1.0 + disturbance * (noise + noise.T))
        assert linalg.definite_cholesky(matrix) is None
        if d == 2:
            assert not linalg.cholesky_in_place(matrix.copy())
        came_to_an_end += dpotrf(matrix, lower=1)[1] == 0
    assert 10 < came_to_an_end < 90  # LAPACK's own answer is a matter of rounding


def test_a_matrix_that_is_nearly_singular_is_definite(rng):
    """A correlation of 1 - 1e-10, in units that are sixteen powers of ten apart."""
    for scale in (1e-8, 1.0, 1e8):
        matrix = np.array([[1.0, (1 - 1e-10) * scale], [(1 - 1e-10) * scale, scale**2]])
        np.testing.assert_array_equal(linalg.definite_cholesky(matrix), np.linalg.cholesky(matrix))
        assert linalg.cholesky_in_place(matrix.copy())
    assert linalg.definite_cholesky(np.array([[np.nan]])) is None
    assert linalg.definite_cholesky(np.zeros((1, 1))) is None
    assert linalg.definite_cholesky(np.diag([1.0, -1.0])) is None


@pytest.mark.parametrize("disturbance", [0.0, 1e-16, 3e-16])
def test_jitter_is_the_same_whichever_way_a_matrix_was_rounded(disturbance, rng):
    """Gaussian kernel of repeated points: jitter of 1e-12 of the diagonal, the least that is no rounding."""
    x = np.repeat(rng.normal(size=20), 2)
    gram = np.exp(-0.5 * (x[:, None] - x) ** 2)
    noise = rng.choice([-1.0, 1.0], size=gram.shape)
    factor = linalg.jittered_cholesky(gram * (1.0 + disturbance * (noise + noise.T)))
    added = np.diag(factor @ factor.T - gram)
    np.testing.assert_allclose(added, 1e-12, rtol=0.01)
    matrix = gram + np.eye(40)
    np.testing.assert_allclose(linalg.jittered_cholesky(matrix), np.linalg.cholesky(matrix), rtol=1e-13, atol=1e-15)
    for bad in (-matrix, np.full((2, 2), np.nan), np.zeros((2, 2))):
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            linalg.jittered_cholesky(bad)


OF_EACH_ROW = np.where(np.arange(300) < 100, 10.0, 1e-3)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-4, 1e-8, OF_EACH_ROW], ids=["1e-1", "1e-4", "1e-8", "of each row"])
def test_pivoted_cholesky_leaves_no_more_than_the_tolerance(tolerance, rng):
    x = rng.normal(size=(300, 2))
    matrix = np.exp(-0.5 * ((x[:, None] - x) ** 2).sum(axis=2))
    columns = Mock(side_effect=lambda p: matrix[:, p])
    factor, pivots = linalg.pivoted_cholesky(np.diag(matrix), columns, 300, tolerance)
    left = matrix - factor @ factor.T
    assert (np.diag(left) <= tolerance * (1 + 1e-6)).all()
    np.testing.assert_allclose(left[pivots], 0.0, atol=1e-8)
    np.testing.assert_array_equal(np.triu(factor[pivots], 1), 0.0)
    assert len(set(pivots)) == len(pivots)
    if tolerance is OF_EACH_ROW:
        assert pivots.min() >= 100
    elif tolerance == 1e-1:
        # A greedy choice needs not many more points than the eigenvalues above the tolerance.
        assert len(pivots) < 40
        assert sum(len(call.args[0]) for call in columns.call_args_list) < 300


def test_pivoted_cholesky_stops_at_the_rank_of_the_matrix_and_at_rounding_of_the_running_sums(rng):
    a = rng.normal(size=(50, 4))
    matrix = a @ a.T
    factor, pivots = linalg.pivoted_cholesky(np.diag(matrix), lambda p: matrix[:, p], 50, 0.0)
    assert len(pivots) == 4
    np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-10)
    factor, pivots = linalg.pivoted_cholesky(np.diag(matrix), lambda p: matrix[:, p], 2, 0.0)
    assert factor.shape == (50, 2)
    ones = np.ones((5, 5))
    factor, pivots = linalg.pivoted_cholesky(np.full(5, 1.0 + 3e-13), lambda p: ones[:, p], 5, 0.0)
    assert len(pivots) == 1
    np.testing.assert_allclose(factor @ factor.T, ones, atol=1e-12)
