"""Functions of summaries, their slopes and inverses. Imports NumPy and ``kernels`` only."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import MAD_TO_SD

_CONSTANT_SHARE = 1e-10  # spread, relative to the size, below which a column is a constant
_ROUNDING = 1e-12  # relative, of numbers that were computed in different orders
_MOST_STEPS = 1e5  # that the largest number of a column on a grid is away from zero


class Observed(NamedTuple):
    """Transformed summaries."""

    values: np.ndarray
    """(m, k)."""
    log_slope: np.ndarray
    """(m, k), log derivatives by the summaries."""
    below: np.ndarray
    """(m, k), how far the interval of a whole number reaches down, infinite where it has no end; else zero."""
    above: np.ndarray
    """(m, k), how far it reaches up."""

    def take(self, rows) -> "Observed":
        """Return some rows."""
        return Observed(*[part[rows] for part in self])


@dataclass(frozen=True, eq=False)
class SummaryMap:
    """Summaries to regular columns: constants left out, each by its own function, then to median zero and unit spread.

    Attributes
    ----------
    kept : ndarray (q,) of bool
        Which columns change.
    constant : ndarray (q,)
        The values of those that never did, zero elsewhere.
    whole : ndarray (k,) of bool
        Which of the columns that change are whole numbers, in units of ``step``.
    step : ndarray (k,)
        What all values of a column are multiples of: 1 for whole numbers, 1 / 20 for proportions of 20; 1 for others.
    lowest : ndarray (k,)
        Their smallest simulated values; zero is the end of whole numbers.
    kinds : tuple of str
        For each of them: ``identity``, ``log``, ``log_shifted``, ``sqrt`` or ``asinh``.
    shift, unit : ndarray (k,)
    center, scale : ndarray (k,)
        Taken off, and divided by, after the function.
    """

    kept: np.ndarray
    constant: np.ndarray
    whole: np.ndarray
    step: np.ndarray
    lowest: np.ndarray
    kinds: tuple[str, ...]
    shift: np.ndarray
    unit: np.ndarray
    center: np.ndarray
    scale: np.ndarray

    def __call__(self, summaries: np.ndarray) -> np.ndarray:
        """Return (m, k) values of (m, q) summaries; NaN where a function is not defined."""
        columns = summaries[:, self.kept] / self.step
        out = np.empty(columns.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            for j, kind in enumerate(self.kinds):
                out[:, j] = _apply(kind, columns[:, j], self.shift[j], self.unit[j])
        out[~np.isfinite(out)] = np.nan
        return (out - self.center) / self.scale

    def log_slope(self, summaries: np.ndarray) -> np.ndarray:
        """Return log absolute derivatives (m, k) of the values by the summaries."""
        columns = summaries[:, self.kept] / self.step
        out = np.empty(columns.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            for j, kind in enumerate(self.kinds):
                x, shift, unit = columns[:, j], self.shift[j], self.unit[j]
                if kind == "identity":
                    out[:, j] = 0.0
                elif kind in ("log", "log_shifted"):
                    out[:, j] = -np.log(x + shift)
                elif kind == "sqrt":
                    out[:, j] = -np.log(2.0) - 0.5 * np.log(x + shift)
                else:
                    out[:, j] = -np.log(unit) - 0.5 * np.log1p(((x - shift) / unit) ** 2)
        return out - np.log(self.scale)

    def observed(self, summaries: np.ndarray, cells: bool = True) -> "Observed":
        """Return transformed summaries (m, k) with all that their probability needs; whole numbers as intervals."""
        values, log_slope = self(summaries), self.log_slope(summaries)
        below, above = np.zeros(values.shape), np.zeros(values.shape)
        if cells and self.whole.any():
            half = np.zeros(len(self.kept))
            half[self.kept] = 0.5 * self.step
            above[:, self.whole] = (self(summaries + half) - values)[:, self.whole]
            lower = self(summaries - half)
            lowest = (summaries[:, self.kept] <= 0.0) & (self.lowest == 0.0)
            below[:, self.whole] = np.where(lowest, np.inf, values - lower)[:, self.whole]
        return Observed(values, log_slope, below, above)

    def inverse(self, values: np.ndarray) -> np.ndarray:
        """Return (m, q) summaries of (m, k) values; whole numbers are rounded."""
        out = np.tile(self.constant, (len(values), 1))
        columns = values * self.scale + self.center
        for j, (kind, at) in enumerate(zip(self.kinds, np.flatnonzero(self.kept), strict=True)):
            x = columns[:, j]
            if kind in ("log", "log_shifted"):
                x = np.exp(np.minimum(x, 700.0)) - self.shift[j]
            elif kind == "sqrt":
                x = np.maximum(x, 0.0) ** 2 - self.shift[j]
            elif kind == "asinh":
                x = self.shift[j] + self.unit[j] * np.sinh(np.clip(x, -700.0, 700.0))
            if self.whole[j]:
                x = np.round(x)
                if self.lowest[j] == 0.0:
                    x = np.maximum(x, 0.0)
            out[:, at] = x * self.step[j]
        return out

    @classmethod
    def of(cls, summaries, kinds=None) -> "SummaryMap":
        """Return the map for simulated ``summaries`` (n, q); ``kinds`` of the columns that change, else identity."""
        size = np.abs(summaries).max(axis=0)
        varies = np.ptp(summaries, axis=0) > _CONSTANT_SHARE * size
        constant = np.where(varies, 0.0, summaries[0])
        step = np.array([_step(column) for column in summaries[:, varies].T])
        whole, step = step > 0.0, np.where(step > 0.0, step, 1.0)
        columns = summaries[:, varies] / step
        kinds = ("identity",) * columns.shape[1] if kinds is None else tuple(kinds)
        k = len(kinds)
        shift, unit = np.zeros(k), np.ones(k)
        for j, kind in enumerate(kinds):
            x = columns[:, j]
            if kind == "asinh":
                shift[j], unit[j] = np.median(x), robust_spread(x)
            elif kind == "log_shifted":
                shift[j] = 1.0 if whole[j] else 0.1 * np.median(x[x > 0.0])
            elif kind == "sqrt":
                shift[j] = 0.5 if whole[j] else 0.0
        lowest = columns.min(axis=0, initial=np.inf)
        plain = cls(varies, constant, whole, step, lowest, kinds, shift, unit, np.zeros(k), np.ones(k))
        values = plain(summaries)
        center = np.nanmedian(values, axis=0) if k else np.zeros(0)
        scale = np.array([robust_spread(v) for v in values.T])
        return cls(varies, constant, whole, step, lowest, kinds, shift, unit, center, scale)


def _step(x) -> float:
    """Return what all values are multiples of: 1 of whole numbers, 0 where there is nothing."""
    largest = np.abs(x).max()
    if (x == np.round(x)).all():
        return 1.0 if largest < 2.0**50 else 0.0
    distinct = np.unique(x)
    gap = np.diff(distinct)[np.diff(distinct) > _ROUNDING * largest].min(initial=np.inf)
    if not largest < _MOST_STEPS * gap:
        return 0.0
    step = largest / np.round(largest / gap)  # of many steps: known better than from a difference
    return float(step) if (np.abs(x / step - np.round(x / step)) < _MOST_STEPS * _ROUNDING).all() else 0.0


def _apply(kind, x, shift, unit):
    if kind == "identity":
        return x
    if kind in ("log", "log_shifted"):
        return np.log(x + shift)
    if kind == "sqrt":
        return np.sqrt(x + shift)
    return np.arcsinh((x - shift) / unit)


def robust_spread(x) -> float:
    """Return a standard deviation that a few outliers do not change, positive where ``x`` is not constant."""
    x = x[np.isfinite(x)]
    spread = MAD_TO_SD * np.median(np.abs(x - np.median(x)))
    if spread > 0.0:
        return float(spread)
    low, high = np.quantile(x, [0.02, 0.98])
    return float(high - low) / 4.0 if high > low else float(x.std())


def candidate_kinds(x, whole: bool) -> list[str]:
    """Return the functions that are defined for all values of a column."""
    kinds, lowest = ["identity", "asinh"], x.min()
    if lowest >= 0.0 and (x > 0.0).any():
        kinds.append("log_shifted")
        if lowest > 0.0 or whole:  # at zero a square root has an infinite slope; of whole numbers it is shifted
            kinds.append("sqrt")
        if lowest > 0.0 and not whole:
            kinds.append("log")
    return kinds


def winsorized(values) -> np.ndarray:
    """Return columns cut off where no regular distribution goes: twice the range of the middle 96 % beyond it."""
    low, high = np.quantile(values, [0.02, 0.98], axis=0)
    reach = np.maximum(2.0 * (high - low), 1e-300)
    return np.where(high > low, np.clip(values, low - reach, high + reach), values)
