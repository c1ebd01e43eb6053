"""Limits of outputs, beyond which a model has no density: a rate is above zero, a probability between zero and one.

What is learned of an output leaves them by its error. They are found by asking the model, which knows them.
"""

from collections.abc import Callable

import numpy as np

_HALVINGS = 52  # of the distance to a limit: to the precision of a number of its size
_BEYOND = 2.0**-26  # of the distance to where there is no density: half of its digits beyond a limit there is none


def no_limits(shape: tuple[int, int]) -> np.ndarray:
    """Return lowest and highest outputs (2, b, q) that are infinite, of outputs of a shape (b, q)."""
    return np.stack([np.full(shape, -np.inf), np.full(shape, np.inf)])


def limits_of(has_density: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the lowest and highest outputs (2, b, q) with a density; infinite where there is no limit.

    Looked for as far beyond the known outputs as these lie apart. It must be the same at several places, and an output
    of one of them must do at the others: a bound that is a parameter is no limit, nor is a sum that must be one. Costs
    two evaluations of the density at each place, and for a model with limits four for each output.

    Parameters
    ----------
    has_density : callable
        From outputs (m, b, q) at several places to whether the model has a density there (m,).
    rows : ndarray (m, b, q)
        Outputs with which it has.
    known : ndarray (n, b, q)
        All outputs with which it has, at these and other places.
    """
    limits = no_limits(rows.shape[1:])
    low, high = known.min(axis=0), known.max(axis=0)
    sides = zip(limits, (low, high), (2.0 * low - high, 2.0 * high - low), strict=True)
    for of_side, inside, outside in sides:
        if has_density(np.broadcast_to(outside, rows.shape)).all():
            continue
        latest = None
        for output in np.ndindex(inside.shape):

            def has_density_with(value, output=output):
                changed = rows.copy()
                changed[:, *output] = value
                return has_density(changed)

            inner, outer = inside[output], outside[output]
            if has_density_with(outer).any() or not has_density_with(inner).all():
                continue
            if latest is None or not _is_limit(has_density_with, latest, inner, outer):
                latest = _halved(has_density_with, inner, outer)
            if latest is not None:
                of_side[output] = latest
    return limits


def _is_limit(has_density, value, inside, outside):
    """Return whether the density ends at ``value``, on the way from ``inside`` to ``outside``."""
    is_between = (value - outside) * (inside - value) >= 0.0
    return is_between and has_density(value).all() and not has_density(value + _BEYOND * (outside - value)).any()


def _halved(has_density, inside, outside):
    """Return the last value on the way from ``inside`` to ``outside`` with a density; None if places have several."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (inside + outside)
        found = has_density(middle)
        if found.all():
            inside = middle
        elif found.any():
            return None
        else:
            outside = middle
    return inside
