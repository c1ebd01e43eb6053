"""Distributions of residuals: independent or joint mixtures of normals, by expectation-maximization."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.special import ndtr

from pymc_kernel.kernels.points import LARGEST
from pymc_kernel.linalg import LOG_2PI

_SMALLEST_MASS = 1e-200
_NARROW = 1e-3  # width of an interval, in units of the residuals
_ITERATIONS = 60
_GAIN = 1e-4  # gain of mean log density below which iterations end, of joint residuals; half of it for each other one
_PRIOR_COUNT = 2.0  # cases that the prior of a component's covariance counts for
_PRIOR_VARIANCE = 0.1  # relative to the variance of a share of the residuals
_SCALES = 4.0  # ratio of neighboring standard deviations at the start of mixtures of scales
_NARROWEST = 1e-3  # standard deviation of a component at the start, relative to that of all
_FEWEST_IN_TAIL = 5  # cases that an outermost component starts with


class _Mixture:
    """Base class of independent and of joint residuals."""

    def one_of(self, number) -> Self:
        """Return one of r distributions that are stacked, or a slice of them."""
        return type(self)(*[getattr(self, field.name)[number] for field in fields(self)])

    def log_densities(self, noise: np.ndarray) -> np.ndarray:
        """Return log densities: (m, q) of independent residuals, (m,) of joint ones. O(m k q^2) time, m k q numbers."""
        return _log_sum(self._parts(noise)[1])

    def fitted(self, noise, weights, iterations=_ITERATIONS) -> Self:
        """Return the distribution after iterations of expectation-maximization that start at this one."""
        current, before = self, -np.inf
        for _ in range(iterations):
            _, parts = current._parts(noise)
            density = _log_sum(parts)
            shares = np.exp(parts - density) * weights.reshape(-1, *[1] * (density.ndim - 1))
            current = self._maximized(noise, shares)
            score = weights @ density.reshape(len(noise), -1).mean(axis=1) / weights.sum()
            if score - before < self._least_gain:
                break
            before = score
        return current


@dataclass(frozen=True, eq=False)
class Marginals(_Mixture):
    """Independent residuals, each from a mixture of k normals; ``log_weights``, ``means``, ``sds`` are (..., q, k)."""

    log_weights: np.ndarray
    means: np.ndarray
    sds: np.ndarray
    _least_gain = _GAIN / 2

    def _parts(self, noise):
        """Return standardized residuals and log densities (k, ..., m, q) of each component, components first."""
        away = np.clip((noise - _components_first(self.means)) / _components_first(self.sds), -LARGEST, LARGEST)
        return away, _components_first(self.log_weights - np.log(self.sds) - 0.5 * LOG_2PI) - 0.5 * away**2

    def log_density_and_slope(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (..., m) of residuals (..., m, q), and their derivatives (..., m, q)."""
        if self.log_weights.shape[-1] == 1:  # one normal each: else a likelihood of 60 rows takes a fifth longer
            means, sds = (v[..., None, :, 0] for v in (self.means, self.sds))
            away = np.clip((noise - means) / sds, -LARGEST, LARGEST)
            density = -0.5 * (away**2).sum(axis=-1) - (np.log(sds) + 0.5 * LOG_2PI).sum(axis=-1)
            return density, -away / sds
        density, slope = self._columns(noise)
        return density.sum(axis=-1), slope

    def take(self, columns) -> "Marginals":
        """Return the distribution of some of the residuals."""
        return Marginals(*[values[..., columns, :] for values in (self.log_weights, self.means, self.sds)])

    def log_masses(self, noise, below, above) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log probabilities (..., m, q) of intervals about the noise; derivatives by noise and by log spread.

        Where an interval is narrow or far out its probability is density times width.
        """
        means, sds, weights = (_components_first(v) for v in (self.means, self.sds, np.exp(self.log_weights)))
        low, high = ((edge - means) / sds for edge in (noise - below, noise + above))
        # From the nearer tail, so that small differences are exact.
        upper = low > 0.0
        masses = ndtr(np.where(upper, -low, high)) - ndtr(np.where(upper, -high, low))
        mass = (weights * masses).sum(axis=0)
        heights = [np.exp(-0.5 * np.minimum(edge**2, 1400.0) - 0.5 * LOG_2PI) for edge in (low, high)]
        f_low, f_high = ((weights / sds * height).sum(axis=0) for height in heights)
        wide = (mass > _SMALLEST_MASS) & (below + above > _NARROW)
        safe = np.where(wide, mass, 1.0)
        finite = np.isfinite(below)
        width = np.where(finite, below, above) + above
        plain, pull = self._columns(noise)
        log_mass = np.where(wide, np.log(safe), plain + np.log(width))
        to_noise = np.where(wide, (f_high - f_low) / safe, pull)
        to_width = np.where(wide, -(f_high * above + f_low * np.where(finite, below, 0.0)) / safe, -1.0)
        return log_mass, to_noise, to_width

    def _columns(self, noise):
        away, parts = self._parts(noise)
        density = _log_sum(parts)
        return density, -(np.exp(parts - density) * away / _components_first(self.sds)).sum(axis=0)

    def sample(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return residuals (number, q)."""
        q, _ = self.sds.shape
        edges = np.cumsum(np.exp(self.log_weights), axis=1)
        which = (rng.random((number, q))[:, :, None] * edges[:, -1:] > edges).sum(axis=2)
        rows = np.arange(q)
        return self.means[rows, which] + self.sds[rows, which] * rng.standard_normal((number, q))

    def scaled(self, factor: float) -> "Marginals":
        """Return the distribution of residuals times ``factor``."""
        return replace(self, means=self.means * factor, sds=self.sds * factor)

    @classmethod
    def _maximized(cls, noise, shares) -> "Marginals":
        """Return the mixtures for shares (k, n, q) of the cases, with a weak prior on their variances."""
        counts = shares.sum(axis=1).T
        means = np.einsum("knq,nq->qk", shares, noise) / np.maximum(counts, 1e-10)
        squares = np.einsum("knq,knq->qk", shares, (noise - _components_first(means)) ** 2)
        prior = _PRIOR_VARIANCE / means.shape[1] ** 2
        sds = np.sqrt((squares + _PRIOR_COUNT * prior) / (counts + _PRIOR_COUNT))
        log_weights = np.log((counts + 1e-3) / (counts.sum(axis=1, keepdims=True) + 1e-3 * counts.shape[1]))
        return cls(log_weights, means, sds)

    @classmethod
    def start(cls, noise, number: int) -> "Marginals":
        """Return components that differ in spread and, a little, in place."""
        sds = _SCALES ** (np.arange(number) - 0.6 * (number - 1))
        means = 0.5 * np.where(np.arange(number) % 2, 1.0, -1.0) * np.minimum(sds, 1.0)
        of_one = np.full(number, -np.log(number)), means, sds
        return cls(*[np.tile(values, (noise.shape[1], 1)) for values in of_one])

    @classmethod
    def of_quantiles(cls, noise, number: int) -> "Marginals":
        """Return an even number of components, each fitted to the cases between two quantiles.

        Tail probabilities halve outward, so the outermost two components fit thin tails, and iterations from here can
        reach a distribution with an edge or with long tails.
        """
        levels = 0.5 ** np.arange(1, number // 2 + 1)
        edges = np.round(len(noise) * np.concatenate([[0.0], levels[::-1], 1.0 - levels[1:], [1.0]])).astype(int)
        groups = [np.split(column, edges[1:-1]) for column in np.sort(noise, axis=0).T]
        means = np.array([[group.mean() for group in column] for column in groups])
        sds = np.array([[group.std() for group in column] for column in groups])
        log_weights = np.tile(np.log(np.diff(edges) / len(noise)), (len(groups), 1))
        return cls(log_weights, means, np.maximum(sds, _NARROWEST * noise.std(axis=0)[:, None] + 1e-300))


@dataclass(frozen=True, eq=False)
class Joint(_Mixture):
    """Residual vectors from a mixture of k normals.

    ``log_weights`` (..., k), ``means`` (..., k, q), ``roots`` (..., k, q, q): inverses of the Cholesky factors of
    covariances.
    """

    log_weights: np.ndarray
    means: np.ndarray
    roots: np.ndarray
    _least_gain = _GAIN

    def _parts(self, noise):
        """Return standardized residuals (k, ..., m, q) and log densities (k, ..., m) of each component."""
        away = (noise - _components_first(self.means.mT)) @ np.moveaxis(self.roots, -3, 0).mT
        log_volume = np.log(np.diagonal(self.roots, axis1=-2, axis2=-1)).sum(axis=-1)
        constant = np.moveaxis(self.log_weights + log_volume - 0.5 * noise.shape[-1] * LOG_2PI, -1, 0)
        return away, constant[..., None] - 0.5 * np.einsum("...q,...q->...", away, away)

    def log_density_and_slope(self, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (..., m) of residuals (..., m, q), and their derivatives (..., m, q)."""
        away, parts = self._parts(noise)
        density = _log_sum(parts)
        pulls = np.exp(parts - density)[..., None] * away
        return density, -(pulls @ np.moveaxis(self.roots, -3, 0)).sum(axis=0)

    def sample(self, number: int, rng: np.random.Generator) -> np.ndarray:
        """Return residuals (number, q)."""
        weights = np.exp(self.log_weights)
        which = rng.choice(len(weights), number, p=weights / weights.sum())
        draws = rng.standard_normal((number, self.means.shape[1]))
        for c, factor in enumerate(np.linalg.inv(self.roots)):  # one at a time: O(number q) memory
            draws[which == c] = self.means[c] + draws[which == c] @ factor.T
        return draws

    def scaled(self, factor: float) -> "Joint":
        """Return the distribution of residuals times ``factor``."""
        return replace(self, means=self.means * factor, roots=self.roots / factor)

    @classmethod
    def _maximized(cls, noise, shares) -> "Joint":
        """Return the mixture for shares (k, n) of the cases, with a weak prior on its covariances."""
        k, q = len(shares), noise.shape[1]
        counts = shares.sum(axis=1)
        prior = _PRIOR_VARIANCE * k ** (-2.0 / q) * np.eye(q)
        means, roots = np.empty((k, q)), np.empty((k, q, q))
        for c in range(k):
            means[c] = shares[c] @ noise / max(counts[c], 1e-10)
            away = noise - means[c]
            covariance = ((away * shares[c, :, None]).T @ away + _PRIOR_COUNT * prior) / (counts[c] + _PRIOR_COUNT)
            roots[c] = np.linalg.inv(np.linalg.cholesky(covariance))
        return cls(np.log((counts + 1e-3) / (counts.sum() + 1e-3 * k)), means, roots)

    @classmethod
    def of_scales(cls, noise, number: int) -> "Joint":
        """Return components that differ in spread alone."""
        q = noise.shape[1]
        sds = 2.0 * _SCALES ** -np.arange(number, dtype=float)
        return cls(np.full(number, -np.log(number)), np.zeros((number, q)), np.eye(q) / sds[:, None, None])

    @classmethod
    def of_places(cls, noise, weights, number: int, rng) -> "Joint":
        """Return components in different places: parts of the residuals by k-means."""
        labels = clusters(np.clip(noise, -3.0, 3.0), number, 10, rng)
        return cls._maximized(noise, (np.eye(number)[labels] * weights[:, None]).T)


Residuals = Marginals | Joint


def stacked(each: Sequence[Residuals]) -> Residuals:
    """Return r distributions of one family and number of components as one distribution of residuals (r, m, q)."""
    kind = type(each[0])
    return kind(*[np.stack([getattr(one, field.name) for one in each]) for field in fields(kind)])


def clusters(points: np.ndarray, number: int, iterations: int, rng: np.random.Generator) -> np.ndarray:
    """Return the cluster (n,) of each of the points (n, d), by k-means."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="One of the clusters is empty")  # then there are fewer
        return kmeans2(points, number, iter=iterations, minit="++", rng=rng)[1]


def _components_first(values):
    """Return numbers of each column and component (..., q, k) with the components first: (k, ..., 1, q)."""
    return values.transpose(-1, *range(values.ndim - 1))[..., None, :]


def _log_sum(parts):
    """Return the logarithm of the sum over components, the first dimension, of exponentials."""
    largest = parts.max(axis=0)
    largest = np.where(np.isfinite(largest), largest, 0.0)  # where all terms are zero, so is their sum
    with np.errstate(divide="ignore"):
        return np.log(np.exp(parts - largest).sum(axis=0)) + largest


def candidates(noise, weights, rng):
    """Yield lists of functions, each of which fits a distribution to residuals (n, q); lists go from simple to rich."""
    n, q = noise.shape
    for sizes in (1,), (2, 3, 5):
        yield [lambda k=k: Marginals.start(noise, k).fitted(noise, weights) for k in sizes]
    sizes = [k for k in (4, 6, 8, 10) if n * 0.5 ** (k // 2) >= _FEWEST_IN_TAIL]
    yield [lambda k=k: Marginals.of_quantiles(noise, k).fitted(noise, weights) for k in sizes]
    if q > 1:
        most = n / (2.0 * q * (q + 3))
        yield [lambda k=k: Joint.of_scales(noise, k).fitted(noise, weights) for k in (2, 3) if k <= most]
        sizes = (2, 4, 8, 14, 22)
        yield [lambda k=k: Joint.of_places(noise, weights, k, rng).fitted(noise, weights) for k in sizes if k <= most]
