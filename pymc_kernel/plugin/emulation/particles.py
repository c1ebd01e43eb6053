"""Draws of an emulated model by particles, which weigh modes that no NUTS chain goes between."""

import numpy as np

from pymc_kernel.plugin.emulation.chains import Chains, largest_rhat
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds.particles import ParticleSampler

_POPULATIONS, _FEWEST = 4, 250  # particles in each, a dozen of them in a mode with a twentieth of the mass
_ENOUGH = 1.0  # nats, of a log weight: no mode is lost by such an error


class Particles:
    """Populations of tempered particles (``rounds.particles``) from a prior to the posterior of an emulated model.

    Each begins at draws of its own, and knows nothing of the others, so that R-hat has its meaning. What is learned
    leads them on all their way: a mode whose particles have too little weight at the next power is lost for good. So
    one place of each before each of its powers is evaluated, too.

    Parameters
    ----------
    chains : Chains
        On the emulated model.
    prior : ModelPrior
        A proper one.
    rng : numpy.random.Generator

    Attributes
    ----------
    passed : ndarray (n, d)
        Of the latest draws, a place of each population before each of the powers on its way, in random order.
    """

    def __init__(self, chains: Chains, prior: ModelPrior, rng: np.random.Generator):
        self._chains, self._prior, self._rng = chains, prior, rng
        self._errors: list[np.ndarray] = []

    def draw(self, populations: int = _POPULATIONS, size: int = _FEWEST) -> tuple[np.ndarray, float]:
        """Return draws (populations, size, d) of the model as it is now, and their largest R-hat.

        Some hundred evaluations of the model for each of them.

        Raises
        ------
        ValueError
            Where no draw of the prior has a density.
        """
        sampler = ParticleSampler(max(size, _FEWEST))
        found = [sampler.sample(r, self._prior, self._log_likelihood) for r in self._rng.spawn(populations)]
        powers = np.concatenate([one.powers for one in found])
        passed = np.array([self._rng.choice(particles) for one in found for particles in one.passed])
        order = self._rng.permutation(len(powers))  # a batch may be cut off
        self._powers, self.passed = powers[order], passed[order]
        draws = np.array([one.positions for one in found])
        return draws[:, :size], largest_rhat(draws)

    def take_in(self, log_ratios: np.ndarray) -> None:
        """Learn from true minus learned log densities (m,) at the first places that were passed.

        What is lower than learned loses no mode, and nor does a place without a density, where a difference is NaN.
        """
        missed = np.where(log_ratios > 0.0, log_ratios, 0.0)
        self._errors = [*self._errors[-1:], self._powers[: len(missed)] * missed]

    @property
    def know_the_way(self) -> bool:
        """Whether no weight of a particle at the power that came next was too low, by the places of two rounds."""
        return len(self._errors) > 1 and bool(np.mean(np.square(np.concatenate(self._errors))) < _ENOUGH**2)

    def _log_likelihood(self, positions):
        """Return what the density of the model has besides the prior, (n,)."""
        return np.array([self._chains.log_density(x) for x in positions]) - self._prior.log_density(positions)


def share_beyond(draws: np.ndarray, others: np.ndarray) -> float:
    """Return what share of ``others`` (c, m, d) lies outside of the range of ``draws`` (populations, n, d).

    Populations of a posterior that is hard for them may agree, and lack the same thin end: NUTS chains that begin
    at them go there. Less what of as many draws of one distribution would.
    """
    n, d = draws.shape[0] * draws.shape[1], draws.shape[2]
    low, high = draws.min(axis=(0, 1)), draws.max(axis=(0, 1))
    share = ((others < low) | (others > high)).any(axis=2).mean()
    by_chance = 1.0 - (1.0 - 2.0 / (n + 1.0)) ** d
    return max(float(share) - by_chance, 0.0)
