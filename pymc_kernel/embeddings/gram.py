"""Low-rank factors of Gram matrices that extend to new points. Imports NumPy, SciPy, ``linalg`` and ``kernels``.

Everything in this folder is linear algebra on features: G = F F' with F (n, r), and rows of F for new points. With the
pivoted Cholesky factor at a small tolerance that is the exact method; with fewer columns it is Nystroem's.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh, solve_triangular

from pymc_kernel.kernels import FeatureKernel
from pymc_kernel.linalg import pivoted_cholesky

__all__ = ["GramFactor", "factorize"]

_BLOCK = 4096  # new points at a time
_ROUNDING = 1e-12  # of the largest eigenvalue


@dataclass(frozen=True, eq=False)
class GramFactor:
    """Features whose scalar products are the kernel, up to what was left out.

    Attributes
    ----------
    features : ndarray (n, r)
        Of the points that it was made from.
    left_out : float
        Trace of what the factor leaves out, as a share of the trace of the Gram matrix.
    """

    features: np.ndarray
    left_out: float
    _extend: Callable[[np.ndarray], np.ndarray]

    @property
    def rank(self) -> int:
        """Number of features r."""
        return self.features.shape[1]

    def __call__(self, points) -> np.ndarray:
        """Return the features of new points (m, d), shape (m, r). O(m r^2) time, O(m r) memory."""
        if len(points) <= _BLOCK:
            return self._extend(points)
        return np.concatenate([self._extend(points[a : a + _BLOCK]) for a in range(0, len(points), _BLOCK)])


def factorize(kernel, points: np.ndarray, num_basis: int, tolerance: float, rng: np.random.Generator) -> GramFactor:
    """Return features of a kernel on ``points`` (n, d).

    Parameters
    ----------
    kernel
        With a numeric length scale. A :class:`~pymc_kernel.kernels.FeatureKernel` brings its features along.
    points : ndarray (n, d)
    num_basis : int
        Most features. Where the tolerance would need more, the factor is Nystroem's with this many points, drawn at
        random: greedy pivots would be outlying points.
    tolerance : float
        Largest trace of what is left out, as a share of the trace of the Gram matrix.
    rng : numpy.random.Generator
        Draws Nystroem's points.

    Notes
    -----
    O(n r^2) time and O(n r) memory; the Gram matrix is never formed.
    """
    if isinstance(kernel, FeatureKernel):
        return GramFactor(np.ascontiguousarray(kernel.features(points), dtype=float), 0.0, kernel.features)
    n = len(points)
    diagonal = kernel.diagonal(points)
    trace = diagonal.sum()
    if not trace > 0.0:
        raise ValueError("the kernel is zero at all points, so it cannot distinguish them; take another kernel.")
    # A remainder of at most this on each entry of the diagonal keeps its sum below the share of the trace.
    level = tolerance * trace / n
    factor, pivots = pivoted_cholesky(diagonal, lambda chosen: kernel(points, points[chosen]), num_basis, level)
    left_out = max(0.0, 1.0 - np.einsum("ij,ij->", factor, factor) / trace)
    # A factor that ended before its largest size has left out no more than rounding, whatever the tolerance.
    if left_out <= tolerance or len(pivots) < num_basis or len(pivots) == n:
        return _on_pivots(kernel, points[pivots], factor, pivots, left_out)
    return _nystroem(kernel, points, rng.choice(n, size=num_basis, replace=False), trace)


def _on_pivots(kernel, centers, factor, pivots, left_out):
    triangle = factor[pivots]

    def extend(points):
        return solve_triangular(triangle, kernel(centers, points), lower=True, overwrite_b=True).T

    return GramFactor(np.ascontiguousarray(factor), left_out, extend)


def _nystroem(kernel, points, chosen, trace):
    centers = points[chosen]
    values, vectors = eigh(kernel(centers))
    keep = values > _ROUNDING * values[-1]
    root = vectors[:, keep] / np.sqrt(values[keep])

    def extend(new):
        return kernel(new, centers) @ root

    features = np.concatenate([extend(points[a : a + _BLOCK]) for a in range(0, len(points), _BLOCK)])
    left_out = max(0.0, 1.0 - np.einsum("ij,ij->", features, features) / trace)
    return GramFactor(features, left_out, extend)
