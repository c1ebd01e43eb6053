"""Whether the density ends where the draws of chains do.

Moves along a surrogate hardly leave the region that the surrogate knows, so its ends can act as walls that are not in
the density: on a long ridge chains then agree with each other, and all of them lack the rest. R-hat cannot show that, a
few evaluations can. Take draws near the end of a coordinate, and shift them outward along it, the other coordinates by
a function of this one alone: the map preserves volume. Then the mean ratio of densities, shifted to unshifted, is the
ratio of the marginal densities there, whatever the shape of the target; cut off at one it is a lower bound, so that the
larger one of two maps may be taken. Where the draws exceed a quantile by e on average, an exponential tail falls to
exp(-1) within e, and heavier and lighter tails fall alike. At a wall of the chains the density does not fall.

Imports NumPy only.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["OpenEnd", "open_ends"]

_NUM_COORDINATES = 4  # that are judged: those along which the chains move least
_END = 0.05  # of the draws: an end, whose mean excess is the unit of length
_FEWEST_AT_END = 20  # draws, for a mean excess to a quarter
# Of the draws, from the end on: there the other coordinates are regressed on this one, by a quadratic. A long, even
# ridge needs many draws for its direction, a winding one near draws.
_NEIGHBORHOODS = (1.0 / 3.0, 0.1)
_NUM_SHIFTED = 16  # draws for each end and map
_HALF_WAY = math.exp(-0.5)  # in logs, between an exponential tail and a wall


class OpenEnd(NamedTuple):
    """An end of the draws that is not one of the density."""

    coordinate: int
    end: float
    """The 5 % or 95 % quantile of the draws."""
    ratio: float
    """Of the marginal density a mean excess further out to that of the draws beyond the quantile."""


def open_ends(
    rng: np.random.Generator, draws: np.ndarray, log_densities: np.ndarray, log_density: Callable[[np.ndarray], float]
) -> list[OpenEnd]:
    """Return the ends of the draws beyond which the density goes on; 256 evaluations, or 64 d if these are fewer.

    Parameters
    ----------
    draws, log_densities : ndarray (chain, draw, d), (chain, draw)
        Of chains in the order of their draws. With fewer than 400 in all there is no end to judge.
    log_density : callable
        Of a position (d,), exact.
    """
    # The expected squared jump over twice the variance: one minus the autocorrelation.
    variances = draws.var(axis=(0, 1))
    jumps = (np.diff(draws, axis=1) ** 2).mean(axis=(0, 1)) / np.where(variances > 0.0, 2.0 * variances, np.inf)
    draws, log_densities = draws.reshape(-1, draws.shape[-1]), log_densities.ravel()
    num_end = int(_END * len(draws))
    if num_end < _FEWEST_AT_END:
        return []
    ends = [(int(j), sign) for j in np.argsort(jumps)[:_NUM_COORDINATES] if variances[j] > 0.0 for sign in (1, -1)]
    found = []
    for j, sign in ends:
        order = np.argsort(-sign * draws[:, j])
        end = order[:num_end]
        excesses = draws[:, j] - draws[end[-1], j]
        t = excesses / excesses[end].mean() if excesses[end].any() else excesses
        ratio = 0.0
        for share in _NEIGHBORHOODS:
            near, chosen = order[: int(share * len(draws))], rng.choice(end, _NUM_SHIFTED)
            path = np.linalg.lstsq(np.vander(t[near], 3, increasing=True), draws[near])[0]
            shift = path[1] + np.outer((t[chosen] + 1.0) ** 2 - t[chosen] ** 2, path[2])
            values = np.array([log_density(place) for place in draws[chosen] + shift])
            ratio = max(ratio, np.exp(np.minimum(values - log_densities[chosen], 0.0)).mean())
        if ratio > _HALF_WAY:
            found.append(OpenEnd(j, float(draws[end[-1], j]), float(ratio)))
    return found
