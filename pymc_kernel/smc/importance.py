"""Importance sampling at the end of a run: independent draws of the posterior, and its evidence with a small error.

Particles that have reached the posterior show where it is. A mixture of normals is fitted to them, and another one in
straight coordinates, where the evaluations have any (``mcmc.conditionally_normal``). Draws come from both in equal
parts, each weighted by the mean of the two densities (the balance heuristic of Veach and Guibas 1995), so that it is
enough that one of them fits. The draws are new: given the particles, the mean of the weights is an unbiased estimate
of the evidence, for a likelihood that is estimated, too.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from pymc_kernel.mcmc import conditionally_normal
from pymc_kernel.mcmc.conditionally_normal import ConditionallyNormal
from pymc_kernel.smc.differences import NormalMixture, fit_mixture
from pymc_kernel.smc.moves import Evaluated
from pymc_kernel.smc.weights import impossible_as_zero


class _Proposal(NamedTuple):
    mixture: NormalMixture
    coordinates: ConditionallyNormal | None  # that the mixture is in; those of the particles without

    @classmethod
    def of(cls, rng, positions, coordinates=None):
        if coordinates is not None:
            positions, _ = coordinates.straighten(positions)
        return cls(fit_mixture(rng, positions[np.isfinite(positions).all(axis=1)]), coordinates)

    def sample(self, rng, size):
        drawn = self.mixture.sample(rng, size)
        return drawn if self.coordinates is None else self.coordinates.bend(drawn)[0]

    def log_density(self, positions):
        if self.coordinates is None:
            return self.mixture.log_density(positions)
        straight, log_det = self.coordinates.straighten(positions)
        return impossible_as_zero(self.mixture.log_density(straight) + log_det)


def draw(
    rng: np.random.Generator,
    particles: Evaluated,
    evaluated: Evaluated,
    evaluate: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    size: int,
) -> tuple[Evaluated, np.ndarray]:
    """Return draws (size, ...) around particles of a posterior, and their log weights (size,), not normalized.

    The mean of the weights estimates the evidence. All that was ``evaluated`` shows whether there are straight
    coordinates. Costs ``size`` evaluations, O(size k d^2) time with k components, at most 65, and O(size k) memory.
    """
    values = evaluated.log_density(1.0)
    known = np.isfinite(values)
    with np.errstate(all="ignore"):  # places that are far out in straight coordinates
        coordinates = conditionally_normal.fitted(particles.positions, evaluated.positions[known], values[known])
        proposals = [_Proposal.of(rng, particles.positions)]
        if coordinates is not None:
            proposals.append(_Proposal.of(rng, particles.positions, coordinates))
        sizes = np.diff(np.arange(len(proposals) + 1) * size // len(proposals))
        positions = np.concatenate([p.sample(rng, count) for p, count in zip(proposals, sizes, strict=True)])
        log_shares = np.log(sizes / size)[:, None]
        log_proposal = logsumexp(log_shares + [p.log_density(positions) for p in proposals], axis=0)
        draws = Evaluated(positions, *evaluate(positions))
        return draws, impossible_as_zero(draws.log_density(1.0) - log_proposal)
