"""A conditional density: triangular map whose entries are sums of features. Imports NumPy and siblings only."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Residuals
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed

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

    def entries(self, features) -> Weights:
        """Return the entries of the triangular map, log spreads within their limits."""
        return Together.of([self]).entries(features)[0]

    def log_density(self, parameters, observed: Observed, gradient: bool = False):
        """Return log densities (m,) of summaries at ``parameters`` (m, d), and gradients (m, d) if wanted."""
        [density], slopes = Together.of([self]).log_densities(parameters, observed, gradient)
        return (density, slopes[0]) if gradient else density

    def log_densities(self, parameters, observed: Observed) -> np.ndarray:
        """Return log densities (k, m) of each of k rows of summaries at each of the ``parameters`` (m, d)."""
        out = np.empty((len(observed.values), len(parameters)))
        for start in range(0, len(parameters), _ROWS):
            entries = self.entries(self.features(self.parameters(parameters[start : start + _ROWS])))
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
            entries = self.entries(self.features(self.parameters(part)))
            noise = np.ascontiguousarray(self.residuals.sample(len(part), rng))
            from_noise(
                noise, entries.means, entries.log_sd, entries.coefficients, entries.log_rest, out[start : start + _ROWS]
            )
        return out


@dataclass(frozen=True, eq=False)
class Together:
    """Densities of the same features, with stacked weights: one pass evaluates r of them.

    Attributes
    ----------
    parameters, features
        Of all densities.
    joined : ndarray (r, p, 3 q)
        Weights of means, log spreads and remaining log spreads.
    coefficients : ndarray (r, c, q (q - 1) / 2)
    limits : ndarray (2, r, 1, 2 q)
        Of log spreads and of remaining log spreads.
    residuals : Residuals or _Several
    """

    parameters: ParameterMap
    features: FeatureMap
    joined: np.ndarray
    coefficients: np.ndarray
    limits: np.ndarray
    residuals: "Residuals | _Several"

    @classmethod
    def of(cls, densities: "Sequence[ConditionalDensity]") -> "Together":
        """Return them stacked; all have the features of the first."""
        first, each = densities[0], [density.residuals for density in densities]
        return cls(
            first.parameters,
            first.features,
            np.stack([density.weights._joined for density in densities]),
            np.stack([density.weights.coefficients for density in densities]),
            np.stack([density.limits for density in densities], axis=1)[:, :, None],
            each[0] if len(each) == 1 else _Several(each),
        )

    def entries(self, features: np.ndarray) -> tuple[Weights, np.ndarray]:
        """Return the entries (r m, ...) of triangular maps, and whether log spreads (r, m, 2 q) are in their limits."""
        joined = features @ self.joined
        q, num_rows = joined.shape[2] // 3, joined.shape[0] * joined.shape[1]
        free = np.clip(joined[:, :, q:], -_MAX_LOG_SD, _MAX_LOG_SD)
        spreads = np.clip(free, *self.limits)
        coefficients = features[:, : self.coefficients.shape[1]] @ self.coefficients
        parts = joined[:, :, :q], spreads[:, :, :q], coefficients, spreads[:, :, q:]
        return Weights(*[np.ascontiguousarray(p.reshape(num_rows, -1)) for p in parts]), spreads == free

    def log_densities(self, parameters, observed: Observed, gradient: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (r, m) at parameters (m, d), and gradients (r, m, d), zero if not wanted."""
        r = len(self.joined)
        found, slopes = np.empty((r, len(parameters))), np.zeros((r, *parameters.shape))
        size = max(_ROWS // r, 1)
        for start in range(0, len(parameters), size):
            rows = slice(start, start + size)
            z = self.parameters(parameters[rows])
            features = self.features(z)
            parts, inside = self.entries(features)
            data = Observed(*[np.tile(part, (r, 1)) for part in observed.take(rows)])
            terms = log_terms(parts, data, self.residuals)
            found[:, rows] = terms.log_density.reshape(r, -1)
            if gradient:
                factors = self._pulled(pull_back(parts, terms), inside)
                back = self.features.pull_back(np.tile(z, (r, 1)), np.tile(features, (r, 1)), factors)
                slopes[:, rows] = back.reshape(r, *z.shape) * self.parameters.slope(parameters[rows])
        return found, slopes

    def _pulled(self, pulls: Weights, inside: np.ndarray) -> np.ndarray:
        """Return derivatives (r m, p) by the features, given those by the entries; none by spreads at their limits."""
        r, m, _ = inside.shape
        means, log_sd, coefficients, log_rest = (part.reshape(r, m, -1) for part in pulls.parts())
        spreads = np.concatenate([log_sd, log_rest], axis=2) * inside
        out = np.concatenate([means, spreads], axis=2) @ self.joined.transpose(0, 2, 1)
        out[:, :, : self.coefficients.shape[1]] += coefficients @ self.coefficients.transpose(0, 2, 1)
        return out.reshape(r * m, -1)


class _Several(NamedTuple):
    """Distributions of residuals, each for as many of the rows."""

    each: list

    def take(self, columns):
        return _Several([own.take(columns) for own in self.each])

    def log_density_and_slope(self, noise):
        return self._joined([own.log_density_and_slope(rows) for own, rows in self._split(noise)])

    def log_masses(self, noise, below, above):
        return self._joined([own.log_masses(*rows) for own, *rows in self._split(noise, below, above)])

    def _split(self, *arrays):
        return zip(self.each, *[np.split(array, len(self.each)) for array in arrays], strict=True)

    @staticmethod
    def _joined(found):
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def residuals_of(parts: Weights, values) -> tuple[np.ndarray, np.ndarray]:
    """Return values (m, q) less their means in spreads, and less what those before predict."""
    scaled, noise = np.empty(parts.means.shape), np.empty(parts.means.shape)
    values = np.require(values, float, ["C", "W"])
    forward(values, parts.means, parts.log_sd, parts.coefficients, parts.log_rest, scaled, noise)
    return scaled, noise


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
    family = residuals.each[0] if isinstance(residuals, _Several) else residuals
    if isinstance(family, Joint) or not cells.any():
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


# -- the triangular map --------------------------------------------------------------------------------

# Loops over rows of the triangle alone: as quick as machine code, which would take a second to compile.


def forward(values, means, log_sd, coefficients, log_rest, scaled, noise):
    """Fill ``scaled`` = (values - means) / sd and ``noise`` = (scaled_j - sum_k a_jk scaled_k) / rest_j; all (m, q).

    ``coefficients`` (m, q (q - 1) / 2) has the rows of a lower triangle one after another.
    """
    np.subtract(values, means, out=scaled)
    scaled *= np.exp(-log_sd)
    noise[:] = scaled
    for j, row in _rows(coefficients):
        noise[:, j] -= np.einsum("ik,ik->i", coefficients[:, row], scaled[:, :j])
    noise *= np.exp(-log_rest)


def _rows(coefficients):
    """Return the places of the rows of a triangle: number j of a summary that has others before it, and a slice."""
    rows, stop, j = [], 0, 1
    while stop < coefficients.shape[1]:
        rows.append((j, slice(stop, stop + j)))
        stop, j = stop + j, j + 1
    return rows


def backward(
    scaled, noise, log_sd, coefficients, log_rest, slope, widths, to_means, to_log_sd, to_coefficients, to_log_rest
):
    """Fill derivatives of a log density, given its ``slope`` (m, q) by the noise and ``widths`` by log spreads."""
    np.subtract(widths, slope * noise, out=to_log_rest)
    own = slope * np.exp(-log_rest)
    pull = own.copy()
    for j, row in _rows(coefficients):
        pull[:, :j] -= own[:, j, None] * coefficients[:, row]
        np.multiply(-own[:, j, None], scaled[:, :j], out=to_coefficients[:, row])
    np.subtract(widths, pull * scaled, out=to_log_sd)
    np.multiply(-pull, np.exp(-log_sd), out=to_means)


def from_noise(noise, means, log_sd, coefficients, log_rest, values):
    """Fill ``values`` (m, q) that ``forward`` takes to ``noise``."""
    scaled = noise * np.exp(log_rest)
    for j, row in _rows(coefficients):
        scaled[:, j] += np.einsum("ik,ik->i", coefficients[:, row], scaled[:, :j])
    values[:] = means + scaled * np.exp(log_sd)
