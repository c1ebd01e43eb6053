"""Cholesky factors of every kind of matrix."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import linalg
from tests.fuzz.strategies import powers, seeds


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
