"""Residuals from means, log spreads and coefficients on the summaries before, and the way back. Compiled.

All arrays have rows one after the other, so that each function is compiled once; and when it is first called, not for
all who import it.
"""

import numba
import numpy as np

__all__ = ["backward", "forward", "from_noise"]


@numba.njit(cache=True, nogil=True)
def forward(values, means, log_sd, coefficients, log_rest, scaled, noise):
    """Fill ``scaled`` = (values - means) / sd and ``noise`` = (scaled_j - sum_k a_jk scaled_k) / rest_j; all (m, q).

    ``coefficients`` (m, q (q - 1) / 2) has the rows of a lower triangle one after another.
    """
    m, q = values.shape
    for i in range(m):
        for j in range(q):
            scaled[i, j] = (values[i, j] - means[i, j]) * np.exp(-log_sd[i, j])
        at = 0
        for j in range(q):
            rest = scaled[i, j]
            if coefficients.shape[1]:
                for k in range(j):
                    rest -= coefficients[i, at] * scaled[i, k]
                    at += 1
            noise[i, j] = rest * np.exp(-log_rest[i, j])


@numba.njit(cache=True, nogil=True)
def backward(
    scaled, noise, log_sd, coefficients, log_rest, slope, widths, to_means, to_log_sd, to_coefficients, to_log_rest
):
    """Fill derivatives of a log density, given its ``slope`` (m, q) by the noise and ``widths`` by log spreads."""
    m, q = scaled.shape
    pull = np.empty(q)
    for i in range(m):
        for j in range(q):
            to_log_rest[i, j] = widths[i, j] - slope[i, j] * noise[i, j]
            pull[j] = slope[i, j] * np.exp(-log_rest[i, j])
        at = coefficients.shape[1]
        for j in range(q - 1, -1, -1):
            own = slope[i, j] * np.exp(-log_rest[i, j])
            if coefficients.shape[1]:
                at -= j
                for k in range(j):
                    pull[k] -= own * coefficients[i, at + k]
                    to_coefficients[i, at + k] = -own * scaled[i, k]
        for j in range(q):
            to_log_sd[i, j] = widths[i, j] - pull[j] * scaled[i, j]
            to_means[i, j] = -pull[j] * np.exp(-log_sd[i, j])


def from_noise(noise, means, log_sd, coefficients, log_rest, values):
    """Fill ``values`` (m, q) that ``forward`` takes to ``noise``."""
    scaled, at = noise * np.exp(log_rest), 0
    if coefficients.shape[1]:
        for j in range(noise.shape[1]):
            for k in range(j):
                scaled[:, j] += coefficients[:, at] * scaled[:, k]
                at += 1
    values[:] = means + scaled * np.exp(log_sd)
