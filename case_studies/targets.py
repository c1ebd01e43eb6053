"""Targets with known truth, shared by the tests, the benchmarks and the case studies.

Every target has a compiled log density (up to a constant), exact independent draws, and a chain's start.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

__all__ = ["Target", "banana", "correlated_gaussian", "flower", "gamma_gaussian", "grid", "ring"]


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
    score : callable, optional
        (n, d) -> (n, d), gradients of the log density, where a study needs them.
    """

    name: str
    num_dims: int
    log_density: Callable[[np.ndarray], float]
    sample: Callable[[np.random.Generator, int], np.ndarray]
    level: Callable[[np.ndarray], np.ndarray]
    score: Callable[[np.ndarray], np.ndarray] | None = None


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
    return _gaussian(f"Gaussian {num_dims}-d, condition {condition:g}", rotation, variances)


def gamma_gaussian(num_dims: int, seed: int = 0) -> Target:
    """Return a Gaussian with variances drawn from Gamma(1, 1) in randomly rotated axes (thesis, section 4.4.1)."""
    rng = np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((num_dims, num_dims)))[0]
    return _gaussian(f"Gaussian {num_dims}-d, gamma spectrum", rotation, rng.gamma(1.0, 1.0, size=num_dims))


def _gaussian(name, rotation, variances):
    num_dims = len(variances)
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

    def score(x):
        return -(x @ half_precision.T) @ half_precision

    return Target(name, num_dims, log_density, sample, level, score)


def ring(num_dims: int = 2, radii=(1.0, 3.0, 5.0), sigma: float = 0.1) -> Target:
    """Return circles in the first two coordinates, weights in proportion to their lengths (thesis, section 6.3.1).

    The radius is normal around that of a circle, and the other coordinates are normal, all with ``sigma``.
    """
    circles = np.array(radii, dtype=float)
    log_weights = np.log(circles / circles.sum())
    s = float(sigma)

    @numba.njit
    def log_density(x):
        r = np.sqrt(x[0] * x[0] + x[1] * x[1])
        exponents = log_weights - 0.5 * ((r - circles) / s) ** 2
        top = exponents.max()
        total = top + np.log(np.exp(exponents - top).sum()) - np.log(r)
        for i in range(2, x.shape[0]):
            total -= 0.5 * (x[i] / s) ** 2
        return total

    def sample(rng, n):
        circle = rng.choice(circles, size=n, p=np.exp(log_weights))
        r = circle + s * rng.standard_normal(n)
        angle = rng.uniform(0.0, 2.0 * np.pi, size=n)
        x = s * rng.standard_normal((n, num_dims))
        x[:, 0], x[:, 1] = r * np.cos(angle), r * np.sin(angle)
        return x

    def level(x):
        r = np.hypot(x[:, 0], x[:, 1])
        off = np.abs(r[:, None] - circles).min(axis=1)
        return (off / s) ** 2 + ((x[:, 2:] / s) ** 2).sum(axis=1)

    def score(x):
        r = np.hypot(x[:, 0], x[:, 1])
        exponents = log_weights - 0.5 * ((r[:, None] - circles) / s) ** 2
        shares = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        slope = (shares * (circles - r[:, None])).sum(axis=1) / s**2 - 1.0 / r
        out = -x / s**2
        out[:, :2] = (slope / r)[:, None] * x[:, :2]
        return out

    return Target(f"ring {num_dims}-d", num_dims, log_density, sample, level, score)


def grid(num_dims: int = 2, side: float = 4.0, seed: int = 0) -> Target:
    """Return an equal mixture of d unit normals at distinct random vertices of a hypercube (thesis, section 6.3.1).

    The thesis states neither the side of the cube nor the width of the normals; these leave a gap between modes.
    """
    rng = np.random.default_rng(seed)
    vertices = []
    while len(vertices) < num_dims:
        vertex = tuple(rng.random(num_dims) < 0.5)
        if vertex not in vertices:
            vertices.append(vertex)
    centres = side * np.array(vertices, dtype=float)

    @numba.njit
    def log_density(x):
        exponents = np.empty(centres.shape[0])
        for a in range(centres.shape[0]):
            exponents[a] = -0.5 * ((x - centres[a]) ** 2).sum()
        top = exponents.max()
        return top + np.log(np.exp(exponents - top).sum())

    def sample(rng, n):
        return centres[rng.integers(num_dims, size=n)] + rng.standard_normal((n, num_dims))

    def distances(x):
        return ((x[:, None] - centres) ** 2).sum(axis=2)

    def level(x):
        return distances(x).min(axis=1)

    def score(x):
        exponents = -0.5 * distances(x)
        shares = np.exp(exponents - exponents.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        return shares @ centres - x

    return Target(f"grid {num_dims}-d", num_dims, log_density, sample, level, score)
