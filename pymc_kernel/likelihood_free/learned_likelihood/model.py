"""A conditional density by a triangular map, whose entries are weighted sums of features."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.evidence import MAX_LOG, ROWS, row_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Residuals
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed


class Weights(NamedTuple):
    """Weights of p features, (p, q), and in ``coefficients``, (c, q (q - 1) / 2), of the first c features."""

    means: np.ndarray
    log_sd: np.ndarray
    coefficients: np.ndarray
    log_rest: np.ndarray

    def joined(self) -> np.ndarray:
        """Return the weights (p, 3 q) of means, log spreads and remaining log spreads."""
        return np.hstack([self.means, self.log_sd, self.log_rest])

    def entries(self, features: np.ndarray) -> "Weights":
        """Return means, log spreads and coefficients (m, ...) of features (m, p)."""
        return _entries(features, self.joined(), self.coefficients)


def _entries(features, joined, coefficients) -> Weights:
    """Return the entries (..., m, n) of triangular maps."""
    values = features @ joined
    q = values.shape[-1] // 3
    spreads = np.clip(values[..., q:], -MAX_LOG, MAX_LOG)
    of_others = features[:, : coefficients.shape[-2]] @ coefficients
    parts = values[..., :q], spreads[..., :q], of_others, spreads[..., q:]
    return Weights(*map(np.ascontiguousarray, parts))


@dataclass(frozen=True, eq=False)
class ConditionalDensity:
    """Densities of transformed summaries given parameters: r of them, the estimate first, with the same features.

    ``joined`` (r, p, 3 q) are the weights of means, log spreads and remaining log spreads, ``coefficients``
    (r, c, q (q - 1) / 2) those of the first c features.
    """

    parameters: ParameterMap
    features: FeatureMap
    joined: np.ndarray
    coefficients: np.ndarray
    residuals: Residuals

    def take(self, number: int) -> "ConditionalDensity":
        """Return one of the densities alone."""
        one = slice(number, number + 1)
        parts = self.joined[one], self.coefficients[one], self.residuals.one_of(one)
        return ConditionalDensity(self.parameters, self.features, *parts)

    def _estimate(self, parameters) -> Weights:
        """Return the entries of the triangular map of the estimate at parameters (m, d)."""
        return _entries(self.features(self.parameters(parameters)), self.joined[0], self.coefficients[0])

    def log_densities(self, parameters, observed: Observed) -> np.ndarray:
        """Return log densities (k, m) of each of k rows of summaries at each of the ``parameters`` (m, d)."""
        out, residuals = np.empty((len(observed.values), len(parameters))), self.residuals.one_of(0)
        for rows in row_blocks(len(parameters)):
            entries = self._estimate(parameters[rows])
            for k in range(len(out)):
                out[k, rows] = log_terms(entries, observed.take([k]), residuals).log_density
        return out

    def sample(self, parameters, rng) -> np.ndarray:
        """Return one draw of the values (m, q) for each of the parameters (m, d)."""
        residuals, parts = self.residuals.one_of(0), [parameters[rows] for rows in row_blocks(len(parameters))]
        return np.concatenate([values_of(self._estimate(p), residuals.sample(len(p), rng)) for p in parts])

    def evaluate(self, parameters, observed: Observed, gradient: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (r, m) at parameters (m, d), and gradients (r, m, d), zero if not wanted.

        Observed are m rows, or one for all parameters.
        """
        r = len(self.joined)
        found, slopes = np.empty((r, len(parameters))), np.zeros((r, *parameters.shape))
        for rows in row_blocks(len(parameters), max(ROWS // r, 1)):
            z = self.parameters(parameters[rows])
            features = self.features(z)
            parts = _entries(features, self.joined, self.coefficients)
            terms = log_terms(parts, observed.take(rows if len(observed.values) > 1 else [0]), self.residuals)
            found[:, rows] = terms.log_density
            if gradient:
                factors = self._pulled(pull_back(parts, terms))
                back = self.features.pull_back(z, features, factors)
                slopes[:, rows] = back * self.parameters.slope(parameters[rows])
        return found, slopes

    def _pulled(self, pulls: Weights) -> np.ndarray:
        """Return derivatives (r, m, p) by the features, given those by the entries."""
        out = np.concatenate([pulls.means, pulls.log_sd, pulls.log_rest], axis=2) @ self.joined.transpose(0, 2, 1)
        out[:, :, : self.coefficients.shape[1]] += pulls.coefficients @ self.coefficients.transpose(0, 2, 1)
        return out


class Terms(NamedTuple):
    """Log densities of summaries with what their derivatives need."""

    log_density: np.ndarray  # (..., m)
    scaled: np.ndarray  # (..., m, q), values less their means, in spreads
    noise: np.ndarray  # (..., m, q), residuals
    slope: np.ndarray  # (..., m, q), derivatives by the residuals
    widths: np.ndarray  # (..., m, q), derivatives by log spreads with residuals fixed: -1 for a density


def log_terms(parts: Weights, observed: Observed, residuals: Residuals) -> Terms:
    """Return log densities of summaries, probabilities of intervals for whole numbers."""
    scaled, noise = residuals_of(parts, observed.values)
    log_spread = parts.log_sd + parts.log_rest
    cells = (observed.above > 0.0).any(axis=0)
    if isinstance(residuals, Joint) or not cells.any():
        density, slope = residuals.log_density_and_slope(noise)
        density = density + (observed.log_slope - log_spread).sum(axis=-1)
        return Terms(density, scaled, noise, slope, np.full(noise.shape, -1.0))
    smaller = np.exp(-log_spread[..., cells])
    below, above = observed.below[:, cells] * smaller, observed.above[:, cells] * smaller
    masses, to_noise, to_width = residuals.take(cells).log_masses(noise[..., cells], below, above)
    slope, widths = np.empty(noise.shape), np.full(noise.shape, -1.0)
    slope[..., cells], widths[..., cells] = to_noise, to_width
    density = masses.sum(axis=-1)
    if not cells.all():
        rest, slope[..., ~cells] = residuals.take(~cells).log_density_and_slope(noise[..., ~cells])
        density = density + rest + (observed.log_slope - log_spread)[..., ~cells].sum(axis=-1)
    return Terms(density, scaled, noise, slope, widths)


def triangle_rows(q: int) -> list[tuple[int, slice]]:
    """Return for each summary j that has others before it: j, and the columns of its coefficients on these."""
    return [(j, slice(j * (j - 1) // 2, j * (j + 1) // 2)) for j in range(1, q)]


def residuals_of(parts: Weights, values) -> tuple[np.ndarray, np.ndarray]:
    """Return standardized values (m, q), and their residuals given the values before, in remaining spreads."""
    scaled = (values - parts.means) * np.exp(-parts.log_sd)
    noise = scaled.copy()
    for j, row in triangle_rows(scaled.shape[-1]):
        noise[..., j] -= np.einsum("...k,...k->...", parts.coefficients[..., row], scaled[..., :j])
    return scaled, noise * np.exp(-parts.log_rest)


def values_of(parts: Weights, noise) -> np.ndarray:
    """Return the values (m, q) whose residuals are ``noise``."""
    scaled = noise * np.exp(parts.log_rest)
    for j, row in triangle_rows(scaled.shape[1]):
        scaled[:, j] += np.einsum("ik,ik->i", parts.coefficients[:, row], scaled[:, :j])
    return parts.means + scaled * np.exp(parts.log_sd)


def pull_back(parts: Weights, terms: Terms) -> Weights:
    """Return derivatives of log densities by the entries of the triangular map."""
    own = terms.slope * np.exp(-parts.log_rest)
    pull, to_coefficients = own.copy(), np.empty(parts.coefficients.shape)
    for j, row in triangle_rows(own.shape[-1]):
        pull[..., :j] -= own[..., j, None] * parts.coefficients[..., row]
        to_coefficients[..., row] = -own[..., j, None] * terms.scaled[..., :j]
    to_means, to_log_sd = -pull * np.exp(-parts.log_sd), terms.widths - pull * terms.scaled
    return Weights(to_means, to_log_sd, to_coefficients, terms.widths - terms.slope * terms.noise)
