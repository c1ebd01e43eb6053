import numpy as np
import pytest

from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.choice import HeldOut
from pymc_kernel.embeddings.local import miscalibration, posterior_near
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.proposals import Proposal, prior_ratio


@pytest.fixture(scope="module")
def bent():
    """Fit to y = z^3 with noise of .02: far from the middle the posterior is a hundredth of the prior."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(3000, 1))
    return KernelBayesRule("conditional").fit(z, z**3 + 0.3 * rng.normal(size=(3000, 1)))


def test_fewer_points_around_the_observation_make_a_narrow_posterior_right(bent):
    near = posterior_near(bent, np.array([8.0]), np.random.default_rng(2))
    assert len(near.best.rule.latent_) < 3000
    # By quadrature.
    grid = np.linspace(-1.0, 4.0, 20_001)
    density = np.exp(-0.5 * grid**2 - 0.5 * ((8.0 - grid**3) / 0.3) ** 2)
    mean = (grid * density).sum() / density.sum()
    spread = np.sqrt(((grid - mean) ** 2 * density).sum() / density.sum())
    found, covariance = near.mixture().moments()
    assert found[0] == pytest.approx(mean, abs=0.6 * spread)
    assert np.sqrt(covariance[0, 0]) == pytest.approx(spread, rel=0.5)
    whole = bent.posteriors(np.array([8.0]))[0].moments()[1]
    assert np.sqrt(whole[0, 0]) > 1.5 * np.sqrt(covariance[0, 0])


def test_replicates_differ_by_the_error_of_learning(bent):
    rng = np.random.default_rng(3)
    z = rng.normal(size=(1500, 1))
    few, many = (
        posterior_near(
            KernelBayesRule("conditional").fit(z[:n], z[:n] + 0.5 * rng.normal(size=(n, 1))), np.array([1.0]), rng
        )
        for n in (250, 1500)
    )
    # The standard error of a mean with a local slope from n points is about 1 / sqrt(n) posterior spreads.
    assert 0.3 / np.sqrt(250) < few.learning_error(rng)[0] < 6.0 / np.sqrt(250)
    assert many.learning_error(rng)[0] < 0.15
    np.testing.assert_allclose(few.best.mixture(np.ones(250)).moments()[0], few.mixture().moments()[0])


def test_of_tied_observations_no_row_is_nearer():
    """Points sorted by their parameter, as those of later rounds are in a way: the answer is that of any order."""
    rng = np.random.default_rng(5)
    z = np.sort(rng.normal(size=(2000, 1)), axis=0)
    x = (rng.random((2000, 1)) < 1.0 / (1.0 + np.exp(3.0 - 3.0 * z))).astype(float)
    mean, covariance = posterior_near(KernelBayesRule("conditional").fit(z, x), np.ones(1), rng).mixture().moments()
    exact = z[x == 1.0]
    assert mean[0] == pytest.approx(exact.mean(), abs=0.2 * exact.std())
    assert np.sqrt(covariance[0, 0]) == pytest.approx(exact.std(), rel=0.15)


def test_miscalibration_is_said():
    rng, weights = np.random.default_rng(4), np.full(150, 1.0 / 150.0)
    right = HeldOut(weights, np.zeros(150), rng.random((150, 2)))
    assert miscalibration(right) == ""
    narrow = np.clip(0.5 + 1.4 * (rng.random((150, 2)) - 0.5), 0.0, 1.0)
    narrow[:, 0] = rng.random(150)
    assert "95 %" in miscalibration(HeldOut(weights, np.zeros(150), narrow)) or "50 %" in miscalibration(
        HeldOut(weights, np.zeros(150), narrow)
    )
    wide = HeldOut(weights, np.zeros(150), 0.5 + 0.4 * (rng.random((150, 1)) - 0.5))
    assert "50 % interval" in miscalibration(wide)


def test_ratio_of_prior_to_the_mixture_of_all_rounds(rng):
    """Weighted by it, draws of all rounds are the prior's."""
    narrow = Mixture(np.ones(1), np.array([[1.0]]), np.array([[[0.3]]]))
    proposal = Proposal.around(narrow)
    latent = np.concatenate([rng.standard_normal((40_000, 1)), proposal.sample(40_000, rng)])
    log_prior = -0.5 * latent[:, 0] ** 2 - 0.5 * np.log(2.0 * np.pi)
    ratio = prior_ratio(latent, log_prior, [proposal], [40_000, 40_000])
    assert ratio.max() <= 2.0
    assert ratio.mean() == pytest.approx(1.0, abs=0.02)
    at_a_bound = np.vstack([latent[:5], [[np.inf]]])
    again = prior_ratio(at_a_bound, np.r_[log_prior[:5], np.nan], [proposal], [40_000, 40_000])
    np.testing.assert_array_equal(again, np.r_[ratio[:5], 0.0])
    weights = ratio / ratio.sum()
    assert weights @ latent[:, 0] == pytest.approx(0.0, abs=0.02)
    assert weights @ latent[:, 0] ** 2 == pytest.approx(1.0, abs=0.03)
    grid = np.linspace(-3.0, 5.0, 8001)[:, None]
    assert np.exp(proposal.log_density(grid)).sum() * 0.001 == pytest.approx(1.0, abs=1e-3)
