"""Stein kernels by the definition, from a kernel's formulas; greedy thinning from the full matrix."""

import numpy as np

from tests.reference.slow_kernels import profile


def stein_kernels(draws, scores, kernel):
    """Return each coordinate's part of the Stein kernel, (d, n, n)."""
    inverse = 1.0 / np.broadcast_to(kernel.length_scale, draws.shape[1:])
    w = (draws[:, None] - draws) * inverse
    value, slope, curvature = (part[:, :, None] for part in profile(kernel, (w**2).sum(axis=2)))
    first = 2.0 * slope * w * inverse  # by the first point; minus that by the second
    mixed = -(inverse**2) * (4.0 * curvature * w**2 + 2.0 * slope)
    a, b = scores[:, None], scores
    return np.moveaxis(a * b * value + (b - a) * first + mixed, -1, 0)


def greedy_choice(matrix, num_points):
    """Return the indices of Stein thinning from the whole Stein kernel."""
    objective = np.diag(matrix) / 2.0
    chosen = []
    for _ in range(num_points):
        chosen.append(int(np.argmin(objective)))
        objective = objective + matrix[chosen[-1]]
    return chosen
