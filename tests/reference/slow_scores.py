"""Score matching by loops over points, dimensions and basis functions, from the formulas as they stand."""

import math

import numpy as np


def prior_covariance(a, b, hyper):
    """Covariance (n, m) of log densities at whitened places: a Gaussian kernel's and a quadratic's, pair by pair."""
    out = np.empty((len(a), len(b)))
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            radial = math.exp(-0.5 * sum(((x - y) * hyper.inverse_length_scale) ** 2))
            out[i, j] = getattr(hyper, "radial", 1.0) * radial + hyper.quadratic * (1.0 + x @ y / len(x)) ** 2
    return out


def system(gradients, laplacians, base_score, weights):
    """C and b from the derivatives of all basis functions at all points.

    gradients (n, m, d), laplacians (n, m), base_score (n, d), weights (n,) that sum to one.
    """
    n, m, d = gradients.shape
    curvature, slope = np.zeros((m, m)), np.zeros(m)
    for a in range(n):
        for j in range(m):
            slope[j] -= weights[a] * laplacians[a, j]
            for i in range(d):
                slope[j] -= weights[a] * base_score[a, i] * gradients[a, j, i]
            for k in range(m):
                for i in range(d):
                    curvature[j, k] += weights[a] * gradients[a, j, i] * gradients[a, k, i]
    return curvature, slope


def derivatives(functions, x, h=1e-4):
    """Gradients (n, m, d) and Laplacians (n, m) of ``functions(x) -> (n, m)`` by central differences."""
    d = x.shape[1]
    here = functions(x)
    gradients, laplacians = np.empty((*here.shape, d)), np.zeros(here.shape)
    for i, e in enumerate(np.eye(d)):
        plus, minus = functions(x + h * e), functions(x - h * e)
        gradients[:, :, i] = (plus - minus) / (2 * h)
        laplacians += (plus - 2 * here + minus) / h**2
    return gradients, laplacians


def value_and_gradient(x, e):
    """Value and gradient of a radial Gaussian expansion ``e`` without directions at ``x`` (d,), a point at a time."""
    z = x - e.center
    u = e.transform @ z
    value, gradient = e.linear @ z + 0.5 * z @ e.quadratic @ z, e.linear + e.quadratic @ z
    for point, coefficient in zip(e.points_t.T, e.coefficients, strict=True):
        kernel = coefficient * np.exp(-0.5 * ((u - point) ** 2).sum())
        value += kernel
        gradient = gradient - kernel * (e.transform.T @ (u - point))
    return value, gradient
