"""Leapfrog trajectories along a surrogate, compiled."""

import math

import numpy as np

from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import over_row_blocks
from pymc_kernel.scores.expansion import Expansion, value_and_score

_TRIAL_STEPS = 10  # leapfrog steps of a trial: the energy error hardly grows with their number while they are stable
# Of step sizes, drawn for each trajectory from here to the chosen one: a few places are stiffer than those where it was
# chosen, and beyond the limit of stability all are rejected. Squares on a normal surrogate still decorrelate to .18.
SMALLEST_SHARE = 1.0 / 3.0
# Time of the longest trajectory. From q they end at q cos(t) on a normal surrogate, but for momenta: on average zero.
LONGEST = math.pi / (1.0 + SMALLEST_SHARE)
_ENERGY_ACCEPT = 0.9  # wanted mean of min(1, exp(-energy error)) of the trials
_CHAIN_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # trajectories of a proposal
_TARGET_CORRELATION = 0.2  # of both ends of a chain, on the surrogate; moves of particles end at the same value


def surrogate_chains(positions, momenta, uniforms, step_sizes, num_steps, expansion: Expansion, work_per_chain=0.0):
    """Return the ends of Hamiltonian chains on the surrogate alone, and the surrogate's values there and at the starts.

    Each transition accepts by the surrogate's energy, so the whole is reversible with respect to exp(surrogate):
    as a proposal for another density it needs the ratio of surrogate values only (Liu 2001, section 9.4.3).

    Chains start at positions (n, d), with momenta (n, k, d) of unit mass and step sizes (n, k); a leapfrog step is
    O(m d). A transition whose uniform number (n, k) is negative always accepts. Chains are spread over threads by the
    rough number of inner operations of one, zero for this thread alone. Also returned are the momenta (n, d) at the end
    of the last trajectory, accepted or not.
    """
    n = len(positions)
    ends, last = np.empty(positions.shape), np.empty(positions.shape)
    values, firsts = np.empty(n), np.empty(n)
    arrays = positions, momenta, uniforms, step_sizes, num_steps, expansion, ends, values, firsts, last
    over_row_blocks(lambda start, stop: _chains(*arrays, start, stop), n, work_per_chain)
    return ends, values, firsts, last


@compiled
def _chains(positions, momenta, uniforms, step_sizes, num_steps, expansion, ends, values, firsts, last, start, stop):
    # One loop for all: the compiler optimizes the surrogate's formula again for every function that it is called
    # through, which takes most of a second.
    d = positions.shape[1]
    slope_here, q, score = np.empty(d), np.empty(d), np.empty(d)
    for j in range(start, stop):
        here, p = ends[j], last[j]
        here[:], p[:] = positions[j], 0.0
        value = value_and_score(here, expansion, slope_here)
        firsts[j] = value
        for t in range(step_sizes.shape[1]):
            step_size, new_value, gain = step_sizes[j, t], value, 0.0
            for i in range(d):
                q[i], p[i], score[i] = here[i], momenta[j, t, i], slope_here[i]
                gain += 0.5 * p[i] * p[i]
            for _ in range(num_steps):
                for i in range(d):
                    p[i] += 0.5 * step_size * score[i]
                    q[i] += step_size * p[i]
                new_value = value_and_score(q, expansion, score)
                for i in range(d):
                    p[i] += 0.5 * step_size * score[i]
            gain += new_value - value
            for i in range(d):
                gain -= 0.5 * p[i] * p[i]
            if uniforms[j, t] < 0.0 or uniforms[j, t] < math.exp(min(gain, 0.0)):
                value = new_value
                here[:], slope_here[:] = q, score
        values[j] = value


def random_chains(rng, starts, length, step_size, num_steps, expansion: Expansion):
    """Return ends (n, d) of chains of ``length`` trajectories, and surrogate values (n,) there and before.

    Step sizes are random, and with them how far trajectories go: otherwise periodic ones might return to their start
    every time.
    """
    d, shape = starts.shape[1], (len(starts), length)
    step_sizes = step_size * rng.uniform(SMALLEST_SHARE, 1.0, shape)
    momenta, uniforms = rng.standard_normal((*shape, d)), rng.random(shape)
    work = float(length * num_steps * expansion.coefficients.size * d)
    return surrogate_chains(starts, momenta, uniforms, step_sizes, num_steps, expansion, work)[:3]


def _trial_accept(starts, momenta, step_size, expansion):
    """Return the mean of min(1, exp(-energy error)) over trajectories on the surrogate alone."""
    shape = (len(starts), 1)
    trial = momenta[:, None], np.full(shape, -1.0), np.full(shape, step_size), _TRIAL_STEPS
    _, values, firsts, last = surrogate_chains(starts, *trial, expansion)
    # Beyond the limit of stability trajectories go to infinity, which their energy shows.
    with np.errstate(over="ignore", invalid="ignore"):
        gains = values - firsts + 0.5 * (momenta**2 - last**2).sum(axis=1)
    return np.where(np.isnan(gains), 0.0, np.exp(np.minimum(gains, 0.0))).mean()


def choose_step_size(starts: np.ndarray, momenta: np.ndarray, expansion: Expansion) -> float:
    """Return the step size at which the surrogate's own energy is conserved well enough: no likelihood is needed.

    The starts (n, d) are typical positions, in the coordinates of the expansion, with standard normal momenta.
    """
    low, high = math.log(1e-4), math.log(2.0)
    # The acceptance falls with the step size.
    while low < high - 0.05:
        middle = 0.5 * (low + high)
        is_stable = _trial_accept(starts, momenta, math.exp(middle), expansion) >= _ENERGY_ACCEPT
        low, high = (middle, high) if is_stable else (low, middle)
    return math.exp(low)


def choose_chain_length(rng, starts: np.ndarray, step_size: float, num_steps: int, expansion: Expansion) -> int:
    """Return how many trajectories decorrelate positions (n, d) and their squares on the surrogate alone.

    Chains are twice as long as the length in question, and every two of their states that are as far apart count: the
    largest of 2 d correlations of n independent pairs alone is about sqrt(2 log(4 d) / n).
    """
    path = [starts]
    for length in _CHAIN_LENGTHS:
        while len(path) <= 2 * length:
            path.append(random_chains(rng, path[-1], 1, step_size, num_steps, expansion)[0])
        before, after = (np.concatenate(half) for half in (path[:-length], path[length:]))
        if largest_correlation(np.hstack([before, before**2]), np.hstack([after, after**2])) <= _TARGET_CORRELATION:
            break
    return length


def largest_correlation(before: np.ndarray, after: np.ndarray) -> float:
    """Return the largest absolute correlation of a column of (n, d) arrays before and after; 0 for constant columns."""
    before, after = _centered(before), _centered(after)
    sizes = np.linalg.norm(before, axis=0) * np.linalg.norm(after, axis=0)
    varies = sizes > 0.0
    correlations = np.abs(np.einsum("ij,ij->j", before, after)[varies]) / sizes[varies]
    return float(correlations.max(initial=0.0))


def _centered(values):
    """Return columns of (n, d) minus their means; relative to the first row, so that constant ones are exactly zero."""
    apart = values - values[0]
    return apart - apart.mean(axis=0)
