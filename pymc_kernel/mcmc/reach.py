"""Whether the density ends where the draws of chains do.

Moves along a surrogate hardly leave the region that the surrogate knows, so its ends can act as walls that are not in
the density: on a long ridge chains then agree with each other, and all of them lack the rest. R-hat cannot show that, a
few evaluations can. Take draws near the end of a coordinate, and shift them outward along it, the other coordinates by
a function of this one alone: the map preserves volume. Then the mean ratio of densities, shifted to unshifted, is the
ratio of the marginal densities there, whatever the shape of the target. Where the draws exceed a quantile by e on
average, an exponential tail falls to exp(-3) within 3 e, and heavier and lighter tails fall by more. At a wall of the
chains the density does not fall.

Imports NumPy only.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["OpenEnd", "open_ends"]

_END = 0.05  # of the draws: an end, whose mean excess is the unit of length
_FEWEST_AT_END = 20  # draws, for a mean excess to a quarter
_OUTER = 1.0 / 3.0  # of the draws: there the other coordinates are regressed on this one, by a quadratic
_NUM_SHIFTED = 8  # draws for each end
_SHIFT = 3.0  # mean excesses
_STILL_HIGH = math.exp(-0.5 * _SHIFT)  # half way, in logs, between an exponential tail and a wall


class OpenEnd(NamedTuple):
    """An end of the draws that is not one of the density."""

    coordinate: int
    end: float
    """The 5 % or 95 % quantile of the draws."""
    ratio: float
    """Of the marginal density some way beyond the end to that at the end."""


def open_ends(
    rng: np.random.Generator, draws: np.ndarray, log_densities: np.ndarray, log_density: Callable[[np.ndarray], float]
) -> list[OpenEnd]:
    """Return the ends of the draws beyond which the density goes on; 16 d evaluations.

    Parameters
    ----------
    draws, log_densities : ndarray (n, d), (n,)
        With fewer than 400 there is no end to judge.
    log_density : callable
        Of a position (d,), exact.
    """
    n, d = draws.shape
    num_end, found = int(_END * n), []
    for j, sign in [(j, sign) for j in range(d) for sign in (1, -1)] if num_end >= _FEWEST_AT_END else ():
        order = np.argsort(-sign * draws[:, j])
        outer, end = order[: int(_OUTER * n)], order[:num_end]
        excesses = draws[:, j] - draws[end[-1], j]
        unit = excesses[end].mean()
        if unit == 0.0:
            continue
        t = excesses / unit
        path = np.polynomial.polynomial.polyfit(t[outer], draws[outer], 2)
        path[:, j] = [0.0, unit, 0.0]
        chosen = rng.choice(end, _NUM_SHIFTED)
        shift = _SHIFT * path[1] + np.outer((t[chosen] + _SHIFT) ** 2 - t[chosen] ** 2, path[2])
        values = np.array([log_density(place) for place in draws[chosen] + shift])
        ratio = np.exp(np.minimum(values - log_densities[chosen], 0.0)).mean()
        if ratio > _STILL_HIGH:
            found.append(OpenEnd(j, float(draws[end[-1], j]), float(ratio)))
    return found
