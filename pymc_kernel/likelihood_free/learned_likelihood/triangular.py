"""Residuals from means, log spreads and coefficients on the summaries before, and the way back. Imports NumPy.

Loops over rows of the triangle alone: as quick as machine code, which would take a second to compile.
"""

import numpy as np

__all__ = ["backward", "forward", "from_noise"]


def forward(values, means, log_sd, coefficients, log_rest, scaled, noise):
    """Fill ``scaled`` = (values - means) / sd and ``noise`` = (scaled_j - sum_k a_jk scaled_k) / rest_j; all (m, q).

    ``coefficients`` (m, q (q - 1) / 2) has the rows of a lower triangle one after another.
    """
    np.subtract(values, means, out=scaled)
    scaled *= np.exp(-log_sd)
    noise[:] = scaled
    for j, row in _rows(coefficients):
        noise[:, j] -= np.einsum("ik,ik->i", coefficients[:, row], scaled[:, :j])
    noise *= np.exp(-log_rest)


def _rows(coefficients):
    """Return the places of the rows of a triangle: number j of a summary that has others before it, and a slice."""
    rows, stop, j = [], 0, 1
    while stop < coefficients.shape[1]:
        rows.append((j, slice(stop, stop + j)))
        stop, j = stop + j, j + 1
    return rows


def backward(
    scaled, noise, log_sd, coefficients, log_rest, slope, widths, to_means, to_log_sd, to_coefficients, to_log_rest
):
    """Fill derivatives of a log density, given its ``slope`` (m, q) by the noise and ``widths`` by log spreads."""
    np.subtract(widths, slope * noise, out=to_log_rest)
    own = slope * np.exp(-log_rest)
    pull = own.copy()
    for j, row in _rows(coefficients):
        pull[:, :j] -= own[:, j, None] * coefficients[:, row]
        np.multiply(-own[:, j, None], scaled[:, :j], out=to_coefficients[:, row])
    np.subtract(widths, pull * scaled, out=to_log_sd)
    np.multiply(-pull, np.exp(-log_sd), out=to_means)


def from_noise(noise, means, log_sd, coefficients, log_rest, values):
    """Fill ``values`` (m, q) that ``forward`` takes to ``noise``."""
    scaled = noise * np.exp(log_rest)
    for j, row in _rows(coefficients):
        scaled[:, j] += np.einsum("ik,ik->i", coefficients[:, row], scaled[:, :j])
    values[:] = means + scaled * np.exp(log_sd)
