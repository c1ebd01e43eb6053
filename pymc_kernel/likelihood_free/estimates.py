"""Estimates of a likelihood from simulated data sets, on arrays."""

import math

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln

from pymc_kernel.kernels.points import as_numbers, as_points
from pymc_kernel.linalg import definite_cholesky
from pymc_kernel.parallel import one_blas_thread

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
    simulated, observed = _checked(simulated, observed)
    factor = _checked_factor(factor, len(observed))
    _check_number(num_simulations, len(simulated))
    if len(simulated) == 0:
        return -math.inf
    difference = (simulated - observed).T  # (q, m)
    with np.errstate(over="ignore", invalid="ignore"):
        if factor.ndim == 1:
            scaled, volume = difference / factor[:, None], np.log(factor).sum()
        else:
            scaled, volume = solve_triangular(factor, difference, lower=True), np.log(np.diag(factor)).sum()
        logs = -0.5 * (scaled**2).sum(axis=0)
    logs[np.isnan(logs)] = -math.inf  # distances that overflow
    return float(_log_sum_exp(logs) - math.log(num_simulations) - volume - 0.5 * len(observed) * _LOG_2PI)


def _checked(simulated, observed):
    """Return summaries (m, q) and (q,) as floats; errors where they do not fit or are not finite."""
    simulated, observed = as_numbers(simulated, "simulated"), as_numbers(observed, "observed")
    if simulated.ndim != 2 or observed.shape != simulated.shape[1:] or not observed.size:
        raise ValueError(
            f"simulated must have shape (m, q) and observed (q,) with q >= 1, got {simulated.shape} and "
            f"{observed.shape}."
        )
    for name, values in (("simulated", simulated), ("observed", observed)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} has NaN or infinite numbers; leave failed simulations out.")
    return simulated, observed


def _checked_factor(factor, width):
    factor = as_numbers(factor, "factor")
    if factor.shape not in ((width,), (width, width)):
        raise ValueError(f"factor must have shape ({width},) or ({width}, {width}), got {factor.shape}.")
    if not (np.isfinite(factor).all() and ((factor if factor.ndim == 1 else np.diag(factor)) > 0.0).all()):
        raise ValueError("factor must be finite, with positive bandwidths or a positive diagonal.")
    return factor


def _check_number(num_simulations, least):
    if not num_simulations >= max(least, 1):
        raise ValueError(f"num_simulations counts all of them, at least {max(least, 1)}, got {num_simulations!r}.")


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
    Biased, even in its exponential, by a term of order 1 / m: use :func:`log_normal_unbiased` instead. Zero
    (log -inf) where the covariance is singular up to rounding: summaries that depend on each other linearly, or too few
    simulations.
    """
    simulated, observed = _checked(simulated, observed)
    if not 0.0 <= shrinkage <= 1.0:
        raise ValueError(f"shrinkage must lie between 0 and 1, got {shrinkage!r}.")
    m, q = simulated.shape
    if m < 2 or (m <= q and shrinkage == 0.0):
        return -math.inf
    mean, covariance = simulated.mean(axis=0), np.atleast_2d(np.cov(simulated.T))
    if shrinkage > 0.0:
        covariance = (1.0 - shrinkage) * covariance + shrinkage * np.diag(np.diag(covariance))
    factor = definite_cholesky(covariance)
    if factor is None:
        return -math.inf
    return -0.5 * _squared_length(factor, observed - mean) - float(np.log(np.diag(factor)).sum() + 0.5 * q * _LOG_2PI)


def _squared_length(factor, difference):
    """Return |L^-1 v|^2, infinite where it overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = solve_triangular(factor, difference, lower=True)
        squared = float(scaled @ scaled)
    return math.inf if math.isnan(squared) else squared


@one_blas_thread
def log_normal_unbiased(simulated: np.ndarray, observed: np.ndarray) -> float:
    """Return the log of the unbiased estimate of a normal density at ``observed``.

    Ghurye and Olkin (1969); Price et al. (2018).

    Parameters
    ----------
    simulated : ndarray (m, q)
        Independent draws of that normal distribution, more than q + 3 of them.
    observed : ndarray (q,)

    Notes
    -----
    Zero (log -inf) where the observation is so far out that M - (y - mean)(y - mean)' / (1 - 1 / m) is not positive
    definite, M the scatter matrix. With the scatter's Cholesky factor that determinant needs one solve.
    """
    simulated, observed = _checked(simulated, observed)
    m, q = simulated.shape
    if m <= q + 3:
        return -math.inf
    mean = simulated.mean(axis=0)
    centered = simulated - mean
    factor = definite_cholesky(centered.T @ centered)
    if factor is None:
        return -math.inf
    left = 1.0 - _squared_length(factor, observed - mean) / (1.0 - 1.0 / m)
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
    if not 0.0 < epsilon < math.inf:
        raise ValueError(f"epsilon must be a positive number, got {epsilon!r}.")
    _check_number(num_simulations, len(simulated))
    if not len(simulated):
        return -math.inf
    features, observed = _checked(simulated, observed)
    with np.errstate(over="ignore"):
        squared = ((features - observed) ** 2).sum(axis=1) / epsilon
    return float(_log_sum_exp(-squared) - math.log(num_simulations))


def as_data_points(values) -> np.ndarray:
    """Return a data set as points (n, d): its first axis counts the observations."""
    values = as_numbers(values, "values")
    if not values.size:
        raise ValueError(f"values must hold at least one number, got shape {values.shape}.")
    return as_points(values.reshape(len(values), -1) if values.ndim > 1 else values.reshape(-1, 1), "values")
