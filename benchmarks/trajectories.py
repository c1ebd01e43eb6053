"""A single trajectory along a surrogate, for benchmarks and tests: the package follows many at once."""

import numpy as np

from pymc_kernel.mcmc.trajectory import surrogate_chains


def leapfrog(position, momentum, step_size, num_steps, expansion):
    """Return the end (position, momentum) of a trajectory along the surrogate, and its surrogate value."""
    momenta = np.array(momentum, dtype=float)[None, None]
    always, step_sizes = np.array([[-1.0]]), np.array([[float(step_size)]])
    start = np.asarray(position)[None]
    end, value, _, last = surrogate_chains(start, momenta, always, step_sizes, int(num_steps), expansion)
    return end[0], last[0], float(value[0])
