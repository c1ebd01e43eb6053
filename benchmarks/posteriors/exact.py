"""Exact summaries: mean, standard deviation and 5, 50 and 95 % quantiles, from formulas and from quadrature."""

import numpy as np
from scipy import stats
from scipy.interpolate import CubicSpline
from scipy.optimize import brentq

PROBABILITIES = (0.05, 0.5, 0.95)


def of_distribution(distribution):
    """Return the summary (5,) of a frozen distribution of SciPy; NaN or infinite where a moment does not exist."""
    return np.array([distribution.mean(), distribution.std(), *distribution.ppf(PROBABILITIES)])


def vector(name, summaries):
    """Return the summaries of the entries of a vector, named as posteriordb does: ``name[1]``, ``name[2]``, ..."""
    return {f"{name}[{i}]": np.asarray(s) for i, s in enumerate(summaries, 1)}


_PANEL = 20  # nodes of Gauss and Legendre's rule on each of the panels that an interval is cut into


def legendre(low, high, num_nodes):
    """Return nodes and weights (num_nodes,) of a composite rule of Gauss and Legendre on an interval."""
    x, w = np.polynomial.legendre.leggauss(_PANEL)
    edges = np.linspace(low, high, num_nodes // _PANEL + 1)
    half = 0.5 * np.diff(edges)
    nodes = edges[:-1, None] + half[:, None] * (x + 1.0)
    return nodes.ravel(), (half[:, None] * w).ravel()


def grid_summary(x, log_density, transform=None):
    """Return the summary of a density on an even grid (n,) with both tails inside: the trapezoidal rule.

    ``transform``, increasing, is applied to the variable; its density is that of the grid's variable.
    """
    step = x[1] - x[0]
    return nodes_summary(x, np.full(x.size, step), log_density, transform)


def nodes_summary(x, weights, log_density, transform=None):
    """Return the summary of a density, not normalized, at the nodes of a quadrature rule with its weights.

    Quantiles come from the integral of a cubic spline; ``transform`` as in :func:`grid_summary`.
    """
    density = np.exp(log_density - log_density.max())
    mass = density * weights / (density @ weights)
    values = x if transform is None else transform(x)
    mean = mass @ values
    below = CubicSpline(x, density).antiderivative()
    quantiles = [brentq(lambda q, p=p: below(q) - p * below(x[-1]), x[0], x[-1], xtol=1e-13) for p in PROBABILITIES]
    if transform is not None:
        quantiles = transform(np.array(quantiles))
    return np.array([mean, np.sqrt(mass @ (values - mean) ** 2), *quantiles])


def mixture_of_normals_summary(weights, means, sds):
    """Return the summary of a mixture of many normals; weights need not be normalized."""
    weights = weights / weights.sum()
    mean = weights @ means
    variance = weights @ (sds**2 + (means - mean) ** 2)
    sds = np.maximum(sds, 1e-300)
    reach = 12.0 * np.sqrt(variance)
    quantiles = [
        brentq(lambda x, p=p: weights @ stats.norm.cdf((x - means) / sds) - p, mean - reach, mean + reach, xtol=1e-12)
        for p in PROBABILITIES
    ]
    return np.array([mean, np.sqrt(variance), *quantiles])


def gaussian_posterior(design, y, noise_sds):
    """Return summaries (d, 5) of the coefficients of y ~ N(design x, noise_sds^2) under x ~ N(0, I)."""
    scaled = design / noise_sds[:, None]
    covariance = np.linalg.inv(np.eye(design.shape[1]) + scaled.T @ scaled)
    mean, sd = covariance @ scaled.T @ (y / noise_sds), np.sqrt(np.diag(covariance))
    return np.stack([mean, sd, *(mean + sd * stats.norm.ppf(p) for p in PROBABILITIES)], axis=1)
