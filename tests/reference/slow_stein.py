"""Stein kernels by the definition, in loops, from a kernel's own derivatives; greedy thinning from the full matrix."""

import numpy as np

from tests.reference.slow_kernels import mixed_second


def stein_kernels(draws, scores, kernel):
    """Return each coordinate's part of the Stein kernel, (d, n, n)."""
    n, d = draws.shape
    out = np.empty((d, n, n))
    for i in range(n):
        for j in range(n):
            x, y = draws[i : i + 1], draws[j : j + 1]
            value = kernel(x, y)[0, 0]
            first = kernel.gradient(x, y)[0, 0]
            second = kernel.gradient(y, x)[0, 0]
            mixed = np.diag(mixed_second(kernel, draws[i], draws[j]))
            a, b = scores[i], scores[j]
            out[:, i, j] = a * b * value + a * second + b * first + mixed
    return out


def greedy_choice(matrix, num_points):
    """Return the indices of Stein thinning from the whole Stein kernel."""
    objective = np.diag(matrix) / 2.0
    chosen = []
    for _ in range(num_points):
        chosen.append(int(np.argmin(objective)))
        objective = objective + matrix[chosen[-1]]
    return chosen
