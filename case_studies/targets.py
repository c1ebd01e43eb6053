"""Targets with known truth, shared by the tests, the benchmarks and the case studies.

Every target has a compiled log density (up to a constant), exact independent draws, and a chain's start.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

__all__ = ["Target", "banana", "correlated_gaussian", "flower"]


@dataclass(frozen=True, eq=False)
class Target:
    """A law on R^d.

    Attributes
    ----------
    name : str
    num_dims : int
    log_density : callable
        (d,) -> float, compiled, up to a constant.
    sample : callable
        (rng, n) -> (n, d) independent exact draws.
    level : callable
        (n, d) -> (n,): the statistic whose quantile regions the thesis compares, sum of squares of the
        coordinates in which the target is (nearly) standard normal.
    """

    name: str
    num_dims: int
    log_density: Callable[[np.ndarray], float]
    sample: Callable[[np.random.Generator, int], np.ndarray]
    level: Callable[[np.ndarray], np.ndarray]


def banana(bananicity: float, variance: float, num_dims: int = 8) -> Target:
    """Return B(b, v): X ~ N(0, diag(v, 1, ..., 1)) twisted by Y_2 = X_2 + b (X_1^2 - v) (Haario et al. 1999)."""
    b, v = float(bananicity), float(variance)

    @numba.njit
    def log_density(x):
        total = x[0] * x[0] / v
        straight = x[1] - b * (x[0] * x[0] - v)
        total += straight * straight
        for i in range(2, x.shape[0]):
            total += x[i] * x[i]
        return -0.5 * total

    def sample(rng, n):
        x = rng.standard_normal((n, num_dims))
        x[:, 0] *= np.sqrt(v)
        x[:, 1] += b * (x[:, 0] ** 2 - v)
        return x

    def level(x):
        straight = x[:, 1] - b * (x[:, 0] ** 2 - v)
        return x[:, 0] ** 2 / v + straight**2 + (x[:, 2:] ** 2).sum(axis=1)

    return Target(f"banana B({b:g}, {v:g}) {num_dims}-d", num_dims, log_density, sample, level)


def flower(
    radius: float = 10.0, amplitude: float = 6.0, frequency: int = 6, sigma: float = 1.0, num_dims: int = 8
) -> Target:
    """Return F(r0, A, w, s): density exp(-(r - r0 - A cos(w angle))^2 / (2 s^2)) in the first two coordinates.

    The squared radial term is the corrected form; the other coordinates are standard normal.
    """
    r0, a, w, s = float(radius), float(amplitude), float(frequency), float(sigma)

    @numba.njit
    def log_density(x):
        r = np.sqrt(x[0] * x[0] + x[1] * x[1])
        off = (r - r0 - a * np.cos(w * np.arctan2(x[1], x[0]))) / s
        total = off * off
        for i in range(2, x.shape[0]):
            total += x[i] * x[i]
        return -0.5 * total

    def sample(rng, n):
        # In polar coordinates the density is r exp(...): radii from the normal law, thinned in proportion to r.
        bound = r0 + a + 9.0 * s
        kept = np.empty((0, 2))
        while kept.shape[0] < n:
            angle = rng.uniform(-np.pi, np.pi, size=2 * n)
            r = r0 + a * np.cos(w * angle) + s * rng.standard_normal(2 * n)
            take = (r > 0) & (rng.uniform(0.0, bound, size=2 * n) < r)
            kept = np.concatenate([kept, np.stack([r * np.cos(angle), r * np.sin(angle)], axis=1)[take]])
        return np.concatenate([kept[:n], rng.standard_normal((n, num_dims - 2))], axis=1)

    def level(x):
        r = np.hypot(x[:, 0], x[:, 1])
        off = (r - r0 - a * np.cos(w * np.arctan2(x[:, 1], x[:, 0]))) / s
        return off**2 + (x[:, 2:] ** 2).sum(axis=1)

    return Target(f"flower F({r0:g}, {a:g}, {w:g}, {s:g}) {num_dims}-d", num_dims, log_density, sample, level)


def correlated_gaussian(num_dims: int = 10, condition: float = 1000.0, seed: int = 0) -> Target:
    """Return N(0, R diag(variances) R') with variances from 1 to 1 / ``condition`` in equal ratios, R random."""
    rotation = np.linalg.qr(np.random.default_rng(seed).standard_normal((num_dims, num_dims)))[0]
    variances = condition ** -np.linspace(0.0, 1.0, num_dims)
    half_precision = np.ascontiguousarray((rotation / np.sqrt(variances)).T)

    @numba.njit
    def log_density(x):
        total = 0.0
        for i in range(x.shape[0]):
            z = 0.0
            for j in range(x.shape[0]):
                z += half_precision[i, j] * x[j]
            total += z * z
        return -0.5 * total

    def sample(rng, n):
        return rng.standard_normal((n, num_dims)) * np.sqrt(variances) @ rotation.T

    def level(x):
        return ((x @ half_precision.T) ** 2).sum(axis=1)

    return Target(f"Gaussian {num_dims}-d, condition {condition:g}", num_dims, log_density, sample, level)
