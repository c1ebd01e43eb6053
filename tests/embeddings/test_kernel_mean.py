import numpy as np
import pytest
from scipy import stats
from scipy.spatial.distance import cdist

from pymc_kernel.embeddings import KernelMean
from pymc_kernel.embeddings.kernel_mean import signed_quantiles, smoothed_draws
from pymc_kernel.kernels import Gaussian, InverseMultiquadric


def normal(n=400, d=2, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_moments_of_one_and_of_many():
    points = normal()
    rows = np.stack([np.full(len(points), 1.0 / len(points)), np.random.default_rng(1).dirichlet(np.ones(len(points)))])
    many = KernelMean(points, rows)
    assert len(many) == 2
    assert len(many[0]) == 1
    for k, row in enumerate(rows):
        np.testing.assert_allclose(many.mean()[k], row @ points)
        np.testing.assert_allclose(many.covariance()[k], np.cov(points.T, aweights=row, bias=True), atol=1e-12)
        np.testing.assert_allclose(many[k].covariance(), many.covariance()[k], atol=1e-12)
        np.testing.assert_allclose(many(points[:3])[k], many.kernel(points[:3], points) @ row)
    np.testing.assert_allclose(many.expectation(lambda p: p**2), rows @ points**2)
    points = 100.0 + normal()
    weights = np.full(len(points), 0.9 / len(points))
    both = KernelMean(points, np.stack([weights, 3.0 * weights]))
    np.testing.assert_allclose(both.covariance(), np.stack([np.cov(points.T, bias=True)] * 2), rtol=1e-8)
    with pytest.raises(ValueError, match="no distribution to take a covariance of"):
        KernelMean(points, -weights).covariance()


def test_mmd_against_the_double_sum_and_herding_converges_faster_than_draws():
    a, b = KernelMean(normal(50), kernel=Gaussian(1.0)), KernelMean(normal(70, seed=1) + 0.5, kernel=Gaussian(1.0))
    k = Gaussian(1.0)
    expected = k(a.points).mean() - 2 * k(a.points, b.points).mean() + k(b.points).mean()
    assert a.mmd(b) == pytest.approx(np.sqrt(expected), rel=1e-10)
    assert a.mmd(a) == pytest.approx(0.0, abs=1e-7)
    both = KernelMean(a.points, np.stack([a.weights, a.weights]), a.kernel)
    np.testing.assert_allclose(both.mmd(b), np.sqrt(expected), rtol=1e-10)
    # Error in the RKHS: 1 / n against 1 / sqrt(n). Twice from 25 to 400 points the errors fall 16-fold and 4-fold.
    mean = KernelMean(normal(2000), kernel=Gaussian(1.0))
    errors = {n: mean.mmd(KernelMean(mean.herd(n), kernel=mean.kernel)) for n in (25, 400)}
    assert errors[400] < errors[25] / 8
    drawn = KernelMean(mean.points[np.random.default_rng(0).integers(2000, size=400)], kernel=mean.kernel)
    assert errors[400] < 0.2 * mean.mmd(drawn)


def test_signed_weights_have_monotone_quantiles():
    points = normal(300, 1)
    weights = np.full(300, 1 / 300) + 0.02 * np.random.default_rng(2).standard_normal(300)
    probabilities = np.linspace(0, 1, 21)
    found = signed_quantiles(points, weights, probabilities)[:, 0]
    assert (np.diff(found) >= 0).all()
    plain = np.full(300, 1 / 300)
    exact = np.quantile(points[:, 0], probabilities, method="hazen")
    np.testing.assert_allclose(signed_quantiles(points, plain, probabilities)[:, 0], exact, atol=1e-9)
    exact = np.quantile(points[:, 0], [0.05, 0.95], method="hazen")
    np.testing.assert_allclose(KernelMean(points).interval(0.9)[0], exact, atol=1e-9)
    # Each jump of the distribution function counts at its middle.
    two = signed_quantiles(np.array([[0.0], [1.0]]), np.full(2, 0.5), np.array([0.25, 0.5, 0.75]))
    np.testing.assert_allclose(two[:, 0], [0.0, 0.5, 1.0], atol=1e-12)
    with pytest.raises(ValueError, match="no distribution"):
        signed_quantiles(points, -plain, probabilities)


def test_draws_follow_the_weights_as_closely_as_they_can_also_signed_ones():
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    draws = KernelMean(np.arange(4.0)[:, None], weights).sample(1000, np.random.default_rng(0))
    counts = np.bincount(draws[:, 0].astype(int), minlength=4)
    assert np.abs(counts - 1000 * weights).max() <= 1
    # Of 800 weights a third is negative; cut at zero they would stand for a distribution three times as far off.
    points = normal(800, 1)
    exact = stats.norm.pdf(points[:, 0], 1.0, 0.5) / stats.norm.pdf(points[:, 0])
    signed = exact / exact.sum() + 0.003 * np.random.default_rng(1).standard_normal(800)
    mean, cut = (KernelMean(points, w / w.sum(), Gaussian(0.7)) for w in (signed, np.maximum(signed, 0.0)))
    draws = mean.sample(300, np.random.default_rng(0))
    assert mean.mmd(KernelMean(draws, kernel=mean.kernel)) < 0.3 * mean.mmd(cut)


def test_point_estimate_is_a_mode():
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(-2, 0.3, (300, 1)), rng.normal(2, 0.3, (700, 1))])
    assert KernelMean(points, kernel=Gaussian(0.5)).point_estimate()[0] == pytest.approx(2.0, abs=0.1)
    with pytest.raises(TypeError, match="Gaussian"):
        KernelMean(points, kernel=InverseMultiquadric(1.0)).point_estimate()


def test_smoothing_follows_dimension_and_shape(rng):
    """Draws of 300 points in ten dimensions lie no nearer to them than new points do; two narrow modes stay narrow."""

    def smoothed(points, number):
        return smoothed_draws(points, np.full(300, 1.0 / 300), number, rng)

    points, new = rng.standard_normal((300, 10)), rng.standard_normal((2000, 10))
    nearest, expected = (np.median(cdist(x, points).min(axis=1)) for x in (smoothed(points, 2000), new))
    assert nearest > 0.9 * expected
    points = rng.choice([-1.0, 1.0], (300, 1)) + 0.02 * rng.standard_normal((300, 1))
    assert np.std(np.abs(smoothed(points, 2000))) < 0.03
    wide = np.where(rng.random((300, 1)) < 0.5, 1.0, 0.05) * rng.standard_normal((300, 1))
    near = np.mean(np.abs(smoothed(wide, 4000)) < 0.15)
    assert near == pytest.approx(np.mean(np.abs(wide) < 0.15), abs=0.05)
    line = rng.standard_normal((50, 1)) * [1.0, -2.0]
    draws = smoothed_draws(line, np.full(50, 0.02), 100, rng)
    np.testing.assert_allclose(draws[:, 1], -2.0 * draws[:, 0], atol=1e-6)
    np.testing.assert_allclose(smoothed_draws(np.ones((5, 2)), np.full(5, 0.2), 3, rng), 1.0)


@pytest.mark.parametrize(("num_points", "atol"), [(400, 0.02), (3000, 0.15)])
def test_smoothed_draws_keep_mean_and_covariance_and_none_comes_twice(num_points, atol, rng):
    points = np.array([3e6, 0.0]) + normal(num_points) @ np.array([[1e6, 0.5], [0.0, 1.0]])
    weights = rng.dirichlet(np.ones(num_points))
    draws = smoothed_draws(points, weights, 40_000, rng)
    assert len(np.unique(draws[:, 0])) == len(draws)
    mean = KernelMean(points, weights)
    spread = np.sqrt(np.diag(mean.covariance()))
    np.testing.assert_allclose((draws.mean(axis=0) - mean.mean()) / spread, 0.0, atol=0.01)
    np.testing.assert_allclose(np.cov((draws / spread).T), mean.covariance() / np.outer(spread, spread), atol=atol)
