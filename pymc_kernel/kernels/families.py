"""The kernels themselves, a formula each, and their random Fourier features. Imports NumPy and lower files only."""

from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

import numpy as np

from pymc_kernel.kernels import profiles
from pymc_kernel.kernels.base import DotProductKernel, RadialKernel
from pymc_kernel.kernels.points import as_points, check_between, check_whole
from pymc_kernel.parallel import one_blas_thread


def _check_constant(constant):
    if not (isinstance(constant, Real) and np.isfinite(constant) and constant >= 0):
        raise ValueError(f"constant must be a number >= 0, got {constant!r}.")


def _student_frequencies(degrees, num_features, num_dims, rng):
    # The Fourier transform of a Matern kernel of smoothness nu is a multivariate Student t with 2 nu degrees.
    normal = rng.standard_normal((num_features, num_dims))
    return normal * np.sqrt(degrees / rng.chisquare(degrees, size=(num_features, 1)))


@dataclass(frozen=True, eq=False)
class Gaussian(RadialKernel):
    """k(x, y) = exp(-|x - y|^2 / (2 l^2)), l the ``length_scale`` in the units of x.

    Papers and packages that write exp(-r^2 / s) mean l = sqrt(s / 2).
    """

    family: ClassVar[int] = profiles.GAUSSIAN

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) from N(0, I): divided by l they are the frequencies."""
        return rng.standard_normal((num_features, num_dims))


@dataclass(frozen=True, eq=False)
class RationalQuadratic(RadialKernel):
    """k(x, y) = (1 + |x - y|^2 / (2 alpha l^2))^-alpha; tends to the Gaussian as ``alpha`` grows."""

    alpha: float = 1.0
    family: ClassVar[int] = profiles.POWER

    def __post_init__(self):
        super().__post_init__()
        check_between(high=np.inf, alpha=self.alpha)

    @property
    def shape_parameters(self):
        """The pair (2 alpha, alpha)."""
        return 2.0 * self.alpha, float(self.alpha)

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws of a scale mixture of normals: precision Gamma(alpha, rate alpha)."""
        precision = rng.gamma(self.alpha, 1.0 / self.alpha, size=(num_features, 1))
        return np.sqrt(precision) * rng.standard_normal((num_features, num_dims))


@dataclass(frozen=True, eq=False)
class InverseMultiquadric(RadialKernel):
    """k(x, y) = (1 + |x - y|^2 / l^2)^-beta, 0 < ``beta``; 1/2 is the usual choice.

    This is c^(2 beta) (c^2 + |x - y|^2)^-beta with c = l.
    """

    beta: float = 0.5
    family: ClassVar[int] = profiles.POWER

    def __post_init__(self):
        super().__post_init__()
        check_between(high=np.inf, beta=self.beta)

    @property
    def shape_parameters(self):
        """The pair (1, beta)."""
        return 1.0, float(self.beta)

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws of a scale mixture of normals: half the precision is Gamma(beta, rate 1)."""
        precision = 2.0 * rng.gamma(self.beta, 1.0, size=(num_features, 1))
        return np.sqrt(precision) * rng.standard_normal((num_features, num_dims))


@dataclass(frozen=True, eq=False)
class Matern32(RadialKernel):
    """k(x, y) = (1 + sqrt(3) r / l) exp(-sqrt(3) r / l), r = |x - y|; once differentiable in the profile."""

    family: ClassVar[int] = profiles.MATERN32
    smoothness: ClassVar[int] = 1

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) of a Student t with 3 degrees of freedom."""
        return _student_frequencies(3.0, num_features, num_dims, rng)


@dataclass(frozen=True, eq=False)
class Matern52(RadialKernel):
    """k(x, y) = (1 + sqrt(5) r / l + 5 r^2 / (3 l^2)) exp(-sqrt(5) r / l), r = |x - y|."""

    family: ClassVar[int] = profiles.MATERN52
    smoothness: ClassVar[int] = 2

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) of a Student t with 5 degrees of freedom."""
        return _student_frequencies(5.0, num_features, num_dims, rng)


@dataclass(frozen=True, eq=False)
class Laplace(RadialKernel):
    """k(x, y) = exp(-r / l) with the Euclidean r = |x - y|: Matern 1/2. Not differentiable at zero distance."""

    family: ClassVar[int] = profiles.LAPLACE
    smoothness: ClassVar[int] = 0

    def sample_frequencies(self, num_features, num_dims, rng):
        """Return draws (num_features, d) of a multivariate Cauchy distribution."""
        return _student_frequencies(1.0, num_features, num_dims, rng)


@dataclass(frozen=True, eq=False)
class Linear(DotProductKernel):
    """k(x, y) = sum_i x_i y_i / l_i^2 + constant."""

    constant: float = 0.0
    family: ClassVar[int] = profiles.POLYNOMIAL

    def __post_init__(self):
        super().__post_init__()
        _check_constant(self.constant)

    @property
    def shape_parameters(self):
        """The pair (constant, 1)."""
        return float(self.constant), 1.0


@dataclass(frozen=True, eq=False)
class Polynomial(DotProductKernel):
    """k(x, y) = (sum_i x_i y_i / l_i^2 + constant)^degree."""

    degree: int = 3
    constant: float = 1.0
    family: ClassVar[int] = profiles.POLYNOMIAL

    def __post_init__(self):
        super().__post_init__()
        check_whole(degree=self.degree)
        _check_constant(self.constant)

    @property
    def shape_parameters(self):
        """The pair (constant, degree)."""
        return float(self.constant), float(self.degree)


@dataclass(frozen=True, eq=False)
class RandomFourierFeatures:
    """Features whose scalar products approximate a kernel: k(x, y) ~ features(x) . features(y).

    Attributes
    ----------
    frequencies : ndarray (m, d)
        In units of 1 / x.
    phases : ndarray (m,)
        Uniform on [0, 2 pi).
    """

    frequencies: np.ndarray
    phases: np.ndarray

    @one_blas_thread
    def __call__(self, x) -> np.ndarray:
        """Return sqrt(2 / m) cos(x frequencies' + phases), shape (n, m). O(n m d) time."""
        x = as_points(x, "x")
        if x.shape[1] != self.frequencies.shape[1]:
            raise ValueError(
                f"x has {x.shape[1]} dimensions, but the features were drawn for {self.frequencies.shape[1]}."
            )
        return np.sqrt(2.0 / self.phases.size) * np.cos(x @ self.frequencies.T + self.phases)


def random_fourier_features(
    kernel: RadialKernel, num_features: int, num_dims: int, rng: np.random.Generator
) -> RandomFourierFeatures:
    """Return random Fourier features of a radial kernel (Rahimi and Recht 2007).

    Parameters
    ----------
    kernel
        Gaussian, Matern, Laplace, rational quadratic or inverse multiquadric, with a numeric length scale.
    num_features : int
        The error of one kernel value has a standard deviation of about 1 / sqrt(num_features).
    num_dims : int
        Dimension of the points.
    rng : numpy.random.Generator
        Draws frequencies and phases.

    Notes
    -----
    The frequencies of exp(-r^2 / (2 l^2)) are N(0, l^-2 I); the heavier spectra are normal scale mixtures.
    """
    if not isinstance(kernel, RadialKernel):
        raise TypeError(f"only radial kernels have a spectral density, got {type(kernel).__name__}.")
    if num_features < 1:
        raise ValueError(f"num_features must be at least 1, got {num_features}.")
    inverse = kernel.inverse_length_scale(num_dims)
    frequencies = kernel.sample_frequencies(num_features, num_dims, rng) * inverse
    return RandomFourierFeatures(frequencies, rng.uniform(0.0, 2.0 * np.pi, size=num_features))
