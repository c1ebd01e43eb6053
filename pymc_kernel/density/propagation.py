"""Expectation propagation for the precision of a Gaussian kernel under the leave-one-out likelihood.

Filippone and Sanguinetti (2011). The likelihood of point j is a mixture over the other points r,

    f_j(L) = 1 / (n - 1) sum_r N(x_j | x_r, L^-1),

and is replaced by a site s_j |L|^(e_j / 2) exp(-tr(S_j L) / 2). With a Wishart prior |L|^((v - d - 1) / 2)
exp(-tr(S L) / 2) the approximate posterior is the Wishart with dof v + sum_j e_j and inverse scale S + sum_j S_j. For
diagonal and isotropic precisions it is the same with a gamma distribution for each group of coordinates that share one
number.

Differences from the paper: sites have exponents that add up, so the (d + 1) n of its equations is gone; the inverse
scale of an updated site is the difference of two inverse scales (its equation 19 inverts once too often); mixture
weights are normalized over r != j. With h_r = a_r' Q a_r, Q the inverse of the cavity's inverse scale and
a_r = x_r - x_j, determinants and inverses of rank-one changes need no factorization, so a sweep costs O(n^2 d^2) in
place of O(n^2 d^3). A site whose cavity is no proper distribution keeps its old value in that sweep and is counted; the
paper raises the diagonal instead.
"""

import math

import numpy as np

from pymc_kernel.linalg import LOG_2PI, cholesky_in_place, solve_lower
from pymc_kernel.machine_code import compiled


@compiled
def log_wishart_constant(dof, log_det, num_dims):
    """Return log of the integral of |L|^((dof - d - 1) / 2) exp(-tr(S L) / 2), ``log_det`` that of S."""
    total = 0.25 * num_dims * (num_dims - 1) * math.log(math.pi) + 0.5 * dof * (num_dims * math.log(2.0) - log_det)
    for k in range(num_dims):
        total += math.lgamma(0.5 * (dof - k))
    return total


@compiled
def log_gamma_constant(shapes, rates):
    """Return log of the integral of the product of l_k^(shape_k - 1) exp(-rate_k l_k)."""
    total = 0.0
    for k in range(len(shapes)):
        total += math.lgamma(shapes[k]) - shapes[k] * math.log(rates[k])
    return total


@compiled
def _inverse(matrix):
    """Return the inverse of a positive definite matrix and its log determinant, NaN for other matrices."""
    d = matrix.shape[0]
    factor, columns, log_det = matrix.copy(), np.zeros((d, d)), 0.0
    if not cholesky_in_place(factor):
        return columns, math.nan
    for k in range(d):
        log_det += 2.0 * math.log(factor[k, k])
        columns[k, k] = 1.0
        solve_lower(factor, columns[k], columns[k])
    return columns @ columns.T, log_det


@compiled
def _normalize(logs):
    """Turn logs of weights (n,) into weights that sum to one; return the log of what they summed to."""
    largest = logs.max()
    logs[:] = np.exp(logs - largest)
    mass = logs.sum()
    logs /= mass
    return largest + math.log(mass)


@compiled
def wishart_sweep(
    points, own, centers, exponents, scales, constants, dof, scale, old_exponents, old_scales, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once; return the new degrees of freedom and the number of sites that were left as they were.

    Each of the ``points`` (m, d) has a site. ``own`` (m,) are their indices among the ``centers`` (n, d), -1 for none;
    the sum of kernels is divided by ``num_centers``. ``exponents`` (m,), ``scales`` (m, d, d) and ``constants`` (m,)
    are e_j, S_j and log s_j; these and ``scale`` (d, d), the inverse scale of the posterior, are updated in place. The
    old sites, which may be empty, stand for kernels at earlier centers, with the log of their number in the constants:
    online learning. ``damping`` is the share of a full update in [0, 1]; 0 only computes the constants.
    """
    m, d = points.shape
    n, repairs = centers.shape[0], 0
    centers_t, weights = np.ascontiguousarray(centers.T), np.empty(n + 1)
    old_inverse, old_dof = np.empty((d, d)), 0.0
    for j in range(m):
        cavity, cavity_dof = scale - scales[j], dof - exponents[j]
        inverse, log_det = _inverse(cavity)
        if not (log_det == log_det and cavity_dof > d - 1.0):
            repairs += 1
            continue
        alpha = cavity_dof + 1.0
        off = centers_t - points[j].reshape(d, 1)
        bent = inverse @ off
        heights = 1.0 + (off * bent).sum(axis=0)
        weights[:n] = -0.5 * alpha * np.log(heights)
        weights[n] = -np.inf
        if own[j] >= 0:
            weights[own[j]] = -np.inf
        # Relative to the normalized cavity, all components of the mixture share this constant.
        cavity_constant = log_wishart_constant(cavity_dof, log_det, d)
        shared = log_wishart_constant(alpha, log_det, d) - cavity_constant - 0.5 * d * LOG_2PI
        if old_exponents.shape[0] > 0:
            old_dof = cavity_dof + old_exponents[j]
            old_inverse, old_log_det = _inverse(cavity + old_scales[j])
            if old_log_det == old_log_det and old_dof > d - 1.0:
                ratio = log_wishart_constant(old_dof, old_log_det, d) - cavity_constant
                weights[n] = old_constants[j] + ratio - shared
        log_mass = _normalize(weights)
        # Mean and total second moment of the mixture, by U_r = Q - b b' / (1 + h), b = Q a.
        new, length = weights[:n], (bent * bent).sum(axis=0) / heights
        along = np.trace(inverse) - length
        size = (inverse * inverse).sum() - 2.0 * (bent * (inverse @ bent)).sum(axis=0) / heights + length * length
        second = (new * ((alpha + alpha * alpha) * size + alpha * along * along)).sum()
        mean = alpha * (new.sum() * inverse - (bent * (new / heights)) @ bent.T)
        if weights[n] > 0.0:
            trace = np.trace(old_inverse)
            size_of_old = (old_dof + old_dof * old_dof) * (old_inverse * old_inverse).sum()
            second += weights[n] * (size_of_old + old_dof * trace * trace)
            mean += weights[n] * old_dof * old_inverse
        norm, trace = (mean * mean).sum(), np.trace(mean)
        if damping > 0.0:
            variance = second - norm
            new_dof = (norm + trace * trace) / variance
            inverse_mean, log_det_mean = _inverse(mean)
            if not (variance > 0.0 and new_dof > d - 1.0 and log_det_mean == log_det_mean):
                repairs += 1
                continue
            change = damping * (new_dof - cavity_dof - exponents[j])
            exponents[j] += change
            dof += change
            change_of_scale = damping * (new_dof * inverse_mean - cavity - scales[j])
            scales[j] += change_of_scale
            scale += change_of_scale
        _, posterior_log_det = _inverse(scale)
        constants[j] = shared + log_mass - math.log(num_centers) + cavity_constant
        constants[j] -= log_wishart_constant(dof, posterior_log_det, d)
    return dof, repairs


@compiled
def gamma_sweep(
    points, own, centers, groups, sizes, shapes, rates, constants, shape, rate, old_shapes, old_rates, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once, for one gamma distribution a group; return the number of sites left as they were.

    As :func:`wishart_sweep`, except for: ``groups`` (d,), which precision each coordinate has, and ``sizes`` (g,), how
    many coordinates have it; ``shapes``, ``rates`` (m, g), exponents e_jk of the precisions l_k and rates of the sites;
    ``shape``, ``rate`` (g,) of the posterior l^(shape - 1) exp(-rate l). All are updated in place.
    """
    m, d = points.shape
    n, g, repairs = centers.shape[0], shape.shape[0], 0
    centers_t, weights = np.ascontiguousarray(centers.T), np.empty(n + 1)
    betas, first, second = np.empty((g, n)), np.empty(g), np.empty(g)
    for j in range(m):
        cavity_shape, cavity_rate = shape - shapes[j], rate - rates[j]
        if not (cavity_shape.min() > 0.0 and cavity_rate.min() > 0.0):
            repairs += 1
            continue
        alphas = cavity_shape + 0.5 * sizes
        cavity_constant = log_gamma_constant(cavity_shape, cavity_rate)
        shared = -0.5 * d * LOG_2PI - cavity_constant
        weights[:] = 0.0
        for k in range(g):
            betas[k] = cavity_rate[k]
            shared += math.lgamma(alphas[k])
        for p in range(d):
            betas[groups[p]] += 0.5 * (centers_t[p] - points[j, p]) ** 2
        for k in range(g):
            weights[:n] -= alphas[k] * np.log(betas[k])
        weights[n] = -np.inf
        if own[j] >= 0:
            weights[own[j]] = -np.inf
        old_alphas, old_betas = cavity_shape, cavity_rate
        if old_shapes.shape[0] > 0:
            old_alphas, old_betas = cavity_shape + old_shapes[j], cavity_rate + old_rates[j]
            if old_alphas.min() > 0.0 and old_betas.min() > 0.0:
                constant = log_gamma_constant(old_alphas, old_betas)
                weights[n] = old_constants[j] + constant - cavity_constant - shared
        log_mass = _normalize(weights)
        for k in range(g):
            expected = alphas[k] / betas[k]
            first[k] = (weights[:n] * expected).sum()
            second[k] = (weights[:n] * (expected / betas[k] + expected * expected)).sum()
        if weights[n] > 0.0:
            expected = old_alphas / old_betas
            first += weights[n] * expected
            second += weights[n] * (expected / old_betas + expected * expected)
        if damping > 0.0:
            variance = second - first * first
            if not variance.min() > 0.0:
                repairs += 1
                continue
            change = damping * (first * first / variance - cavity_shape - shapes[j])
            shapes[j] += change
            shape += change
            change = damping * (first / variance - cavity_rate - rates[j])
            rates[j] += change
            rate += change
        constants[j] = shared + log_mass - math.log(num_centers) + cavity_constant - log_gamma_constant(shape, rate)
    return repairs
