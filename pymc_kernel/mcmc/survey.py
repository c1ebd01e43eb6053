"""Space-filling design: points where a tuning chain should evaluate the density to improve the surrogate.

A surrogate from values interpolates where the chain has been and extrapolates beyond. Chains on the tempered surrogate
reach its tails at no cost; of their end points those with the largest posterior variance of the regression are
evaluated, one after the other. After tuning no such points are evaluated.

Imports NumPy and the lower floors only.
"""

import math

import numpy as np

from pymc_kernel.linalg import pivoted_cholesky
from pymc_kernel.mcmc.trajectory import surrogate_chain, vary_step_size
from pymc_kernel.scores.expansion import scaled_expansion

__all__ = ["survey"]

# Of the trajectories that search for points: somewhat and much wider than the posterior.
_INVERSE_TEMPERATURES = (0.5, 0.25)
_NUM_CANDIDATES = 150  # points of which the least certain are evaluated; each costs trajectories on the surrogate
_CHAIN_LENGTH = 8  # trajectories that lead to a candidate
_SMALL_VARIANCE = 1e-3  # variance of the log density that is not worth an evaluation


def survey(rng: np.random.Generator, starts: np.ndarray, fit, num_points: int) -> np.ndarray:
    """Return at most ``num_points`` places to evaluate, the most uncertain first.

    Parameters
    ----------
    starts : ndarray (n, d)
        Visited points, in the whitened coordinates of the fit.
    fit : surrogate_fit.Fit
        With a surrogate that has a ``covariance``.
    num_points : int

    Returns
    -------
    ndarray (k, d)
        In the coordinates of the chain, k <= num_points.
    """
    d = starts.shape[1]
    ends = []
    for inverse_temperature in _INVERSE_TEMPERATURES:
        expansion = scaled_expansion(fit.expansion, inverse_temperature)
        step_size = fit.step_size / math.sqrt(inverse_temperature)
        for start in starts[rng.choice(len(starts), min(len(starts), _NUM_CANDIDATES // 2), replace=False)]:
            lengths = rng.integers((fit.num_steps + 1) // 2, fit.num_steps + 1, size=_CHAIN_LENGTH)
            momenta, uniforms = rng.standard_normal((_CHAIN_LENGTH, d)), rng.random(_CHAIN_LENGTH)
            sizes = vary_step_size(rng, step_size, _CHAIN_LENGTH)
            ends.append(surrogate_chain(start, momenta, uniforms, lengths, sizes, expansion)[0])
    candidates = fit.mean + np.array(ends) @ fit.factor.T
    candidates = candidates[np.isfinite(candidates).all(axis=1)]
    covariance = fit.learned.surrogate.covariance(candidates)
    _, chosen = pivoted_cholesky(np.diag(covariance).copy(), lambda p: covariance[:, p], num_points, _SMALL_VARIANCE)
    return candidates[chosen]
