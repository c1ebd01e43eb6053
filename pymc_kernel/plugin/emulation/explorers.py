"""Chains between the prior and the posterior, where other modes are in reach."""

import numpy as np

from pymc_kernel.plugin.emulation.chains import Chains
from pymc_kernel.plugin.model.priors import ModelPrior

__all__ = ["Explorers"]

# With 0, 2, 2 at once, and 4 explorers, 4 of 6, 8 of 8, 4 of 6, and 7 of 8 runs on hares and lynx found the right mode.
_EXPLORERS = 2  # chains besides, one evaluation of each a round
_GROWTH = 2.0  # of the power of their likelihood, at most, from round to round: two values say little of an error


class Explorers:
    """Chains on an emulated model with a power of its likelihood that what is learned is good enough for.

    They begin at draws of the prior, with none of the likelihood.

    Parameters
    ----------
    chains : Chains
        On the emulated model.
    prior : ModelPrior
    rng : numpy.random.Generator
    """

    def __init__(self, chains: Chains, prior: ModelPrior, rng: np.random.Generator):
        places = prior.draw(rng, 100)
        self.chains = chains.tempered(places[:_EXPLORERS], np.maximum(places.var(axis=0), 1e-12), rng)
        self._power = 0.0

    def draw(self, best: np.ndarray) -> np.ndarray:
        """Return where the chains end (explorers, d), which begin at the ``best`` places where they have no density."""
        self.chains.set_power(self._power)
        if not self.chains.have_density:
            self.chains.go_to(best[:_EXPLORERS])
        draws, _ = self.chains.draw(is_short=True)
        return draws[:, -1]

    def set_power(self, log_ratios: np.ndarray) -> None:
        """Choose the next power by true minus learned log densities where the chains are: an error of one nat."""
        error = np.sqrt(np.mean(np.square(log_ratios)))
        if np.isfinite(error):
            most = _GROWTH * self._power if self._power else 1.0
            self._power = min(1.0, most, 1.0 / max(1.0, error))
