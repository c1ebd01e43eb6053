"""Stein discrepancies and tests on every kind of array."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pymc_kernel import kernels as K
from pymc_kernel import stein
from tests.fuzz.strategies import arrays, dimensions, kept, powers, seeds, sizes

NAMES = (
    "draws", "scores", "coordinates", "points", "values", "first", "second", "sample", "samples", "length_scale",
    "num_points", "train_share", "how", "x", "y",
)  # fmt: skip


@st.composite
def cases(draw, most=5):
    """Draws and scores of one shape, a kernel or none, and coordinates."""
    shape = (draw(sizes(0, most)), draw(dimensions()))
    kernel = draw(st.sampled_from([None, K.Gaussian("median"), K.Gaussian, K.Matern32, K.RationalQuadratic]))
    if isinstance(kernel, type):
        kernel = kernel(draw(powers()))
    return draw(arrays(shape)), draw(arrays(shape)), kernel, draw(st.sampled_from(["whiten", "scale", "none"]))


@given(data=st.data(), case=cases(12), rng=seeds())
def test_tests(data, case, rng):
    draws, scores, kernel, how = case
    how = data.draw(st.sampled_from([how, "straighten"]))
    names = (*NAMES, "thin", "flip_probability", "num_replicates")
    settings = {
        "thin": data.draw(st.sampled_from(["auto", 1, 3, 0, "much"])),
        "flip_probability": data.draw(st.sampled_from(["auto", 0.5, 0.1, 0.0, np.nan])),
        "num_replicates": data.draw(st.sampled_from([9, 9, 0])),
        "how": how,
        "rng": rng,
    }
    found = kept(lambda: stein.ksd_test(draws, scores, kernel, coordinates=True, **settings), names)
    assert found is None or 0.0 <= found.p_value <= 1.0


@given(cases(), st.sampled_from(["V", "U"]))
def test_discrepancies(case, statistic):
    draws, scores, kernel, how = case
    total = kept(lambda: stein.ksd_squared(draws, scores, kernel, statistic=statistic, how=how), NAMES)
    matrix = kept(lambda: stein.stein_matrix(draws, scores, kernel, how=how), NAMES)
    if total is not None and matrix is not None and statistic == "V":
        np.testing.assert_allclose(total, matrix.mean(), atol=1e-10 * np.abs(matrix).mean())


@given(cases())
def test_standardization(case):
    draws, scores, _, how = case
    kept(lambda: stein.standardize(np.asarray(draws, float), np.asarray(scores, float), how), NAMES)


@given(cases(9), st.integers(0, 4))
def test_uses(case, num_points):
    draws, scores, kernel, how = case
    chosen = kept(lambda: stein.stein_thin(draws, scores, num_points, kernel, how=how), NAMES)
    assert chosen is None or len(chosen) == num_points
    values = np.asarray(draws, dtype=float)
    kept(lambda: stein.controlled_expectation(values, draws, scores, kernel, how=how), NAMES)


@given(st.data(), dimensions())
def test_two_samples(data, d):
    first, second = (data.draw(arrays((data.draw(sizes()), d))) for _ in range(2))
    for kernel in (None, K.Gaussian(data.draw(powers())), K.Polynomial(1.0)):
        for statistic in ("V", "U"):
            kept(lambda k=kernel, s=statistic: stein.mmd_squared(first, second, k, statistic=s), NAMES)
        kept(lambda k=kernel: stein.mmd_test(first, second, k, num_replicates=5), NAMES)
