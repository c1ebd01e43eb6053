"""Families of kernels, and kernels made of kernels: sums, products over several variables, given features.

Kernels made of kernels have values but no derivatives; kernel means need no more.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import profiles
from pymc_kernel.kernels.base import DotProductKernel, RadialKernel
from pymc_kernel.kernels.points import as_points, check_between, check_whole
from pymc_kernel.parallel import one_blas_thread


@dataclass(frozen=True, eq=False)
class Gaussian(RadialKernel):
    """k(x, y) = exp(-|x - y|^2 / (2 l^2)), l the ``length_scale`` in the units of x.

    Papers and packages that write exp(-r^2 / s) mean l = sqrt(s / 2).
    """

    family: ClassVar[int] = profiles.GAUSSIAN

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) from N(0, I): divided by l they are the frequencies."""
        return rng.standard_normal((num_features, num_dims))


class _Power(RadialKernel):
    """k(x, y) = (1 + s / a)^-b: a normal scale mixture."""

    family: ClassVar[int] = profiles.POWER

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws of a scale mixture of normals: precision Gamma(b, rate a / 2)."""
        a, b = self.shape_parameters
        precision = rng.gamma(b, 2.0 / a, size=(num_features, 1))
        return np.sqrt(precision) * rng.standard_normal((num_features, num_dims))


@dataclass(frozen=True, eq=False)
class RationalQuadratic(_Power):
    """k(x, y) = (1 + |x - y|^2 / (2 alpha l^2))^-alpha; tends to the Gaussian as ``alpha`` grows."""

    alpha: float = 1.0

    def __post_init__(self):
        super().__post_init__()
        check_between(high=np.inf, alpha=self.alpha)

    @property
    def shape_parameters(self):
        """The pair (2 alpha, alpha)."""
        return 2.0 * self.alpha, float(self.alpha)


@dataclass(frozen=True, eq=False)
class InverseMultiquadric(_Power):
    """k(x, y) = (1 + |x - y|^2 / l^2)^-beta, 0 < ``beta``; 1/2 is the usual choice.

    This is c^(2 beta) (c^2 + |x - y|^2)^-beta with c = l.
    """

    beta: float = 0.5

    def __post_init__(self):
        super().__post_init__()
        check_between(high=np.inf, beta=self.beta)

    @property
    def shape_parameters(self):
        """The pair (1, beta)."""
        return 1.0, float(self.beta)


class _Matern(RadialKernel):
    """A Matern kernel of smoothness nu: its spectral density is a multivariate Student t, 2 nu degrees of freedom."""

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) of a Student t distribution, for one degree of freedom a Cauchy."""
        normal, degrees = rng.standard_normal((num_features, num_dims)), 2 * self.smoothness + 1
        return normal * np.sqrt(degrees / rng.chisquare(degrees, size=(num_features, 1)))


@dataclass(frozen=True, eq=False)
class Matern32(_Matern):
    """k(x, y) = (1 + sqrt(3) r / l) exp(-sqrt(3) r / l), r = |x - y|; once differentiable in the profile."""

    family: ClassVar[int] = profiles.MATERN32
    smoothness: ClassVar[int] = 1


@dataclass(frozen=True, eq=False)
class Matern52(_Matern):
    """k(x, y) = (1 + sqrt(5) r / l + 5 r^2 / (3 l^2)) exp(-sqrt(5) r / l), r = |x - y|."""

    family: ClassVar[int] = profiles.MATERN52
    smoothness: ClassVar[int] = 2


@dataclass(frozen=True, eq=False)
class Laplace(_Matern):
    """k(x, y) = exp(-r / l) with the Euclidean r = |x - y|: Matern 1/2. Not differentiable at zero distance."""

    family: ClassVar[int] = profiles.LAPLACE
    smoothness: ClassVar[int] = 0


@dataclass(frozen=True, eq=False)
class Polynomial(DotProductKernel):
    """k(x, y) = (sum_i x_i y_i / l_i^2 + constant)^degree."""

    degree: int = 3
    constant: float = 1.0
    family: ClassVar[int] = profiles.POLYNOMIAL

    def __post_init__(self):
        super().__post_init__()
        check_whole(degree=self.degree)
        if not (isinstance(self.constant, Real) and np.isfinite(self.constant) and self.constant >= 0):
            raise ValueError(f"constant must be a number >= 0, got {self.constant!r}.")

    @property
    def shape_parameters(self):
        """The pair (constant, degree)."""
        return float(self.constant), float(self.degree)


@dataclass(frozen=True, eq=False)
class Linear(Polynomial):
    """k(x, y) = sum_i x_i y_i / l_i^2 + constant."""

    constant: float = 0.0
    degree: ClassVar[int] = 1


@dataclass(frozen=True, eq=False)
class RandomFourierFeatures:
    """Features whose scalar products approximate a kernel: k(x, y) ~ features(x) @ features(y)."""

    frequencies: np.ndarray  #: (m, d), in units of 1 / x
    phases: np.ndarray  #: (m,), uniform on [0, 2 pi)

    @one_blas_thread
    def __call__(self, x) -> np.ndarray:
        """Return sqrt(2 / m) cos(x frequencies' + phases), shape (n, m). O(n m d) time."""
        x = as_points(x, "x", num_dims=self.frequencies.shape[1])
        return np.sqrt(2.0 / self.phases.size) * np.cos(x @ self.frequencies.T + self.phases)


def random_fourier_features(
    kernel: RadialKernel, num_features: int, num_dims: int, rng: np.random.Generator
) -> RandomFourierFeatures:
    """Return random Fourier features of a radial kernel (Rahimi and Recht 2007).

    The ``kernel`` is Gaussian, Matern, Laplace, rational quadratic or inverse multiquadric, with a numeric length
    scale, of points of dimension ``num_dims``; ``rng`` draws frequencies and phases. The error of one kernel value has
    a standard deviation of about 1 / sqrt(num_features). The frequencies of exp(-r^2 / (2 l^2)) are N(0, l^-2 I); the
    heavier spectra are normal scale mixtures.
    """
    if not isinstance(kernel, RadialKernel):
        raise TypeError(f"only radial kernels have a spectral density, got {type(kernel).__name__}.")
    check_whole(num_features=num_features)
    inverse = kernel.inverse_length_scale(num_dims)
    frequencies = kernel.sample_frequencies(num_features, num_dims, rng) * inverse
    return RandomFourierFeatures(frequencies, rng.uniform(0.0, 2.0 * np.pi, size=num_features))


@dataclass(frozen=True, eq=False)
class Sum:
    """k(x, y) = sum_j k_j(x, y), of a sequence of ``kernels`` on the same points."""

    kernels: Sequence

    def __post_init__(self):
        if len(self.kernels) == 0:
            raise ValueError("Sum needs at least one kernel, got none.")

    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix (n, m); ``y`` defaults to ``x``."""
        return sum(k(x, y) for k in self.kernels)

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        return sum(k.diagonal(x) for k in self.kernels)

    def resolve(self, points, rng: np.random.Generator | None = None):
        """Return this kernel with numbers for the length scales that are "median"."""
        return replace(self, kernels=[k.resolve(points, rng) for k in self.kernels])


@dataclass(frozen=True, eq=False)
class Product:
    """k(x, y) = prod_j k_j(x[columns_j], y[columns_j]): one kernel for each of several variables.

    The kernel mean of a joint distribution under a product lies in the product space (Fukumizu et al. 2013, section 2).
    For matrices, flattened to rows of points, :class:`~pymc_kernel.kernels.Linear` is the trace kernel tr(A B').

    Parameters
    ----------
    kernels : sequence of kernels
    columns : sequence of slice or of sequences of int
        The columns of the points that each kernel uses.
    """

    kernels: Sequence
    columns: Sequence

    def __post_init__(self):
        if len(self.kernels) == 0 or len(self.kernels) != len(self.columns):
            raise ValueError(f"Product needs one set of columns a kernel, got {len(self.columns)}.")

    def _parts(self, points):
        points = as_points(points)
        for columns in self.columns:
            yield np.ascontiguousarray(points[:, columns if isinstance(columns, slice) else list(columns)])

    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix (n, m); ``y`` defaults to ``x``."""
        others = [None] * len(self.kernels) if y is None else self._parts(y)
        return math.prod(k(a, b) for k, a, b in zip(self.kernels, self._parts(x), others, strict=True))

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        return np.prod([k.diagonal(a) for k, a in zip(self.kernels, self._parts(x), strict=True)], axis=0)

    def resolve(self, points, rng: np.random.Generator | None = None):
        """Return this kernel with numbers for the length scales that are "median", each from its own columns."""
        parts = self._parts(points)
        return replace(self, kernels=[k.resolve(a, rng) for k, a in zip(self.kernels, parts, strict=True)])


@dataclass(frozen=True, eq=False)
class FeatureKernel:
    """k(x, y) = features(x) @ features(y), (n, d) -> (n, m): random Fourier features, learned ones or your own."""

    features: Callable[[np.ndarray], np.ndarray]

    @one_blas_thread
    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix (n, m); ``y`` defaults to ``x``."""
        left = self.features(x)
        return left @ (left if y is None else self.features(y)).T

    @one_blas_thread
    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        features = self.features(x)
        return np.einsum("ij,ij->i", features, features)

    def resolve(self, points, rng: np.random.Generator | None = None):
        """Return itself: there is nothing to learn."""
        return self
