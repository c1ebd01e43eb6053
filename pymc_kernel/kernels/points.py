"""Checks of users' arrays and numbers. Imports NumPy only."""

from numbers import Real

import numpy as np

__all__ = ["as_numbers", "as_points", "check_magnitude", "is_number"]

_SMALLEST, _LARGEST = 1e-60, 1e60  # whose fourth powers, in curvatures, are floating-point numbers still


def is_number(value, low: float, high: float) -> bool:
    """Return whether ``value`` is a real number between the bounds, which are left out."""
    return isinstance(value, Real) and low < value < high


def as_numbers(values, name: str) -> np.ndarray:
    """Return ``values`` as a float array; a ``TypeError`` that names them where they are no real numbers."""
    try:
        values = np.asarray(values)
        if values.dtype.kind in "biuf":
            return np.asarray(values, dtype=float)
    except ValueError:  # rows of different lengths
        pass
    raise TypeError(f"{name} must be an array of real numbers, got {values!r:.80}.")


def as_points(points, name: str = "points", finite: bool = True) -> np.ndarray:
    """Return ``points`` as a contiguous float array (n, d); a vector becomes one column.

    A read-only array is copied, since Numba would compile all code anew for it.

    Raises
    ------
    TypeError
        For what is no array of real numbers.
    ValueError
        For another shape, no points, no dimensions, or NaN and infinities unless they may stand there (``finite``).
    """
    points = as_numbers(points, name)
    if points.ndim == 1:
        points = points[:, None]
    if points.ndim != 2 or 0 in points.shape:
        raise ValueError(f"{name} must have shape (n, d) with n >= 1 and d >= 1, got {points.shape}.")
    if finite and not np.isfinite(points).all():
        bad = int((~np.isfinite(points)).any(axis=1).sum())
        raise ValueError(f"{name} has {bad} of {len(points)} rows with NaN or infinite values; drop or repair them.")
    return np.require(points, requirements=["C", "W"])


def check_magnitude(values: np.ndarray, name: str) -> None:
    """Raise where the numbers in a column spread so little or are so large that their fourth powers are no numbers."""
    largest, spread = np.abs(values).max(), np.ptp(values, axis=0)
    if largest > _LARGEST:
        raise ValueError(f"{name} has numbers as large as {largest:.1g}; rescale them to less than {_LARGEST:.0e}.")
    if ((spread > 0.0) & (spread < _SMALLEST)).any():
        raise ValueError(f"{name} spreads over no more than {spread.min():.1g} in a column; rescale it.")
