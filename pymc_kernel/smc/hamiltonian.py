"""Hamiltonian moves of particles along a surrogate of the tempered density.

Imports NumPy, Numba and the lower floors only.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymc_kernel.mcmc.surrogate_fit import Evaluations, Fit, Learned, along, check_surrogate_moves, learn, tuned
from pymc_kernel.scores.values import Values
from pymc_kernel.smc.moves import Proposals, Shape, Walk

__all__ = ["Hamiltonian"]


class HamiltonianFit(NamedTuple):
    """A surrogate of the tempered density, how to move along it, and the walk beside it."""

    walk: Shape
    fit: Fit | None  # None before the first one, or where it failed
    learned: Learned | None  # by the last fit that did not fail


@dataclass(frozen=True)
class Hamiltonian:
    """Chains of Hamiltonian trajectories along a surrogate of the tempered log density.

    Some Hamiltonian transitions on the surrogate alone (1 to 32, as many as decorrelate the particles there) are one
    proposal, accepted with the ratio of the tempered density to the surrogate (Liu 2001, section 9.4.3): one evaluation
    a move. The surrogate learns from all evaluations, rejected proposals included: prior and likelihood are kept
    separately, so that an evaluation at one temperature gives the tempered density at every other.

    Parameters
    ----------
    surrogate
        Of ``pymc_kernel.scores``: ``Values``, or one that matches scores, which learns from the particles alone.
    exploring_share : float
        Share of random-walk moves, in (0, 1].
    max_steps : int
        Longest trajectory in leapfrog steps.
    noisy : bool
        Whether likelihoods are estimates.
    """

    surrogate: object = field(default_factory=lambda: Values(num_basis=500, max_values=3000))
    exploring_share: float = 0.1
    max_steps: int = 30
    noisy: bool = False
    walk: Walk = field(default_factory=Walk)

    def __post_init__(self):
        check_surrogate_moves(self.surrogate, self.exploring_share, self.max_steps)

    def fit(
        self,
        rng,
        particles,
        evaluated,
        inverse_temperature,
        learned: HamiltonianFit | None,
        shared: HamiltonianFit | None = None,
    ):
        """Return a surrogate of the density at this temperature; without one where the fit fails.

        Parameters
        ----------
        shared
            Fitted to the same evaluations for other particles: its surrogate is taken over, but for the walk, unless
            the estimator learns from the particles.
        """
        shape = self.walk.fit(rng, particles, evaluated, inverse_temperature, None if learned is None else learned.walk)
        if shared is not None and self.surrogate.learns_from == "values":
            return shared._replace(walk=shape)
        if learned is None:
            learned = HamiltonianFit(shape, None, None)
        draws, coordinates = particles.positions, (shape.mean, shape.factor)
        density = evaluated.log_density(inverse_temperature)
        followed = learn(
            rng, self.surrogate, Evaluations(draws, evaluated.positions, density, self.noisy), coordinates,
            learned.learned, search=learned.learned is None,
        )  # fmt: skip
        if followed is None:
            return learned._replace(walk=shape, fit=None)
        return HamiltonianFit(shape, tuned(rng, followed, coordinates, draws, self.max_steps), followed)

    def propose(self, rng, positions: np.ndarray, learned: HamiltonianFit) -> Proposals:
        """Return a proposal for every particle by the surrogate, or by the walk for a random part of them."""
        walked = self.walk.propose(rng, positions, learned.walk)
        if learned.fit is None:
            return walked
        is_along = rng.random(len(positions)) >= self.exploring_share
        walked.positions[is_along], walked.log_ratio[is_along], _ = along(rng, positions[is_along], learned.fit)
        return walked._replace(is_exploring=~is_along)

    def adapt(self, learned: HamiltonianFit, proposals: Proposals, accept_prob: np.ndarray) -> HamiltonianFit:
        """Return what was learned with the walk's scale moved by the acceptance of those that walked."""
        walked = proposals.is_exploring
        if not walked.any():
            return learned
        return learned._replace(walk=self.walk.adapt(learned.walk, proposals, accept_prob[walked]))

    def scale_of(self, learned: HamiltonianFit) -> float:
        """Return the step size, or the scale of the walk where there is no surrogate."""
        return learned.fit.step_size if learned.fit is not None else self.walk.scale_of(learned.walk)
