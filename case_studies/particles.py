"""What the particle filters of the studies share, compiled."""

import math

import numba
import numpy as np


@numba.njit(cache=True)
def resample(rng, log_weights, ancestors):
    """Write the ancestors (n,) that systematic resampling takes, and return the log of the mean weight.

    ``log_weights`` (n,) are used up. Where all are -inf so is what is returned, and no ancestors are written.
    """
    n = log_weights.shape[0]
    largest = log_weights.max()
    if not largest > -np.inf:
        return -np.inf
    mass = 0.0
    for i in range(n):
        log_weights[i] = math.exp(log_weights[i] - largest)
        mass += log_weights[i]
    step = mass / n
    point, cumulated, index = step * rng.random(), log_weights[0], 0
    for i in range(n):
        while cumulated < point and index < n - 1:
            index += 1
            cumulated += log_weights[index]
        ancestors[i] = index
        point += step
    return largest + math.log(step)
