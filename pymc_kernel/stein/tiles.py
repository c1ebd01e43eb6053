"""Langevin Stein kernels of radial kernels, compiled, a tile of columns at a time.

For k(x, y) = phi(s), s = sum_i u_i^2, u_i = (x_i - y_i) / l_i, and scores a at x, b at y, the Stein kernel is the sum
over coordinates of

    h_i(x, y) = a_i b_i phi(s) + 2 phi'(s) ((b_i - a_i) u_i / l_i - 1 / l_i^2) - 4 phi''(s) u_i^2 / l_i^2,

which is (a_i + d/dx_i)(b_i + d/dy_i) applied to k. With one length scale for all coordinates, the points are divided
and the scores multiplied by it beforehand, so that three sums over coordinates are all there is: of u_i^2,
(b_i - a_i) u_i and a_i b_i. Columns are stored a tile after the other, coordinates as rows of a tile, point and score
in turn: the offsets in the inner loop are then constants, which lets the compiler put it into vector registers.

Imports NumPy, Numba, ``kernels`` and ``parallel`` only.
"""

from typing import NamedTuple

import numba
import numpy as np

from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.kernels.profiles import GAUSSIAN, POWER, fill_profile
from pymc_kernel.parallel import over_row_blocks

__all__ = [
    "COMPILED",
    "TILE",
    "Stein",
    "add_row",
    "coordinate_sums",
    "diagonal",
    "fill",
    "fill_coordinates",
    "prepare",
    "row_sums",
]

TILE = 128  # rows and columns of a block, whose coordinates and sums stay in the first cache

# Without the sums being reordered, so that they are the same on every machine.
COMPILED = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
_1 = np.uintp(TILE)
_2, _3, _4, _5, _6, _7 = (np.uintp(k * TILE) for k in range(2, 8))


class Stein(NamedTuple):
    """Draws and scores prepared for the compiled functions, by :func:`prepare`."""

    points: np.ndarray  # (n, d), over the length scale
    scores: np.ndarray  # (n, d), times the length scale where it is a single one
    packed: np.ndarray  # (tiles, 2 d TILE)
    inverse: np.ndarray  # (d,) of the length scales; ones where it is a single one
    factor: float  # factor for the results of the compiled functions
    family: int
    a: float
    b: float

    @property
    def uniform(self) -> bool:
        """Whether there is a single length scale, which the quick loops are for."""
        return bool(np.all(self.inverse == 1.0))


def prepare(points: np.ndarray, scores: np.ndarray, kernel: RadialKernel) -> Stein:
    """Return points and scores (n, d) in the form that the other functions take; O(n d) time and memory.

    Raises
    ------
    TypeError
        Where the kernel is not radial, or has no derivative at zero distance.
    """
    if not isinstance(kernel, RadialKernel):
        raise TypeError(f"a Stein kernel needs a radial kernel of pymc_kernel.kernels, got {type(kernel).__name__}.")
    if kernel.smoothness < 1:
        raise TypeError(f"{type(kernel).__name__} has a kink at zero distance; a Stein kernel needs a smoother one.")
    n, d = points.shape
    inverse = kernel.inverse_length_scale(d)
    points = np.ascontiguousarray(points * inverse)
    factor = 1.0
    if np.all(inverse == inverse[0]):
        factor = float(inverse[0] ** 2)
        scores = scores / inverse
        inverse = np.ones(d)
    scores = np.ascontiguousarray(scores, dtype=float)
    num_tiles = -(-n // TILE)
    both = np.zeros((num_tiles * TILE, d, 2))
    both[:n, :, 0], both[:n, :, 1] = points, scores
    packed = np.ascontiguousarray(both.reshape(num_tiles, TILE, 2 * d).transpose(0, 2, 1)).reshape(num_tiles, -1)
    return Stein(points, scores, packed, inverse, factor, kernel.family, *kernel.shape_parameters)


# -- one row against one tile ---------------------------------------------------------------------------


@numba.njit(**COMPILED)
def _accumulate(point, score, tile, sums):
    """Write sums of u^2, (b - a) u and a b over the coordinates, unit length scales, into ``sums`` (3 TILE,)."""
    d = point.size
    for i in range(3 * TILE):
        sums[i] = 0.0
    k = 0
    while k + 4 <= d:
        base = np.uintp(2 * k * TILE)
        x0, x1, x2, x3 = point[k], point[k + 1], point[k + 2], point[k + 3]
        a0, a1, a2, a3 = score[k], score[k + 1], score[k + 2], score[k + 3]
        for i in range(TILE):
            # Unsigned indices: signed ones would be tested for being negative, and the loop not be vectorized.
            j = np.uintp(i)
            u, b = x0 - tile[base + j], tile[base + _1 + j]
            s, c, p = u * u, (b - a0) * u, a0 * b
            u, b = x1 - tile[base + _2 + j], tile[base + _3 + j]
            s, c, p = s + u * u, c + (b - a1) * u, p + a1 * b
            u, b = x2 - tile[base + _4 + j], tile[base + _5 + j]
            s, c, p = s + u * u, c + (b - a2) * u, p + a2 * b
            u, b = x3 - tile[base + _6 + j], tile[base + _7 + j]
            s, c, p = s + u * u, c + (b - a3) * u, p + a3 * b
            sums[j] += s
            sums[_1 + j] += c
            sums[_2 + j] += p
        k += 4
    while k < d:
        base = np.uintp(2 * k * TILE)
        x0, a0 = point[k], score[k]
        for i in range(TILE):
            j = np.uintp(i)
            u, b = x0 - tile[base + j], tile[base + _1 + j]
            sums[j] += u * u
            sums[_1 + j] += (b - a0) * u
            sums[_2 + j] += a0 * b
        k += 1


@numba.njit(**COMPILED)
def _accumulate_scaled(point, score, tile, inverse, sums, scaled):
    """As :func:`_accumulate` with length scales; sums of u^2 / l^2 go into ``scaled`` (TILE,)."""
    for i in range(3 * TILE):
        sums[i] = 0.0
    scaled[:] = 0.0
    for k in range(point.size):
        base = np.uintp(2 * k * TILE)
        x0, a0, inv = point[k], score[k], inverse[k]
        for i in range(TILE):
            j = np.uintp(i)
            u, b = x0 - tile[base + j], tile[base + _1 + j]
            sums[j] += u * u
            sums[_1 + j] += (b - a0) * u * inv
            sums[_2 + j] += a0 * b
            scaled[j] += (u * inv) * (u * inv)


@numba.njit(**COMPILED)
def _combine_root(a, trace, sums, out):
    """Add h to ``out`` (TILE,) from the sums over coordinates, for the profile (1 + s / a)^-1/2 and uniform scales."""
    inv = 1.0 / a
    for i in range(TILE):
        j = np.uintp(i)
        value = 1.0 / np.sqrt(1.0 + sums[j] * inv)
        square = value * value * inv
        slope = -0.5 * value * square
        out[j] += value * sums[_2 + j] + 2.0 * slope * (sums[_1 + j] - trace) + 6.0 * slope * square * sums[j]


@numba.njit(**COMPILED)
def _combine(family, a, b, trace, sums, scaled, out):
    """Add h to ``out`` (TILE,) from the sums over coordinates; ``scaled`` may be ``sums`` itself."""
    value, slope, curvature = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    _fill_profiles(family, a, b, sums[:TILE], value, slope, curvature)
    for i in range(TILE):
        j = np.uintp(i)
        out[j] += value[j] * sums[_2 + j] + 2.0 * slope[j] * (sums[_1 + j] - trace) - 4.0 * curvature[j] * scaled[j]


@numba.njit(**COMPILED)
def _fill_profiles(family, a, b, argument, value, slope, curvature):
    fill_profile(family, a, b, np.int64(0), argument, value)
    if family == GAUSSIAN:
        for j in range(argument.size):
            slope[j] = -0.5 * value[j]
            curvature[j] = 0.25 * value[j]
    else:
        fill_profile(family, a, b, np.int64(1), argument, slope)
        fill_profile(family, a, b, np.int64(2), argument, curvature)


@numba.njit(**COMPILED)
def add_row(point, score, tile, inverse, uniform, trace, family, a, b, sums, scaled, out):
    """Add h(x, y_j) for the columns of one tile to ``out`` (TILE,)."""
    if uniform:
        _accumulate(point, score, tile, sums)
        if family == POWER and b == 0.5:
            _combine_root(a, trace, sums, out)
        else:
            _combine(family, a, b, trace, sums, sums, out)
    else:
        _accumulate_scaled(point, score, tile, inverse, sums, scaled)
        _combine(family, a, b, trace, sums, scaled, out)


# -- many rows ------------------------------------------------------------------------------------------


@numba.njit(**COMPILED)
def _tile_of(turn, num_tiles):
    """Return which tile of rows is next: from both ends in turn, so that equal numbers of them are equal work."""
    return turn // 2 if turn % 2 == 0 else num_tiles - 1 - turn // 2


@numba.njit(**COMPILED)
def _sum_pairs(points, scores, packed, inverse, uniform, family, a, b, start, stop, out):
    """Write, for each tile of rows, the sum of h over its rows and all columns from its tile on, mirrored ones too."""
    n, num_tiles = points.shape[0], packed.shape[0]
    trace = (inverse**2).sum()
    sums, scaled, total = np.empty(3 * TILE), np.empty(TILE), np.empty(TILE)
    for turn in range(start, stop):
        rows = _tile_of(turn, num_tiles)
        out[rows] = 0.0
        for columns in range(rows, num_tiles):
            total[:] = 0.0
            tile = packed[columns]
            for i in range(rows * TILE, min(n, (rows + 1) * TILE)):
                add_row(points[i], scores[i], tile, inverse, uniform, trace, family, a, b, sums, scaled, total)
            width = min(TILE, n - columns * TILE)
            out[rows] += (1.0 if rows == columns else 2.0) * total[:width].sum()


def row_sums(stein: Stein) -> np.ndarray:
    """Return sums of the Stein kernel, one for each tile of rows; all pairs are in their total.

    O(n^2 d) time on all cores, by symmetry half of it, O(n d) memory. The same for any number of cores.
    """
    out = np.empty(len(stein.packed))

    def block(start, stop):
        _sum_pairs(*stein[:4], stein.uniform, *stein[5:], start, stop, out)

    over_row_blocks(block, len(out), len(stein.points) * TILE / 2 * stein.points.shape[1])
    return stein.factor * out


@numba.njit(**COMPILED)
def _sum_coordinates(points, scores, packed, inverse, family, a, b, start, stop, out):
    """As :func:`_sum_pairs`, each coordinate by itself: out (tiles, d)."""
    n, d = points.shape
    num_tiles = packed.shape[0]
    sums = np.empty(3 * TILE)
    value, slope, curvature = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    totals = np.empty((d, TILE))
    for turn in range(start, stop):
        rows = _tile_of(turn, num_tiles)
        out[rows] = 0.0
        for columns in range(rows, num_tiles):
            totals[:] = 0.0
            tile = packed[columns]
            for i in range(rows * TILE, min(n, (rows + 1) * TILE)):
                _accumulate(points[i], scores[i], tile, sums)
                _fill_profiles(family, a, b, sums[:TILE], value, slope, curvature)
                for k in range(d):
                    _add_coordinate(points[i, k], scores[i, k], inverse[k], k, tile, value, slope, curvature, totals[k])
            width = min(TILE, n - columns * TILE)
            for k in range(d):
                out[rows, k] += (1.0 if rows == columns else 2.0) * totals[k, :width].sum()


@numba.njit(**COMPILED)
def _add_coordinate(point, score, inv, k, tile, value, slope, curvature, out):
    """Add h_k to ``out`` (TILE,), from the profiles at the squared distances."""
    base = np.uintp(2 * k * TILE)
    for i in range(TILE):
        j = np.uintp(i)
        u, b = point - tile[base + j], tile[base + _1 + j]
        v = u * inv
        out[j] += score * b * value[j] + 2.0 * slope[j] * ((b - score) * v - inv * inv) - 4.0 * curvature[j] * v * v


def coordinate_sums(stein: Stein) -> np.ndarray:
    """Return the sum over all pairs of each coordinate's part of the Stein kernel, (d,); twice :func:`row_sums`."""
    out = np.empty((len(stein.packed), stein.points.shape[1]))

    def block(start, stop):
        _sum_coordinates(*stein[:4], *stein[5:], start, stop, out)

    over_row_blocks(block, len(out), len(stein.points) * TILE / 2 * stein.points.shape[1])
    return stein.factor * out.sum(axis=0)


@numba.njit(**COMPILED)
def _fill(rows, row_scores, packed, inverse, uniform, factor, family, a, b, first, start, stop, out):
    """Write h of rows ``start`` to ``stop`` and the columns of the tiles from ``first`` on."""
    sums, scaled, total = np.empty(3 * TILE), np.empty(TILE), np.empty(TILE)
    trace = (inverse**2).sum()
    width = out.shape[1]
    for i in range(start, stop):
        done = 0
        columns = first
        while done < width:
            total[:] = 0.0
            add_row(rows[i], row_scores[i], packed[columns], inverse, uniform, trace, family, a, b, sums, scaled, total)
            for j in range(min(TILE, width - done)):
                out[i, done + j] = factor * total[j]
            done += TILE
            columns += 1


def fill(stein: Stein, rows: slice, first_tile: int, out: np.ndarray) -> np.ndarray:
    """Write the Stein kernel of some rows and the columns from ``first_tile * TILE`` on into ``out``."""
    points, scores, uniform = stein.points[rows], stein.scores[rows], stein.uniform

    def block(start, stop):
        _fill(
            points, scores, stein.packed, stein.inverse, uniform, stein.factor, *stein[5:], first_tile, start, stop, out
        )

    over_row_blocks(block, len(points), out.shape[1] * points.shape[1])
    return out


@numba.njit(**COMPILED)
def _fill_coordinates(rows, row_scores, packed, inverse, factor, family, a, b, first, start, stop, out):
    d, _, width = out.shape
    sums, total = np.empty(3 * TILE), np.empty(TILE)
    value, slope, curvature = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for i in range(start, stop):
        done = 0
        columns = first
        while done < width:
            tile = packed[columns]
            _accumulate(rows[i], row_scores[i], tile, sums)
            _fill_profiles(family, a, b, sums[:TILE], value, slope, curvature)
            for k in range(d):
                total[:] = 0.0
                _add_coordinate(rows[i, k], row_scores[i, k], inverse[k], k, tile, value, slope, curvature, total)
                for j in range(min(TILE, width - done)):
                    out[k, i, done + j] = factor * total[j]
            done += TILE
            columns += 1


def fill_coordinates(stein: Stein, rows: slice, first_tile: int, out: np.ndarray) -> np.ndarray:
    """As :func:`fill`, each coordinate's part by itself: ``out`` (d, rows, columns)."""
    points, scores = stein.points[rows], stein.scores[rows]

    def block(start, stop):
        _fill_coordinates(
            points, scores, stein.packed, stein.inverse, stein.factor, *stein[5:], first_tile, start, stop, out
        )

    over_row_blocks(block, len(points), out.shape[2] * points.shape[1] * 2)
    return out


def diagonal(stein: Stein) -> np.ndarray:
    """Return each coordinate's part of h(x_i, x_i), shape (n, d): a^2 phi(0) - 2 phi'(0) / l^2."""
    value, slope = np.zeros(1), np.zeros(1)
    fill_profile(stein.family, stein.a, stein.b, 0, value, value)
    fill_profile(stein.family, stein.a, stein.b, 1, slope, slope)
    return stein.factor * (stein.scores**2 * value[0] - 2.0 * slope[0] * stein.inverse**2)
