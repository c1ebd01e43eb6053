"""Sums of the Stein kernel over all pairs of draws that have signs or weights. Imports NumPy and lower files only."""

import numpy as np

from pymc_kernel.stein import tiles

__all__ = ["coordinate_forms", "coordinate_sums", "quadratic_forms", "weighted_forms"]

_ROWS = 512  # of a block of the kernel
_COLUMNS = 2048  # of the same block: 8 MB
_COORDINATE_ENTRIES = 4_000_000  # of a block of all coordinates' kernels


def quadratic_forms(stein: tiles.Stein, signs: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the sum of the Stein kernel over all pairs, and w' H w for each column w of ``signs`` (n, R).

    One pass over the kernel, in blocks of 512 by 2048, above the diagonal only; O(n^2 (d + R)) time, and a copy of
    the signs of one block of columns in memory.
    """
    n = len(signs)
    total, forms = 0.0, np.zeros(signs.shape[1])
    block = np.empty((_ROWS, _COLUMNS))
    for start in range(0, n, _ROWS):
        rows = slice(start, min(start + _ROWS, n))
        height = rows.stop - start
        left = signs[rows].astype(float)
        product = np.zeros_like(left)
        for first in range(start, n, _COLUMNS):
            stop = min(first + _COLUMNS, n)
            part = block[:height, : stop - first]
            tiles.fill(stein, rows, first // tiles.TILE, part)
            if first == start:
                part[:, :height] *= 0.5  # the diagonal block: both halves are there
            total += 2.0 * part.sum()
            product += part @ signs[first:stop].astype(float)
        forms += 2.0 * (left * product).sum(axis=0)
    return total, forms


def coordinate_forms(stein: tiles.Stein, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`quadratic_forms` for each coordinate's part of the kernel: shapes (d,) and (d, R)."""
    n, d = stein.points.shape
    total, forms = np.zeros(d), np.zeros((d, signs.shape[1]))
    columns = tiles.TILE * max(1, _COORDINATE_ENTRIES // (d * tiles.TILE * tiles.TILE))
    for start in range(0, n, tiles.TILE):
        rows = slice(start, min(start + tiles.TILE, n))
        height = rows.stop - start
        left = signs[rows].astype(float)
        for first in range(start, n, columns):
            stop = min(first + columns, n)
            part = tiles.fill_coordinates(stein, rows, first // tiles.TILE, np.empty((d, height, stop - first)))
            if first == start:
                part[:, :, :height] *= 0.5
            total += 2.0 * part.sum(axis=(1, 2))
            product = part.reshape(-1, stop - first) @ signs[first:stop].astype(float)
            forms += 2.0 * (left * product.reshape(d, height, -1)).sum(axis=1)
    return total, forms


def coordinate_sums(stein: tiles.Stein, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the sum over all pairs of each coordinate's part of the Stein kernel, (d,), with weights (n,) or without."""
    if weights is None:
        return coordinate_forms(stein, np.empty((len(stein.points), 0)))[0]
    return coordinate_forms(stein, weights[:, None])[1][:, 0]


def weighted_forms(stein: tiles.Stein, weights: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As :func:`coordinate_forms` for draws with weights (n,): w' H_i w without signs, and with them."""
    columns = np.column_stack([weights, weights[:, None] * signs])
    _, forms = coordinate_forms(stein, columns)
    return forms[:, 0], forms[:, 1:]
