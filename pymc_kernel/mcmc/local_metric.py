"""The shape of the neighborhoods of a sample, averaged: coordinates for proposals that are to be local.

The covariance of a curved or multimodal sample measures the distances between its parts, and a walk that is isotropic
after whitening by it is far too wide across a thin, bent ridge. The covariance of nearest neighbors around their own
mean, averaged over the sample, has the ridge's width. For a normal sample both are the same up to a factor, which is
removed. Imports NumPy and SciPy only.
"""

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.linalg import definite_cholesky
from pymc_kernel.parallel import one_blas_thread

__all__ = ["local_factor"]

_SHARE = 0.03  # share of the points that are neighbors of one
_ROUNDS = 6  # iterations, each with neighbors in the metric of the one before; the metric has then converged
_ROWS = 256  # of the matrix of distances at a time: 256 x 1,000 numbers fit a cache


@one_blas_thread
def local_factor(points: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return the lower factor (d, d) of the mean covariance of neighborhoods, A, scaled to trace(A^-1 F F') = d.

    Neighbors are the nearest 3 % (2 d at least), in six iterations: first in the coordinates of ``factor``, then in
    those of the metric found last. O(n^2 d) time; 256 n numbers of memory.

    Parameters
    ----------
    points
        (n, d); each place counts once. Of fewer than 4 d + 4 places nothing is learned.
    factor
        (d, d), F, lower factor of the covariance of the points.
    """
    points = np.unique(points, axis=0)
    n, d = points.shape
    count = max(int(_SHARE * n), 2 * d)
    if n < 2 * count + 4:
        return factor
    first = factor
    for _ in range(_ROUNDS):
        z = solve_triangular(factor, points.T, lower=True).T
        covariance = _neighborhoods(z - z.mean(axis=0), count)
        nearer = definite_cholesky(factor @ covariance @ factor.T)
        if nearer is None:  # neighborhoods without width: points on parallel lines
            break
        factor = nearer
    size = (solve_triangular(factor, first, lower=True) ** 2).sum()
    return factor * np.sqrt(size / d)


def _neighborhoods(z, count):
    """Return the mean (d, d) over the rows of z (n, d) of the covariance of the nearest ``count``."""
    n, d = z.shape
    total, squares = np.zeros((d, d)), (z**2).sum(axis=1)
    for start in range(0, n, _ROWS):
        distances = squares - 2.0 * z[start : start + _ROWS] @ z.T
        nearest = z[np.argpartition(distances, count, axis=1)[:, :count]]
        nearest -= nearest.mean(axis=1, keepdims=True)
        nearest = nearest.reshape(-1, d)
        total += nearest.T @ nearest
    return total / (n * count)
