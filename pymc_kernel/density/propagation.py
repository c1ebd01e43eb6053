"""Expectation propagation for the precision of a Gaussian kernel under the leave-one-out likelihood.

Filippone and Sanguinetti (2011). The likelihood of point j is a mixture over the other points r,

    f_j(L) = 1 / (n - 1) sum_r N(x_j | x_r, L^-1),

and is replaced by a site s_j |L|^(e_j / 2) exp(-tr(S_j L) / 2). With a Wishart prior |L|^((v - d - 1) / 2)
exp(-tr(S L) / 2) the approximate posterior is the Wishart with dof v + sum_j e_j and inverse scale S + sum_j S_j. For
diagonal and isotropic precisions it is the same with a gamma distribution for each group of coordinates that share one
number.

Against the text: sites are written with exponents that add up, so the (d + 1) n of its equations is gone; the inverse
scale of an updated site is the difference of two inverse scales (its equation 19 inverts once too often); mixture
weights are normalized over r != j. With h_r = a_r' Q a_r, Q the inverse of the cavity's inverse scale and
a_r = x_r - x_j, determinants and inverses of rank-one changes need no factorization, so a sweep costs O(n^2 d^2) in
place of O(n^2 d^3). A site whose cavity is no proper distribution keeps its old value in that sweep, which is counted;
the text raises the diagonal.

Imports NumPy, Numba and the lower floors only.
"""

import math

import numpy as np

from pymc_kernel.linalg import cholesky_in_place, solve_lower
from pymc_kernel.machine_code import compiled

__all__ = ["gamma_sweep", "log_gamma_constant", "log_wishart_constant", "wishart_sweep"]

_LOG_2PI = math.log(2.0 * math.pi)


@compiled
def log_wishart_constant(dof, log_det, num_dims):
    """Return log of the integral of |L|^((dof - d - 1) / 2) exp(-tr(S L) / 2), ``log_det`` that of S."""
    total = 0.25 * num_dims * (num_dims - 1) * math.log(math.pi) + 0.5 * dof * (num_dims * math.log(2.0) - log_det)
    for k in range(num_dims):
        total += math.lgamma(0.5 * (dof - k))
    return total


@compiled
def log_gamma_constant(shape, rate):
    """Return log of the integral of l^(shape - 1) exp(-rate l)."""
    return math.lgamma(shape) - shape * math.log(rate)


@compiled
def _inverse(matrix, inverse):
    """Write the inverse of a positive definite matrix; return log determinant, NaN where it is not."""
    d = matrix.shape[0]
    factor = matrix.copy()
    if not cholesky_in_place(factor):
        return math.nan
    log_det = 0.0
    columns = np.zeros((d, d))
    for k in range(d):
        log_det += 2.0 * math.log(factor[k, k])
        columns[k, k] = 1.0
        solve_lower(factor, columns[k], columns[k])
    for i in range(d):
        for j in range(d):
            total = 0.0
            for k in range(d):
                total += columns[i, k] * columns[j, k]
            inverse[i, j] = total
    return log_det


@compiled
def _turn(matrix, point, center, a, b):
    """Write a = center - point and b = matrix a; return a'b."""
    product = 0.0
    for p in range(point.shape[0]):
        a[p] = center[p] - point[p]
    for p in range(point.shape[0]):
        total = 0.0
        for q in range(point.shape[0]):
            total += matrix[p, q] * a[q]
        b[p] = total
        product += a[p] * total
    return product


@compiled
def wishart_sweep(
    points, own, centers, exponents, scales, constants, dof, scale, old_exponents, old_scales, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once; return the new degrees of freedom and the number of sites that were left as they were.

    Parameters
    ----------
    points : ndarray (m, d)
        One for each site.
    own : ndarray (m,) of int
        Index of the point among the centers, -1 where it is none of them.
    centers : ndarray (n, d)
        Of the kernels that make up the likelihood.
    exponents, scales, constants : ndarray (m,), (m, d, d), (m,)
        e_j, S_j and log s_j of the sites; updated in place.
    dof, scale : float, ndarray (d, d)
        Of the posterior; ``scale`` is its inverse scale, updated in place.
    old_exponents, old_scales, old_constants : ndarray (m,), (m, d, d), (m,) or empty
        Sites of an earlier likelihood that stands for other centers, with the log of how many: online learning.
    num_centers : float
        What the sum is divided by.
    damping : float
        Share of a full update in [0, 1]; 0 works out the constants alone.
    """
    m, d = points.shape
    n = centers.shape[0]
    has_old = old_exponents.shape[0] > 0
    repairs = 0
    cavity, inverse = np.empty((d, d)), np.empty((d, d))
    mean, posterior_inverse = np.empty((d, d)), np.empty((d, d))
    old_inverse, old_matrix = np.empty((d, d)), np.empty((d, d))
    a, b = np.empty(d), np.empty(d)
    logs, heights = np.empty(n + 1), np.empty(n + 1)
    spread = np.empty((d, d))
    for j in range(m):
        cavity_dof = dof - exponents[j]
        for p in range(d):
            for q in range(d):
                cavity[p, q] = scale[p, q] - scales[j, p, q]
        log_det = _inverse(cavity, inverse)
        if not (log_det == log_det and cavity_dof > d - 1.0):
            repairs += 1
            continue
        alpha = cavity_dof + 1.0
        largest = -np.inf
        for r in range(n):
            if r == own[j]:
                logs[r] = -np.inf
                continue
            heights[r] = _turn(inverse, points[j], centers[r], a, b)
            logs[r] = -0.5 * alpha * math.log(1.0 + heights[r])
            largest = max(largest, logs[r])
        # Relative to the normalized cavity, all components of the mixture share this constant.
        shared = log_wishart_constant(alpha, log_det, d) - log_wishart_constant(cavity_dof, log_det, d)
        shared -= 0.5 * d * _LOG_2PI
        logs[n] = -np.inf
        old_dof = 0.0
        if has_old:
            old_dof = cavity_dof + old_exponents[j]
            for p in range(d):
                for q in range(d):
                    old_matrix[p, q] = cavity[p, q] + old_scales[j, p, q]
            old_log_det = _inverse(old_matrix, old_inverse)
            if old_log_det == old_log_det and old_dof > d - 1.0:
                ratio = log_wishart_constant(old_dof, old_log_det, d) - log_wishart_constant(cavity_dof, log_det, d)
                logs[n] = old_constants[j] + ratio - shared
                largest = max(largest, logs[n])
        mass = 0.0
        for r in range(n + 1):
            mass += math.exp(logs[r] - largest)
        log_mass = largest + math.log(mass)
        # Mean and total second moment of the mixture, by U_r = Q - b b' / (1 + h), b = Q a.
        norm, trace = 0.0, 0.0
        for p in range(d):
            trace += inverse[p, p]
            for q in range(d):
                norm += inverse[p, q] ** 2
                spread[p, q] = 0.0
        second, weight_of_new = 0.0, 0.0
        for r in range(n):
            if not logs[r] > -np.inf:
                continue
            weight = math.exp(logs[r] - log_mass)
            if weight < 1e-300:
                continue
            weight_of_new += weight
            share = 1.0 / (1.0 + heights[r])
            length, bent = 0.0, 0.0
            _turn(inverse, points[j], centers[r], a, b)
            for p in range(d):
                length += b[p] * b[p]
            for p in range(d):
                total = 0.0
                for q in range(d):
                    total += inverse[p, q] * b[q]
                    spread[p, q] += weight * share * b[p] * b[q]
                bent += b[p] * total
            size = norm - 2.0 * share * bent + (share * length) ** 2
            along = trace - share * length
            second += weight * ((alpha + alpha * alpha) * size + alpha * along * along)
        for p in range(d):
            for q in range(d):
                mean[p, q] = alpha * (weight_of_new * inverse[p, q] - spread[p, q])
        if logs[n] > -np.inf:
            weight = math.exp(logs[n] - log_mass)
            size, along = 0.0, 0.0
            for p in range(d):
                along += old_inverse[p, p]
                for q in range(d):
                    size += old_inverse[p, q] ** 2
                    mean[p, q] += weight * old_dof * old_inverse[p, q]
            second += weight * ((old_dof + old_dof * old_dof) * size + old_dof * along * along)
        size, along = 0.0, 0.0
        for p in range(d):
            along += mean[p, p]
            for q in range(d):
                size += mean[p, q] ** 2
        variance = second - size
        log_evidence = shared + log_mass - math.log(num_centers)
        if damping > 0.0:
            new_dof = (size + along * along) / variance
            log_det_mean = _inverse(mean, posterior_inverse)
            if not (variance > 0.0 and new_dof > d - 1.0 and log_det_mean == log_det_mean):
                repairs += 1
                continue
            change = damping * (new_dof - cavity_dof - exponents[j])
            exponents[j] += change
            dof += change
            for p in range(d):
                for q in range(d):
                    change = damping * (new_dof * posterior_inverse[p, q] - cavity[p, q] - scales[j, p, q])
                    scales[j, p, q] += change
                    scale[p, q] += change
        posterior_log_det = _inverse(scale, posterior_inverse)
        constants[j] = (
            log_evidence
            + log_wishart_constant(cavity_dof, log_det, d)
            - log_wishart_constant(dof, posterior_log_det, d)
        )
    return dof, repairs


@compiled
def gamma_sweep(
    points, own, centers, groups, sizes, shapes, rates, constants, shape, rate, old_shapes, old_rates, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once, for one gamma distribution a group; return the number of sites left as they were.

    Parameters
    ----------
    points, own, centers, num_centers, damping
        As of :func:`wishart_sweep`.
    groups : ndarray (d,) of int
        Which precision each coordinate has; ``sizes`` (g,) counts them.
    shapes, rates, constants : ndarray (m, g), (m, g), (m,)
        Exponents e_jk of the precisions l_k, rates and log constants of the sites; updated in place.
    shape, rate : ndarray (g,)
        Of the posterior l^(shape - 1) exp(-rate l); updated in place.
    """
    m, d = points.shape
    n, g = centers.shape[0], shape.shape[0]
    has_old = old_shapes.shape[0] > 0
    repairs = 0
    cavity_shape, cavity_rate = np.empty(g), np.empty(g)
    betas = np.empty((n + 1, g))
    alphas, old_alphas = np.empty(g), np.empty(g)
    logs = np.empty(n + 1)
    first, second = np.empty(g), np.empty(g)
    for j in range(m):
        proper = True
        for k in range(g):
            cavity_shape[k] = shape[k] - shapes[j, k]
            cavity_rate[k] = rate[k] - rates[j, k]
            alphas[k] = cavity_shape[k] + 0.5 * sizes[k]
            proper = proper and cavity_shape[k] > 0.0 and cavity_rate[k] > 0.0
        if not proper:
            repairs += 1
            continue
        cavity_constant, shared = 0.0, -0.5 * d * _LOG_2PI
        for k in range(g):
            cavity_constant += log_gamma_constant(cavity_shape[k], cavity_rate[k])
            shared += math.lgamma(alphas[k])
        shared -= cavity_constant
        largest = -np.inf
        for r in range(n):
            if r == own[j]:
                logs[r] = -np.inf
                continue
            for k in range(g):
                betas[r, k] = cavity_rate[k]
            for p in range(d):
                betas[r, groups[p]] += 0.5 * (centers[r, p] - points[j, p]) ** 2
            total = 0.0
            for k in range(g):
                total -= alphas[k] * math.log(betas[r, k])
            logs[r] = total
            largest = max(largest, total)
        logs[n] = -np.inf
        if has_old:
            proper, constant = True, 0.0
            for k in range(g):
                old_alphas[k] = cavity_shape[k] + old_shapes[j, k]
                betas[n, k] = cavity_rate[k] + old_rates[j, k]
                proper = proper and old_alphas[k] > 0.0 and betas[n, k] > 0.0
                if proper:
                    constant += log_gamma_constant(old_alphas[k], betas[n, k])
            if proper:
                logs[n] = old_constants[j] + constant - cavity_constant - shared
                largest = max(largest, logs[n])
        mass = 0.0
        for r in range(n + 1):
            mass += math.exp(logs[r] - largest)
        log_mass = largest + math.log(mass)
        for k in range(g):
            first[k], second[k] = 0.0, 0.0
        for r in range(n + 1):
            if not logs[r] > -np.inf:
                continue
            weight = math.exp(logs[r] - log_mass)
            for k in range(g):
                alpha = alphas[k] if r < n else old_alphas[k]
                expected = alpha / betas[r, k]
                first[k] += weight * expected
                second[k] += weight * (expected / betas[r, k] + expected * expected)
        log_evidence = shared + log_mass - math.log(num_centers)
        if damping > 0.0:
            proper = True
            for k in range(g):
                second[k] -= first[k] * first[k]
                proper = proper and second[k] > 0.0
            if not proper:
                repairs += 1
                continue
            for k in range(g):
                change = damping * (first[k] * first[k] / second[k] - cavity_shape[k] - shapes[j, k])
                shapes[j, k] += change
                shape[k] += change
                change = damping * (first[k] / second[k] - cavity_rate[k] - rates[j, k])
                rates[j, k] += change
                rate[k] += change
        posterior = 0.0
        for k in range(g):
            posterior += log_gamma_constant(shape[k], rate[k])
        constants[j] = log_evidence + cavity_constant - posterior
    return repairs
