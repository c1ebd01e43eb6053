"""Residuals from means, log spreads and coefficients on the summaries before, and the way back.

Only sums along rows of triangles are compiled. All arrays have rows one after the other, so that each function is
compiled once, and when it is first called, not for all who import it.
"""

import numba
import numpy as np

__all__ = ["backward", "forward", "from_noise"]


def forward(values, means, log_sd, coefficients, log_rest, scaled, noise):
    """Fill ``scaled`` = (values - means) / sd and ``noise`` = (scaled_j - sum_k a_jk scaled_k) / rest_j; all (m, q).

    ``coefficients`` (m, q (q - 1) / 2) has the rows of a lower triangle one after another.
    """
    np.subtract(values, means, out=scaled)
    scaled *= np.exp(-log_sd)
    noise[:] = scaled
    if coefficients.shape[1]:
        _subtract_earlier(scaled, coefficients, noise)
    noise *= np.exp(-log_rest)


@numba.njit(cache=True, nogil=True)
def _subtract_earlier(scaled, coefficients, noise):
    m, q = scaled.shape
    for i in range(m):
        at = 0
        for j in range(q):
            for k in range(j):
                noise[i, j] -= coefficients[i, at] * scaled[i, k]
                at += 1


def backward(
    scaled, noise, log_sd, coefficients, log_rest, slope, widths, to_means, to_log_sd, to_coefficients, to_log_rest
):
    """Fill derivatives of a log density, given its ``slope`` (m, q) by the noise and ``widths`` by log spreads."""
    np.subtract(widths, slope * noise, out=to_log_rest)
    own = slope * np.exp(-log_rest)
    pull = own.copy()
    if coefficients.shape[1]:
        _pull_earlier(own, scaled, coefficients, pull, to_coefficients)
    np.subtract(widths, pull * scaled, out=to_log_sd)
    np.multiply(-pull, np.exp(-log_sd), out=to_means)


@numba.njit(cache=True, nogil=True)
def _pull_earlier(own, scaled, coefficients, pull, to_coefficients):
    m, q = scaled.shape
    for i in range(m):
        at = coefficients.shape[1]
        for j in range(q - 1, -1, -1):
            at -= j
            for k in range(j):
                pull[i, k] -= own[i, j] * coefficients[i, at + k]
                to_coefficients[i, at + k] = -own[i, j] * scaled[i, k]


def from_noise(noise, means, log_sd, coefficients, log_rest, values):
    """Fill ``values`` (m, q) that ``forward`` takes to ``noise``."""
    scaled, at = noise * np.exp(log_rest), 0
    if coefficients.shape[1]:
        for j in range(noise.shape[1]):
            for k in range(j):
                scaled[:, j] += coefficients[:, at] * scaled[:, k]
                at += 1
    values[:] = means + scaled * np.exp(log_sd)
