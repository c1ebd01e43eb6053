"""Dense linear algebra that SciPy does not have.

Small matrices, in compiled loops: in-place Cholesky factors, updates and solves, where a call to LAPACK would cost more
than the arithmetic. Large matrices: the incomplete, pivoted factor, which never needs the whole matrix.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpocon, dpotrf, dpstrf

from pymc_kernel.machine_code import compiled

LOG_2PI = math.log(2.0 * math.pi)
RIDGE = 1e-9  # added to each variance, as a share of it
_NO_DIGIT = 1e-13  # of a diagonal entry: smaller remainders have no correct digit
_PIVOT_ROUNDING = 8.0 * np.finfo(float).eps  # rounding error of a pivot, for each row and relative to the diagonal
ROUNDING = 1e-12  # relative, as of sums over ten thousand draws; reciprocal condition number of singular matrices
_BLOCK = 64  # pivots at a time, so that most work is matrix products
_BLOCK_SHARE = 0.2  # of the largest pivot: smaller ones are left for a later block


@compiled
def cholesky_in_place(matrix):
    """Overwrite the lower triangle of ``matrix`` (d, d) by its Cholesky factor, zero the rest; return whether it could.

    False where a pivot was not above its rounding error (or not finite); the matrix is then left half done.
    """
    d = matrix.shape[0]
    smallest = _PIVOT_ROUNDING * d
    for j in range(d):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= matrix[j, k] * matrix[j, k]
        if not (pivot > 0.0 and pivot > smallest * matrix[j, j] and pivot < np.inf):
            return False
        root = np.sqrt(pivot)
        matrix[j, j] = root
        for i in range(j + 1, d):
            value = matrix[i, j]
            for k in range(j):
                value -= matrix[i, k] * matrix[j, k]
            matrix[i, j] = value / root
            matrix[j, i] = 0.0
    return True


def squared_distances(a, b):
    """Return squared distances (n, m) of points (n, d) and (m, d), arrays or tensors, by one product of matrices.

    For nearly equal points the result is rounding error and may be negative.
    """
    return (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * (a @ b.T)


def whiten(points: np.ndarray, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Return factor^-1 (x - mean) for the rows of ``points`` (n, d) and a lower ``factor`` (d, d); O(n d^2)."""
    return np.ascontiguousarray(solve_triangular(factor, (points - mean).T, lower=True, check_finite=False).T)


def ridged_cholesky(covariance: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a covariance (d, d) with a ridge, which that of few draws needs."""
    return np.linalg.cholesky(covariance + np.diag(RIDGE * np.diag(covariance)))


def definite_cholesky(matrix: np.ndarray, smallest: float = ROUNDING) -> np.ndarray | None:
    """Return the lower Cholesky factor of ``matrix`` (d, d), or None if that is not positive definite up to rounding.

    The last pivot of a singular matrix is rounding error of either sign, so whether LAPACK succeeds depends on the
    processor and is no criterion. The estimated reciprocal condition number is, after rows and columns are scaled to a
    diagonal near one, so that units do not matter. O(d^3). ``smallest`` is the reciprocal condition number up to which
    the matrix counts as singular; the default allows for the rounding of covariances of some ten thousand draws.
    """
    diagonal = np.diagonal(matrix)
    if not ((diagonal > 0.0) & (diagonal < np.inf)).all():
        return None
    scales = np.exp2(np.round(0.5 * np.log2(diagonal)))  # powers of two: scaling by them does not round
    scaled = np.asfortranarray(matrix / scales / scales[:, None])
    norm = np.abs(scaled).sum(axis=0).max()
    factor, info = dpotrf(scaled, lower=1, clean=1, overwrite_a=1)
    if info != 0 or not norm < np.inf:
        return None
    reciprocal_condition, _ = dpocon(factor, norm, uplo="L")
    # Row-major, as the compiled loops expect.
    return np.ascontiguousarray(factor * scales[:, None]) if reciprocal_condition > smallest else None


def jittered_cholesky(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of ``matrix`` (n, n), plus the smallest multiple of the identity that is needed.

    The multiple is zero if the reciprocal condition number exceeds rounding, 8 sqrt(n) times the machine's precision;
    else it is one of 1e-14, 1e-13, ..., 0.1 times the mean of the diagonal. The upper triangle is zero. Raises
    ``LinAlgError`` where a tenth of the mean of the diagonal is not enough.
    """
    n = len(matrix)
    size = float(np.trace(matrix)) / n
    for jitter in (0.0, *(10.0**power for power in range(-14, 0))):
        whole = matrix + jitter * size * np.eye(n) if jitter else matrix
        factor = definite_cholesky(whole, _PIVOT_ROUNDING * math.sqrt(n))
        if factor is not None:
            return factor
    raise np.linalg.LinAlgError("the matrix is not positive definite: rescale the points x, or raise regularization.")


def jittered_solve(matrix: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return K^-1 b for a positive definite ``matrix`` K (n, n), made so as in :func:`jittered_cholesky`."""
    return cho_solve((jittered_cholesky(matrix), True), right, check_finite=False)


@compiled
def cholesky_update(factor, vector):
    """Overwrite ``factor`` L (d, d) by the factor of L L' + v v' in O(d^2); ``vector`` is used up."""
    d = factor.shape[0]
    for k in range(d):
        radius = np.hypot(factor[k, k], vector[k])
        c = radius / factor[k, k]
        s = vector[k] / factor[k, k]
        factor[k, k] = radius
        for i in range(k + 1, d):
            factor[i, k] = (factor[i, k] + s * vector[i]) / c
            vector[i] = c * vector[i] - s * factor[i, k]


@compiled
def solve_lower(factor, vector, out):
    """Write L^-1 v into ``out`` (d,), which may be ``vector`` itself."""
    for i in range(factor.shape[0]):
        value = vector[i]
        for k in range(i):
            value -= factor[i, k] * out[k]
        out[i] = value / factor[i, i]


@compiled
def lower_times(factor, vector, out):
    """Write L v into ``out`` (d,), which must not be ``vector``."""
    for i in range(factor.shape[0]):
        value = 0.0
        for k in range(i + 1):
            value += factor[i, k] * vector[k]
        out[i] = value


@compiled
def dot_product(left, right):
    """Return the scalar product of two vectors (n,), accumulated in eight separate sums.

    The compiler can keep these in vector registers without reordering sums. For a plain loop it would need fast-math,
    with which freshly compiled code and code from the disk cache have been seen to round differently.
    """
    n = left.shape[0]
    whole = n - n % 8
    a = b = c = d = e = f = g = h = 0.0
    for j in range(0, whole, 8):
        a += left[j] * right[j]
        b += left[j + 1] * right[j + 1]
        c += left[j + 2] * right[j + 2]
        d += left[j + 3] * right[j + 3]
        e += left[j + 4] * right[j + 4]
        f += left[j + 5] * right[j + 5]
        g += left[j + 6] * right[j + 6]
        h += left[j + 7] * right[j + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for j in range(whole, n):
        total += left[j] * right[j]
    return total


def pivoted_cholesky(
    diagonal: np.ndarray, columns: Callable[[np.ndarray], np.ndarray], max_rank: int, tolerance
) -> tuple[np.ndarray, np.ndarray]:
    """Return an incomplete Cholesky factor F (n, r), K ~ F F', and its pivots (r,); few columns of K are ever computed.

    ``diagonal`` (n,) is that of the positive semi-definite matrix K; ``columns`` takes indices (b,) to those columns of
    K, (n, b). If F has fewer than ``max_rank`` columns, the diagonal of K - F F' is at most the ``tolerance``, a number
    or (n,); a remainder within rounding of the diagonal counts as zero. ``factor[pivots]`` is lower triangular.
    O(n r^2) time in matrix products, O(n r) memory. Pivots come in blocks, chosen greedily within a block: the points
    of the largest remainder relative to the tolerance, while that is above a fifth of the largest at the start of the
    block. Single pivots: Harbrecht, Peters and Schneider (2012).
    """
    n = diagonal.size
    remaining = np.array(diagonal, dtype=float)
    # The tolerance is kept above zero, so that a row of zeros counts as finished.
    tolerance = np.maximum(np.broadcast_to(tolerance, (n,)), np.maximum(_NO_DIGIT * remaining, np.finfo(float).tiny))
    rows = np.empty((min(max_rank, n), n))
    pivots = np.empty(len(rows), dtype=np.int64)
    rank = 0
    while rank < len(rows):
        excess = remaining / tolerance
        largest = excess.max()
        if not largest > 1.0:
            break
        size = min(_BLOCK, n)
        candidates = np.argpartition(excess, n - size)[n - size :]
        level = max(1.0, _BLOCK_SHARE * largest)
        candidates = candidates[excess[candidates] > level]
        block = columns(candidates).T - rows[:rank, candidates].T @ rows[:rank]
        # Pivots of a small matrix, until what is left is below ``level`` times the tolerance, and their factor.
        scale = np.sqrt(tolerance[candidates])
        factor, order, small_rank, _ = dpstrf(block[:, candidates] / scale / scale[:, None], lower=1, tol=1.0)
        excess = np.diag(factor)[:small_rank] ** 2
        count = min(len(rows) - rank, (excess > level).sum() or (excess[:1] > 1.0).sum())
        if not count:  # the remainders of these in the running sums are rounding
            remaining[candidates] = 0.0
            continue
        chosen = order[:count] - 1
        factor = np.tril(factor[:count, :count]) * scale[chosen, None]
        new = solve_triangular(factor, block[chosen], lower=True)
        new[:, pivots[:rank]] = 0.0
        here = candidates[chosen]
        new[:, here] = factor.T
        rows[rank : rank + len(here)], pivots[rank : rank + len(here)] = new, here
        remaining -= (new**2).sum(axis=0)
        remaining[pivots[: rank + len(here)]] = 0.0
        rank += len(here)
    return rows[:rank].T, pivots[:rank]
