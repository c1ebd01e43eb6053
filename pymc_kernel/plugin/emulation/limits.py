"""Limits of outputs, beyond which a model has no density: a rate is above zero, a probability between zero and one.

What is learned of an output leaves them by its error. They are found by asking the model, which knows them.
"""

from collections.abc import Callable

import numpy as np

_HALVINGS = 52  # of the distance to a limit: to the precision of a number of its size
_BEYOND = 2.0**-26  # of the distance to where there is no density: half of its digits beyond a limit there is none


def limits_of(has_density: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the lowest and highest outputs (2, b, q) with a density; infinite where there is no limit.

    Looked for as far beyond the known outputs as these lie apart. What is a limit at one place only, as a bound that
    is a parameter, is none. Costs two evaluations of the density, and for a model with limits three of each output.

    Parameters
    ----------
    has_density : callable
        From outputs (b, q) to whether the model has a density with them, at several places (m,).
    rows : ndarray (b, q)
        Outputs with which it has, at all of these.
    known : ndarray (n, b, q)
        Outputs at known places; those that are not finite are left out.
    """
    limits = np.stack([np.full(rows.shape, -np.inf), np.full(rows.shape, np.inf)])
    known = np.where(np.isfinite(known), known, rows)
    low, high = known.min(axis=0), known.max(axis=0)
    for of_side, outside in zip(limits, (2.0 * low - high, 2.0 * high - low), strict=True):
        if has_density(outside).all():
            continue
        latest = None
        for output in np.ndindex(rows.shape):

            def has_density_with(value, output=output):
                changed = rows.copy()
                changed[output] = value
                return has_density(changed)

            inside, outer = rows[output], outside[output]
            if has_density_with(outer).any():
                continue
            if latest is None or not _is_limit(has_density_with, latest, inside, outer):
                latest = _halved(has_density_with, inside, outer)
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
