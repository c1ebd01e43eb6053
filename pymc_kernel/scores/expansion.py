"""The fitted form of every surrogate of this package: a kernel expansion plus a quadratic.

    f(x) = sum_j a_j phi(s_j) + sum_j phi'(s_j) v_j . (u - U_j) + g . z + z' Q z / 2,
    z = x - center,  u = T z,  s_j = |u - U_j|^2        (radial)
    f(x) = sum_j a_j cos(u_j + p_j) + g . z + z' Q z / 2,  u = T z      (cosine)

One form for all means one compiled trajectory for all.
"""

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_points
from pymc_kernel.kernels.profiles import fill_derivatives, radial_row
from pymc_kernel.linalg import dot_product
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import over_row_blocks


class Expansion(NamedTuple):
    """The arrays of the formula above, as compiled code takes them."""

    family: int
    shape_a: float
    shape_b: float
    center: np.ndarray  # (d,)
    transform: np.ndarray  # (p, d), T; for cosines the frequencies (m, d)
    points_t: np.ndarray  # (p, m), U; for cosines (0, 0)
    coefficients: np.ndarray  # (m,), a
    directions_t: np.ndarray  # (p, m), v, or (p, 0) where there are none
    phases: np.ndarray  # (m,), p; for radial ones (0,), which tells the two apart
    linear: np.ndarray  # (d,), g
    quadratic: np.ndarray  # (d, d), Q


def radial_expansion(
    kernel, points, coefficients, *, center, linear, quadratic, transform=None, directions=None
) -> Expansion:
    """Return the expansion sum_j a_j k(x, X_j) + ... of a radial kernel with a numeric length scale.

    It is in the coordinates T0 (x - center) if a ``transform`` T0 (p, d) is given. ``points`` are X (m, d), in the
    coordinates of x, ``coefficients`` (m,), ``directions`` v (m, p), in kernel coordinates of unit length scale;
    ``center``, ``linear`` (d,) and ``quadratic`` (d, d) make the quadratic part.
    """
    transform = np.eye(points.shape[1]) if transform is None else transform
    transform = kernel.inverse_length_scale(len(transform))[:, None] * transform
    directions_t = np.empty((len(transform), 0)) if directions is None else directions.T
    arrays = center, transform, transform @ (points - center).T, coefficients, directions_t, np.empty(0)
    return _of_arrays(kernel.family, *kernel.shape_parameters, *arrays, linear, quadratic)


def cosine_expansion(frequencies, phases, coefficients, *, center, linear, quadratic) -> Expansion:
    """Return sum_j a_j cos(w_j . (x - center) + p_j) plus a quadratic; ``frequencies`` are (m, d)."""
    none = np.empty((0, 0))
    return _of_arrays(0, 1.0, 1.0, center, frequencies, none, coefficients, none, phases, linear, quadratic)


def _of_arrays(family, a, b, *arrays):
    """Return the expansion, its arrays in the layout and type that compiled code expects."""
    return Expansion(family, a, b, *(np.ascontiguousarray(array, dtype=float) for array in arrays))


def change_variables(expansion: Expansion, factor: np.ndarray, mean: np.ndarray) -> Expansion:
    """Return the expansion as a function of q, where x = mean + factor q; its score is factor' times the old."""
    shift = mean - expansion.center
    if expansion.phases.size > 0:
        moved = expansion._replace(phases=expansion.phases + expansion.transform @ shift)
    else:
        moved = expansion._replace(points_t=expansion.points_t - (expansion.transform @ shift)[:, None])
    return moved._replace(
        center=np.zeros(factor.shape[1]),
        transform=np.ascontiguousarray(expansion.transform @ factor),
        linear=factor.T @ (expansion.linear + expansion.quadratic @ shift),
        quadratic=np.ascontiguousarray(factor.T @ expansion.quadratic @ factor),
    )


@compiled
def value_and_score(x, e, score):
    """Write the gradient of an expansion at ``x`` (d,) into ``score`` (d,), return its value; O(m p + d p + d^2)."""
    d, m, p = x.shape[0], e.coefficients.shape[0], e.transform.shape[0]
    room = np.empty(4 * m + d + 2 * p)  # allocated once: it takes as long as the arithmetic of a few points
    squared, values, slope, second = room[:m], room[m : 2 * m], room[2 * m : 3 * m], room[3 * m : 4 * m]
    z, u, gradient = room[4 * m : 4 * m + d], room[4 * m + d : 4 * m + d + p], room[4 * m + d + p :]
    value = 0.0
    for i in range(d):
        z[i] = x[i] - e.center[i]
    for i in range(d):
        score[i] = e.linear[i]
        for k in range(d):
            score[i] += e.quadratic[k, i] * z[k]  # which is symmetric
        value += 0.5 * z[i] * (score[i] + e.linear[i])
    for i in range(p):
        u[i] = 0.0
        for k in range(d):
            u[i] += e.transform[i, k] * z[k]
    if e.phases.size > 0:
        for j in range(m):
            angle = u[j] + e.phases[j]
            value += e.coefficients[j] * np.cos(angle)
            along = -e.coefficients[j] * np.sin(angle)
            for i in range(d):
                score[i] += along * e.transform[j, i]
        return value
    gradient[:] = 1.0
    radial_row(u, e.points_t, gradient, squared)
    fill_derivatives(e.family, e.shape_a, e.shape_b, squared, values, slope, second)
    value += dot_product(e.coefficients, values)
    total = dot_product(e.coefficients, slope)
    gradient[:] = 0.0
    if e.directions_t.shape[1] > 0:
        # along_j = v_j . (u - U_j); its terms are phi'(s_j) along_j with gradient phi' v + 2 phi'' along (u - U).
        for j in range(m):
            along = 0.0
            for i in range(p):
                along += e.directions_t[i, j] * (u[i] - e.points_t[i, j])
            value += along * slope[j]
            for i in range(p):
                gradient[i] += e.directions_t[i, j] * slope[j]
            slope[j] = slope[j] * e.coefficients[j] + second[j] * along
            total += second[j] * along
    else:
        slope *= e.coefficients
    for i in range(p):
        gradient[i] += 2.0 * (u[i] * total - dot_product(slope, e.points_t[i]))
    for k in range(p):
        for i in range(d):
            score[i] += e.transform[k, i] * gradient[k]
    return value


@compiled
def rows_value_and_score(x, e, start, stop, values, scores):
    """Write the values (n,) and gradients (n, d) of an expansion at rows of ``x`` (n, d)."""
    for i in range(start, stop):
        values[i] = value_and_score(x[i], e, scores[i])


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
                    f"numbers too large for floating point come up in {type(self).__name__}: rescale x or length_scale."
                )
        elif np.isnan(result).any():
            raise ValueError("the surrogate is no number at x: too large for floating point so far from its points.")
        return result

    return checked


@dataclass(frozen=True, eq=False)
class KernelExpansion:
    """A fitted surrogate of a log density: what every estimator of ``pymc_kernel.scores`` returns."""

    expansion: Expansion  #: its arrays, for compiled loops

    @property
    def num_dims(self) -> int:
        """The dimension d of the points."""
        return self.expansion.center.size

    @within_range
    def log_density(self, x) -> np.ndarray:
        """Return the log density up to a constant at each row of ``x`` (n, d), shape (n,). O(n m d)."""
        return self._values_and_scores(as_points(x, "x", num_dims=self.num_dims))[0]

    @within_range
    def score(self, x) -> np.ndarray:
        """Return the gradient of the log density at each row of ``x`` (n, d), shape (n, d). O(n m d)."""
        return self._values_and_scores(as_points(x, "x", num_dims=self.num_dims))[1]

    def _values_and_scores(self, x):
        e = self.expansion
        values, scores = np.empty(x.shape[0]), np.empty_like(x)
        work = 3.0 * e.coefficients.size * x.shape[1]
        over_row_blocks(lambda start, stop: rows_value_and_score(x, e, start, stop, values, scores), len(x), work)
        return values, scores
