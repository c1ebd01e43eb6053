"""Importance sampling at the end of a run: independent draws of the posterior, and its evidence with a small error.

Particles that have reached the posterior show where it is. A mixture of normals is fitted to them, and another one in
straight coordinates, where the evaluations have any (``mcmc.conditionally_normal``). Draws come from both in equal
parts, each weighted by the mean of the two densities (the balance heuristic of Veach and Guibas 1995), so that it is
enough that one of them fits. The draws are new: given the particles, the mean of the weights is an unbiased estimate
of the evidence, for a likelihood that is estimated, too.
"""

import math
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint
from pymc_kernel.mcmc import conditionally_normal
from pymc_kernel.mcmc.conditionally_normal import ConditionallyNormal
from pymc_kernel.smc.moves import Evaluate, Evaluated, fit_mixture
from pymc_kernel.smc.weights import effective_share, impossible_as_zero, log_mean_exp

_ENOUGH = 0.5  # effective share of draws: no other proposal could do more than double it


class _Proposal(NamedTuple):
    mixture: Joint
    coordinates: ConditionallyNormal | None  # that the mixture is in; those of the particles without

    @classmethod
    def of(cls, rng, positions, coordinates=None):
        if coordinates is not None:
            positions, _ = coordinates.straighten(positions)
        return cls(fit_mixture(rng, positions[np.isfinite(positions).all(axis=1)]), coordinates)

    def sample(self, rng, size):
        drawn = self.mixture.sample(size, rng)
        return drawn if self.coordinates is None else self.coordinates.bend(drawn)[0]

    def log_density(self, positions):
        if self.coordinates is None:
            return self.mixture.log_densities(positions)
        straight, log_det = self.coordinates.straighten(positions)
        return impossible_as_zero(self.mixture.log_densities(straight) + log_det)


def _share_by_particles(log_weights):
    """Return the effective share of a proposal's draws: one over the means of w and 1 / w at posterior draws (n,)."""
    return math.exp(-log_mean_exp(log_weights) - log_mean_exp(-log_weights))


def draw(
    rng: np.random.Generator, particles: Evaluated, evaluated: Evaluated, evaluate: Evaluate, size: int
) -> tuple[Evaluated, np.ndarray, float]:
    """Return draws (size, ...) around particles of a posterior, their log weights (size,), and their effective number.

    The weights are not normalized: their mean estimates the evidence. They know nothing of a mode that none of the
    draws hit. A particle there has a large weight, so the effective number is the smaller one of what the draws and the
    particles say. Straight coordinates are looked for in all that was ``evaluated``, which takes O(d^4) for each row,
    where draws of the first mixture would not be worth half their number. Costs ``size`` evaluations, O(size k d^2)
    time with k components, at most 66, and O(size k d) memory.
    """
    proposals = [_Proposal.of(rng, particles.positions)]
    with np.errstate(all="ignore"):  # places that are far out in straight coordinates
        if _share_by_particles(particles.log_density(1.0) - proposals[0].log_density(particles.positions)) < _ENOUGH:
            values = evaluated.log_density(1.0)
            known = np.isfinite(values)
            found = conditionally_normal.fitted(particles.positions, evaluated.positions[known], values[known])
            if found is not None:
                proposals.append(_Proposal.of(rng, particles.positions, found))
        sizes = np.diff(np.arange(len(proposals) + 1) * size // len(proposals))
        drawn = [p.sample(rng, count) for p, count in zip(proposals, sizes, strict=True)]
        places = np.concatenate([*drawn, particles.positions])
        log_shares = np.log(sizes / size)[:, None]
        log_proposal = logsumexp(log_shares + [p.log_density(places) for p in proposals], axis=0)
    draws = Evaluated(places[:size], *evaluate(places[:size]))
    log_weights = impossible_as_zero(draws.log_density(1.0) - log_proposal[:size])
    by_particles = _share_by_particles(particles.log_density(1.0) - log_proposal[size:])
    return draws, log_weights, size * min(effective_share(log_weights), by_particles)
