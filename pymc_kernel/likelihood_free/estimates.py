"""Estimates of a likelihood from simulated data sets, on arrays. Imports NumPy, SciPy, ``linalg`` and ``kernels``."""

import math

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from pymc_kernel.kernels.base import as_points
from pymc_kernel.linalg import definite_cholesky
from pymc_kernel.parallel import one_blas_thread

__all__ = ["as_data_points", "log_kernel_abc", "log_mmd_abc", "log_normal_unbiased", "log_synthetic"]

_LOG_2PI = math.log(2.0 * math.pi)


@one_blas_thread
def log_kernel_abc(simulated: np.ndarray, observed: np.ndarray, factor: np.ndarray, num_simulations: int) -> float:
    """Return the log of the mean normal density of ``observed`` around the simulated summaries.

    Its exponential is an unbiased estimate of the ABC likelihood, the density of the simulated summaries plus normal
    noise of covariance L L'.

    Parameters
    ----------
    simulated : ndarray (m, q)
        Of the simulations that succeeded.
    observed : ndarray (q,)
    factor : ndarray (q,) or (q, q)
        Bandwidths epsilon, or the lower Cholesky factor L of a bandwidth matrix.
    num_simulations : int
        With those that failed, whose kernel is zero.
    """
    if len(simulated) == 0:
        return -math.inf
    difference = (simulated - observed).T  # (q, m)
    if factor.ndim == 1:
        scaled, volume = difference / factor[:, None], np.log(factor).sum()
    else:
        scaled, volume = solve_triangular(factor, difference, lower=True), np.log(np.diag(factor)).sum()
    logs = -0.5 * (scaled**2).sum(axis=0)
    return float(_log_sum_exp(logs) - math.log(num_simulations) - volume - 0.5 * len(observed) * _LOG_2PI)


def _log_sum_exp(logs):
    """Return what SciPy's function does for a vector that is not empty, at a tenth of its overhead."""
    largest = float(logs.max())
    return largest if largest == -math.inf else largest + math.log(np.exp(logs - largest).sum())


@one_blas_thread
def log_synthetic(simulated: np.ndarray, observed: np.ndarray, shrinkage: float = 0.0) -> float:
    """Return the normal log density of ``observed`` with mean and covariance of the simulated summaries (Wood 2010).

    Parameters
    ----------
    simulated : ndarray (m, q)
        More than q + 1 of them without shrinkage.
    observed : ndarray (q,)
    shrinkage : float
        In [0, 1]: correlations are multiplied by 1 - shrinkage (Warton 2008; Ong et al. 2018).

    Notes
    -----
    Biased, even in its exponential, by a term of order 1 / m: :func:`log_normal_unbiased` is the way out. Zero
    (log -inf) where the covariance is singular up to rounding: summaries that depend on each other linearly, or too few
    simulations.
    """
    m, q = simulated.shape
    if m < 2 or (m <= q and shrinkage == 0.0):
        return -math.inf
    mean, covariance = simulated.mean(axis=0), np.atleast_2d(np.cov(simulated.T))
    if shrinkage > 0.0:
        covariance = (1.0 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
    factor = definite_cholesky(covariance)
    if factor is None:
        return -math.inf
    scaled = solve_triangular(factor, observed - mean, lower=True)
    return float(-0.5 * scaled @ scaled - np.log(np.diag(factor)).sum() - 0.5 * q * _LOG_2PI)


@one_blas_thread
def log_normal_unbiased(simulated: np.ndarray, observed: np.ndarray) -> float:
    """Return the log of the unbiased estimate of a normal density at ``observed``.

    Ghurye and Olkin (1969); Price et al. (2018).

    Parameters
    ----------
    simulated : ndarray (m, q)
        Independent draws of that normal law, more than q + 3 of them.
    observed : ndarray (q,)

    Notes
    -----
    Zero (log -inf) where the observation is so far out that M - (y - mean)(y - mean)' / (1 - 1 / m) is not positive
    definite, M the scatter matrix. With the scatter's Cholesky factor that determinant needs one solve.
    """
    m, q = simulated.shape
    if m <= q + 3:
        return -math.inf
    mean = simulated.mean(axis=0)
    centred = simulated - mean
    factor = definite_cholesky(centred.T @ centred)
    if factor is None:
        return -math.inf
    scaled = solve_triangular(factor, observed - mean, lower=True)
    left = 1.0 - scaled @ scaled / (1.0 - 1.0 / m)
    if not left > 0.0:
        return -math.inf
    log_volume = 2.0 * np.log(np.diag(factor)).sum()
    constant = _log_wishart(q, m - 2) - _log_wishart(q, m - 1) - 0.5 * q * (_LOG_2PI + math.log1p(-1.0 / m))
    return float(constant - 0.5 * (m - q - 2) * log_volume + 0.5 * (m - q - 3) * (log_volume + math.log(left)))


def _log_wishart(q, dof):
    """Return log c(q, dof), c = 2^(-q dof / 2) pi^(-q (q - 1) / 4) / prod_i Gamma((dof - i + 1) / 2)."""
    gammas = gammaln(0.5 * (dof - np.arange(q))).sum()
    return -0.5 * q * dof * math.log(2.0) - 0.25 * q * (q - 1) * math.log(math.pi) - gammas


def log_mmd_abc(simulated: list[np.ndarray], observed: np.ndarray, epsilon: float, num_simulations: int) -> float:
    """Return the log of the mean of exp(-MMD^2 / epsilon) over simulated data sets (Park et al. 2016, K2-ABC).

    Parameters
    ----------
    simulated : list of ndarray (r,)
        Mean features of the data sets, whose scalar products are the kernel means', exact or by random features.
    observed : ndarray (r,)
        Mean feature of the data.
    epsilon : float
    num_simulations : int
        With those that failed.
    """
    if not simulated:
        return -math.inf
    squared = ((np.stack(simulated) - observed) ** 2).sum(axis=1)
    return float(_log_sum_exp(-squared / epsilon) - math.log(num_simulations))


def as_data_points(values) -> np.ndarray:
    """Return a data set as points (n, d): its first axis counts the observations."""
    values = np.asarray(values, dtype=float)
    return as_points(values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1))
