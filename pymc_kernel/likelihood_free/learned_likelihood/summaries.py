"""Functions of summaries, their slopes and inverses."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import MAD_TO_SD
from pymc_kernel.linalg import ROUNDING

_CONSTANT_SHARE = 1e-10  # spread, relative to the size, below which a column is a constant
_LEFT_OVER = 1e-9  # part of the terms of a linear function that may be rounding; far below noise
_MOST_STEPS = 1e5  # from zero to the largest number of a column on a grid


class Observed(NamedTuple):
    """Transformed summaries."""

    values: np.ndarray  # (m, k)
    log_slope: np.ndarray  # (m, k), log derivatives by the summaries
    below: np.ndarray  # (m, k), how far the interval of a whole number reaches down, infinite without an end; else zero
    above: np.ndarray  # (m, k), how far it reaches up

    def take(self, rows) -> "Observed":
        """Return some rows."""
        return Observed(*[part[rows] for part in self])


class _Function(NamedTuple):
    """A function of x, given a shift and a unit; the log of its slope; its inverse."""

    value: Callable
    log_slope: Callable
    inverse: Callable


_LOG = _Function(
    lambda x, shift, unit: np.log(x + shift),
    lambda x, shift, unit: -np.log(x + shift),
    lambda y, shift, unit: np.exp(np.minimum(y, 700.0)) - shift,
)
_FUNCTIONS = {
    "identity": _Function(lambda x, shift, unit: x, lambda x, shift, unit: 0.0, lambda y, shift, unit: y),
    "log": _LOG,
    "log_shifted": _LOG,
    "sqrt": _Function(
        lambda x, shift, unit: np.sqrt(x + shift),
        lambda x, shift, unit: -np.log(2.0) - 0.5 * np.log(x + shift),
        lambda y, shift, unit: np.maximum(y, 0.0) ** 2 - shift,
    ),
    "asinh": _Function(
        lambda x, shift, unit: np.arcsinh((x - shift) / unit),
        lambda x, shift, unit: -np.log(unit) - 0.5 * np.log1p(((x - shift) / unit) ** 2),
        lambda y, shift, unit: shift + unit * np.sinh(np.clip(y, -700.0, 700.0)),
    ),
}


@dataclass(frozen=True, eq=False)
class SummaryMap:
    """A map of summaries to regular columns, each by its own function, then to median zero and unit spread.

    Constants are left out, and so are linear functions of earlier columns, such as copies, sums, and the last of
    several counts with a fixed total: given the others they add no information, and their density has no bound.
    A ``step`` divides all values of a column: 1 for whole numbers, 1 / 20 for proportions of 20.
    """

    kept: np.ndarray  # (q,) of bool: the k columns that are not left out
    constant: np.ndarray  # (q,), with ``slopes``: columns that are left out are constant + kept columns @ slopes
    slopes: np.ndarray  # (k, q), zero for columns that are kept
    left_step: np.ndarray  # (q,), the step of columns that are left out, zero where there is none
    whole: np.ndarray  # (k,) of bool: columns whose values are multiples of a step
    step: np.ndarray  # (k,), 1 where there is none
    lowest: np.ndarray  # (k,), the smallest simulated values, in steps; zero is taken for a bound of whole numbers
    kinds: tuple[str, ...]  # the functions
    shift: np.ndarray  # (k,)
    unit: np.ndarray  # (k,)
    center: np.ndarray  # (k,), subtracted after the function
    scale: np.ndarray  # (k,), the divisor after that

    def _each(self, what, columns):
        out = np.empty(columns.shape)
        with np.errstate(invalid="ignore", divide="ignore"):
            for j, kind in enumerate(self.kinds):
                out[:, j] = getattr(_FUNCTIONS[kind], what)(columns[:, j], self.shift[j], self.unit[j])
        return out

    def __call__(self, summaries: np.ndarray) -> np.ndarray:
        """Return (m, k) values of (m, q) summaries; NaN where a function is not defined."""
        out = self._each("value", summaries[:, self.kept] / self.step)
        out[~np.isfinite(out)] = np.nan
        return (out - self.center) / self.scale

    def log_slope(self, summaries: np.ndarray) -> np.ndarray:
        """Return log absolute derivatives (m, k) of the values by the summaries."""
        return self._each("log_slope", summaries[:, self.kept] / self.step) - np.log(self.scale)

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
        x = self._each("inverse", values * self.scale + self.center)
        x = np.where(self.whole, np.round(x), x)
        x = np.where(self.whole & (self.lowest == 0.0), np.maximum(x, 0.0), x) * self.step
        out = self.constant + x @ self.slopes
        step = np.where(self.left_step > 0.0, self.left_step, 1.0)
        out = np.where(self.left_step > 0.0, np.round(out / step) * step, out)
        out[:, self.kept] = x
        return out

    def is_possible(self, summaries: np.ndarray) -> np.ndarray:
        """Return whether left-out columns of summaries (m, q) follow from the others as in all simulations, (m,)."""
        follows = _follows(summaries[:, self.kept], summaries, self.constant, self.slopes)
        return follows[:, ~self.kept].all(axis=1)

    @classmethod
    def of(cls, summaries, kinds=None) -> "SummaryMap":
        """Return the map for simulated ``summaries`` (n, q); ``kinds`` of kept columns are identity by default."""
        varies, constant, slopes = _left_out(summaries)
        rest = ~varies & (slopes != 0.0).any(axis=0)
        left_step = np.array([_step(column) if out else 0.0 for column, out in zip(summaries.T, rest, strict=True)])
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
        regular = kinds, shift, unit, np.zeros(k), np.ones(k)
        plain = cls(varies, constant, slopes, left_step, whole, step, lowest, *regular)
        values = plain(summaries)
        center = np.nanmedian(values, axis=0) if k else np.zeros(0)
        return replace(plain, center=center, scale=np.array([robust_spread(v) for v in values.T]))


def _left_out(summaries):
    """Return which columns (q,) of (n, q) are kept, and for the others constants (q,) and slopes (k, q)."""
    n, q = summaries.shape
    size = np.abs(summaries).max(axis=0)
    kept = np.ptp(summaries, axis=0) > _CONSTANT_SHARE * size
    constant, slopes = np.where(kept, 0.0, summaries[0]), np.zeros((q, q))
    if n > 2 * q:  # fewer simulations cannot show a dependence
        columns = summaries[:, kept] / size[kept]
        columns -= columns.mean(axis=0)
        rest = np.abs(np.diag(np.linalg.qr(columns, mode="r")))  # norms of what the columns before do not explain
        # One huge simulation may dominate the norms, so that ``_follows`` checks every simulation.
        is_small = rest <= np.sqrt(_LEFT_OVER) * np.linalg.norm(columns, axis=0)
        for j in np.flatnonzero(kept)[is_small]:
            before = np.flatnonzero(kept[:j])
            level, slope = _linear(summaries[:, before], summaries[:, j])
            if _follows(summaries[:, before], summaries[:, [j]], level, slope).all():
                kept[j], constant[j], slopes[before, j] = False, level[0], slope[:, 0]
    return kept, constant, slopes[kept]


def _linear(columns, column):
    """Return the constant (1,) and slopes (k, 1) of a linear function of columns (n, k)."""
    center, size = columns.mean(axis=0), np.abs(columns).max(axis=0)
    slopes = np.linalg.lstsq((columns - center) / size, column - column.mean())[0] / size
    return np.array([column.mean() - center @ slopes]), slopes[:, None]


def _follows(columns, others, constant, slopes):
    """Return where others (n, p) equal the linear functions of columns (n, k), up to rounding."""
    terms = np.abs(constant) + np.abs(columns) @ np.abs(slopes)
    return np.abs(others - constant - columns @ slopes) <= _LEFT_OVER * terms


def _step(x) -> float:
    """Return the step that all values are multiples of: 1 for whole numbers, 0 if there is none."""
    largest = np.abs(x).max()
    if (x == np.round(x)).all():
        return 1.0 if largest < 2.0**50 else 0.0
    distinct = np.unique(x)
    gap = np.diff(distinct)[np.diff(distinct) > ROUNDING * largest].min(initial=np.inf)
    if not largest < _MOST_STEPS * gap:
        return 0.0
    step = largest / np.round(largest / gap)  # from many steps, which is more accurate than from one
    return float(step) if (np.abs(x / step - np.round(x / step)) < _MOST_STEPS * ROUNDING).all() else 0.0


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
    """Return columns clipped where no regular distribution goes: beyond their middle 96 % by twice its range."""
    low, high = np.quantile(values, [0.02, 0.98], axis=0)
    reach = np.maximum(2.0 * (high - low), 1e-300)
    return np.where(high > low, np.clip(values, low - reach, high + reach), values)
