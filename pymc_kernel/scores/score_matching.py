"""Score matching: with finitely many random features, or with the basis k(Y_j, .), the lite kernel exponential family.

Also what these and other estimators share: checks, the density q0 that exp(f) multiplies, and the fit.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from pymc_kernel.kernels import Gaussian, Kernel, RadialKernel
from pymc_kernel.kernels.families import random_fourier_features
from pymc_kernel.kernels.points import as_points, as_weights, check_between, check_magnitude, check_whole
from pymc_kernel.linalg import jittered_solve
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import KernelExpansion, cosine_expansion, radial_expansion, within_range


def checked_sample(x, weights) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, d) and weights (n,) that sum to one; raises ``ValueError`` for invalid ones."""
    x = as_points(x, "x")
    check_magnitude(x, "x")
    return x, as_weights(weights, len(x))


class BaseMeasure(NamedTuple):
    """log q0(x) = g . z + z' Q z / 2 with z = x - center, up to a constant."""

    center: np.ndarray  # (d,)
    linear: np.ndarray  # (d,)
    quadratic: np.ndarray  # (d, d)

    def score(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient of log q0 at each row of ``x`` (n, d), shape (n, d)."""
        return self.linear + (x - self.center) @ self.quadratic


def base_measure(name: str, x: np.ndarray, weights: np.ndarray) -> BaseMeasure:
    """Return q0: "uniform" (one everywhere) or "gaussian" (with mean and covariance of the weighted points).

    A Gaussian one gives the surrogate tails where there are no points, and makes Gaussian targets easy.
    """
    d = x.shape[1]
    if name == "uniform":
        return BaseMeasure(np.zeros(d), np.zeros(d), np.zeros((d, d)))
    if name != "gaussian":
        raise ValueError(f'base must be "uniform" or "gaussian", got {name!r}.')
    inside = x[weights > 0.0]
    if (inside == inside[0]).all():
        raise ValueError('the points of x all coincide, so that a Gaussian base has no spread: take base="uniform".')
    mean = weights @ x
    difference = x - mean
    covariance = (difference * weights[:, None]).T @ difference
    return BaseMeasure(mean, np.zeros(d), -np.linalg.inv(covariance + np.diag(ridge_of(covariance, 1e-8))))


def ridge_of(covariance: np.ndarray, share: float) -> np.ndarray:
    """Return a share of each variance (d,), so that units do not matter; of their mean where one is zero."""
    variances = np.diag(covariance)
    return share * np.where(variances > 0.0, variances, max(variances.mean(), 1e-300))


@dataclass(frozen=True)
class ScoreMatching:
    """An estimator of a kernel exponential family exp(f) q0 from draws, by score matching.

    If f is a sum of m functions with coefficients a, the loss is quadratic: a = (C + strength R)^-1 b. Such estimators
    define ``system``, C and b, ``penalty_matrix``, R, and ``assemble``, the surrogate with given coefficients.
    """

    learns_from: ClassVar[str] = "draws"
    smoothness: ClassVar[int]  # derivatives of the kernel's profile that are needed
    kernel: RadialKernel = field(default_factory=lambda: Gaussian("median"))
    regularization: float = 1e-3
    base: str = "gaussian"

    def __post_init__(self):
        if not isinstance(self.kernel, RadialKernel):
            given = type(self.kernel).__name__ if isinstance(self.kernel, Kernel) else repr(self.kernel)
            raise TypeError(f"score matching here needs a radial kernel of pymc_kernel.kernels, got {given}.")
        self.kernel.need_smoothness(self.smoothness, f"{type(self).__name__}()")
        check_between(high=math.inf, regularization=self.regularization)
        check_whole(**{name: getattr(self, name, 1) for name in ("num_basis", "num_features")})

    @within_range
    @one_blas_thread
    def fit(self, x, weights=None, *, rng: np.random.Generator | None = None) -> KernelExpansion:
        """Return the surrogate fitted to draws ``x`` (n, d) with ``weights`` (n,), not negative; they are normalized.

        ``rng`` draws the basis; seed 0 by default.
        """
        x, weights = checked_sample(x, weights)
        estimator, basis = self.prepare(x, rng)
        base = base_measure(self.base, x, weights)
        curvature, slope = estimator.system(x, weights, basis, base)
        penalty = estimator.penalty_matrix(basis)
        curvature += self.regularization * (np.eye(len(curvature)) if penalty is None else penalty)
        return estimator.assemble(jittered_solve(curvature, slope), basis, base)

    def prepare(self, x, rng=None):
        """Return the estimator with a numeric length scale, and its basis."""
        rng = np.random.default_rng(0) if rng is None else rng
        estimator = self.resolved(x, rng)
        return estimator, estimator.draw_basis(x, rng)

    def resolved(self, x, rng):
        """Return the estimator with a number for "median", which is taken over distinct points."""
        distinct = np.unique(x, axis=0) if isinstance(self.kernel.length_scale, str) else x
        return replace(self, kernel=self.kernel.resolve(distinct, rng))

    def penalty_matrix(self, basis):
        """Return R, or None for the identity."""
        return None


@dataclass(frozen=True)
class Finite(ScoreMatching):
    """Kernel exponential family with f = theta @ features(x), random Fourier features of a kernel.

    theta = (C + strength I)^-1 b with C the mean of the sum over dimensions of outer products of feature derivatives
    and b minus the mean of Laplacian plus grad log q0 . gradient of features (Strathmann 2018, section 4.2; no factor
    one half). O(n m (m + d) + m^3) time for m features, O(n m) memory.

    Parameters
    ----------
    kernel : RadialKernel
        One with a spectral density; "median" is resolved on the points.
    num_features : int
    regularization, base
        As of :class:`Lite`.
    """

    smoothness: ClassVar[int] = 0
    num_features: int = 300

    def draw_basis(self, x, rng):
        """Return random features."""
        return random_fourier_features(self.kernel, self.num_features, x.shape[1], rng)

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most, in any number of dimensions."""
        return replace(self, num_features=min(self.num_features, size))

    def system(self, x, weights, basis, base):
        """Return C (m, m) and b (m,). With S = sin(x W' + p), C = 2 / m (W W') o (S' diag(w) S)."""
        frequencies, phases = basis.frequencies, basis.phases
        angles = x @ frequencies.T + phases
        sines = np.sin(angles)
        scale = np.sqrt(2.0 / len(phases))
        slope = scale * (weights @ np.cos(angles)) * (frequencies**2).sum(axis=1)
        slope += scale * (weights @ (sines * (base.score(x) @ frequencies.T)))
        weighted = sines * np.sqrt(weights)[:, None]
        return scale**2 * (frequencies @ frequencies.T) * (weighted.T @ weighted), slope

    def assemble(self, theta, basis, base) -> KernelExpansion:
        """Return the surrogate with these coefficients."""
        phases = basis.phases + basis.frequencies @ base.center
        coefficients = np.sqrt(2.0 / len(phases)) * theta
        return KernelExpansion(cosine_expansion(basis.frequencies, phases, coefficients, **base._asdict()))


@dataclass(frozen=True)
class Lite(ScoreMatching):
    """Kernel exponential family with f = sum_j a_j k(Y_j, .), fitted by score matching.

    a = (C + strength R)^-1 b with C_jl = mean of grad k(x, Y_j) . grad k(x, Y_l) and b_j = minus the mean of Laplacian
    k(x, Y_j) + grad log q0(x) . grad k(x, Y_j), over the points x (Strathmann 2018, section 4.2). O(n m^2 + m^3) time
    for n points and m basis points whatever d is, O((n + m) m) memory.

    Parameters
    ----------
    kernel : RadialKernel
        At least twice differentiable at zero distance; "median" is resolved on the points.
    regularization : float
        Its strength, above 0.
    penalty : {"l2", "rkhs"}
        R is the identity, or the Gram matrix of the basis.
    base : {"gaussian", "uniform"}
        The base measure q0.
    num_basis : int
        Largest size of the basis; a random subset of the points if there are more.
    """

    smoothness: ClassVar[int] = 2
    penalty: str = "l2"
    num_basis: int = 1000

    def __post_init__(self):
        super().__post_init__()
        if self.penalty not in ("l2", "rkhs"):
            raise ValueError(f'penalty must be "l2" or "rkhs", got {self.penalty!r}.')

    def draw_basis(self, x, rng):
        """Return the points, or a random subset of them."""
        return x if len(x) <= self.num_basis else x[rng.choice(len(x), self.num_basis, replace=False)]

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most, in any number of dimensions."""
        return replace(self, num_basis=min(self.num_basis, size))

    def penalty_matrix(self, basis):
        """Return R, or None for the identity."""
        return None if self.penalty == "l2" else self.kernel(basis)

    def system(self, x, weights, basis, base):
        """Return C (m, m) and b (m,).

        With P = 2 phi' and u = x / l^2, grad k(x, Y_j) = P_j (u - u_j), so that C = A'B + B'A + (A'A) o (U U') for
        A = sqrt(w) P and B = A o (|u|^2 / 2 - u . u_j): one product and one symmetric one, whatever d is.
        """
        d = x.shape[1]
        inverse_square = self.kernel.inverse_length_scale(d) ** 2
        center = basis.mean(axis=0)
        u, u_basis = (x - center) * inverse_square, (basis - center) * inverse_square
        base_score = base.score(x)
        # First the terms of the slope, Laplacian 4 phi'' |v|^2 + 2 T phi', v = u - u_j, and base score times gradient.
        second = 0.5 * (u * u).sum(axis=1)[:, None] - u @ u_basis.T  # |u|^2 / 2 - u . u_j
        norm = np.maximum(second + 0.5 * (u_basis**2).sum(axis=1), 0.0)  # |v|^2 / 2
        first = 2.0 * self.kernel.profile_matrix(x, basis, 1)
        terms = first * ((base_score * u).sum(axis=1)[:, None] - base_score @ u_basis.T + inverse_square.sum())
        slope = -(weights @ terms) - 8.0 * (weights @ (norm * self.kernel.profile_matrix(x, basis, 2)))
        first *= np.sqrt(weights)[:, None]
        product = first.T @ (first * second)
        # NumPy recognizes a matrix times its transpose as symmetric and computes half of it.
        return product + product.T + (first.T @ first) * (u_basis @ u_basis.T), slope

    def assemble(self, coefficients, basis, base) -> KernelExpansion:
        """Return the surrogate with these coefficients."""
        return KernelExpansion(radial_expansion(self.kernel, basis, coefficients, **base._asdict()))
