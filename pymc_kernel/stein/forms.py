"""Sums of the Stein kernel over all pairs of draws that have signs or weights.

Imports NumPy, ``parallel`` and lower files only.
"""

import numpy as np

from pymc_kernel.parallel import over_row_blocks
from pymc_kernel.stein import tiles

__all__ = ["coordinate_forms", "coordinate_sums", "quadratic_forms", "weighted_forms"]

_ROWS = 512  # of a block of the kernel
_COLUMNS = 2048  # of the same block: 8 MB
_COORDINATE_ROWS, _COORDINATE_ENTRIES = 128, 1_000_000  # of a block of all coordinates' kernels: 8 MB
_FEW_ROWS, _FEW_ENTRIES = 64, 100_000  # of the same where few signs use a block: it stays in the second cache


def quadratic_forms(stein: tiles.Stein, signs: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the sum of the Stein kernel over all pairs, and w' H w for each column w of ``signs`` (n, R).

    One pass over the kernel on all cores, in blocks of 512 by 2048, above the diagonal only; O(n^2 (d + R)) time, and
    a copy of the signs of one block of columns in memory for each core. The same for any number of cores.
    """
    n, num_signs = signs.shape
    num_blocks = -(-n // _ROWS)
    total, forms = np.zeros(num_blocks), np.zeros((num_blocks, num_signs))

    def blocks(start, stop):
        buffer = np.empty(_ROWS * _COLUMNS)
        for turn in range(start, stop):
            b = tiles.from_both_ends(turn, num_blocks)
            rows = slice(b * _ROWS, min((b + 1) * _ROWS, n))
            height = rows.stop - rows.start
            product = np.zeros((height, num_signs))
            for first in range(rows.start, n, _COLUMNS):
                columns = slice(first, min(first + _COLUMNS, n))
                part = buffer[: height * (columns.stop - first)].reshape(height, -1)
                tiles.fill_here(stein, rows, first // tiles.TILE, part)
                if first == rows.start:
                    part[:, :height] *= 0.5  # the diagonal block: both halves are there
                total[b] += 2.0 * part.sum()
                product += part @ signs[columns].astype(float)
            forms[b] = 2.0 * np.einsum("ir,ir->r", signs[rows].astype(float), product)

    over_row_blocks(blocks, num_blocks, _ROWS * n * (stein.points.shape[1] + num_signs) / 2)
    return float(total.sum()), forms.sum(axis=0)


def coordinate_forms(stein: tiles.Stein, signs: np.ndarray, dtype=float) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`quadratic_forms` for each coordinate's part of the kernel: shapes (d,) and (d, R).

    In single precision, where ``dtype`` is, products of blocks with signs take half the time; sums over blocks, and
    those without signs, are in double precision all the same. The forms are then right to six digits.
    """
    n, num_signs = signs.shape
    d = stein.points.shape[1]
    size, entries = (_COORDINATE_ROWS, _COORDINATE_ENTRIES) if num_signs > 1 else (_FEW_ROWS, _FEW_ENTRIES)
    num_blocks = -(-n // size)
    width = size * max(1, entries // (d * size * size))
    largest = tiles.diagonal(stein).max(axis=0)  # of all entries: the kernels are positive definite
    total, forms = np.zeros((num_blocks, d)), np.zeros((num_blocks, d, num_signs))

    def blocks(start, stop):
        buffer, single = np.empty(d * size * width), np.empty((size, width), dtype)
        for turn in range(start, stop):
            b = tiles.from_both_ends(turn, num_blocks)
            rows = slice(b * size, min((b + 1) * size, n))
            height, left = rows.stop - rows.start, signs[rows].astype(dtype)
            for first in range(rows.start, n, width):
                columns = slice(first, min(first + width, n))
                shape = d, height, columns.stop - first
                part = buffer[: d * height * shape[2]].reshape(shape)
                tiles.fill_coordinates_here(stein, rows, first // tiles.TILE, part)
                if first == rows.start:
                    part[:, :, :height] *= 0.5
                total[b] += 2.0 * part.sum(axis=(1, 2))
                right = signs[columns].astype(dtype)
                for k in range(d if num_signs else 0):
                    rounded = single[:height, : shape[2]]
                    np.multiply(part[k], 1.0 / largest[k], out=rounded, casting="same_kind")
                    forms[b, k] += 2.0 * largest[k] * np.einsum("ir,ir->r", left, rounded @ right)

    over_row_blocks(blocks, num_blocks, size * n * d * (1 + num_signs) / 2)
    return total.sum(axis=0), forms.sum(axis=0)


def coordinate_sums(stein: tiles.Stein, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the sum over all pairs of each coordinate's part of the Stein kernel, (d,); weights (n,) or none."""
    if weights is None:
        return coordinate_forms(stein, np.empty((len(stein.points), 0)))[0]
    return coordinate_forms(stein, weights[:, None])[1][:, 0]


def weighted_forms(
    stein: tiles.Stein, weights: np.ndarray, signs: np.ndarray, dtype=float
) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`coordinate_forms` for draws with weights (n,): w' H_i w without signs, and with them."""
    return coordinate_sums(stein, weights), coordinate_forms(stein, weights[:, None] * signs, dtype)[1]
