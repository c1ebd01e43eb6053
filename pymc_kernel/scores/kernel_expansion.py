"""A fitted surrogate of a log density, as an object: what every estimator returns."""

import functools
from dataclasses import dataclass

import numpy as np

from pymc_kernel.kernels.points import as_points
from pymc_kernel.parallel import over_row_blocks
from pymc_kernel.scores.expansion import Expansion, rows_value_and_score


def within_range(method):
    """Return a method that raises ``ValueError`` where its result is not finite, in place of NumPy's warnings.

    A fitted surrogate must be finite throughout; values of one may be infinite, but not NaN.
    """

    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            result = method(self, *args, **kwargs)
        if isinstance(result, KernelExpansion):
            if not all(np.isfinite(part).all() for part in result.expansion):
                raise ValueError(
                    f"numbers too large for floating point come up in {type(self).__name__}: rescale x, or take a "
                    "length_scale nearer to the distances of its points, or another regularization."
                )
        elif np.isnan(result).any():
            raise ValueError(
                "the surrogate is no number at x: too large for floating point so far from what it was fitted to."
            )
        return result

    return checked


@dataclass(frozen=True, eq=False)
class KernelExpansion:
    """A fitted surrogate of a log density: what every estimator of ``pymc_kernel.scores`` returns.

    Attributes
    ----------
    expansion : Expansion
        Its arrays, for compiled loops.
    """

    expansion: Expansion

    @property
    def num_dims(self) -> int:
        """The dimension d of the points."""
        return self.expansion.center.size

    @within_range
    def log_density(self, x) -> np.ndarray:
        """Return the log density up to a constant at each row of ``x`` (n, d), shape (n,). O(n m d)."""
        return self._values_and_scores(x)[0]

    @within_range
    def score(self, x) -> np.ndarray:
        """Return the gradient of the log density at each row of ``x`` (n, d), shape (n, d). O(n m d)."""
        return self._values_and_scores(x)[1]

    def _points(self, x):
        return as_points(x, "x", num_dims=self.num_dims)

    def _values_and_scores(self, x):
        x = self._points(x)
        e = self.expansion
        values, scores = np.empty(x.shape[0]), np.empty_like(x)
        over_row_blocks(
            lambda start, stop: rows_value_and_score(x, e, start, stop, values, scores),
            x.shape[0],
            3.0 * e.coefficients.size * x.shape[1],
        )
        return values, scores
