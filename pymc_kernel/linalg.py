"""Small dense linear algebra for compiled loops: in-place Cholesky factors, updates and solves.

The functions here work on matrices of the size of a parameter vector, from inside compiled code, where a
call into LAPACK would cost more than the arithmetic. Large matrices belong to ``scipy.linalg``.
Imports NumPy and Numba only.
"""

import numba
import numpy as np

__all__ = ["cholesky_in_place", "cholesky_update", "dot_product", "lower_times", "solve_lower"]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def cholesky_in_place(matrix):
    """Overwrite the lower triangle of ``matrix`` (d, d) by its Cholesky factor; zero the rest.

    Returns
    -------
    bool
        False where a pivot was not positive (or not finite); the matrix is then left half done.
    """
    d = matrix.shape[0]
    for j in range(d):
        pivot = matrix[j, j]
        for k in range(j):
            pivot -= matrix[j, k] * matrix[j, k]
        if not (pivot > 0.0 and pivot < np.inf):
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
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


@numba.njit(cache=True, nogil=True, error_model="numpy")
def solve_lower(factor, vector, out):
    """Write L^-1 v into ``out`` (d,), which may be ``vector`` itself."""
    for i in range(factor.shape[0]):
        value = vector[i]
        for k in range(i):
            value -= factor[i, k] * out[k]
        out[i] = value / factor[i, i]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def lower_times(factor, vector, out):
    """Write L v into ``out`` (d,), which must not be ``vector``."""
    for i in range(factor.shape[0]):
        value = 0.0
        for k in range(i + 1):
            value += factor[i, k] * vector[k]
        out[i] = value


@numba.njit(cache=True, nogil=True, error_model="numpy")
def dot_product(left, right):
    """Return the scalar product of two vectors, summed in eight interleaved lanes.

    The lanes are what the compiler would make of a plain loop under fast-math, and as fast; but written out, the
    order of summation is the same in every process. Under fast-math it is not: code that was just compiled and
    code that was read from the disk cache have been seen to round differently.
    """
    n = left.shape[0]
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
    whole = n - n % 8
    for j in range(0, whole, 8):
        a0 += left[j] * right[j]
        a1 += left[j + 1] * right[j + 1]
        a2 += left[j + 2] * right[j + 2]
        a3 += left[j + 3] * right[j + 3]
        a4 += left[j + 4] * right[j + 4]
        a5 += left[j + 5] * right[j + 5]
        a6 += left[j + 6] * right[j + 6]
        a7 += left[j + 7] * right[j + 7]
    total = ((a0 + a4) + (a2 + a6)) + ((a1 + a5) + (a3 + a7))
    for j in range(whole, n):
        total += left[j] * right[j]
    return total
