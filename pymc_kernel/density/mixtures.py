"""Mixtures of normal densities around data, and of Student t. Compiled loops over pairs.

Imports NumPy, SciPy, Numba and siblings.
"""

import math

import numpy as np
from scipy.special import gammaln, logsumexp

from pymc_kernel.density.precision import WishartPosterior
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import over_row_blocks

__all__ = ["normal_mixture", "student_mixture"]

_SQUARES = 1e150  # beyond, squares overflow, and log(1 + z^2) is 2 log(z) to the last digit


def normal_mixture(x: np.ndarray, centers: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return the log of the mean normal density around the centers (n, d), at ``x`` (m, d); shape (m,)."""
    root = np.linalg.cholesky(precision)
    d = len(precision)
    constant = np.log(np.diag(root)).sum() - 0.5 * d * math.log(2.0 * math.pi)
    return constant + _log_mean_kernel(x @ root, centers @ root, 0.0)


def student_mixture(x: np.ndarray, centers: np.ndarray, posterior) -> np.ndarray:
    """Return the log of the mean of N(x | x_r, L^-1) over the posterior of L and the centers x_r, shape (m,)."""
    d = x.shape[1]
    if isinstance(posterior, WishartPosterior):
        root, dof = np.linalg.cholesky(np.linalg.inv(posterior.inverse_scale)), posterior.dof
        constant = gammaln(0.5 * (dof + 1.0)) - gammaln(0.5 * (dof + 1.0 - d)) - 0.5 * d * math.log(math.pi)
        constant += np.log(np.diag(root)).sum()
        return constant + _log_mean_kernel(x @ root, centers @ root, dof + 1.0)
    shape, rate, _ = posterior
    if len(shape) == 1:
        a, b = shape[0], rate[0]
        constant = gammaln(a + 0.5 * d) - gammaln(a) - 0.5 * d * math.log(2.0 * math.pi * b)
        unit = 1.0 / math.sqrt(2.0 * b)
        return constant + _log_mean_kernel(x * unit, centers * unit, 2.0 * a + d)
    # Independent coordinates: a product of Student t, a block of rows at a time.
    out = np.empty(len(x))
    constant = (gammaln(shape + 0.5) - gammaln(shape) - 0.5 * np.log(2.0 * math.pi * rate)).sum()
    block = max(1, 2**22 // (len(centers) * d))
    for start in range(0, len(x), block):
        distances = np.abs(x[start : start + block, None] - centers) / np.sqrt(2.0 * rate)
        with np.errstate(divide="ignore"):  # log(1 + z^2), also where the square overflows
            terms = np.where(
                distances < _SQUARES, np.log1p(np.minimum(distances, _SQUARES) ** 2), 2.0 * np.log(distances)
            )
        logs = -((shape + 0.5) * terms).sum(axis=2)
        out[start : start + block] = logsumexp(logs, axis=1) - math.log(len(centers))
    return constant + out


def _log_mean_kernel(x, centers, power):
    """Return log of the mean over centers of exp(-s / 2), or of (1 + s)^(-power / 2), s the squared distance; (m,)."""
    x, centers = np.ascontiguousarray(x), np.ascontiguousarray(centers)
    out = np.empty(len(x))

    def block(start, stop):
        _kernel_rows(x, centers, power, out, start, stop)

    over_row_blocks(block, len(x), float(centers.size))
    return out


@compiled
def _kernel_rows(x, centers, power, out, start, stop):
    n, d = centers.shape
    logs = np.empty(n)
    for i in range(start, stop):
        largest = -np.inf
        for r in range(n):
            squared = 0.0
            for k in range(d):
                squared += (x[i, k] - centers[r, k]) ** 2
            if power == 0.0:
                logs[r] = -0.5 * squared
            elif squared < np.inf:
                logs[r] = -0.5 * power * math.log(1.0 + squared)
            else:
                logs[r] = -power * _log_norm(x[i], centers[r])
            largest = max(largest, logs[r])
        if largest == -np.inf:  # farther off than floating-point numbers reach
            out[i] = largest
            continue
        total = 0.0
        for r in range(n):
            total += math.exp(logs[r] - largest)
        out[i] = largest + math.log(total / n)


@compiled
def _log_norm(one, other):
    """Return the log of a distance whose square overflows."""
    farthest = 0.0
    for k in range(len(one)):
        farthest = max(farthest, abs(one[k] - other[k]))
    total = 0.0
    for k in range(len(one)):
        total += ((one[k] - other[k]) / farthest) ** 2
    return math.log(farthest) + 0.5 * math.log(total)
