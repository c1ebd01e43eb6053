"""The tail shape of importance weights, as reported to users."""

import numpy as np

from pymc_kernel.mcmc.coverage import pareto_shape

__all__ = ["reported_shape"]


def reported_shape(log_weights: np.ndarray) -> float:
    """Return the shape of the tail of the weights (n,); infinity where there are too few to tell."""
    shape = pareto_shape(log_weights[log_weights > -np.inf])
    return np.inf if np.isnan(shape) else shape
