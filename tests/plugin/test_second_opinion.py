"""The second opinion about a posterior that was learned from simulations."""

import numpy as np
import pytest

from pymc_kernel.plugin.simulation.trust import SecondOpinion, Weighted, second_opinion
from tests.rounds.priors import NormalPrior

LEARNED = "a likelihood learned from the same simulations"


def test_a_second_opinion_knows_a_posterior_that_hardly_any_simulation_is_in(rng):
    """Three normal parameters seen with a noise of .05: of 2,000 simulations one at most is in the posterior."""
    latent = rng.standard_normal((2000, 3))
    summaries, observed = latent + 0.05 * rng.standard_normal((2000, 3)), np.array([1.0, -0.5, 0.2])
    mean, sd = observed / 1.0025, 0.05 / np.sqrt(1.0025)
    points = mean + sd * np.array([0.5, 0.0, 0.0]) + sd * np.array([1.0, 1.0, 1.5]) * rng.standard_normal((4000, 3))
    given = Weighted(points, np.full(4000, 1.0 / 4000))
    opinion = second_opinion(given, latent, summaries, observed, lambda: NormalPrior(np.zeros(3), np.ones(3)), rng)
    outer = 1.6449 * (1.0 - 1.0 / 1.5)  # quantiles of the third, which is 1.5 times too wide
    exact = [[-0.5, 0.0, 0.0], [0.0, 0.0, -np.log(1.5)], [-0.5, 0.0, outer], [-0.5, 0.0, -outer]]
    np.testing.assert_allclose(opinion.differences, exact, atol=0.15)
    # By exact draws: the share of the given ones below the lowest hundredth of the log likelihoods.
    heights = [-0.5 * (((points - observed) / 0.05) ** 2).sum(axis=1)
               for points in (mean + sd * rng.standard_normal((100_000, 3)), given.points)]  # fmt: skip
    assert opinion.outside == pytest.approx((heights[1] < np.quantile(heights[0], 0.01)).mean(), abs=0.03)


@pytest.mark.parametrize("num_simulations", [100, 400])
def test_errors_of_an_opinion_are_those_of_a_regression(num_simulations, rng):
    """A wide prior, a regression learned at x, so that its error is sqrt((1 + x^2) / n) of the noise, the posterior."""
    latent = rng.standard_normal((num_simulations, 1))
    given = Weighted(1.0 + 0.1 * rng.standard_normal((1000, 1)), np.full(1000, 1e-3))
    summaries = latent + 0.1 * rng.standard_normal(latent.shape)
    prior = NormalPrior(np.zeros(1), np.ones(1))
    errors = second_opinion(given, latent, summaries, np.ones(1), lambda: prior, rng).errors
    of_draws = np.sqrt(1.0 / 2000)
    assert 0.5 < errors[0, 0] / np.hypot(np.sqrt(2.0 / num_simulations), of_draws) < 2.0
    assert errors[2:].max() > 2.0 * of_draws


@pytest.mark.parametrize(
    ("row", "difference", "error", "said"),
    [
        (0, 0.25, 0.1, ""),
        (0, -0.33, 0.0, "puts a mean 0.33 posterior standard deviations away"),
        (0, 0.44, 0.1, ""),  # 3.23 standard errors: a chance of .01 in eight statistics
        (0, 0.47, 0.1, "puts a mean 0.47 posterior standard deviations away"),
        (1, np.log(0.7), 0.0, "has a standard deviation 0.70 times as large"),
        (1, np.log(0.7), 0.1, ""),
        (2, 0.5, 0.1, "puts a 5 % quantile 0.50 posterior standard deviations away"),
        (3, -0.5, 0.1, "puts a 95 % quantile 0.50 posterior standard deviations away"),
        (3, np.nan, 0.1, ""),
    ],
)
def test_opinions_differ_by_more_than_chance(row, difference, error, said):
    """Its own errors are .1; those of the other posterior are given. A larger difference is within a larger error."""
    differences, errors, own = np.zeros((4, 2)), np.full((4, 2), error), np.full((4, 2), 0.1)
    differences[row], errors[row, 0] = [2.0 * difference, difference], 1.0
    assert SecondOpinion(differences, own, 0.0).words(errors) == (said and f"{LEARNED} {said}")


NOTHING = np.zeros((4, 2))


def test_small_differences_however_well_known_and_few_unlikely_draws_are_not_told():
    assert SecondOpinion(NOTHING + 0.09, NOTHING, 0.0).words(NOTHING) == ""
    assert SecondOpinion(NOTHING + 0.11, NOTHING, 0.0).words(NOTHING) != ""
    said = f"{LEARNED} finds 15 % of these draws as unlikely as the least likely 1 % of its own"
    for outside, words in ((0.1, ""), (0.15, said), (np.nan, "")):
        assert SecondOpinion(NOTHING, NOTHING, outside).words(NOTHING) == words


@pytest.mark.parametrize(("own", "is_said"), [(0.31, False), (0.33, True)])
def test_an_opinion_that_errs_too_much_confirms_nothing(own, is_said):
    """As far as an R-hat of 1.05 (.32). Silence would take a check without power for consent."""
    errors = NOTHING.copy()
    errors[0, 1] = own
    said = f"cannot confirm it, as its means differ by {own} posterior standard deviations between fits to resampled"
    words = SecondOpinion(NOTHING, errors, 0.0).words(NOTHING)
    assert f"{LEARNED} {said} simulations" * is_said == words
    assert "cannot" not in SecondOpinion(NOTHING + 1.0, errors, 0.0).words(NOTHING)  # it contradicts


def test_no_opinion_without_a_density_of_the_prior(rng):
    def make_prior():
        raise ValueError("the prior has no density that PyMC can evaluate")

    latent = rng.standard_normal((200, 1))
    opinion = second_opinion(Weighted(latent), latent, latent + rng.standard_normal((200, 1)), [0.0], make_prior, rng)
    assert np.isnan([*opinion.differences.ravel(), opinion.outside]).all()
    assert not opinion.words(np.zeros((4, 1)))
