"""A single trajectory along a surrogate, for benchmarks and tests: the package follows many at once."""

import numpy as np

from pymc_kernel.mcmc.trajectory import surrogate_chains


def leapfrog(position, momentum, step_size, num_steps, expansion):
    """Return the end (position, momentum) of a trajectory along the surrogate, and its surrogate value."""
    momenta = np.array(momentum, dtype=float)[None, None]
    always, steps, sizes = np.array([[-1.0]]), np.array([[num_steps]]), np.array([[float(step_size)]])
    end, value, _, last = surrogate_chains(np.asarray(position)[None], momenta, always, steps, sizes, expansion)
    return end[0], last[0], float(value[0])
