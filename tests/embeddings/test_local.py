import numpy as np
import pytest

from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.choice import HeldOut
from pymc_kernel.embeddings.local import (
    Candidate,
    Check,
    LocalPosterior,
    miscalibration,
    posterior_near,
    representative,
)
from pymc_kernel.embeddings.local_check import local_errors, misfit
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.predictive import Settings
from pymc_kernel.embeddings.proposals import Proposal, prior_ratio


@pytest.fixture(scope="module")
def bent():
    """Fit to y = z^3 with noise of .02: far from the middle the posterior is a hundredth of the prior."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(3000, 1))
    return KernelBayesRule().fit(z, z**3 + 0.3 * rng.normal(size=(3000, 1)), rng=0)


def test_fewer_points_around_the_observation_make_a_narrow_posterior_right(bent):
    near = posterior_near(bent, np.array([8.0]), np.random.default_rng(2))
    assert len(near.best.rule.latent) < 3000
    assert misfit(near.best.check().local_errors()) == ""
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
        posterior_near(KernelBayesRule().fit(z[:n], z[:n] + 0.5 * rng.normal(size=(n, 1)), rng=0), np.array([1.0]), rng)
        for n in (250, 1500)
    )
    # The standard error of a mean with a local slope from n points is about 1 / sqrt(n) posterior spreads.
    assert 0.3 / np.sqrt(250) < few.learning_error(few.replicates(rng))[0][0] < 6.0 / np.sqrt(250)
    assert many.learning_error(many.replicates(rng))[0][0] < 0.15
    np.testing.assert_allclose(few.best.mixture(np.ones(250)).moments()[0], few.mixture().moments()[0])


def test_units_of_parameters_do_not_matter():
    """A density changes with them, by the same factor everywhere; errors in posterior spreads do not."""
    rng = np.random.default_rng(6)
    z, noise, cases = rng.normal(size=(150, 1)), 0.5 * rng.normal(size=(150, 1)), np.arange(20)
    losses, errors = [], []
    for unit in (1.0, 1e3):
        rule = KernelBayesRule().fit(unit * z, z + noise, rng=rng)
        held_out = rule.regression.cross_fit(np.random.default_rng(1)).held_out(Settings(), cases)
        near = LocalPosterior([Candidate(rule, np.ones(1), Settings(), held_out, None)])
        losses.append(near.best.losses)
        errors.append(np.concatenate(near.learning_error(near.replicates(np.random.default_rng(2), 3))))
    np.testing.assert_allclose(losses[1] - losses[0], np.log(1e3), rtol=1e-6)
    np.testing.assert_allclose(errors[1], errors[0], rtol=1e-4)


def test_chains_are_replicates_that_lie_as_all_of_them_do():
    """The spread of four of sixteen numbers at random is off by a half every third time; that of these four is not."""
    rng = np.random.default_rng(8)
    for _ in range(20):
        moments = rng.standard_normal((16, 4))
        chosen = moments[representative(moments, 4, rng)]
        np.testing.assert_allclose(chosen.std(axis=0, ddof=1), moments.std(axis=0, ddof=1), rtol=0.5)
        np.testing.assert_allclose(chosen.mean(axis=0), moments.mean(axis=0), atol=0.5)
    assert sorted(representative(moments, 20, rng))[:5] == [0, 0, 1, 1, 2]


def test_what_more_simulations_would_add_is_known():
    """A function that bends twice in each of three columns is far from learned from 400 points. A line is."""
    rng = np.random.default_rng(9)
    x, settings, cases = rng.standard_normal((400, 3)), Settings(), np.arange(300)
    bends = np.sin(2.0 * x).sum(axis=1, keepdims=True) + 0.05 * rng.standard_normal((400, 1))
    line = x[:, :1] + 0.5 * rng.standard_normal((400, 1))
    found = []
    for latent in (bends, line):
        rule = KernelBayesRule().fit(latent, x, rng=0)
        cross_fit = rule.regression.cross_fit(np.random.default_rng(1))
        half = rule.regression.half_cross_fit(cross_fit.fold_of)
        both = [fits.held_out(settings, cases) for fits in (cross_fit, half)]
        found.append(Check(both[0], np.zeros((300, 1)), both[1]).doubling_gain())
    (hard, hard_error), (easy, easy_error) = found
    assert hard > max(0.05, 3.0 * hard_error)
    assert easy < max(0.05, 3.0 * easy_error)


def test_an_error_at_the_observation_is_expected_from_its_neighbors(bent):
    """Residuals from everywhere are ten times too wide where the posterior is narrow."""
    cases = np.argsort(np.abs(bent.observed[:, 0] - 8.0))[:150]
    held_out = bent.regression.cross_fit(np.random.default_rng(3)).held_out(Settings(), cases)
    moves = bent.observed[cases] - 8.0
    assert "true spread is expected" in misfit(local_errors(held_out.ranks, moves, held_out.weights))


def test_of_tied_observations_no_row_is_nearer():
    """Points sorted by their parameter, as those of later rounds are in a way: the answer is that of any order."""
    rng = np.random.default_rng(5)
    z = np.sort(rng.normal(size=(2000, 1)), axis=0)
    x = (rng.random((2000, 1)) < 1.0 / (1.0 + np.exp(3.0 - 3.0 * z))).astype(float)
    mean, covariance = posterior_near(KernelBayesRule().fit(z, x, rng=0), np.ones(1), rng).mixture().moments()
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
    # Ten cases have nearly all of the weight: twice the coverage is within their error.
    few = np.r_[np.full(10, 0.1), np.full(140, 1e-6)]
    middle = np.full((150, 1), 0.5)
    assert miscalibration(HeldOut(few / few.sum(), np.zeros(150), middle)) == ""
    assert "50 % interval" in miscalibration(HeldOut(weights, np.zeros(150), middle))


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
