"""Score matching with finitely many random features, with exact online updates. Imports NumPy and lower floors only."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.kernels import Gaussian, RadialKernel
from pymc_kernel.kernels.features import random_fourier_features
from pymc_kernel.kernels.points import as_numbers
from pymc_kernel.linalg import cholesky_update_upper, jittered_cholesky
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.base_measure import BaseMeasure, base_measure
from pymc_kernel.scores.expansion import cosine_expansion
from pymc_kernel.scores.kernel_expansion import KernelExpansion, within_range
from pymc_kernel.scores.lite import check_strength, checked_kernel, checked_sample, regularized_solve, resolved_kernel

__all__ = ["Finite", "OnlineFinite"]


@dataclass(frozen=True)
class Finite:
    """Kernel exponential family with f = theta . features(x), random Fourier features of a kernel.

    theta = (C + strength I)^-1 b with C the mean of the sum over dimensions of outer products of feature
    derivatives and b minus the mean of their summed second derivatives (Strathmann 2018, section 4.2; no factor
    one half anywhere).

    Parameters
    ----------
    kernel : RadialKernel
        One with a spectral density; "median" is resolved on the points.
    num_features : int
    regularization : float
        Its strength, above 0.
    base : {"gaussian", "uniform"}
        The base measure q0.

    Notes
    -----
    O(n m (m + d) + m^3) time for m features, O(n m) memory.
    """

    learns_from: ClassVar[str] = "draws"
    kernel: RadialKernel = field(default_factory=lambda: Gaussian("median"))
    num_features: int = 300
    regularization: float = 1e-3
    base: str = "gaussian"

    def __post_init__(self):
        checked_kernel(self.kernel, 0)
        if not (isinstance(self.num_features, int | np.integer) and self.num_features >= 1):
            raise ValueError(f"num_features must be a whole number >= 1, got {self.num_features!r}.")
        check_strength(self.regularization)

    @within_range
    @one_blas_thread
    def fit(self, x, weights=None, *, basis=None, rng: np.random.Generator | None = None) -> KernelExpansion:
        """Return the surrogate fitted to draws ``x`` (n, d) with ``weights`` (n,); ``rng`` draws the features.

        ``basis`` is a pair (frequencies (m, d), phases (m,)) to use instead of random ones.
        """
        x, weights = checked_sample(x, weights)
        estimator, basis = self.prepare(x, basis, rng)
        curvature, slope, base = estimator.system(x, weights, basis)
        theta = regularized_solve(curvature, slope, None, self.regularization)
        return estimator.assemble(theta, basis, base)

    def prepare(self, x, basis=None, rng=None):
        """Return the estimator with a numeric length scale, and the features' (frequencies, phases)."""
        rng = np.random.default_rng(0) if rng is None else rng
        estimator = replace(self, kernel=resolved_kernel(self.kernel, x, rng))
        if basis is None:
            features = random_fourier_features(estimator.kernel, self.num_features, x.shape[1], rng)
            basis = (features.frequencies, features.phases)
        return estimator, basis

    def limited(self, size: int, num_dims: int):
        """Return the estimator with ``size`` coefficients at most, in any number of dimensions."""
        return replace(self, num_features=min(self.num_features, size))

    def penalty_matrix(self, basis):
        """Return R, or None for the identity."""
        return None

    def system(self, x, weights, basis, base=None):
        """Return C (m, m), b (m,) and the base measure. With S = sin(x W' + p), C = 2 / m (W W') o (S' diag(w) S)."""
        frequencies, phases = basis
        base = base_measure(self.base, x, weights) if base is None else base
        angles = x @ frequencies.T + phases
        sines = np.sin(angles)
        scale = np.sqrt(2.0 / len(phases))
        slope = scale * (weights @ np.cos(angles)) * (frequencies**2).sum(axis=1)
        slope += scale * (weights @ (sines * (base.score(x) @ frequencies.T)))
        weighted = sines * np.sqrt(weights)[:, None]
        curvature = scale**2 * (frequencies @ frequencies.T) * (weighted.T @ weighted)
        return curvature, slope, base

    def assemble(self, theta, basis, base) -> KernelExpansion:
        """Return the surrogate with these coefficients."""
        frequencies, phases = basis
        scale = np.sqrt(2.0 / len(phases))
        return KernelExpansion(
            cosine_expansion(
                frequencies,
                phases + frequencies @ base.center,
                scale * theta,
                center=base.center,
                linear=base.linear,
                quadratic=base.quadratic,
            )
        )

    def online(self, x, weights=None, *, rng: np.random.Generator | None = None) -> "OnlineFinite":
        """Return an accumulator that starts from draws ``x`` (n, d) and takes further ones, one at a time.

        Length scale, features and base measure are fixed by the start.
        """
        given = weights
        x, weights = checked_sample(x, weights)
        estimator, basis = self.prepare(x, None, rng)
        with np.errstate(over="ignore", invalid="ignore"):
            curvature, slope, base = estimator.system(x, weights, basis)
            total = float(len(x) if given is None else np.sum(given, dtype=float))
            matrix = total * (curvature + self.regularization * np.eye(len(slope)))
        if not (np.isfinite(matrix).all() and np.isfinite(total * slope).all()):
            raise ValueError(
                "numbers too large for floating point come up: rescale x, or take another length_scale, regularization "
                "or weights."
            )
        factor = np.ascontiguousarray(jittered_cholesky(matrix).T)
        return OnlineFinite(estimator, basis, base, factor, total * slope, total)


class OnlineFinite:
    """Finite features with running sums: each new point updates b and the Cholesky factor exactly, O(d m^2).

    The sums are W C + W_0 strength I and W b, W the weight so far and W_0 that of the start. So the result is that
    of the batch with ``regularization`` strength W_0 / W on all points: its influence fades as points come in.
    Made by :meth:`Finite.online`.
    """

    def __init__(self, estimator: Finite, basis, base: BaseMeasure, factor, slope, total: float):
        self.estimator = estimator
        self.basis = basis
        self.base = base
        self.factor = factor  # (m, m), upper
        self.slope = slope
        self.total = total

    @one_blas_thread
    def update(self, point, weight: float = 1.0) -> None:
        """Take in one more point (d,) with its weight (>= 0)."""
        point = as_numbers(point, "point")
        frequencies, phases = self.basis
        if point.shape != (frequencies.shape[1],):
            raise ValueError(f"point must have shape ({frequencies.shape[1]},), got {point.shape}.")
        if not np.isfinite(point).all():
            raise ValueError(f"point must be finite, got {point}.")
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight must be a number >= 0, got {weight!r}.")
        base_score = self.base.score(point[None])[0]
        _update(self.factor, self.slope, point, float(weight), frequencies, phases, base_score)
        self.total += weight

    @within_range
    @one_blas_thread
    def fitted(self) -> KernelExpansion:
        """Return the surrogate of all points so far; O(m^2)."""
        half = solve_triangular(self.factor, self.slope, trans=1)
        return self.estimator.assemble(solve_triangular(self.factor, half), self.basis, self.base)


@compiled
def _update(factor, slope, point, weight, frequencies, phases, base_score):
    m, d = frequencies.shape
    scale = np.sqrt(2.0 / m)
    sines = np.empty(m)
    for j in range(m):
        angle, square, along = phases[j], 0.0, 0.0
        for i in range(d):
            angle += frequencies[j, i] * point[i]
            square += frequencies[j, i] ** 2
            along += frequencies[j, i] * base_score[i]
        sines[j] = np.sin(angle)
        slope[j] += weight * scale * (np.cos(angle) * square + sines[j] * along)
    vectors = np.empty((d, m))
    root = scale * np.sqrt(weight)
    for i in range(d):
        for j in range(m):
            vectors[i, j] = root * frequencies[j, i] * sines[j]
    cholesky_update_upper(factor, vectors)
