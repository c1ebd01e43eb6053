"""Kernels made of kernels: sums, products over several variables, and kernels of given features.

They have values only, which is all that kernel means need; only the families have derivatives. Imports NumPy and
``kernels.base``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.kernels.base import Kernel, as_points
from pymc_kernel.parallel import one_blas_thread


@dataclass(frozen=True, eq=False)
class Sum:
    """k(x, y) = sum_j scale_j k_j(x, y).

    Parameters
    ----------
    kernels : sequence of kernels
        All on the same points.
    scales : sequence of float, optional
        Positive; one each, 1 by default.
    """

    kernels: Sequence
    scales: Sequence[float] | None = None

    def __post_init__(self):
        scales = np.ones(len(self.kernels)) if self.scales is None else np.asarray(self.scales, dtype=float)
        if len(self.kernels) == 0 or scales.shape != (len(self.kernels),) or not (scales > 0).all():
            raise ValueError(
                f"Sum needs at least one kernel and as many positive scales, got {len(self.kernels)} and {self.scales}."
            )
        object.__setattr__(self, "scales", tuple(scales.tolist()))

    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix (n, m); ``y`` defaults to ``x``."""
        first, *rest = (s * k(x, y) for k, s in zip(self.kernels, self.scales, strict=True))
        for matrix in rest:
            first = first + matrix
        return first

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        return sum(s * k.diagonal(x) for k, s in zip(self.kernels, self.scales, strict=True))

    def resolve(self, points, rng: np.random.Generator | None = None, max_points: int = 1000):
        """Return this kernel with numbers for the length scales that are "median"."""
        return replace(self, kernels=[k.resolve(points, rng, max_points) for k in self.kernels])


@dataclass(frozen=True, eq=False)
class Product:
    """k(x, y) = prod_j k_j(x[columns_j], y[columns_j]): one kernel for each of several variables.

    Parameters
    ----------
    kernels : sequence of kernels
    columns : sequence of slice or of sequences of int
        The columns of the points that each kernel uses.

    Notes
    -----
    The kernel mean of a joint distribution under a product is that on the product space (Fukumizu et al. 2013, section
    2). For matrices, flattened to rows of points, :class:`~pymc_kernel.kernels.Linear` is the trace kernel tr(A B').
    """

    kernels: Sequence
    columns: Sequence

    def __post_init__(self):
        if len(self.kernels) == 0 or len(self.kernels) != len(self.columns):
            raise ValueError(
                f"Product needs one set of columns for each kernel, got {len(self.kernels)} kernels and "
                f"{len(self.columns)} sets."
            )

    def _parts(self, points):
        points = as_points(points)
        for columns in self.columns:
            yield np.ascontiguousarray(points[:, columns if isinstance(columns, slice) else list(columns)])

    def __call__(self, x, y=None) -> np.ndarray:
        """Return the Gram matrix (n, m); ``y`` defaults to ``x``."""
        others = [None] * len(self.kernels) if y is None else self._parts(y)
        first, *rest = (k(a, b) for k, a, b in zip(self.kernels, self._parts(x), others, strict=True))
        for matrix in rest:
            first = first * matrix
        return first

    def diagonal(self, x) -> np.ndarray:
        """Return k(x_i, x_i), shape (n,)."""
        return np.prod([k.diagonal(a) for k, a in zip(self.kernels, self._parts(x), strict=True)], axis=0)

    def resolve(self, points, rng: np.random.Generator | None = None, max_points: int = 1000):
        """Return this kernel with numbers for the length scales that are "median", each from its own columns."""
        parts = self._parts(points)
        return replace(self, kernels=[k.resolve(a, rng, max_points) for k, a in zip(self.kernels, parts, strict=True)])


@dataclass(frozen=True, eq=False)
class FeatureKernel:
    """k(x, y) = features(x) . features(y), of random Fourier features, learned ones or your own.

    Parameters
    ----------
    features : callable
        Points (n, d) -> (n, m).
    """

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

    def resolve(self, points, rng: np.random.Generator | None = None, max_points: int = 1000):
        """Return itself: there is nothing to learn."""
        return self


AnyKernel = Kernel | Sum | Product | FeatureKernel
