"""What estimators by score matching share: checks, the density q0 that exp(f) multiplies, and the fit."""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
from scipy.linalg import cho_solve

from pymc_kernel.kernels import Gaussian, Kernel, RadialKernel
from pymc_kernel.kernels.points import as_points, as_weights, check_between, check_magnitude, check_whole
from pymc_kernel.linalg import jittered_cholesky
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.kernel_expansion import KernelExpansion, within_range


def checked_sample(x, weights) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, d) and weights (n,) that sum to one; raises ``ValueError`` for invalid ones."""
    x = as_points(x, "x")
    check_magnitude(x, "x")
    return x, as_weights(weights, len(x))


def regularized_solve(
    curvature: np.ndarray, slope: np.ndarray, penalty: np.ndarray | None = None, strength: float = 0.0
) -> np.ndarray:
    """Return (C + strength R)^-1 b, R the ``penalty`` or the identity.

    Where that is not positive definite in floating point, a multiple of the identity is added.
    """
    matrix = curvature + strength * (np.eye(len(curvature)) if penalty is None else penalty)
    try:
        factor = jittered_cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(
            "the score-matching system is singular or too large for floating point: rescale x, or raise the "
            "regularization."
        ) from None
    return cho_solve((factor, True), slope, check_finite=False)


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
        raise ValueError(
            "the points of x all coincide, so that the Gaussian base measure has no spread: give others, or "
            'base="uniform".'
        )
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

    Those whose f has coefficients a, say of m functions, minimize a quadratic loss: a = (C + strength R)^-1 b. They
    define ``system``, C and b, ``penalty_matrix``, R, and ``assemble``, the surrogate with given coefficients.

    Parameters
    ----------
    kernel : RadialKernel
        "median" is resolved on the points.
    regularization : float
        Its strength, above 0.
    base : {"gaussian", "uniform"}
        The base measure q0.
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
        """Return the surrogate fitted to draws.

        Parameters
        ----------
        x : array_like (n, d)
        weights : array_like (n,), optional
            Non-negative; normalized.
        rng : numpy.random.Generator, optional
            Draws the basis; seed 0 by default.
        """
        x, weights = checked_sample(x, weights)
        estimator, basis = self.prepare(x, rng)
        curvature, slope, base = estimator.system(x, weights, basis)
        coefficients = regularized_solve(curvature, slope, estimator.penalty_matrix(basis), self.regularization)
        return estimator.assemble(coefficients, basis, base)

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
