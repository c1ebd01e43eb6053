"""The second opinion about a posterior that was learned from simulations."""

import numpy as np
import pytest

from pymc_kernel.plugin.simulation.trust import SecondOpinion, Weighted, second_opinion
from tests.rounds.priors import NormalPrior


def test_a_second_opinion_knows_a_posterior_that_hardly_any_simulation_is_in(rng):
    """Three normal parameters seen with a noise of .05: of 2,000 simulations one at most is in the posterior."""
    latent = rng.standard_normal((2000, 3))
    summaries, observed = latent + 0.05 * rng.standard_normal((2000, 3)), np.array([1.0, -0.5, 0.2])
    mean, sd = observed / 1.0025, 0.05 / np.sqrt(1.0025)
    points = mean + sd * np.array([0.5, 0.0, 0.0]) + sd * np.array([1.0, 1.0, 1.5]) * rng.standard_normal((4000, 3))
    given = Weighted(points, np.full(4000, 1.0 / 4000))
    opinion = second_opinion(given, latent, summaries, observed, lambda: NormalPrior(np.zeros(3), np.ones(3)), rng)
    np.testing.assert_allclose(opinion.shift, [-0.5, 0.0, 0.0], atol=0.12)
    np.testing.assert_allclose(opinion.spread, [1.0, 1.0, 2.0 / 3.0], rtol=0.1)
    # By exact draws: the share of the given ones below the lowest hundredth of the log likelihoods.
    heights = [-0.5 * (((points - observed) / 0.05) ** 2).sum(axis=1)
               for points in (mean + sd * rng.standard_normal((100_000, 3)), given.points)]  # fmt: skip
    assert opinion.outside == pytest.approx((heights[1] < np.quantile(heights[0], 0.01)).mean(), abs=0.03)


@pytest.mark.parametrize(
    ("shift", "spread", "outside", "error", "said"),
    [
        (0.19, 1.2, 0.1, 0.0, ""),
        (-0.25, 1.0, 0.0, 0.0, "puts a mean 0.25 posterior standard deviations away"),
        (0.25, 1.0, 0.0, 0.1, ""),  # two standard errors are .28
        (0.3, 1.0, 0.0, 0.1, "puts a mean 0.30 posterior standard deviations away"),
        (0.0, 0.7, 0.0, 0.1, "has a standard deviation 0.70 times as large"),
        (0.0, 0.8, 0.0, 0.1, ""),
        (0.0, 1.0, 0.15, 0.0, "finds 15 % of these draws as unlikely as the least likely 1 % of its own"),
        (np.nan, np.nan, np.nan, 0.1, ""),
    ],
)
def test_opinions_differ_by_more_than_two_standard_errors(shift, spread, outside, error, said):
    """Its own errors are .1 of means and log spreads; those of the other posterior are given."""
    words = SecondOpinion(np.array([0.0, shift]), np.array([1.0, spread]), outside).words(np.full((2, 2), error))
    assert words == (said and f"a likelihood learned from the same simulations {said}")


def test_no_opinion_without_a_density_of_the_prior(rng):
    def make_prior():
        raise ValueError("the prior has no density that PyMC can evaluate")

    latent = rng.standard_normal((200, 1))
    opinion = second_opinion(Weighted(latent), latent, latent + rng.standard_normal((200, 1)), [0.0], make_prior, rng)
    assert np.isnan([opinion.shift[0], opinion.spread[0], opinion.outside]).all()
