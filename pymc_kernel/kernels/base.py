"""Values and derivatives of all kernels, derived once from their scalar profiles.

Notation: X is (n, d), Y is (m, d); radial kernels are phi(s), s = sum_i (x_i - y_i)^2 / l_i^2; dot-product kernels are
psi(t), t = sum_i x_i y_i / l_i^2.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pymc_kernel.errors import NotDifferentiableError
from pymc_kernel.kernels.points import as_numbers, as_points, median_distance
from pymc_kernel.kernels.profiles import fill_profile, radial_row
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread, over_row_blocks

_ROWS = 1024  # of a Gram matrix that are in memory at a time


def _within_range(values):
    """Return the values; an error where they are too large for floating point."""
    if not np.isfinite(values).all():
        raise ValueError("values of the kernel are too large for floating point: take a larger length_scale.")
    return values


@compiled
def _radial_block(points, others_t, inverse_length_scale, family, a, b, order, out, start, stop):
    for i in range(start, stop):
        radial_row(points[i], others_t, inverse_length_scale, out[i])
        fill_profile(family, a, b, order, out[i], out[i])


@dataclass(frozen=True, eq=False)
class Kernel:
    """A positive definite kernel on R^d. Use one of the families, see the subclasses.

    Parameters
    ----------
    length_scale : float, array_like (d,), or "median"
        In the units of the points, one for all dimensions or one each. "median" stands for the median
        distance of the points that a method learns from; :meth:`resolve` puts the number in.
    """

    length_scale: float | np.ndarray | str = 1.0

    family: ClassVar[int]
    #: Number of derivatives of the profile that are finite at zero distance; 1 is enough for a gradient.
    smoothness: ClassVar[int] = 99

    def __post_init__(self):
        if isinstance(self.length_scale, str):
            if self.length_scale != "median":
                raise ValueError(f'length_scale must be positive or "median", got {self.length_scale!r}.')
            return
        scale = np.array(as_numbers(self.length_scale, "length_scale"))
        if scale.ndim > 1 or scale.size == 0 or not (np.isfinite(scale).all() and (scale > 0).all()):
            raise ValueError(f"length_scale must be positive, a number or one a dimension, got {self.length_scale!r}.")
        object.__setattr__(self, "length_scale", scale.item() if scale.ndim == 0 else scale)

    @property
    def shape_parameters(self) -> tuple[float, float]:
        """The pair (a, b) of the compiled profile."""
        return 1.0, 1.0

    def resolve(self, points, rng: np.random.Generator | None = None):
        """Return this kernel with a numeric length scale, learned from ``points`` (n, d) if it is "median"."""
        if isinstance(self.length_scale, str):
            return replace(self, length_scale=median_distance(points, rng))
        return self

    def inverse_length_scale(self, num_dims: int) -> np.ndarray:
        """Return 1 / l as a vector (d,); an error where the length scale does not fit ``num_dims``."""
        if isinstance(self.length_scale, str):
            raise ValueError(f"{type(self).__name__} has no number for length_scale yet: call .resolve(points) first.")
        scale = np.atleast_1d(np.asarray(self.length_scale, dtype=float))
        if scale.size not in (1, num_dims):
            raise ValueError(f"length_scale has {scale.size} entries, but the points have {num_dims} dimensions.")
        return np.full(num_dims, 1.0) / scale

    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix k(x_i, y_j), shape (n, m); ``y`` defaults to ``x``. O(n m d) time."""
        x, y = self._pair(x, y)
        return self.profile_matrix(x, y, 0)

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        raise NotImplementedError

    @one_blas_thread
    def dot(self, x, weights, y=None) -> np.ndarray:
        """Return k(x, y) @ weights without ever holding the n x m matrix: 1024 rows are in memory at a time.

        ``x`` is (n, d), ``y`` (m, d), by default ``x``, the weights (m,) or (m, p).
        """
        x, y = self._pair(x, y)
        weights = as_numbers(weights, "weights")
        if weights.ndim not in (1, 2) or weights.shape[0] != y.shape[0]:
            raise ValueError(f"weights must have {y.shape[0]} rows, one per point, got shape {weights.shape}.")
        if not np.isfinite(weights).all():
            raise ValueError("weights must be finite.")
        with np.errstate(over="ignore", invalid="ignore"):
            return _within_range(gram_times(self, x, weights, y))

    def gradient(self, x, y=None) -> np.ndarray:
        """Return the gradient in the first argument, d k(x_i, y_j) / d x_i, shape (n, m, d)."""
        raise NotImplementedError

    def _pair(self, x, y):
        x = as_points(x, "x")
        return x, x if y is None else as_points(y, "y", num_dims=x.shape[1])

    def need_smoothness(self, order: int, what: str) -> None:
        """Raise ``NotDifferentiableError`` where fewer derivatives of the profile than ``order`` are finite at zero."""
        if self.smoothness < order:
            raise NotDifferentiableError(
                f"{type(self).__name__} is not smooth enough at zero distance for {what}; "
                "use Gaussian, RationalQuadratic or InverseMultiquadric."
            )


@dataclass(frozen=True, eq=False)
class RadialKernel(Kernel):
    """A kernel of the distance: k(x, y) = phi(sum_i (x_i - y_i)^2 / l_i^2) with phi(0) = 1."""

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i) = 1, shape (n,)."""
        return np.ones(as_points(x, "x").shape[0])

    def gradient(self, x, y=None) -> np.ndarray:
        """Return 2 phi'(s) (x_i - y_j) / l^2, shape (n, m, d)."""
        self.need_smoothness(1, "a gradient")
        x, y = self._pair(x, y)
        inverse = self.inverse_length_scale(x.shape[1])
        first = self.profile_matrix(x, y, 1)
        # In this order: the square of a small length scale may underflow even where the gradient does not.
        return 2.0 * (first[:, :, None] * ((x[:, None, :] - y[None, :, :]) * inverse)) * inverse

    def sample_frequencies(self, num_features: int, num_dims: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (num_features, d) from the spectral density, in units of 1 / length scale."""
        raise NotImplementedError(f"{type(self).__name__} has no spectral density here.")

    def profile_matrix(self, x, y, order) -> np.ndarray:
        """Return the derivative of an order of the scalar profile for all pairs of points, (n, m)."""
        inverse = self.inverse_length_scale(x.shape[1])
        out = np.empty((len(x), len(y)))
        arrays = x, np.ascontiguousarray(y.T), inverse, self.family, *self.shape_parameters, order, out
        over_row_blocks(lambda start, stop: _radial_block(*arrays, start, stop), len(x), len(y) * (x.shape[1] + 10))
        return out


@dataclass(frozen=True, eq=False)
class DotProductKernel(Kernel):
    """A kernel of the scalar product: k(x, y) = psi(sum_i x_i y_i / l_i^2)."""

    def diagonal(self, x) -> np.ndarray:
        """Return psi(sum_i x_i^2 / l_i^2), shape (n,)."""
        x = as_points(x, "x")
        with np.errstate(over="ignore"):
            values = ((x * self.inverse_length_scale(x.shape[1])) ** 2).sum(axis=1)
            fill_profile(self.family, *self.shape_parameters, 0, values, values)
        return _within_range(values)

    def gradient(self, x, y=None) -> np.ndarray:
        """Return psi'(t) y_j / l^2, shape (n, m, d)."""
        x, y = self._pair(x, y)
        inverse_square = self.inverse_length_scale(x.shape[1]) ** 2
        with np.errstate(over="ignore", invalid="ignore"):
            return _within_range(self.profile_matrix(x, y, 1)[:, :, None] * (y * inverse_square))

    @one_blas_thread
    def profile_matrix(self, x, y, order) -> np.ndarray:
        """Return the derivative of an order of the scalar profile for all pairs of points, (n, m)."""
        inverse = self.inverse_length_scale(x.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):
            out = (x * inverse) @ (y * inverse).T
            fill_profile(self.family, *self.shape_parameters, order, out.ravel(), out.ravel())
        return _within_range(out)


def gram_times(kernel, x: np.ndarray, weights: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return k(x, y) @ weights of any kernel, in blocks of 1024 rows of the matrix."""
    return np.concatenate([kernel(x[start : start + _ROWS], y) @ weights for start in range(0, len(x), _ROWS)])
