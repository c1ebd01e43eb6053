"""Langevin Stein kernels of radial kernels, compiled, a tile of columns at a time.

For k(x, y) = phi(s), s = sum_i u_i^2, u_i = (x_i - y_i) / l_i, and scores a at x, b at y, the Stein kernel is the sum
over coordinates of

    h_i(x, y) = a_i b_i phi(s) + 2 phi'(s) ((b_i - a_i) u_i / l_i - 1 / l_i^2) - 4 phi''(s) u_i^2 / l_i^2,

which is (a_i + d/dx_i)(b_i + d/dy_i) applied to k. With one length scale for all coordinates, the points are divided
and the scores multiplied by it beforehand, so that three sums over coordinates are all there is: of u_i^2,
(b_i - a_i) u_i and a_i b_i; ``registers.py`` makes them. Columns are stored a tile after the other, coordinates as rows
of a tile, point and score in turn.

Imports NumPy, Numba, ``kernels``, ``parallel`` and ``registers`` only.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.base import RadialKernel
from pymc_kernel.kernels.profiles import GAUSSIAN, MATERN52, POWER, fill_value_slope_and_curvature
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import over_row_blocks
from pymc_kernel.stein.registers import (
    GAUSSIAN_FORM,
    GROUP,
    LARGEST_SQUARE,
    MATERN_FORM,
    POWER_FORM,
    RECIPROCAL_FORM,
    TILE,
    add_by_form,
    add_with_root,
    fill_by_form,
    fill_scaled_sums,
    fill_scaled_sums_of_row,
    fill_sums,
    fill_sums_of_row,
    fill_with_root,
)

__all__ = [
    "TILE",
    "Stein",
    "add_row",
    "compiled_sums",
    "diagonal",
    "fill",
    "fill_coordinates_here",
    "fill_here",
    "from_both_ends",
    "margin",
    "prepare",
    "row_sums",
]

# Without the sums being reordered, so that they are the same on every machine.
compiled_sums = compiled(fastmath={"contract"})
_COLUMNS = 32 * TILE  # of a block of rows whose sum is taken: 1 MB
_FORMS = {GAUSSIAN: GAUSSIAN_FORM, MATERN52: MATERN_FORM, POWER: POWER_FORM}
_CACHE_LINE = 64  # bytes; vectors that begin elsewhere are read twice as slowly


class Stein(NamedTuple):
    """Draws and scores prepared for the compiled functions, by :func:`prepare`."""

    points: np.ndarray  # (n, d), over the length scale
    scores: np.ndarray  # (n, d), times the length scale where it is a single one
    packed: np.ndarray  # (tiles, 2 d TILE)
    inverse: np.ndarray  # (d,) of the length scales; ones where it is a single one
    factor: float  # factor for the results of the compiled functions
    family: int
    b: float  # shape parameter of the family
    uniform: bool  # whether there is a single length scale
    root: bool  # whether the profile is (1 + s)^-1/2, which has functions of its own
    form: int  # number of the profile, where it is one of those that are made in the registers; zero for others


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
    near = 4.0 * (points**2).sum(axis=1).max() < LARGEST_SQUARE
    root = bool(uniform and kernel.family == POWER and b == 0.5 and near)
    form = _FORMS.get(kernel.family, 0) if uniform else 0
    form = RECIPROCAL_FORM if form == POWER_FORM and b == 1.0 else form
    return Stein(points, scores, _packed(points, scores), inverse, factor, kernel.family, b, uniform, root, form)


def margin(stein: Stein, coordinate: int) -> Stein:
    """Return one coordinate by itself, with the same kernel of that coordinate alone."""
    inverse = stein.inverse[coordinate]
    points, scores = stein.points[:, [coordinate]].copy(), stein.scores[:, [coordinate]] / inverse
    packed, factor = _packed(points, scores), stein.factor * inverse**2
    return stein._replace(points=points, scores=scores, packed=packed, inverse=np.ones(1), factor=factor, uniform=True)


def _packed(points, scores):
    n, d = points.shape
    num_tiles = -(-n // TILE)
    room = np.zeros(num_tiles * TILE * 2 * d + _CACHE_LINE // 8)
    room = room[-room.ctypes.data % _CACHE_LINE // 8 :][: num_tiles * TILE * 2 * d]
    packed = room.reshape(num_tiles, d, 2, TILE)
    for k, values in enumerate((points, scores)):
        full = n // TILE
        packed[:full, :, k] = values[: full * TILE].reshape(full, TILE, d).transpose(0, 2, 1)
        packed[full:, :, k, : n - full * TILE] = values[full * TILE :].T
    return packed.reshape(num_tiles, 2 * d * TILE)


# -- a few rows against one tile ------------------------------------------------------------------------


@compiled_sums
def _combine(family, b, trace, uniform, sums, profiles, out):
    """Write h to ``out`` (rows, TILE) from the sums over coordinates (4, rows, TILE)."""
    square, across, product = sums[0].ravel(), sums[1].ravel(), sums[2].ravel()
    scaled = square if uniform else sums[3].ravel()
    value, slope, curvature = profiles[0], profiles[1], profiles[2]
    fill_value_slope_and_curvature(family, b, square, value, slope, curvature)
    flat = out.ravel()
    for j in range(flat.size):
        flat[j] = value[j] * product[j] + 2.0 * slope[j] * (across[j] - trace) - 4.0 * curvature[j] * scaled[j]


@compiled_sums
def add_row(row, points, scores, tile, inverse, family, b, uniform, sums, profiles, out):
    """Add h of one row and the columns of one tile to ``out`` (TILE,).

    ``sums`` (4, 1, TILE) and ``profiles`` (4, TILE) are room to work in.
    """
    if uniform:
        fill_sums_of_row(row, points, scores, tile, inverse, sums)
    else:
        fill_scaled_sums_of_row(row, points, scores, tile, inverse, sums)
    _combine(family, b, (inverse**2).sum(), uniform, sums, profiles, profiles[3])
    for j in range(TILE):
        out[j] += profiles[3, j]


# -- many rows ------------------------------------------------------------------------------------------


@compiled_sums
def _fill_with_root(rows, row_scores, packed, factor, first, start, stop, out):
    """Write h of the groups of rows ``start`` to ``stop`` and the columns of the tiles from ``first`` on."""
    group = np.empty((GROUP, TILE))
    num_rows, width = out.shape
    for i in range(start * GROUP, min(stop * GROUP, num_rows), GROUP):
        for done in range(0, width, TILE):
            fill_with_root(i, rows, row_scores, packed[first + done // TILE], float(rows.shape[1]), group)
            for r in range(min(GROUP, num_rows - i)):
                _copy_row(factor, group[r], out[i + r, done : done + TILE])


@compiled_sums
def _fill_by_form(form, b, rows, row_scores, packed, factor, first, start, stop, out):
    """As :func:`_fill_with_root` for the other profiles that are made in the registers."""
    group = np.empty((GROUP, TILE))
    num_rows, width = out.shape
    for i in range(start * GROUP, min(stop * GROUP, num_rows), GROUP):
        for done in range(0, width, TILE):
            fill_by_form(form, b, i, rows, row_scores, packed[first + done // TILE], float(rows.shape[1]), group)
            for r in range(min(GROUP, num_rows - i)):
                _copy_row(factor, group[r], out[i + r, done : done + TILE])


@compiled_sums
def _fill_family(rows, row_scores, packed, inverse, factor, family, b, uniform, first, start, stop, out):
    """As :func:`_fill_with_root` for other profiles and several length scales."""
    sums, profiles = np.empty((4, GROUP, TILE)), np.empty((3, GROUP * TILE))
    group = np.empty((GROUP, TILE))
    trace = (inverse**2).sum()
    num_rows, width = out.shape
    for i in range(start * GROUP, min(stop * GROUP, num_rows), GROUP):
        for done in range(0, width, TILE):
            tile = packed[first + done // TILE]
            if uniform:
                fill_sums(i, rows, row_scores, tile, inverse, sums)
            else:
                fill_scaled_sums(i, rows, row_scores, tile, inverse, sums)
            _combine(family, b, trace, uniform, sums, profiles, group)
            for r in range(min(GROUP, num_rows - i)):
                _copy_row(factor, group[r], out[i + r, done : done + TILE])


@compiled_sums
def _copy_row(factor, row, out):
    for j in range(out.size):
        out[j] = factor * row[j]


def fill_here(stein: Stein, rows: slice, first_tile: int, out: np.ndarray) -> None:
    """As :func:`fill`, in this thread alone."""
    points, scores = stein.points[rows], stein.scores[rows]
    _fill_groups(stein, points, scores, first_tile, 0, -(-len(points) // GROUP), out)


def _fill_groups(stein, points, scores, first_tile, start, stop, out):
    if stein.root:
        _fill_with_root(points, scores, stein.packed, stein.factor, first_tile, start, stop, out)
    elif stein.form:
        _fill_by_form(stein.form, stein.b, points, scores, stein.packed, stein.factor, first_tile, start, stop, out)
    else:
        _fill_family(points, scores, *stein[2:8], first_tile, start, stop, out)


def fill(stein: Stein, rows: slice | np.ndarray, first_tile: int, out: np.ndarray) -> np.ndarray:
    """Write the Stein kernel of some rows and the columns from ``first_tile * TILE`` on into ``out``; on all cores."""
    points, scores = stein.points[rows], stein.scores[rows]

    def block(start, stop):
        _fill_groups(stein, points, scores, first_tile, start, stop, out)

    over_row_blocks(block, -(-len(points) // GROUP), GROUP * out.shape[1] * points.shape[1])
    return out


def from_both_ends(turn: int, count: int) -> int:
    """Return which of ``count`` blocks of rows is next, where only pairs above the diagonal count.

    From both ends in turn, so that equal numbers of blocks are equal work.
    """
    return turn // 2 if turn % 2 == 0 else count - 1 - turn // 2


@compiled_sums
def _share(total, n, rows, columns):
    """Return what sums of the columns (TILE,) of one tile are of all; those beyond the diagonal stand for two tiles."""
    width = min(TILE, n - columns * TILE)
    return (1.0 if rows == columns else 2.0) * total[:width].sum()


@compiled_sums
def _sum_with_root(points, scores, packed, rows):
    """Return the sum of h over a tile of rows and all columns from its tile on, mirrored ones too."""
    n, num_tiles = points.shape[0], packed.shape[0]
    total, result = np.empty(TILE), 0.0
    last = min(n, (rows + 1) * TILE)
    for columns in range(rows, num_tiles):
        total[:] = 0.0
        for i in range(rows * TILE, last, GROUP):
            add_with_root(i, last, points, scores, packed[columns], float(points.shape[1]), total)
        result += _share(total, n, rows, columns)
    return result


@compiled_sums
def _sum_by_form(form, b, points, scores, packed, rows):
    """As :func:`_sum_with_root` for the other profiles that are made in the registers."""
    n, num_tiles = points.shape[0], packed.shape[0]
    total, result = np.empty(TILE), 0.0
    last = min(n, (rows + 1) * TILE)
    for columns in range(rows, num_tiles):
        total[:] = 0.0
        for i in range(rows * TILE, last, GROUP):
            add_by_form(form, b, i, last, points, scores, packed[columns], float(points.shape[1]), total)
        result += _share(total, n, rows, columns)
    return result


def _sum_family(stein, rows, buffer):
    """As :func:`_sum_with_root` for other profiles; ``buffer`` has room for a part of the rows' kernel."""
    n = len(stein.points)
    start, stop = rows * TILE, min(n, (rows + 1) * TILE)
    result = 0.0
    for first in range(start, n, _COLUMNS):
        width = min(_COLUMNS, n - first)
        part = buffer[: (stop - start) * width].reshape(stop - start, width)
        fill_here(stein, slice(start, stop), first // TILE, part)
        result += 2.0 * part.sum()
        if first == start:
            result -= part[:, :TILE].sum()
    return result


def row_sums(stein: Stein) -> np.ndarray:
    """Return sums of the Stein kernel, one for each tile of rows; all pairs are in their total.

    O(n^2 d) time on all cores, by symmetry half of it, O(n d) memory. The same for any number of cores.
    """
    num_tiles = len(stein.packed)
    out = np.empty(num_tiles)

    def block(start, stop):
        buffer = None if stein.root or stein.form else np.empty(TILE * _COLUMNS)
        for turn in range(start, stop):
            rows = from_both_ends(turn, num_tiles)
            if stein.root:
                out[rows] = stein.factor * _sum_with_root(*stein[:3], rows)
            elif stein.form:
                out[rows] = stein.factor * _sum_by_form(stein.form, stein.b, *stein[:3], rows)
            else:
                out[rows] = _sum_family(stein, rows, buffer)

    over_row_blocks(block, num_tiles, len(stein.points) * TILE / 2 * stein.points.shape[1])
    return out


@compiled_sums
def _fill_coordinates(rows, row_scores, packed, inverse, factor, family, b, first, out):
    """As :func:`_fill_family` for each coordinate by itself, out (d, rows, columns)."""
    d, num_rows, width = out.shape
    sums, profiles = np.empty((4, GROUP, TILE)), np.empty((3, GROUP * TILE))
    for i in range(0, num_rows, GROUP):
        for done in range(0, width, TILE):
            tile = packed[first + done // TILE]
            fill_sums(i, rows, row_scores, tile, inverse, sums)
            fill_value_slope_and_curvature(family, b, sums[0].ravel(), profiles[0], profiles[1], profiles[2])
            for r in range(min(GROUP, num_rows - i)):
                # One at a time: of all together Numba would not know that their numbers are next to each other.
                value = profiles[0, r * TILE : (r + 1) * TILE]
                slope = profiles[1, r * TILE : (r + 1) * TILE]
                curvature = profiles[2, r * TILE : (r + 1) * TILE]
                for k in range(d):
                    part = out[k, i + r, done : done + TILE]
                    x, a, inv = rows[i + r, k], row_scores[i + r, k], inverse[k]
                    _fill_coordinate(x, a, inv, factor, k, tile, value, slope, curvature, part)


@compiled_sums
def _fill_coordinate(point, score, inv, factor, k, tile, value, slope, curvature, out):
    """Write h_k to ``out``, from the profiles at the squared distances."""
    start = 2 * k * TILE
    points, scores = tile[start : start + TILE], tile[start + TILE : start + 2 * TILE]
    for j in range(out.size):
        v, b = (point - points[j]) * inv, scores[j]
        along = 2.0 * slope[j] * ((b - score) * v - inv * inv)
        out[j] = factor * (score * b * value[j] + along - 4.0 * curvature[j] * v * v)


def fill_coordinates_here(stein: Stein, rows: slice, first_tile: int, out: np.ndarray) -> None:
    """As :func:`fill_here`, each coordinate's part by itself: ``out`` (d, rows, columns)."""
    _fill_coordinates(stein.points[rows], stein.scores[rows], *stein[2:7], first_tile, out)


def diagonal(stein: Stein) -> np.ndarray:
    """Return each coordinate's part of h(x_i, x_i), shape (n, d): a^2 phi(0) - 2 phi'(0) / l^2."""
    value, slope, curvature = np.empty(1), np.empty(1), np.empty(1)
    fill_value_slope_and_curvature(stein.family, stein.b, np.zeros(1), value, slope, curvature)
    return stein.factor * (stein.scores**2 * value[0] - 2.0 * slope[0] * stein.inverse**2)
