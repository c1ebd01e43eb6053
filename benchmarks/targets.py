"""Targets with known truth, shared by the tests, the benchmarks and the case studies.

Every target has a compiled log density (up to a constant), exact independent draws, and a chain's start.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np
from scipy import optimize, stats
from scipy.special import softmax


@dataclass(frozen=True, eq=False)
class Target:
    """A distribution on R^d.

    Attributes
    ----------
    name : str
    num_dims : int
    log_density : callable
        (d,) -> float, compiled, up to a constant.
    sample : callable
        (rng, n) -> (n, d) independent exact draws.
    level : callable, optional
        (n, d) -> (n,), where a study needs it: the statistic whose quantile regions the thesis compares, sum of
        squares of the coordinates in which the target is (nearly) standard normal.
    score : callable, optional
        (n, d) -> (n, d), gradients of the log density, where a study needs them.
    start : ndarray (d,), optional
        Where all chains start, if the target is about a poor start.
    """

    name: str
    num_dims: int
    log_density: Callable[[np.ndarray], float]
    sample: Callable[[np.random.Generator, int], np.ndarray]
    level: Callable[[np.ndarray], np.ndarray] | None = None
    score: Callable[[np.ndarray], np.ndarray] | None = None
    start: np.ndarray | None = None


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
        # In polar coordinates the density is r exp(...): normal radii, thinned in proportion to r.
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

    def score(x):
        r = np.hypot(x[:, 0], x[:, 1])
        exponents = log_weights - 0.5 * ((r[:, None] - circles) / s) ** 2
        slope = (softmax(exponents, axis=1) * (circles - r[:, None])).sum(axis=1) / s**2 - 1.0 / r
        out = -x / s**2
        out[:, :2] = (slope / r)[:, None] * x[:, :2]
        return out

    return Target(f"ring {num_dims}-d", num_dims, log_density, sample, score=score)


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
    return _normal_mixture(f"grid {num_dims}-d", side * np.array(vertices, dtype=float))


def bimodal(num_dims: int = 4, distance: float = 4.0) -> Target:
    """Return an equal mixture of two unit normals whose centers are ``distance`` apart."""
    half = np.full(num_dims, distance / 2.0 / np.sqrt(num_dims))
    return _normal_mixture(f"two modes {num_dims}-d", np.stack([-half, half]))


def _normal_mixture(name, centers):
    num_dims = centers.shape[1]

    @numba.njit
    def log_density(x):
        exponents = np.empty(centers.shape[0])
        for a in range(centers.shape[0]):
            exponents[a] = -0.5 * ((x - centers[a]) ** 2).sum()
        top = exponents.max()
        return top + np.log(np.exp(exponents - top).sum())

    def sample(rng, n):
        return centers[rng.integers(len(centers), size=n)] + rng.standard_normal((n, num_dims))

    def score(x):
        return softmax(-0.5 * ((x[:, None] - centers) ** 2).sum(axis=2), axis=1) @ centers - x

    return Target(name, num_dims, log_density, sample, score=score)


def student(degrees: float = 5.0, num_dims: int = 6, correlation: float = 0.8) -> Target:
    """Return the multivariate Student t with equal correlations of its scale matrix."""
    shape = (1.0 - correlation) * np.eye(num_dims) + correlation
    factor = np.linalg.cholesky(shape)
    precision = np.linalg.inv(shape)

    @numba.njit
    def log_density(x):
        return -0.5 * (degrees + x.shape[0]) * np.log1p(x @ (precision @ x) / degrees)

    def sample(rng, n):
        normal = rng.standard_normal((n, num_dims)) @ factor.T
        return normal / np.sqrt(rng.chisquare(degrees, size=(n, 1)) / degrees)

    return Target(f"Student t {degrees:g}, {num_dims}-d", num_dims, log_density, sample)


def funnel(num_dims: int = 6, spread: float = 1.5) -> Target:
    """Return x_1 ~ N(0, spread^2), the others N(0, exp(x_1)) given it (Neal 2003, milder)."""

    @numba.njit
    def log_density(x):
        total = (x[1:] ** 2).sum()
        return -0.5 * ((x[0] / spread) ** 2 + total * np.exp(-x[0]) + (x.shape[0] - 1) * x[0])

    def sample(rng, n):
        x = rng.standard_normal((n, num_dims))
        x[:, 0] *= spread
        x[:, 1:] *= np.exp(x[:, :1] / 2.0)
        return x

    return Target(f"funnel {num_dims}-d", num_dims, log_density, sample)


def ridge(num_dims: int = 6, height: float = 2.0, frequency: float = 2.0, width: float = 0.1) -> Target:
    """Return x_1 ~ N(0, 3^2), x_2 ~ N(height sin(frequency x_1), width^2), the others standard normal."""

    @numba.njit
    def log_density(x):
        total = (x[0] / 3.0) ** 2 + ((x[1] - height * np.sin(frequency * x[0])) / width) ** 2
        return -0.5 * (total + (x[2:] ** 2).sum())

    def sample(rng, n):
        x = rng.standard_normal((n, num_dims))
        x[:, 0] *= 3.0
        x[:, 1] = height * np.sin(frequency * x[:, 0]) + width * x[:, 1]
        return x

    return Target(f"ridge {num_dims}-d", num_dims, log_density, sample)


def linear_regression(num_dims: int = 8, num_data: int = 200, seed: int = 7) -> Target:
    """Return the posterior of d - 1 coefficients and the log of the noise's scale, under flat priors.

    Coefficients are some three units and known to some hundredths: a chain that starts at zero has fifty standard
    deviations to go, along a valley that bends.
    """
    rng = np.random.default_rng(seed)
    num_coefficients = num_dims - 1
    covariates = rng.standard_normal((num_data, num_coefficients))
    response = covariates @ (3.0 * rng.standard_normal(num_coefficients)) + rng.standard_normal(num_data)
    precision = covariates.T @ covariates
    best = np.linalg.solve(precision, covariates.T @ response)
    residual = float(((response - covariates @ best) ** 2).sum())
    root = np.linalg.inv(np.linalg.cholesky(precision)).T

    @numba.njit
    def log_density(x):
        off = residual
        for i in range(num_coefficients):
            for j in range(num_coefficients):
                off += (x[i] - best[i]) * precision[i, j] * (x[j] - best[j])
        return -num_data * x[num_coefficients] - 0.5 * off * np.exp(-2.0 * x[num_coefficients])

    def sample(rng, n):
        variances = residual / rng.chisquare(num_data - num_coefficients, size=n)
        off = rng.standard_normal((n, num_coefficients)) @ root.T
        return np.column_stack([best + np.sqrt(variances)[:, None] * off, 0.5 * np.log(variances)])

    return Target(f"linear regression {num_dims}-d", num_dims, log_density, sample, start=np.zeros(num_dims))


def logistic_regression(num_dims: int = 10, num_data: int = 100, seed: int = 0) -> Target:
    """Return the posterior of a logistic regression with correlated covariates under a N(0, 3^2) prior.

    Draws are resampled from a Student t around the mode, 20 proposals each: exact but for that finite number.
    """
    rng = np.random.default_rng(seed)
    covariates = rng.standard_normal((num_data, num_dims)) + rng.standard_normal((num_data, 1))
    signs = np.where(rng.random(num_data) < 1.0 / (1.0 + np.exp(-covariates @ np.linspace(-1, 1, num_dims))), 1.0, -1.0)
    signed = covariates * signs[:, None]

    @numba.njit
    def log_density(x):
        return -np.log1p(np.exp(-(signed @ x))).sum() - 0.5 * (x @ x) / 9.0

    def many(x):
        return -np.logaddexp(0.0, -x @ signed.T).sum(axis=1) - 0.5 * (x**2).sum(axis=1) / 9.0

    def sample(rng, n):
        mode = optimize.minimize(lambda x: -many(x[None])[0], np.zeros(num_dims), method="BFGS", tol=1e-8).x
        chance = 1.0 / (1.0 + np.exp(-signed @ mode))
        curvature = (signed * (chance * (1.0 - chance))[:, None]).T @ signed + np.eye(num_dims) / 9.0
        proposal = stats.multivariate_t(mode, 1.1 * np.linalg.inv(curvature), df=8, seed=rng)
        drawn = []
        for _ in range(20):
            x = proposal.rvs(n)
            weights = many(x) - proposal.logpdf(x)
            weights = np.exp(weights - weights.max())
            drawn.append(x[rng.choice(n, -(-n // 20), p=weights / weights.sum())])
        return rng.permutation(np.concatenate(drawn))[:n]

    return Target(f"logistic regression {num_dims}-d", num_dims, log_density, sample)
