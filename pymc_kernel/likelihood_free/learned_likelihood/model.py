"""A conditional density: triangular map whose entries are sums of features. Imports NumPy and siblings only."""

from dataclasses import dataclass

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap
from pymc_kernel.likelihood_free.learned_likelihood.triangular import backward, forward, from_noise

__all__ = ["ConditionalDensity", "Weights", "pull_back", "residuals_of"]

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

    def entries(self, features: np.ndarray) -> "Weights":
        """Return means, log spreads and coefficients (m, ...) of features (m, p)."""
        q = self.means.shape[1]
        joined = features @ np.hstack([self.means, self.log_sd, self.log_rest])
        np.clip(joined[:, q:], -_MAX_LOG_SD, _MAX_LOG_SD, out=joined[:, q:])
        parts = [np.ascontiguousarray(joined[:, k * q : (k + 1) * q]) for k in range(3)]
        coefficients = features[:, : len(self.coefficients)] @ self.coefficients
        return Weights(parts[0], parts[1], coefficients, parts[2])

    def pulled(self, pulls: "Weights") -> np.ndarray:
        """Return derivatives (m, p) by the features, given those by the entries."""
        out = (
            np.hstack([pulls.means, pulls.log_sd, pulls.log_rest])
            @ np.hstack([self.means, self.log_sd, self.log_rest]).T
        )
        out[:, : len(self.coefficients)] += pulls.coefficients @ self.coefficients.T
        return out


@dataclass(frozen=True, eq=False)
class ConditionalDensity:
    """The density of transformed summaries given parameters."""

    parameters: ParameterMap
    features: FeatureMap
    weights: Weights
    residuals: object

    @property
    def num_summaries(self) -> int:
        """How many summaries there are."""
        return self.weights.means.shape[1]

    def log_density(self, parameters, values, gradient: bool = False):
        """Return log densities (m,) of ``values`` (m, q) at ``parameters`` (m, d), and gradients (m, d) if wanted."""
        density, slopes = np.empty(len(parameters)), np.empty(parameters.shape)
        for start in range(0, len(parameters), _ROWS):
            rows = slice(start, start + _ROWS)
            density[rows], slopes[rows] = self._log_density(parameters[rows], values[rows], gradient)
        return (density, slopes) if gradient else density

    def _log_density(self, parameters, values, gradient):
        z = self.parameters(parameters)
        features = self.features(z)
        parts = self.weights.entries(features)
        scaled, noise = residuals_of(parts, values)
        density, slope = self.residuals.log_density_and_slope(noise)
        density = density - parts.log_sd.sum(axis=1) - parts.log_rest.sum(axis=1)
        if not gradient:
            return density, 0.0
        pulls = pull_back(parts, scaled, noise, slope)
        back = self.features.pull_back(z, features, self.weights.pulled(pulls))
        return density, back * self.parameters.slope(parameters)

    def sample(self, parameters, rng) -> np.ndarray:
        """Return one draw of the values (m, q) for each of the parameters (m, d)."""
        out = np.empty((len(parameters), self.num_summaries))
        for start in range(0, len(parameters), _ROWS):
            part = parameters[start : start + _ROWS]
            entries = self.weights.entries(self.features(self.parameters(part)))
            noise = np.ascontiguousarray(self.residuals.sample(len(part), rng))
            from_noise(
                noise, entries.means, entries.log_sd, entries.coefficients, entries.log_rest, out[start : start + _ROWS]
            )
        return out


def residuals_of(parts: Weights, values) -> tuple[np.ndarray, np.ndarray]:
    """Return values (m, q) less their means in spreads, and less what those before predict."""
    scaled, noise = np.empty(parts.means.shape), np.empty(parts.means.shape)
    values = np.require(values, float, ["C", "W"])
    forward(values, parts.means, parts.log_sd, parts.coefficients, parts.log_rest, scaled, noise)
    return scaled, noise


def pull_back(parts: Weights, scaled, noise, slope) -> Weights:
    """Return derivatives of log densities by the entries of the triangular map."""
    out = Weights(*[np.empty(p.shape) for p in parts.parts()])
    slope = np.require(slope, float, ["C", "W"])
    backward(
        scaled,
        noise,
        parts.log_sd,
        parts.coefficients,
        parts.log_rest,
        slope,
        out.means,
        out.log_sd,
        out.coefficients,
        out.log_rest,
    )
    return out
