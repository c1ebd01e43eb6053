"""Langevin Stein kernels of radial kernels, compiled, a row and a tile of columns at a time.

For k(x, y) = phi(s), s = sum_i u_i^2, u_i = (x_i - y_i) / l_i, and scores a at x, b at y, the Stein kernel is the sum
over coordinates of

    h_i(x, y) = a_i b_i phi(s) + 2 phi'(s) ((b_i - a_i) u_i / l_i - 1 / l_i^2) - 4 phi''(s) u_i^2 / l_i^2,

which is (a_i + d/dx_i)(b_i + d/dy_i) applied to k. With one length scale for all coordinates, the points are divided
and the scores multiplied by it beforehand, so that only three sums over coordinates are needed: of u_i^2,
(b_i - a_i) u_i and a_i b_i. Columns are stored tile by tile, coordinates as rows of a tile, point and score in turn, so
that the inner loops run over them in the processor's vector registers.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.kernels.profiles import POWER, fill_derivatives
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import over_row_blocks

TILE = 64  # columns, whose coordinates stay in the first cache up to 30 of them
# Sums are not reordered, so that they are the same on every machine that has fused multiply-add.
compiled_sums = compiled(fastmath={"contract"})
_LARGEST_SQUARE = 1e36  # squared distance up to which the root may begin in single precision


class Stein(NamedTuple):
    """Draws and scores prepared for the compiled functions, by :func:`prepare`."""

    points: np.ndarray  # (n, d), over the length scale
    scores: np.ndarray  # (n, d), times the length scale where it is a single one
    packed: np.ndarray  # (tiles, d, 2, TILE)
    inverse: np.ndarray  # (d,) of the length scales; ones where it is a single one
    factor: float  # factor for the results of the compiled functions
    family: int
    b: float  # shape parameter of the family
    uniform: bool  # whether there is a single length scale
    root: bool  # whether the profile is (1 + s)^-1/2, which is made without a root in double precision


def prepare(points: np.ndarray, scores: np.ndarray, kernel: RadialKernel) -> Stein:
    """Return points and scores (n, d) in the form that the other functions take; O(n d) time and memory.

    Raises ``TypeError`` where the kernel is not radial, or has no derivative at zero distance.
    """
    if not isinstance(kernel, RadialKernel):
        raise TypeError(f"a Stein kernel needs a radial kernel of pymc_kernel.kernels, got {type(kernel).__name__}.")
    if kernel.smoothness < 1:
        raise TypeError(f"{type(kernel).__name__} has a kink at zero distance; a Stein kernel needs a smoother one.")
    d = points.shape[1]
    a, b = kernel.shape_parameters
    inverse = kernel.inverse_length_scale(d)
    if kernel.family == POWER:
        inverse = inverse / np.sqrt(a)  # (1 + s / a)^-b is (1 + s)^-b of another length scale
    points = np.ascontiguousarray(points * inverse)
    factor, uniform = 1.0, bool(np.all(inverse == inverse[0]))
    if uniform:
        factor = float(inverse[0] ** 2)
        scores = scores / inverse
        inverse = np.ones(d)
    scores = np.ascontiguousarray(scores, dtype=float)
    root = bool(kernel.family == POWER and b == 0.5 and 4.0 * (points**2).sum(axis=1).max() < _LARGEST_SQUARE)
    return Stein(points, scores, _packed(points, scores), inverse, factor, kernel.family, b, uniform, root)


def margin(stein: Stein, coordinate: int) -> Stein:
    """Return one coordinate by itself, with the same kernel of that coordinate alone."""
    inverse = stein.inverse[coordinate]
    points, scores = stein.points[:, [coordinate]].copy(), stein.scores[:, [coordinate]] / inverse
    packed, factor = _packed(points, scores), stein.factor * inverse**2
    return stein._replace(points=points, scores=scores, packed=packed, inverse=np.ones(1), factor=factor, uniform=True)


def _packed(points, scores):
    n, d = points.shape
    both = np.zeros((-(-n // TILE) * TILE, d, 2))
    both[:n, :, 0], both[:n, :, 1] = points, scores
    return np.ascontiguousarray(both.reshape(-1, TILE, d, 2).transpose(0, 2, 3, 1))


@compiled_sums
def write_block(stein, start, stop, t, out):
    """Write h, but for its factor, of rows from ``start`` to ``stop`` and the columns of tile ``t`` to ``out``."""
    points, scores, tile, inverse, uniform = stein.points, stein.scores, stein.packed[t], stein.inverse, stein.uniform
    d, trace = points.shape[1], (inverse**2).sum()
    # Sums over coordinates of u^2, (b - a) u v, a b and (u v)^2, v the inverse length scale, and the profile there.
    # Arrays are made here, so that the compiler knows that they do not overlap, and uses vector registers.
    work = np.empty((7, TILE))
    square, across, product, scaled = work[0], work[1], work[2], work[3]
    value, slope, curvature = work[4], work[5], work[6]
    for i in range(start, stop):
        for j in range(TILE):
            square[j], across[j], product[j], scaled[j] = 0.0, -trace, 0.0, 0.0
        k = 0
        while uniform and k + 3 < d:  # four at a time: sums are read and written once
            x0, x1, x2, x3 = points[i, k], points[i, k + 1], points[i, k + 2], points[i, k + 3]
            a0, a1, a2, a3 = scores[i, k], scores[i, k + 1], scores[i, k + 2], scores[i, k + 3]
            for j in range(TILE):
                u0, u1, u2 = x0 - tile[k, 0, j], x1 - tile[k + 1, 0, j], x2 - tile[k + 2, 0, j]
                u3, b0, b1 = x3 - tile[k + 3, 0, j], tile[k, 1, j], tile[k + 1, 1, j]
                b2, b3 = tile[k + 2, 1, j], tile[k + 3, 1, j]
                square[j] = square[j] + u0 * u0 + u1 * u1 + u2 * u2 + u3 * u3
                across[j] = across[j] + (b0 - a0) * u0 + (b1 - a1) * u1 + (b2 - a2) * u2 + (b3 - a3) * u3
                product[j] = product[j] + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3
            k += 4
        while k < d:
            x, a, v = points[i, k], scores[i, k], inverse[k]
            for j in range(TILE):
                u, b = x - tile[k, 0, j], tile[k, 1, j]
                square[j] += u * u
                across[j] += (b - a) * (u * v)
                product[j] += a * b
            if not uniform:
                for j in range(TILE):
                    u = (x - tile[k, 0, j]) * v
                    scaled[j] += u * u
            k += 1
        if uniform:
            scaled[:] = square
        row = out[i - start]
        if stein.root:
            # With r = (1 + s)^-1/2 and q = r^2 it is r (sum a b - q (sum (b - a) u v - trace + 3 q sum (u v)^2)).
            for j in range(TILE):
                z = 1.0 + square[j]
                # In single precision first, then a step of third order: e = 1 - z r^2 is 1e-7, and the root is
                # r (1 - e)^-1/2 = r (1 + e / 2 + 3 e^2 / 8 + ...), right but for the last digit.
                r = np.float64(np.float32(1.0) / np.sqrt(np.float32(z)))
                e = 1.0 - z * (r * r)
                r = r + (e * r) * (0.5 + 0.375 * e)
                q = r * r
                row[j] = r * (product[j] - q * (across[j] + 3.0 * (q * scaled[j])))
        else:
            fill_derivatives(stein.family, 1.0, stein.b, square, value, slope, curvature)
            for j in range(TILE):
                row[j] = value[j] * product[j] + 2.0 * slope[j] * across[j] - 4.0 * curvature[j] * scaled[j]


@compiled_sums
def fill_rows(stein, first_tile, start, stop, out):
    """As :func:`fill`, of rows from ``start`` to ``stop``, in this thread alone."""
    block, width = np.empty((stop - start, TILE)), out.shape[1]
    for done in range(0, width, TILE):
        write_block(stein, start, stop, first_tile + done // TILE, block)
        for i in range(start, stop):
            for j in range(min(TILE, width - done)):
                out[i, done + j] = stein.factor * block[i - start, j]


def fill(stein: Stein, rows: slice | np.ndarray, first_tile: int, out: np.ndarray) -> np.ndarray:
    """Write the Stein kernel of some rows and the columns from ``first_tile * TILE`` on into ``out``; on all cores."""
    part = stein._replace(points=stein.points[rows], scores=stein.scores[rows])
    n, d = part.points.shape
    over_row_blocks(lambda start, stop: fill_rows(part, first_tile, start, stop, out), n, out.shape[1] * d)
    return out


def from_both_ends(turn: int, count: int) -> int:
    """Return which of ``count`` blocks of rows is next, where only pairs above the diagonal count.

    Blocks come from both ends in turn, so that equal numbers of blocks are equal work.
    """
    return turn // 2 if turn % 2 == 0 else count - 1 - turn // 2


@compiled_sums
def _sum_of_rows(stein, rows):
    """Return the sum of h over a tile of rows and all columns from its tile on, mirrored ones too."""
    n, block, result = len(stein.points), np.empty((TILE, TILE)), 0.0
    start, stop = rows * TILE, min(n, (rows + 1) * TILE)
    for t in range(rows, len(stein.packed)):
        write_block(stein, start, stop, t, block)
        sums = np.zeros(TILE)
        for i in range(stop - start):
            for j in range(TILE):
                sums[j] += block[i, j]
        # Columns beyond the diagonal stand for two tiles.
        result += (1.0 if t == rows else 2.0) * sums[: min(TILE, n - t * TILE)].sum()
    return stein.factor * result


@compiled_sums
def _coordinate_sums_of_rows(stein, weights, rows, out):
    """As :func:`_sum_of_rows` for each coordinate by itself, out (d,), of draws with weights (n,)."""
    n, d = stein.points.shape
    work, sums = np.empty((7, TILE)), np.empty((d, TILE))
    square, value, slope, curvature = work[0], work[4], work[5], work[6]
    for t in range(rows, len(stein.packed)):
        tile = stein.packed[t]
        sums[:] = 0.0
        for i in range(rows * TILE, min(n, (rows + 1) * TILE)):
            square[:] = 0.0
            for k in range(d):
                x = stein.points[i, k]
                for j in range(TILE):
                    square[j] += (x - tile[k, 0, j]) * (x - tile[k, 0, j])
            fill_derivatives(stein.family, 1.0, stein.b, square, value, slope, curvature)
            for k in range(d):
                x, a, v, w, to = stein.points[i, k], stein.scores[i, k], stein.inverse[k], weights[i], sums[k]
                for j in range(TILE):
                    u, b = (x - tile[k, 0, j]) * v, tile[k, 1, j]
                    along = 2.0 * slope[j] * ((b - a) * u - v * v)
                    to[j] += w * (a * b * value[j] + along - 4.0 * curvature[j] * u * u)
        factor = (1.0 if t == rows else 2.0) * stein.factor
        for k in range(d):
            for j in range(min(TILE, n - t * TILE)):
                out[k] += factor * sums[k, j] * weights[t * TILE + j]


def total(stein: Stein) -> float:
    """Return the sum of the Stein kernel over all pairs.

    O(n^2 d) time on all cores, by symmetry half of it, O(n d) memory. The same for any number of cores.
    """
    return float(_over_tiles(stein, lambda rows, out: np.copyto(out, _sum_of_rows(stein, rows)), 1)[0])


def coordinate_sums(stein: Stein, weights: np.ndarray) -> np.ndarray:
    """Return the sum over all pairs of each coordinate's part of the Stein kernel, (d,), with weights (n,)."""
    d = stein.points.shape[1]
    return _over_tiles(stein, lambda rows, out: _coordinate_sums_of_rows(stein, weights, rows, out), d)


def _over_tiles(stein, add, size):
    """Return the sum (size,) of what ``add(rows, out)`` adds for each tile of rows, on all cores."""
    num_tiles, (n, d) = len(stein.packed), stein.points.shape
    out = np.zeros((num_tiles, size))

    def block(start, stop):
        for turn in range(start, stop):
            rows = from_both_ends(turn, num_tiles)
            add(rows, out[rows])

    over_row_blocks(block, num_tiles, n * TILE / 2 * d)
    return out.sum(axis=0)


def diagonal(stein: Stein) -> np.ndarray:
    """Return each coordinate's part of h(x_i, x_i), shape (n, d): a^2 phi(0) - 2 phi'(0) / l^2."""
    value, slope, curvature = np.empty((3, 1))
    fill_derivatives(stein.family, 1.0, stein.b, np.zeros(1), value, slope, curvature)
    return stein.factor * (stein.scores**2 * value - 2.0 * slope * stein.inverse**2)
