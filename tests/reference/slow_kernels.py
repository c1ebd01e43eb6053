"""Kernels and Stein kernels as textbook formulas: what the compiled code is compared with."""

import numpy as np

from pymc_kernel import kernels as K


def profile(kernel, s):
    """Return a radial kernel and, where it has them, its first two derivatives, by squared scaled distances ``s``."""
    match kernel:
        case K.Gaussian():
            value = np.exp(-s / 2)
            return value, -value / 2, value / 4
        case K.RationalQuadratic() | K.InverseMultiquadric():
            scale, power = (2 * kernel.alpha, kernel.alpha) if hasattr(kernel, "alpha") else (1.0, kernel.beta)
            z = 1 + s / scale
            return z**-power, -power / scale * z ** -(power + 1), power * (power + 1) / scale**2 * z ** -(power + 2)
        case K.Matern32():
            r = np.sqrt(3 * s)
            value = np.exp(-r)
            bend = np.divide(9 * value, 4 * r, out=np.zeros_like(r), where=r > 0)  # infinite at zero, and no part there
            return (1 + r) * value, -3 / 2 * value, bend
        case K.Matern52():
            r = np.sqrt(5 * s)
            value = np.exp(-r)
            return (1 + r + r**2 / 3) * value, -5 / 6 * (1 + r) * value, 25 / 12 * value
        case K.Laplace():
            return (np.exp(-np.sqrt(s)),)


def twin(kernel, x, y):
    """Return a kernel by its formula, with the exponents of extended precision, and the size of its terms, (n, m)."""
    x, y = (np.asarray(np.asarray(a, dtype=float), dtype=np.longdouble) for a in (x, y))
    scale = np.asarray(kernel.length_scale, dtype=np.longdouble)
    terms = x[:, None] / scale * (y / scale)
    if isinstance(kernel, K.Linear | K.Polynomial):
        value = (terms.sum(axis=2) + kernel.constant) ** getattr(kernel, "degree", 1)
    else:
        value = profile(kernel, (((x[:, None] - y) / scale) ** 2).sum(axis=2))[0]
    return value, np.abs(terms).sum(axis=2)


def kameleon_covariance(gradient, position, points, gamma, nu):
    """gamma^2 I + nu^2 M H M' with M = 2 [gradient(position, point)] and H the centering matrix, literally."""
    n = len(points)
    m = 2 * np.stack([gradient(position, p) for p in points], axis=1)
    h = np.eye(n) - np.ones((n, n)) / n
    return gamma**2 * np.eye(len(position)) + nu**2 * m @ h @ m.T


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
