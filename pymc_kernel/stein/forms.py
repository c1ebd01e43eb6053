"""Sums of the Stein kernel over all pairs of draws that have signs or weights.

Imports NumPy, ``parallel`` and lower files only.
"""

import numpy as np

from pymc_kernel.linalg import pivoted_cholesky
from pymc_kernel.parallel import over_row_blocks
from pymc_kernel.stein import tiles

__all__ = ["margin_forms", "quadratic_forms"]

_ROWS = 512  # of a block of the kernel
_COLUMNS = 2048  # of the same block: 8 MB
_REMAINDER = 1e-4  # of the diagonal, and so at most of a form's mean under random signs
# Of the trace. Of 24 sets of 2,000 normal draws in 20 dimensions, one spread at .9 (1.1): 20 (17) were rejected without
# the second moments, 23 (23) with .3, 23 (24) with .1; of 80 right sets of 400 draws of eight schools 8, 7 and 13 were,
# by the margins alone at 5 %.
_RIDGE = 0.3


def quadratic_forms(stein: tiles.Stein, signs: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return w' H w (R,) for each column w of ``signs`` (n, R), of the Stein kernel H; times weights (n,).

    One pass over the kernel on all cores, in blocks of 512 by 2048, above the diagonal only; O(n^2 (d + R)) time, and
    a copy of the signs of one block of columns in memory for each core. The same for any number of cores.
    """
    n, num_signs = signs.shape
    weights = np.ones(n) if weights is None else weights
    num_blocks = -(-n // _ROWS)
    forms = np.zeros((num_blocks, num_signs))

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
                product += part @ (weights[columns, None] * signs[columns])
            forms[b] = 2.0 * np.einsum("ir,ir->r", weights[rows, None] * signs[rows], product)

    over_row_blocks(blocks, num_blocks, _ROWS * n * (stein.points.shape[1] + num_signs) / 2)
    return forms.sum(axis=0)


def margin_forms(stein: tiles.Stein, signs: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return how far off each coordinate is by itself, (d, R), for each column of ``signs`` (n, R) and weights (n,).

    It is n m' (C + r tr(C) I)^-1 m for the mean m of the Stein kernel's features, signed, and their second moments C:
    in units of standard errors, so that features of large variance do not hide errors of the others. Features are a
    pivoted Cholesky factor of the kernel of the coordinate alone, whose rank is a few dozen: O(n d rank (rank + R))
    time.
    """
    n = len(signs)
    weights, signs = np.ones(n) if weights is None else weights, signs.astype(float)
    forms = np.empty((stein.points.shape[1], signs.shape[1]))
    for k, out in enumerate(forms):
        one = tiles.margin(stein, k)

        def columns(chosen, one=one):
            return tiles.fill(one, chosen, 0, np.empty((len(chosen), n))).T

        diagonal = tiles.diagonal(one)[:, 0]
        features = weights[:, None] * pivoted_cholesky(diagonal, columns, n, _REMAINDER * diagonal)[0]
        second = features.T @ features / n
        second[np.diag_indices_from(second)] += _RIDGE * np.trace(second)
        sums = features.T @ signs
        out[:] = (sums * np.linalg.solve(second, sums)).sum(axis=0) / n
    return forms
