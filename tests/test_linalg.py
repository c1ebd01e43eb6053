import numpy as np

from pymc_kernel import linalg


def test_cholesky_update_and_solves(rng):
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


def test_cholesky_reports_a_matrix_that_is_not_positive_definite():
    assert not linalg.cholesky_in_place(np.diag([1.0, -1.0]))
    assert not linalg.cholesky_in_place(np.array([[np.nan]]))


def test_dot_product_of_every_length(rng):
    for n in (1, 2, 7, 8, 9, 31, 32, 33, 100, 1000):
        left, right = rng.normal(size=(2, n))
        assert abs(linalg.dot_product(left, right, np.empty(n // 8)) - left @ right) < 1e-12
