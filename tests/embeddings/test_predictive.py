import numpy as np
import pytest
from scipy import stats

from pymc_kernel.embeddings.predictive import _SMOOTHINGS, Predictive, _log_normals, _own_factors

RNG = np.random.default_rng(1)


def fitted(residuals, observed):
    """Fit to residuals around a linear regression."""
    latent = residuals + observed[:, :1] * np.ones(residuals.shape[1])
    return Predictive.fit(
        latent, observed, residuals, np.full(len(latent), 1.0 / len(latent)), np.random.default_rng(2)
    )


def test_log_densities_equal_scipy():
    factors = np.array([[[2.0, 0.0], [0.5, 1.0]], [[1.0, 0.0], [-1.0, 3.0]]])
    differences = RNG.standard_normal((2, 2))
    expected = [
        stats.multivariate_normal(np.zeros(2), f @ f.T).logpdf(x) for f, x in zip(factors, differences, strict=True)
    ]
    np.testing.assert_allclose(_log_normals(differences, factors) - np.log(2.0 * np.pi), expected)
    one = [stats.multivariate_normal(np.zeros(2), factors[0] @ factors[0].T).logpdf(x) for x in differences]
    np.testing.assert_allclose(_log_normals(differences, factors[:1]) - np.log(2.0 * np.pi), one)


def test_the_score_is_that_of_a_smoothed_leave_one_out_prediction():
    latent = RNG.standard_normal((60, 2)) @ np.array([[1.0, 0.3], [0.0, 0.5]])
    law = fitted(latent - latent.mean(axis=0), RNG.standard_normal((60, 1)))
    law = Predictive(**{**vars(law), "share": 1.0})
    overall = np.cov(latent.T, bias=True) + np.diag(1e-12 + 1e-9 * np.var(latent, axis=0))
    others = np.delete(law.residuals, 7, axis=0)
    mean = others.mean(axis=0)
    lean = 2.0 / (2.0 + 59.0)
    covariance = (1.0 - lean) * np.cov(others.T, bias=True) + lean * overall
    for (along, bandwidth), score in zip(
        _SMOOTHINGS, law._surprise(7, overall, 3.0 * np.linalg.cholesky(overall)), strict=True
    ):
        if along == "overall":
            width = bandwidth * (4.0 / (59.0 * 4.0)) ** (1.0 / 6.0)
            centres = mean + np.sqrt(1.0 - width**2) * (others - mean)
            inner = np.mean(
                [stats.multivariate_normal(c, width**2 * covariance).pdf(law.residuals[7]) for c in centres]
            )
        else:
            factors = bandwidth * _own_factors(others, np.full(59, 1.0 / 59.0), overall)
            inner = np.mean(
                [
                    stats.multivariate_normal(c, f @ f.T).pdf(law.residuals[7])
                    for c, f in zip(others, factors, strict=True)
                ]
            )
        outer = stats.multivariate_normal(np.zeros(2), 9.0 * overall).pdf(law.residuals[7])
        expected = -np.log(0.99 * inner + 0.01 * outer) - np.log(2.0 * np.pi)
        assert score == pytest.approx(expected, abs=1e-6)


def test_smoothing_keeps_mean_and_covariance_and_no_draw_comes_twice():
    latent = RNG.standard_normal((300, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 1.0, -0.3], [0.0, 0.0, 0.2]])
    law = fitted(latent - latent.mean(axis=0), RNG.standard_normal((300, 2)))
    assert law.share == 1.0
    assert law.smoothing[0] == "overall"
    draws = law.sample(np.zeros((1, 3)), np.zeros((1, 2)), 40_000, np.random.default_rng(3))[0]
    assert len(np.unique(draws[:, 0])) == len(draws)
    exact = np.cov(law.residuals.T, bias=True)
    np.testing.assert_allclose(draws.mean(axis=0), 0.0, atol=4.0 * np.sqrt(np.diag(exact).max() / 40_000))
    np.testing.assert_allclose(np.cov(draws.T), exact, atol=0.06 * np.diag(exact).max())


def test_thin_shapes_stay_thin():
    angle = RNG.uniform(0.0, 2.0 * np.pi, 350)
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * RNG.normal(1.0, 0.01, (350, 1))
    law = fitted(ring, RNG.standard_normal((350, 1)))
    assert law.smoothing[0] == "own"
    draws = law.sample(np.zeros((1, 2)), np.zeros((1, 1)), 5000, np.random.default_rng(3))[0]
    assert np.std(np.linalg.norm(draws, axis=1)) < 0.04
