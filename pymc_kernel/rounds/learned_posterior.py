"""The learned log posterior of active learning, believed within a region around good points.

Imports NumPy and the lower floors only.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior
from pymc_kernel.scores.values import FittedValues
from pymc_kernel.smc.normal_mixture import NormalMixture, fit_mixture

__all__ = ["LogPosterior", "Region", "drawn_from"]

_PENALTY = 8.0  # a whitened unit beyond the region costs four nats, two cost sixteen
_FEWEST_PARTICLES = 1000
_ROWS = 2000  # points at a time, which bounds the memory of distances


class Region(NamedTuple):
    """Where the surrogate is believed: within a radius of good points, in whitened units."""

    inverse: np.ndarray  # (d, d), of the whitening factor
    points: np.ndarray  # (k, d), whitened
    radius: float

    def distance(self, positions: np.ndarray) -> np.ndarray:
        """Return the distance (m,) to the nearest good point."""
        whitened = positions @ self.inverse.T
        squares = (self.points**2).sum(axis=1)
        nearest = np.empty(len(positions))
        for a in range(0, len(positions), _ROWS):
            part = whitened[a : a + _ROWS]
            squared = (part**2).sum(axis=1)[:, None] + squares - 2.0 * part @ self.points.T
            nearest[a : a + _ROWS] = squared.min(axis=1)
        return np.sqrt(np.maximum(nearest, 0.0))


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """The learned log posterior density: the prior's, plus a surrogate of the log likelihood, within a region.

    Attributes
    ----------
    fit : FittedValues
        Of the log likelihood in units of ``unit`` nats.
    unit, offset : float
    prior : Prior
    region : Region
    power : float
        Of the likelihood; below one until the bulk is found.
    is_careful : bool
        Whether half of the surrogate's variance is taken off. For a log density with normal errors that is its harmonic
        mean: draws keep away from where nobody looked, and where it is known nothing changes.
    ceiling : float
        The highest log density that careful draws believe in; what is predicted above it counts as much below it. In
        the corner of a narrow valley a surrogate can be many of its own standard deviations too high.
    """

    fit: FittedValues
    unit: float
    offset: float
    prior: Prior
    region: Region
    power: float
    is_careful: bool = False
    ceiling: float = np.inf

    def log_likelihood(self, positions: np.ndarray) -> np.ndarray:
        """Return the surrogate (m,) at positions (m, d)."""
        return self.unit * self.fit.log_density(positions) + self.offset

    def log_density(self, positions: np.ndarray) -> np.ndarray:
        """Return log prior plus surrogate (m,), without power or region."""
        return self.prior.log_density(positions) + self.log_likelihood(positions)

    def covariance(self, positions: np.ndarray) -> np.ndarray:
        """Return the posterior covariance (m, m) of the surrogate, in squared nats."""
        return self.unit**2 * self.fit.covariance(positions)

    def height(self, positions: np.ndarray) -> np.ndarray:
        """Return the log density (m,) without power, less the penalty beyond the region."""
        beyond = np.maximum(self.region.distance(positions) - self.region.radius, 0.0)
        return self.log_density(positions) - 0.5 * _PENALTY * beyond**2

    def caution(self, positions: np.ndarray) -> np.ndarray:
        """Return what caution takes off the log density (m,): half of the surrogate's variance."""
        starts = range(0, len(positions), _ROWS)
        return 0.5 * self.unit**2 * np.concatenate([self.fit.variance(positions[a : a + _ROWS]) for a in starts])

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return draws (size, d) of the density that particles follow, by particles from around the good points."""
        good = self.region.points @ np.linalg.inv(self.region.inverse).T
        return drawn_from(rng, self, good, ParticleSampler(max(size, _FEWEST_PARTICLES))).positions[:size]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return the log density (m,) that particles follow; -inf where it is no number."""
        out = np.full(len(positions), -np.inf)
        beyond = np.full(len(positions), np.inf)
        finite = np.isfinite(positions).all(axis=1)
        with np.errstate(all="ignore"):
            beyond[finite] = np.maximum(self.region.distance(positions[finite]) - self.region.radius, 0.0)
            near = beyond <= 10.0 * self.region.radius  # further out surrogates may overflow
            if near.any():
                out[near] = self.prior.log_density(positions[near]) + self.power * self.log_likelihood(positions[near])
                if self.is_careful:
                    out[near] = np.minimum(out[near], 2.0 * self.ceiling - out[near])
                out[near] -= 0.5 * _PENALTY * beyond[near] ** 2
                if self.is_careful:
                    out[near] -= self.caution(positions[near])
        return np.where(np.isfinite(out), out, -np.inf)


class _MixturePrior(NamedTuple):
    """A mixture of normals as where particles begin."""

    mixture: NormalMixture

    def draw(self, rng, size):
        return self.mixture.sample(rng, size)

    def log_density(self, positions):
        return self.mixture.log_density(positions)


def drawn_from(rng, learned: LogPosterior, base: np.ndarray, sampler: ParticleSampler) -> Draws:
    """Return draws of a learned posterior, from a mixture of normals fitted to ``base`` (n, d) by way of powers."""
    begin = _MixturePrior(fit_mixture(rng, base))
    return sampler.sample(rng, begin, lambda x: learned(x) - begin.log_density(x))
