"""Second derivatives of surrogates by formulas, and the loss of score matching."""

import numpy as np

from pymc_kernel.kernels.profiles import fill_profile


def hessian_diag(x, expansion):
    """Second derivatives by each coordinate at each row of ``x`` (n, d), shape (n, d).

    For a coordinate x_i with t_i the i-th column of T and w_i = t_i . (u - U_j):
    d^2 phi = 4 phi'' w_i^2 + 2 phi' |t_i|^2, and for the direction terms with c_i = t_i . v_j
    d^2 (phi' along) = 4 phi'' w_i c_i + (2 phi'' |t_i|^2 + 4 phi''' w_i^2) along.
    """
    e = expansion
    u, norms = (x - e.center) @ e.transform.T, (e.transform**2).sum(axis=0)[:, None]
    if e.phases.size > 0:  # in cosines
        return np.diag(e.quadratic) - (e.coefficients * np.cos(u + e.phases)) @ e.transform**2
    off = u[:, :, None] - e.points_t  # (n, p, m)
    w = e.transform.T @ off
    squared = (off**2).sum(axis=1)
    first, second = profile(e, squared, 1), profile(e, squared, 2)
    terms = e.coefficients * (4.0 * second * w**2 + 2.0 * norms * first)
    if e.directions_t.size:
        along = (e.directions_t * off).sum(axis=1)[:, None]
        terms += 4.0 * second * w * (e.transform.T @ e.directions_t)
        terms += (2.0 * norms * second + 4.0 * profile(e, squared, 3) * w**2) * along
    return np.diag(e.quadratic) + terms.sum(axis=2)


def profile(e, squared, order):
    """Derivative of the profile of an expansion ``e`` at squared distances (n, m), shape (n, 1, m)."""
    out = np.empty(squared.size)
    fill_profile(e.family, e.shape_a, e.shape_b, order, squared.ravel(), out)
    return out.reshape(len(squared), 1, -1)


def laplacian(fitted, x):
    """Sum of the second derivatives of a surrogate at each row of ``x`` (n, d), shape (n,)."""
    return hessian_diag(x, fitted.expansion).sum(axis=1)


def objective(fitted, x, weights=None):
    """Mean of laplacian + |score|^2 / 2 over the rows of ``x`` (n, d), with weights (n,)."""
    return np.average(laplacian(fitted, x) + 0.5 * (fitted.score(x) ** 2).sum(axis=1), weights=weights)
