"""What ArviZ says of weights."""

import numpy as np
from arviz_stats.base import array_stats

__all__ = ["pareto_shape"]


def pareto_shape(log_weights: np.ndarray) -> float:
    """Return the shape of the tail of the weights by ArviZ; infinity where there are too few to tell."""
    finite = log_weights[log_weights > -np.inf]
    try:
        # ArviZ takes log likelihoods that are left out, the negative of log weights.
        shape = float(array_stats.psislw(finite.max() - finite)[1])
    except ValueError:
        return np.inf
    return np.inf if np.isnan(shape) else shape
