"""Data of a density estimate: checks, and noise on ties. Imports NumPy."""

import numpy as np

from pymc_kernel.errors import warn_caller

__all__ = ["checked_data", "without_ties"]


def checked_data(data, least: int | None = None) -> np.ndarray:
    """Return data as (n, d), or raise; ``least`` points are enough where it is not a first fit."""
    x = np.asarray(data, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"data must have shape (n, d) or (n,), got {np.shape(data)}.")
    bad = int((~np.isfinite(x)).any(axis=1).sum())
    if bad:
        raise ValueError(f"{bad} of {len(x)} points are not finite; leave them out.")
    n, d = x.shape
    least_points = d + 2 if least is None else least
    if n < least_points:
        raise ValueError(f"{n} points in {d} dimensions are too few: a bandwidth needs at least {least_points}.")
    if least is None:
        constant = np.flatnonzero(np.ptp(x, axis=0) == 0.0)
        if constant.size:
            raise ValueError(f"columns {constant.tolist()} are constant: a density over them does not exist.")
    return x


def without_ties(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the data with uniform noise on rows that coincide, where there are some.

    With a tie the leave-one-out likelihood grows without bound as the bandwidth goes to zero (Zychaluk and Patil 2008).
    Rounded data get noise of their resolution, the least gap between values of a column; continuous data of which some
    repeat get noise as wide as the rule of thumb's bandwidth: a smaller one would pull the bandwidth down with it.
    """
    _, first, inverse = np.unique(x, axis=0, return_index=True, return_inverse=True)
    num_tied = len(x) - len(first)
    if num_tied == 0:
        return x
    n, d = x.shape
    thumb = (4.0 / ((d + 2.0) * n)) ** (1.0 / (d + 4.0)) * x.std(axis=0)
    rows = np.bincount(inverse.ravel())[inverse.ravel()] > 1
    x = x.copy()
    widths = []
    for k in range(d):
        widths.append(_noise_width(np.unique(x[:, k]), n, thumb[k]))
        x[rows, k] += widths[-1] * (rng.random(int(rows.sum())) - 0.5)
    shown = ", ".join(f"{width:.2g}" for width in widths)
    warn_caller(
        f"{num_tied} of {n} points repeat an earlier one; uniform noise of the widths {shown} is added to all rows "
        "that are tied, as their likelihood has no bound otherwise."
    )
    return x


def _noise_width(values, n, thumb):
    """Return the resolution of a column with these distinct values, or twice the rule of thumb's bandwidth."""
    gaps = np.diff(values)
    # Values on a grid: every gap is a whole number of the least one.
    may_be_rounded = gaps.size > 0 and len(values) < n and gaps.min() > 1e-6 * thumb
    if may_be_rounded and np.allclose(gaps / gaps.min(), np.rint(gaps / gaps.min()), atol=0.01):
        return gaps.min()
    return 2.0 * thumb
