"""Leapfrog trajectories along a surrogate, compiled. Imports NumPy, Numba and the lower floors only."""

import math

import numba
import numpy as np

from pymc_kernel.scores.expansion import Expansion, value_and_score

__all__ = ["choose_num_steps", "choose_step_size", "leapfrog", "surrogate_chain"]

_FACTORS = np.array([1.0, 1.0, 0.5, 0.25])
_TRIAL_STEPS = 10
_ENERGY_ACCEPT = 0.9  # wanted mean of min(1, exp(-energy error)) of the trials
_GOOD_ENOUGH = 0.9  # of the largest expected squared jump


@numba.njit(cache=True, nogil=True, error_model="numpy")
def leapfrog(position, momentum, step_size, num_steps, expansion):
    """Return the end (position, momentum) of a trajectory along the surrogate, and its surrogate value.

    The potential is minus the surrogate. Unit mass; O(num_steps m d).
    """
    q, p = position.copy(), momentum.copy()
    score = np.empty_like(q)
    value = value_and_score(q, expansion, score)
    for _ in range(num_steps):
        for i in range(q.shape[0]):
            p[i] += 0.5 * step_size * score[i]
            q[i] += step_size * p[i]
        value = value_and_score(q, expansion, score)
        for i in range(q.shape[0]):
            p[i] += 0.5 * step_size * score[i]
    return q, p, value


@numba.njit(cache=True, nogil=True, error_model="numpy")
def surrogate_chain(position, momenta, uniforms, lengths, step_sizes, expansion):
    """Return where a Hamiltonian chain on the surrogate alone has got to, and the surrogate's values there and before.

    Each transition accepts by the surrogate's energy, so the whole is reversible with respect to exp(surrogate):
    as a proposal for another density it needs the ratio of surrogate values only (Liu 2001, section 9.4.3).

    Parameters
    ----------
    momenta : ndarray (k, d)
    uniforms : ndarray (k,)
    lengths, step_sizes : ndarray (k,)
        Leapfrog steps of each transition and their sizes.
    """
    q = position.copy()
    scratch = np.empty_like(q)
    first = value_and_score(q, expansion, scratch)
    value = first
    for t in range(lengths.shape[0]):
        new, momentum, new_value = leapfrog(q, momenta[t], step_sizes[t], lengths[t], expansion)
        gain = new_value - value
        for i in range(q.shape[0]):
            gain += 0.5 * (momenta[t, i] * momenta[t, i] - momentum[i] * momentum[i])
        if uniforms[t] < math.exp(min(gain, 0.0)):
            q, value = new, new_value
    return q, value, first


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _trial_accept(starts, momenta, step_size, num_steps, expansion):
    """Return the mean of min(1, exp(-energy error)) over trajectories on the surrogate alone."""
    total = 0.0
    scratch = np.empty(starts.shape[1])
    for i in range(starts.shape[0]):
        before = value_and_score(starts[i], expansion, scratch) - 0.5 * (momenta[i] ** 2).sum()
        _, momentum, value = leapfrog(starts[i], momenta[i], step_size, num_steps, expansion)
        error = value - 0.5 * (momentum**2).sum() - before
        if error == error:
            total += min(1.0, math.exp(min(error, 0.0)))
    return total / starts.shape[0]


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _jumps(starts, momenta, step_size, max_steps, expansion, centre, spread, spread_of_square):
    """Return the squared jumps, times surrogate acceptance, of all q_i and (q_i - centre_i)^2, (max_steps, 2 d)."""
    n, d = starts.shape
    out = np.zeros((max_steps, 2 * d))
    score = np.empty(d)
    for r in range(n):
        q, p = starts[r].copy(), momenta[r].copy()
        before = value_and_score(q, expansion, score) - 0.5 * (p**2).sum()
        for step in range(max_steps):
            for i in range(d):
                p[i] += 0.5 * step_size * score[i]
                q[i] += step_size * p[i]
            value = value_and_score(q, expansion, score)
            kinetic = 0.0
            for i in range(d):
                p[i] += 0.5 * step_size * score[i]
                kinetic += 0.5 * p[i] * p[i]
            gain = value - kinetic - before
            if not gain > -20.0:
                break
            accept = min(1.0, math.exp(min(gain, 0.0)))
            for i in range(d):
                jump = q[i] - starts[r, i]
                jump_of_square = (q[i] - centre[i]) ** 2 - (starts[r, i] - centre[i]) ** 2
                out[step, i] += accept * jump * jump / (n * spread[i])
                out[step, d + i] += accept * jump_of_square * jump_of_square / (n * spread_of_square[i])
    return out


def vary_step_size(rng: np.random.Generator, step_size: float, size: int) -> np.ndarray:
    """Return step sizes, half of them as given and the others a half and a quarter of it, at random.

    In the tails a target can be stiffer than where the step size was chosen; beyond the limit of stability every
    trajectory is rejected, and a chain would stay there for good.
    """
    return step_size * _FACTORS[rng.integers(len(_FACTORS), size=size)]


def choose_step_size(starts: np.ndarray, momenta: np.ndarray, expansion: Expansion, guess: float = 0.3) -> float:
    """Return the step size at which the surrogate's own energy is conserved well enough: no likelihood is needed.

    Parameters
    ----------
    starts, momenta : ndarray (n, d)
        Typical positions, in the coordinates of the expansion, and standard normal momenta.
    """
    low, high = math.log(1e-4), math.log(2.0)
    middle = min(max(math.log(guess), low), high)
    width = 1.0
    # The acceptance falls with the step size: bracket from the guess, then halve.
    while low < high - 0.05:
        if _trial_accept(starts, momenta, math.exp(middle), _TRIAL_STEPS, expansion) >= _ENERGY_ACCEPT:
            low = middle
            middle = min(middle + width, 0.5 * (low + high)) if high == math.log(2.0) else 0.5 * (low + high)
        else:
            high = middle
            middle = max(middle - width, 0.5 * (low + high)) if low == math.log(1e-4) else 0.5 * (low + high)
    return math.exp(low)


def choose_num_steps(
    starts: np.ndarray, momenta: np.ndarray, step_size: float, max_steps: int, expansion: Expansion
) -> int:
    """Return the length of trajectories that moves the slowest direction most, on the surrogate.

    Squared jumps of every coordinate and of its square are taken relative to their variances over ``starts``,
    and the smallest counts: the sum would be content with the directions that mix anyway.
    """
    centre = starts.mean(axis=0)
    square = (starts - centre) ** 2
    tiny = 1e-12
    jumps = _jumps(
        starts, momenta, step_size, max_steps, expansion, centre, square.mean(axis=0) + tiny, square.var(axis=0) + tiny
    )
    # A move takes between half of L and L steps.
    total = np.vstack([np.zeros(jumps.shape[1]), np.cumsum(jumps, axis=0)])
    last = np.arange(1, max_steps + 1)
    first = (last + 1) // 2
    jumps = ((total[last] - total[first - 1]) / (last - first + 1)[:, None]).min(axis=1)
    best = jumps.max()
    if not best > 0.0:
        return 1
    return int(np.argmax(jumps >= _GOOD_ENOUGH * best)) + 1
