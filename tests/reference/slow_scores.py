"""Surrogates and regression of outputs by whole matrices and loops over points, from the formulas as they stand."""

import numpy as np
from scipy.spatial.distance import cdist


def prior_covariance(a, b, hyper):
    """Covariance (n, m) of log densities at whitened places: a Gaussian kernel's and a quadratic's."""
    radial = np.exp(-0.5 * cdist(a * hyper.inverse_length_scale, b * hyper.inverse_length_scale, "sqeuclidean"))
    return getattr(hyper, "radial", 1.0) * radial + hyper.quadratic * (1.0 + a @ b.T / a.shape[1]) ** 2


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


def negative_log_marginal(z, values, hyper):
    """Sum over outputs of -log N(y; 0, a K), without constants, with the best amplitude a for each."""
    n = len(z)
    k = prior_covariance(z, z, hyper) + hyper.nugget * np.eye(n)
    total = 0.0
    for y in values.T:
        amplitude = y @ np.linalg.solve(k, y) / n
        total += 0.5 * n * np.log(amplitude) + 0.5 * np.linalg.slogdet(k)[1]
    return total


def posterior_mean(z, values, new, hyper):
    """Mean (m, q) of the outputs."""
    inverse = np.linalg.inv(prior_covariance(z, z, hyper) + hyper.nugget * np.eye(len(z)))
    return values.mean(axis=0) + prior_covariance(new, z, hyper) @ inverse @ (values - values.mean(axis=0))
