"""The local covariances of Kameleon at many places at once, as products of matrices.

With y the place, Y_j the basis points and a_j the slope of the kernel between them, all in the kernel's coordinates,
the columns of M are a_j (y - Y_j) for a radial kernel and a_j Y_j for a dot-product kernel, so that M H M' is a
combination of sum a_j, sum a_j Y_j, sum a_j^2, sum a_j^2 Y_j and sum a_j^2 Y_j Y_j': for a block of places two matrix
products, of the slopes and of their squares with one table of the points. ``kameleon._local_covariance`` is the same
for one position without a table, and subtracts the mean column first, which is impossible here: digits are lost where
the columns are nearly parallel, far outside the points, but there the local covariance is negligible beside the
isotropic part.

Imports NumPy, Numba and the lower floors only.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.profiles import fill_profile
from pymc_kernel.linalg import lower_times, solve_lower, whiten
from pymc_kernel.machine_code import compiled
from pymc_kernel.mcmc import local_proposal
from pymc_kernel.mcmc.local_proposal import proposal_factor
from pymc_kernel.parallel import over_row_blocks

__all__ = ["Places", "Table", "local_at", "propose", "table"]

_ROWS = 128  # of a matrix product; fixed, so that results do not depend on the number of threads


class Table(NamedTuple):
    """The basis points of a proposal, prepared for matrix products."""

    learned: local_proposal.Fit
    center: np.ndarray  # (d,), mean of the basis points
    scaled_t: np.ndarray  # (d, n), the points over the length scale
    squares: np.ndarray  # (n,), their squared lengths
    points: np.ndarray  # (n, d + 1), Y with a column of ones
    products: np.ndarray  # (n, 1 + d + d (d + 1) / 2), ones, Y, and the products of its entries


class Places(NamedTuple):
    """Positions with what a proposal from them needs."""

    positions: np.ndarray  # (n, d)
    whitened: np.ndarray  # (n, d)
    local: np.ndarray  # (n, d, d)


def table(learned: local_proposal.Fit) -> Table:
    """Return the table of a proposal's basis points; O(n d^2) numbers."""
    points = learned.points_t.T
    center = points.mean(axis=0) if learned.is_radial else np.zeros(points.shape[1])
    scaled = (points - center) * learned.inverse_length_scale
    y = scaled * learned.inverse_length_scale
    rows, columns = np.tril_indices(points.shape[1])
    ones = np.ones((len(points), 1))
    products = np.hstack([ones, y, y[:, rows] * y[:, columns]])
    squares = (scaled**2).sum(axis=1)
    return Table(learned, center, np.ascontiguousarray(scaled.T), squares, np.hstack([ones, y]), products)


def local_at(positions: np.ndarray, known: Table) -> Places:
    """Return the local covariances at positions (n, d); O(n m d^2) time for m basis points."""
    learned = known.learned
    whitened = whiten(positions, learned.mean, learned.factor)
    local = np.empty((*positions.shape, positions.shape[1]))

    def rows(part):
        _fill_local(whitened[part], known, local[part])

    _over_parts(rows, known, len(positions))
    return Places(positions.copy(), whitened, local)


def propose(places: Places, known: Table, gamma: float, nu: float, noise: np.ndarray) -> tuple[Places, np.ndarray]:
    """Return a proposal x' for every particle x, and log q(x | x') - log q(x' | x).

    The whitening is linear with a constant Jacobian, which cancels in the ratio.
    """
    learned = known.learned
    whitened, local, log_ratio = np.empty_like(places.whitened), np.empty_like(places.local), np.empty(len(noise))

    def rows(part):
        here = places.whitened[part]
        _forward(here, places.local[part], gamma, nu, noise[part], whitened[part], log_ratio[part])
        _fill_local(whitened[part], known, local[part])
        _backward(whitened[part] - here, local[part], gamma, nu, log_ratio[part])

    _over_parts(rows, known, len(noise))
    return Places(whitened @ learned.factor.T + learned.mean, whitened, local), log_ratio


def _over_parts(rows, known, n):
    """Call ``rows`` with slices of 128 of n rows, by threads."""

    def block(start, stop):
        for k in range(start, stop):
            rows(slice(k * _ROWS, min((k + 1) * _ROWS, n)))

    over_row_blocks(block, -(-n // _ROWS), _ROWS * known.products.size)


def _fill_local(whitened, known, out):
    """Write the local covariances (n, d, d) at whitened places (n, d); n m numbers of memory."""
    learned = known.learned
    y = (whitened - known.center) * learned.inverse_length_scale
    slopes = y @ known.scaled_t
    squares = (y**2).sum(axis=1)
    _fill_slopes(squares, known.squares, learned.is_radial, learned.family, learned.shape_a, learned.shape_b, slopes)
    first = slopes @ known.points
    np.square(slopes, out=slopes)
    second = slopes @ known.products
    y *= learned.inverse_length_scale
    _assemble(y, first, second, learned.is_radial, learned.normalizer, slopes.shape[1], out)


@compiled
def _fill_slopes(squares, point_squares, is_radial, family, a, b, slopes):
    """Turn scalar products (n, m) of places and points into slopes; squared lengths (n,) and (m,)."""
    factor = 4.0 if is_radial else 2.0
    m = point_squares.shape[0]
    for i in range(squares.shape[0]):
        row = slopes[i]
        if is_radial:
            for j in range(m):
                row[j] = max(squares[i] + point_squares[j] - 2.0 * row[j], 0.0)
        fill_profile(family, a, b, np.int64(1), row, row)
        for j in range(m):
            row[j] *= factor


@compiled
def _assemble(y, first, second, is_radial, normalizer, m, out):
    """Write the local covariances from the sums over slopes (n, 1 + d) and over their squares (n, ...)."""
    n, d = y.shape
    mean = np.empty(d)
    for i in range(n):
        for k in range(d):
            mean[k] = first[i, 0] * y[i, k] - first[i, 1 + k] if is_radial else first[i, 1 + k]
        at = 1 + d
        for k in range(d):
            for j in range(k + 1):
                value = second[i, at] - mean[k] * mean[j] / m
                if is_radial:
                    value += second[i, 0] * y[i, k] * y[i, j] - y[i, k] * second[i, 1 + j] - y[i, j] * second[i, 1 + k]
                value *= normalizer
                out[i, k, j] = value
                out[i, j, k] = value
                at += 1


@compiled
def _forward(whitened, local, gamma, nu, noise, proposed, log_ratio):
    d = whitened.shape[1]
    displacement = np.empty(d)
    for i in range(len(whitened)):
        factor, log_det = proposal_factor(local[i], gamma, nu)
        lower_times(factor, noise[i], displacement)
        square = 0.0
        for k in range(d):
            proposed[i, k] = whitened[i, k] + displacement[k]
            square += noise[i, k] * noise[i, k]
        log_ratio[i] = log_det + 0.5 * square


@compiled
def _backward(displacement, local, gamma, nu, log_ratio):
    d = displacement.shape[1]
    back = np.empty(d)
    for i in range(len(displacement)):
        factor, log_det = proposal_factor(local[i], gamma, nu)
        solve_lower(factor, displacement[i], back)
        square = 0.0
        for k in range(d):
            square += back[k] * back[k]
        log_ratio[i] -= log_det + 0.5 * square
