"""A conditional density: triangular map whose entries are sums of features. Imports NumPy and siblings only."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Residuals
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed
from pymc_kernel.likelihood_free.learned_likelihood.triangular import backward, forward, from_noise

__all__ = ["ConditionalDensity", "Weights", "log_densities_of", "log_terms", "pull_back", "residuals_of"]

_ROWS = 4096  # at once, so that memory stays bounded
_MAX_LOG_SD = 30.0


@dataclass(frozen=True, eq=False)
class Weights:
    """Of p features: ``means``, ``log_sd``, ``log_rest`` (p, q), ``coefficients`` (c, q (q - 1) / 2) of the first c."""

    means: np.ndarray
    log_sd: np.ndarray
    coefficients: np.ndarray
    log_rest: np.ndarray

    def parts(self):
        """Return means, log spreads, coefficients, remaining log spreads."""
        return self.means, self.log_sd, self.coefficients, self.log_rest

    @cached_property
    def _joined(self):
        return np.hstack([self.means, self.log_sd, self.log_rest])

    def entries(self, features: np.ndarray) -> "Weights":
        """Return means, log spreads and coefficients (m, ...) of features (m, p)."""
        q = self.means.shape[1]
        joined = features @ self._joined
        np.clip(joined[:, q:], -_MAX_LOG_SD, _MAX_LOG_SD, out=joined[:, q:])
        parts = [np.ascontiguousarray(joined[:, k * q : (k + 1) * q]) for k in range(3)]
        coefficients = features[:, : len(self.coefficients)] @ self.coefficients
        return Weights(parts[0], parts[1], coefficients, parts[2])

    def pulled(self, pulls: "Weights") -> np.ndarray:
        """Return derivatives (m, p) by the features, given those by the entries."""
        out = np.hstack([pulls.means, pulls.log_sd, pulls.log_rest]) @ self._joined.T
        out[:, : len(self.coefficients)] += pulls.coefficients @ self.coefficients.T
        return out


@dataclass(frozen=True, eq=False)
class ConditionalDensity:
    """The density of transformed summaries given parameters."""

    parameters: ParameterMap
    features: FeatureMap
    weights: Weights
    residuals: Residuals
    limits: np.ndarray
    """(2, 2 q), of log spreads and of remaining log spreads: those of the training points, and a little more."""

    @property
    def num_summaries(self) -> int:
        """How many summaries there are."""
        return self.weights.means.shape[1]

    def entries(self, features) -> tuple[Weights, np.ndarray]:
        """Return the entries of the triangular map, and whether log spreads (m, 2 q) are within their limits."""
        parts = self.weights.entries(features)
        free = np.hstack([parts.log_sd, parts.log_rest])
        spreads = np.clip(free, *self.limits)
        q = self.num_summaries
        log_sd, log_rest = np.ascontiguousarray(spreads[:, :q]), np.ascontiguousarray(spreads[:, q:])
        return Weights(parts.means, log_sd, parts.coefficients, log_rest), spreads == free

    def log_density(self, parameters, observed: Observed, gradient: bool = False):
        """Return log densities (m,) of summaries at ``parameters`` (m, d), and gradients (m, d) if wanted."""
        [density], slopes = log_densities_of([self], parameters, observed, gradient)
        return (density, slopes[0]) if gradient else density

    def of_features(self, features, observed, gradient):
        """Return log densities (m,) given features (m, p), and derivatives (m, p) by these if wanted."""
        parts, inside = self.entries(features)
        terms = log_terms(parts, observed, self.residuals)
        factors = self.weights.pulled(_inside(pull_back(parts, terms), inside)) if gradient else None
        return terms.log_density, factors

    def log_densities(self, parameters, observed: Observed) -> np.ndarray:
        """Return log densities (k, m) of each of k rows of summaries at each of the ``parameters`` (m, d)."""
        out = np.empty((len(observed.values), len(parameters)))
        for start in range(0, len(parameters), _ROWS):
            entries, _ = self.entries(self.features(self.parameters(parameters[start : start + _ROWS])))
            size = entries.means.shape
            for k in range(len(out)):
                row = Observed(*[np.broadcast_to(part[k], size) for part in observed])
                out[k, start : start + _ROWS] = log_terms(entries, row, self.residuals).log_density
        return out

    def sample(self, parameters, rng) -> np.ndarray:
        """Return one draw of the values (m, q) for each of the parameters (m, d)."""
        out = np.empty((len(parameters), self.num_summaries))
        for start in range(0, len(parameters), _ROWS):
            part = parameters[start : start + _ROWS]
            entries, _ = self.entries(self.features(self.parameters(part)))
            noise = np.ascontiguousarray(self.residuals.sample(len(part), rng))
            from_noise(
                noise, entries.means, entries.log_sd, entries.coefficients, entries.log_rest, out[start : start + _ROWS]
            )
        return out


def log_densities_of(densities, parameters, observed: Observed, gradient: bool):
    """Return log densities (r, m) by r densities of the same features, and gradients (r, m, d), zero if not wanted."""
    found, first = np.empty((len(densities), len(parameters))), densities[0]
    slopes = np.zeros((*found.shape, parameters.shape[1]))
    for start in range(0, len(parameters), _ROWS):
        rows = slice(start, start + _ROWS)
        z = first.parameters(parameters[rows])
        features, stretch = first.features(z), first.parameters.slope(parameters[rows]) if gradient else None
        for k, density in enumerate(densities):
            found[k, rows], factors = density.of_features(features, observed.take(rows), gradient)
            if gradient:
                slopes[k, rows] = first.features.pull_back(z, features, factors) * stretch
    return found, slopes


def residuals_of(parts: Weights, values) -> tuple[np.ndarray, np.ndarray]:
    """Return values (m, q) less their means in spreads, and less what those before predict."""
    scaled, noise = np.empty(parts.means.shape), np.empty(parts.means.shape)
    values = np.require(values, float, ["C", "W"])
    forward(values, parts.means, parts.log_sd, parts.coefficients, parts.log_rest, scaled, noise)
    return scaled, noise


def _inside(pulls: Weights, inside) -> Weights:
    """Return derivatives, none by log spreads that are at their limits."""
    q = pulls.means.shape[1]
    return Weights(pulls.means, pulls.log_sd * inside[:, :q], pulls.coefficients, pulls.log_rest * inside[:, q:])


class Terms(NamedTuple):
    """Log densities of summaries with what their derivatives need."""

    log_density: np.ndarray
    """(m,)."""
    scaled: np.ndarray
    """(m, q), values less their means, in spreads."""
    noise: np.ndarray
    """(m, q), residuals."""
    slope: np.ndarray
    """(m, q), derivatives by the residuals."""
    widths: np.ndarray
    """(m, q), derivatives by log spreads with residuals fixed: -1 for a density."""


def log_terms(parts: Weights, observed: Observed, residuals) -> Terms:
    """Return log densities of summaries, probabilities of intervals for whole numbers."""
    scaled, noise = residuals_of(parts, observed.values)
    log_spread = parts.log_sd + parts.log_rest
    cells = (observed.above > 0.0).any(axis=0)
    if isinstance(residuals, Joint) or not cells.any():
        density, slope = residuals.log_density_and_slope(noise)
        density = density + (observed.log_slope - log_spread).sum(axis=1)
        return Terms(density, scaled, noise, slope, np.full(noise.shape, -1.0))
    smaller = np.exp(-log_spread[:, cells])
    below, above = observed.below[:, cells] * smaller, observed.above[:, cells] * smaller
    masses, to_noise, to_width = residuals.take(cells).log_masses(noise[:, cells], below, above)
    slope, widths = np.empty(noise.shape), np.full(noise.shape, -1.0)
    slope[:, cells], widths[:, cells] = to_noise, to_width
    density = masses.sum(axis=1)
    if not cells.all():
        rest, slope[:, ~cells] = residuals.take(~cells).log_density_and_slope(noise[:, ~cells])
        density = density + rest + (observed.log_slope - log_spread)[:, ~cells].sum(axis=1)
    return Terms(density, scaled, noise, slope, widths)


def pull_back(parts: Weights, terms: Terms) -> Weights:
    """Return derivatives of log densities by the entries of the triangular map."""
    out = Weights(*[np.empty(p.shape) for p in parts.parts()])
    slope, widths = (np.require(part, float, ["C", "W"]) for part in (terms.slope, terms.widths))
    given = terms.scaled, terms.noise, parts.log_sd, parts.coefficients, parts.log_rest, slope, widths
    backward(*given, out.means, out.log_sd, out.coefficients, out.log_rest)
    return out
