"""Proposals of parameters for later rounds, with known densities. Imports NumPy and siblings."""

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_kernel.embeddings.mixture import Mixture

__all__ = ["Proposal", "prior_ratio"]

_WIDE_SHARE = 0.5  # of the proposals, from the wide normal distribution
_WIDENING = 2.0  # its covariance, in that of the posterior: weights of a posterior alone have no finite variance


class Proposal(NamedTuple):
    """The posterior so far mixed with a wider normal distribution around it, in case it is wrong."""

    posterior: Mixture
    wide: Mixture

    @classmethod
    def around(cls, posterior: Mixture) -> "Proposal":
        """Return the proposal for a posterior."""
        mean, covariance = posterior.moments()
        factor = np.linalg.cholesky(_WIDENING * covariance)
        return cls(posterior, Mixture(np.ones(1), mean[None], factor[None]))

    def sample(self, num_draws: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (num_draws, p)."""
        num_wide = round(_WIDE_SHARE * num_draws)
        draws = [self.posterior.sample(num_draws - num_wide, rng), self.wide.sample(num_wide, rng)]
        return rng.permutation(np.concatenate(draws))

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Return the log densities (m,) at ``points`` (m, p)."""
        return np.logaddexp(
            np.log1p(-_WIDE_SHARE) + self.posterior.log_density(points),
            np.log(_WIDE_SHARE) + self.wide.log_density(points),
        )


def prior_ratio(latent: np.ndarray, log_prior: np.ndarray, proposals: list[Proposal], numbers: list[int]) -> np.ndarray:
    """Return the ratios (n,) of the prior's density to that of the mixture of all rounds.

    Parameters
    ----------
    latent : ndarray (n, p)
        Simulated parameters of all rounds, the first from the prior. Those that rounding has put at a bound are
        infinite, and their ratio is zero.
    log_prior : ndarray (n,)
        Their log densities under the prior.
    proposals : list of Proposal
        Of the rounds after the first.
    numbers : list of int
        Simulations of each round, failed ones too: failures depend on the parameters in the same way in all rounds.

    Notes
    -----
    With n_1 of n simulations from the prior no ratio is larger than n / n_1.
    """
    ratio, finite = np.zeros(len(latent)), np.isfinite(latent).all(axis=1)
    latent, log_prior = latent[finite], log_prior[finite]
    log_shares = np.log(np.array(numbers) / sum(numbers))
    # Of the mixture's density to the prior's, round by round; far from all proposals it is that of the first.
    terms = [np.full(len(latent), log_shares[0])]
    for log_share, proposal in zip(log_shares[1:], proposals, strict=True):
        terms.append(log_share + proposal.log_density(latent) - log_prior)
    ratio[finite] = np.exp(-logsumexp(np.stack(terms), axis=0))
    return ratio
