"""Kernels as textbook formulas, one pair of points at a time: what the compiled code is compared with."""

import math

import numpy as np


def scaled_distance(x, y, length_scale):
    return math.sqrt(sum((a - b) ** 2 / s**2 for a, b, s in zip(x, y, length_scale, strict=True)))


def gaussian(x, y, length_scale):
    return math.exp(-(scaled_distance(x, y, length_scale) ** 2) / 2)


def rational_quadratic(x, y, length_scale, alpha):
    return (1 + scaled_distance(x, y, length_scale) ** 2 / (2 * alpha)) ** -alpha


def inverse_multiquadric(x, y, length_scale, beta):
    return (1 + scaled_distance(x, y, length_scale) ** 2) ** -beta


def matern32(x, y, length_scale):
    r = math.sqrt(3) * scaled_distance(x, y, length_scale)
    return (1 + r) * math.exp(-r)


def matern52(x, y, length_scale):
    r = scaled_distance(x, y, length_scale)
    return (1 + math.sqrt(5) * r + 5 * r**2 / 3) * math.exp(-math.sqrt(5) * r)


def laplace(x, y, length_scale):
    return math.exp(-scaled_distance(x, y, length_scale))


def polynomial(x, y, length_scale, degree, constant):
    return (sum(a * b / s**2 for a, b, s in zip(x, y, length_scale, strict=True)) + constant) ** degree


def median_of_distances(points):
    distances = [math.dist(points[i], points[j]) for i in range(len(points)) for j in range(i)]
    return float(np.median(distances))


def kameleon_covariance(gradient, position, points, gamma, nu):
    """gamma^2 I + nu^2 M H M' with M = 2 [gradient(position, point)] and H the centering matrix, literally."""
    n = len(points)
    m = 2 * np.stack([gradient(position, p) for p in points], axis=1)
    h = np.eye(n) - np.ones((n, n)) / n
    return gamma**2 * np.eye(len(position)) + nu**2 * m @ h @ m.T


def mixed_second(kernel, x, y):
    """Return the matrix d^2 k(x, y) / dx_a dy_b at one pair of points (d,), (d,)."""
    inverse = kernel.inverse_length_scale(len(x))
    first, second = (kernel.profile_matrix(x[None], y[None], order)[0, 0] for order in (1, 2))
    w = (x - y) * inverse
    return np.outer(inverse, inverse) * (-4.0 * np.outer(second * w, w) - 2.0 * first * np.eye(len(w)))


def laplacian(kernel, x, y):
    """Return sum_a d^2 k(x_i, y_j) / dx_a^2 at every pair, (n, m)."""
    inverse = kernel.inverse_length_scale(x.shape[1])
    first, second = (kernel.profile_matrix(x, y, order) for order in (1, 2))
    squared = (((x[:, None] - y) * inverse**2) ** 2).sum(axis=2)
    return 4.0 * second * squared + 2.0 * first * (inverse**2).sum()
