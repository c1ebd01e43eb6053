import dataclasses

import numpy as np
import pytest

from pymc_kernel import kernels as K
from pymc_kernel import parallel, stein
from pymc_kernel.stein import tiles, uses
from pymc_kernel.stein.goodness_of_fit import margin_forms, quadratic_forms, sign_processes
from tests.reference.exact_draws import autoregressive
from tests.reference.slow_kernels import greedy_choice, stein_kernels

SCALES = np.array([0.5, 1.0, 1.5, 2.0, 0.7])
KERNELS = [
    K.InverseMultiquadric(1.0), K.InverseMultiquadric(1.3, beta=0.8), K.InverseMultiquadric(1.3, beta=1.0),
    K.InverseMultiquadric(SCALES), K.Gaussian(1.7), K.Gaussian(SCALES), K.RationalQuadratic(1.2, alpha=0.7),
    K.RationalQuadratic(1.2), K.Matern52(2.0), K.Matern32(2.0),
]  # fmt: skip


def case(rng, n=40, d=5):
    draws = rng.standard_normal((n, d))
    return draws, -draws + 0.3 * rng.standard_normal((n, d))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: f"{type(k).__name__} {np.size(k.length_scale)}")
def test_statistics_equal_the_slow_twin(kernel, rng):
    draws, scores = case(rng)
    parts = stein_kernels(draws, scores, kernel)
    whole = parts.sum(axis=0)
    n = len(draws)
    np.testing.assert_allclose(stein.stein_matrix(draws, scores, kernel, how="none"), whole, rtol=0, atol=1e-10)
    test = stein.ksd_test(draws, scores, kernel, how="none", thin=1, num_replicates=1, rng=rng)
    np.testing.assert_allclose(test.ksd**2 * test.shares, parts.sum(axis=(1, 2)) / n**2, rtol=0, atol=1e-10)
    squared = stein.ksd_squared(draws, scores, kernel, how="none")
    assert abs(squared - whole.sum() / n**2) < 1e-10
    unbiased = (whole.sum() - np.trace(whole)) / (n * (n - 1))
    assert abs(stein.ksd_squared(draws, scores, kernel, statistic="U", how="none") - unbiased) < 1e-10


@pytest.mark.parametrize("kernel", [stein.default_kernel(), K.Matern52(1.5)], ids=["default", "Matern52"])
@pytest.mark.parametrize("n", [2, 63, 64, 65, 127, 400])
@pytest.mark.parametrize("d", [1, 3, 4, 9])
def test_every_size_of_tile_and_chunk(n, d, kernel, rng):
    draws, scores = case(rng, n, d)
    matrix = stein.stein_matrix(draws, scores, kernel, how="none")
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert abs(stein.ksd_squared(draws, scores, kernel, how="none") - matrix.mean()) < 1e-12
    prepared = tiles.prepare(draws, scores, kernel)
    np.testing.assert_allclose(tiles.diagonal(prepared).sum(axis=1), np.diag(matrix), atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-10 * len(matrix)


@pytest.mark.parametrize("kernel", [K.InverseMultiquadric(1.0), K.Gaussian(np.array([0.5, 1.0, 2.0]))])
def test_bootstrap_forms_equal_those_of_the_matrix(kernel, rng):
    """2,300 draws: more than one block of rows and of columns."""
    draws, scores = case(rng, 2300, 3)
    matrix = stein.stein_matrix(draws, scores, kernel, how="none")
    signs = sign_processes(rng, (1000, 1300), 7, 0.2)
    prepared = tiles.prepare(draws, scores, kernel)
    expected = np.einsum("ir,ij,jr->r", signs.astype(float), matrix, signs.astype(float), optimize=True)
    np.testing.assert_allclose(quadratic_forms(prepared, signs), expected, rtol=1e-10)
    weights = rng.random(2300)
    expected = quadratic_forms(prepared, weights[:, None] * signs)
    np.testing.assert_allclose(quadratic_forms(prepared, signs, weights), expected, rtol=1e-10)
    assert tiles.coordinate_sums(prepared, np.ones(2300)).sum() == pytest.approx(matrix.sum(), rel=1e-10)
    assert tiles.coordinate_sums(prepared, weights).sum() == pytest.approx(weights @ matrix @ weights, rel=1e-10)


@pytest.mark.parametrize("kernel", [K.InverseMultiquadric(1.0), K.Gaussian(np.array([0.5, 1.0, 2.0])), K.Matern52(1.5)])
def test_margins_are_those_of_one_coordinate(kernel, rng):
    """From the eigenvectors of the kernel: sums of squares over second moments and three tenths of the trace."""
    draws, scores = case(rng, 80, 3)
    signs, weights = sign_processes(rng, (80,), 5, 0.5).astype(float), rng.random(80)
    found = margin_forms(tiles.prepare(draws, scores, kernel), signs, weights)
    for k, row in enumerate(found):
        own = dataclasses.replace(kernel, length_scale=float(np.broadcast_to(kernel.length_scale, 3)[k]))
        matrix = stein.stein_matrix(draws[:, [k]], scores[:, [k]], own, how="none")
        values, vectors = np.linalg.eigh(weights[:, None] * matrix * weights)
        sums = vectors.T @ signs
        ridge = 0.3 * values.sum()
        np.testing.assert_allclose(row, (values / (values + ridge) @ sums**2), rtol=3e-3)


@pytest.mark.parametrize("kernel", [stein.default_kernel(), K.Gaussian(1.0), K.Matern52(1.0), K.RationalQuadratic(1.0)])
def test_far_draws_have_the_kernel_of_the_definition(kernel, rng):
    """Distances from 1e-8 to 1e25, each entry by itself: squares beyond single precision, profiles of nearly zero."""
    draws = np.concatenate([rng.standard_normal((9, 2)), 10.0 ** rng.uniform(-8, 25, (30, 2))])
    for largest in (1e17, 1e30):  # the first has the root in single precision, the second has not
        few = draws[np.abs(draws).max(axis=1) < largest]
        scores = rng.standard_normal(few.shape)
        found = stein.stein_matrix(few, scores, kernel, how="none")
        expected = stein_kernels(few, scores, kernel).sum(axis=0)
        atol = 0.0 if isinstance(kernel, K.InverseMultiquadric) else 1e-12
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=atol)


@pytest.mark.parametrize("kernel", [K.InverseMultiquadric(1.0), K.Gaussian(2.0), K.RationalQuadratic(1.0, alpha=0.7)])
def test_sums_are_the_same_bits_for_any_number_of_threads(kernel, rng, monkeypatch):
    draws, scores = case(rng, 1500, 3)
    prepared = tiles.prepare(draws, scores, kernel)
    signs = sign_processes(rng, (1500,), 5, 0.3)
    sums = []
    for threads in (1, 2, 3):
        monkeypatch.setattr(parallel, "num_threads", lambda threads=threads: threads)
        with parallel.one_blas_thread:  # as in every public function
            forms = quadratic_forms(prepared, signs), margin_forms(prepared, signs)
            sums.append([tiles.total(prepared), tiles.coordinate_sums(prepared, np.ones(1500)), *forms])
    for one in sums[1:]:
        for first, other in zip(sums[0], one, strict=True):
            np.testing.assert_array_equal(first, other)


def test_expectation_of_the_stein_kernel_is_zero_by_quadrature():
    """E h(x, Y) = 0 for Y from the target, here a one-dimensional mixture."""
    grid = np.linspace(-12, 12, 4001)
    parts = np.exp(-0.5 * (grid[:, None] - np.array([-2.0, 1.5])) ** 2) * np.array([0.3, 0.7])
    density = parts.sum(axis=1)
    score = (parts * (np.array([-2.0, 1.5]) - grid[:, None])).sum(axis=1) / density
    matrix = stein.stein_matrix(grid[:, None], score[:, None], K.InverseMultiquadric(0.8), how="none")
    means = matrix[::400] @ density / density.sum()
    np.testing.assert_allclose(means, 0.0, atol=1e-8)


def test_whitening_makes_the_discrepancy_invariant_to_affine_maps_and_coordinates_keep_their_names(rng):
    draws, scores = case(rng, 300, 4)
    matrix = rng.standard_normal((4, 4)) * np.array([1.0, 10.0, 0.1, 3.0])
    moved, pulled = draws @ matrix.T + 5.0, np.linalg.solve(matrix.T, scores.T).T
    assert abs(stein.ksd_squared(moved, pulled) / stein.ksd_squared(draws, scores) - 1.0) < 1e-8
    assert abs(stein.ksd_squared(moved, pulled, how="scale") / stein.ksd_squared(draws, scores) - 1.0) > 1e-3
    # ZCA-cor: with independent coordinates it is scaling alone; with equal correlations it favors none.
    draws = rng.standard_normal((5000, 3)) * np.array([1.0, 20.0, 0.05])
    z, s = stein.standardize(draws, -draws)
    np.testing.assert_allclose(z, (draws - draws.mean(0)) / draws.std(0), atol=0.2)
    np.testing.assert_allclose(np.cov(z.T, bias=True), np.eye(3), atol=1e-10)
    assert s.shape == draws.shape


@pytest.mark.parametrize(("message", "call"), [
    ("same shape", lambda x: stein.ksd_squared(x, x[:, :2])),
    (r"too few to whiten.*how=", lambda x: stein.ksd_squared(x[:6], -x[:6])),
    ("length_scale is above 1e", lambda x: stein.ksd_squared(x, -x, K.Gaussian(1e150))),
    ("kink at zero", lambda x: stein.ksd_squared(x, -x, K.Laplace(1.0))),
    ("radial", lambda x: stein.ksd_squared(x, -x, K.Polynomial(degree=2))),
    ("statistic", lambda x: stein.ksd_squared(x, -x, statistic="W")),
    ("how must be", lambda x: stein.ksd_squared(x, -x, how="rank")),
])  # fmt: skip
def test_bad_input_is_refused(message, call, rng):
    with pytest.raises(TypeError if message in ("kink at zero", "radial") else ValueError, match=message):
        call(rng.standard_normal((20, 3)))


@pytest.mark.parametrize("statistic", ["V", "U"])
def test_draws_that_repeat_are_draws_with_weights(statistic, rng):
    """A draw and its repeats are no pair of draws; the sum over all others is the same."""
    draws, scores = case(rng, 60, 2)
    counts = rng.integers(1, 4, 60)
    order = rng.permutation(np.repeat(np.arange(60), counts))
    matrix = stein.stein_matrix(draws, scores)
    total, squares = counts @ matrix @ counts, counts @ (counts * np.diag(matrix))
    expected = total / counts.sum() ** 2
    if statistic == "U":
        expected = (total - squares) / (counts.sum() ** 2 - (counts**2).sum())
    found = stein.ksd_squared(draws[order], scores[order], statistic=statistic)
    assert found == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(stein.stein_matrix(draws[order], scores[order]), matrix[np.ix_(order, order)], rtol=1e-9)


@pytest.mark.parametrize(("num_dims", "spread"), [(1, 0.99), (3, 0.94), (10, 0.84)])
def test_thinned_draws_spread_less_in_more_dimensions(num_dims, spread, rng):
    """As the documentation says."""
    draws = rng.standard_normal((4000, num_dims))
    few = draws[stein.stein_thin(draws, -draws, 100)]
    assert few.std(axis=0).mean() == pytest.approx(spread, abs=0.02)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kernel", [None, K.Gaussian(np.array([1.0, 2.0, 0.5]))], ids=["default", "scaled"])
def test_thinning_equals_the_slow_twin(kernel, threads, rng, monkeypatch):
    monkeypatch.setattr(uses, "_THREADED", 0 if threads == 2 else 10**9)
    monkeypatch.setattr(uses, "num_threads", lambda: threads)
    draws = rng.standard_normal((700, 3)) * 1.3 + 0.5
    matrix = stein.stein_matrix(draws, -draws, kernel)
    assert stein.stein_thin(draws, -draws, 60, kernel).tolist() == greedy_choice(matrix, 60)


@pytest.mark.long
def test_control_functionals_are_right_and_better(rng):
    """Means over 20 repetitions: no bias, and at most a fifth of the plain variance for smooth functions."""
    errors = []
    for _ in range(20):
        draws = rng.standard_normal((400, 2))
        values = np.column_stack([draws[:, 0], draws[:, 1] ** 2, np.sin(draws.sum(axis=1))])
        found = stein.controlled_expectation(values, draws, -draws)
        errors.append([found.value - [0, 1, 0], found.mean - [0, 1, 0]])
    ours, plain = np.array(errors).transpose(1, 0, 2)
    assert (ours.var(axis=0) < 0.2 * plain.var(axis=0)).all()
    assert (np.abs(ours.mean(axis=0)) < 4 * ours.std(axis=0) / np.sqrt(20) + 1e-3).all()


def test_control_of_rough_functions_leaves_the_mean_and_weights_take_the_bias_of_another_density(rng):
    draws = rng.standard_normal((300, 5))
    values = rng.standard_normal(300)  # nothing to do with the draws
    found = stein.controlled_expectation(values, draws, -draws)
    assert abs(found.value[0] - values.mean()) < 0.3 * values.std() / np.sqrt(300) + 1e-12
    with pytest.raises(ValueError, match="one row for each"):
        stein.controlled_expectation(values[:7], draws, -draws)
    # Scores of N(0.3, 1) for a standard normal density: without weights the control itself is off.
    draws = rng.standard_normal((1000, 1))
    weights = np.exp(0.3 * draws[:, 0])  # of both densities' ratio, up to a constant
    wrong = stein.controlled_expectation(draws, draws, 0.3 - draws)
    found = stein.controlled_expectation(draws, draws, 0.3 - draws, weights=weights)
    assert wrong.value[0] > 0.2
    assert abs(found.value[0]) < 0.1
    assert found.variance_ratio[0] < 0.5


@pytest.mark.parametrize("kernel", [K.Polynomial(degree=3), K.Sum([K.Gaussian(2.0), K.Laplace(1.0)])])
def test_two_sample_statistics_equal_the_definition(rng, kernel):
    first, second = rng.standard_normal((40, 3)), rng.standard_normal((60, 3)) + 0.2
    xx, yy, xy = kernel(first), kernel(second), kernel(first, second)
    biased = xx.mean() + yy.mean() - 2 * xy.mean()
    assert abs(stein.mmd_squared(first, second, kernel) - biased) < 1e-10
    off = (xx.sum() - np.trace(xx)) / (40 * 39) + (yy.sum() - np.trace(yy)) / (60 * 59) - 2 * xy.mean()
    assert abs(stein.mmd_squared(first, second, kernel, statistic="U") - off) < 1e-10
    assert abs(stein.mmd_test(first, second, kernel, thin=1).mmd ** 2 - biased) < 1e-10
    with pytest.raises(ValueError, match="must agree"):
        stein.mmd_squared(first, second[:, :1], kernel)


@pytest.mark.parametrize(("correlation", "n"), [(0.0, 300), pytest.param(0.9, 2000, marks=pytest.mark.slow)])
@pytest.mark.long
def test_two_sample_level_and_power(correlation, n):
    rng = np.random.default_rng(9)
    level, power = [], []
    for _ in range(100):
        first, second = (autoregressive(rng, correlation, n, 2) for _ in range(2))
        level.append(stein.mmd_test(first, second, num_replicates=200, rng=rng).p_value)
        if len(power) < 20:
            power.append(stein.mmd_test(first, second + 1.0, num_replicates=200, rng=rng).p_value)
    assert 0.01 <= np.mean(np.array(level) <= 0.05) <= 0.13
    assert np.mean(np.array(power) <= 0.05) > 0.9


def test_two_sample_replicates_are_as_large_as_the_statistic():
    """Where no two draws are alike, the squared statistic is 1/n + 1/m; so is the mean of its replicates."""
    draws = np.arange(70.0)[:, None]
    chains = draws[:30], draws[30:]
    test = stein.mmd_test(*chains, K.Gaussian(0.01), thin=1, flip_probability=0.1, num_replicates=3000)
    assert abs(test.mmd**2 - (1 / 30 + 1 / 40)) < 1e-12
    assert abs((test.null**2).mean() / test.mmd**2 - 1.0) < 0.03
