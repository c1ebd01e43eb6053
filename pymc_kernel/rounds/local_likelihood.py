"""A likelihood learned from simulations, for the region where they were made."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood import Chance, FittedLikelihood
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint
from pymc_kernel.smc.moves import fit_mixture
from pymc_kernel.smc.weights import impossible_as_zero

_OUTSIDE = 0.002  # of a round's own draws that lie outside of its region


class SimulatedRegion(NamedTuple):
    """Where a round simulated; beyond it a normal tail takes over."""

    mixture: Joint
    cut: float

    def log_penalty(self, parameters: np.ndarray) -> np.ndarray:
        """Return (m,), zero inside of the region and falling outside."""
        return np.minimum(self.mixture.log_densities(parameters) - self.cut, 0.0)


@dataclass(frozen=True, eq=False)
class LocalLikelihood:
    """A learned log likelihood of the observation, penalized outside of the region that was simulated last."""

    fit: FittedLikelihood
    observed: np.ndarray  #: (q,)
    region: SimulatedRegion | None  #: None: everywhere
    success: Chance | None = None  #: probability that a simulation does not fail, as the data did not; None: one
    match: Chance | None = None
    """Probability that a simulation gives just these data, which corrects their learned density: for whole numbers that
    many simulations share, it needs no assumption on their distribution."""

    def __call__(self, parameters: np.ndarray) -> np.ndarray:
        """Return log likelihoods (m,) at parameters (m, d)."""
        values = self.fit.log_density(parameters, self.observed)
        if self.success is not None:
            values = values + self.success.log_probability(parameters)
        if self.match is not None:
            values = self.match.log_probability(parameters, values)
        if self.region is not None:
            values = values + self.region.log_penalty(parameters)
        return impossible_as_zero(values)

    def corrected(self, learn, parameters, matches, rng, **settings) -> "LocalLikelihood":
        """Return the likelihood with its density corrected by which simulations (n,) at parameters (n, d) match.

        ``learn`` is ``LearnedLikelihood.fit_chance``, with further ``settings``.
        """
        rough = replace(self, region=None, match=None)(parameters)
        return replace(self, match=learn(parameters, matches, rng, rough=rough, **settings))

    def replicates(self) -> list["LocalLikelihood"]:
        """Return replicates of the likelihood, which show its uncertainty; none if the fit has none."""
        parts = {"fit": self.fit, "success": self.success, "match": self.match}
        learned = {name: part for name, part in parts.items() if part is not None}
        numbers = range(self.fit.num_replicates)
        return [replace(self, **{name: part.replicate(i) for name, part in learned.items()}) for i in numbers]


def region_of(rng: np.random.Generator, positions: np.ndarray) -> SimulatedRegion:
    """Return the region that holds nearly all of a distribution with these draws (n, d)."""
    mixture = fit_mixture(rng, positions)
    return SimulatedRegion(mixture, float(np.quantile(mixture.log_densities(positions), _OUTSIDE)))
