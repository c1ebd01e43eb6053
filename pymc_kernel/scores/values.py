"""A surrogate of a log density from its values: kernel regression on every point that was ever evaluated.

Score matching learns from the points that a chain visited and forgets what the log density was there; every
rejected proposal told it too. Here those numbers are regressed (a Gaussian process's posterior mean; Rasmussen
2003 ran Hamiltonian trajectories along one). Imports NumPy, SciPy and the lower floors only.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import ClassVar

import numpy as np
from scipy.linalg import cho_solve, lstsq, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpstrf
from scipy.optimize import minimize

from pymc_kernel.kernels import Gaussian, RadialKernel
from pymc_kernel.kernels.points import as_numbers, as_points, check_magnitude
from pymc_kernel.kernels.profiles import fill_profile
from pymc_kernel.linalg import jittered_cholesky, pivoted_cholesky, whiten
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.base_measure import ridge_of
from pymc_kernel.scores.expansion import KernelExpansion, radial_expansion, scaled_expansion, within_range

__all__ = ["FittedValues", "Hyperparameters", "Values"]

_REFERENCE_QUANTILE = 0.75
_ROUGH_ITERATIONS = 8
_FEW_ITERATIONS = 10  # from where the last search ended
_TOLERANCE = 1e-5  # of the log marginal likelihood, relative: some hundredths, where one is next to nothing
_PRIOR_SD = 2.0  # of the log length scales
_PRIOR_SD_NOISY = 1.0
_COMPRESSION = 1e-3  # in units of the log density
_LEAST_POINTS = 20
_LEFT_OVER = 1e-4  # of the prior variance, in squared units of the log density
_STARTS = (0.5, 1.5)  # of the length scale, in units of the median distance
# Logs of amplitudes and noises, in squared units of the log density. The covariance stays solvable at their ends.
_BOUNDS_RADIAL = (0.0, math.log(1e5))
_BOUNDS_RADIAL_NOISY = (math.log(1e-2), math.log(1e5))  # a larger floor would serve as noise, at short length scales
_BOUNDS_QUADRATIC = (math.log(1e-2), math.log(1e5))
_BOUNDS_NUGGET = (math.log(1e-5), math.log(400.0))
_BOUNDS_NUGGET_EXACT = (math.log(1e-5), math.log(1e-2))
_BOUNDS_DEPTH = (math.log(1e-7), math.log(0.1))
_BOUNDS_INVERSE_LENGTH = (math.log(1e-4), math.log(30.0))


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """What the marginal likelihood chooses. The covariance of two values at z and z' (whitened) is

    radial k(|(z - z') / l|) + quadratic (1 + z'z / d)^2 + [z = z'] (nugget + depth_noise depth^2).
    """  # noqa: D400

    inverse_length_scale: np.ndarray  # (d,)
    radial: float
    quadratic: float
    nugget: float
    depth_noise: float

    def pack(self) -> np.ndarray:
        """Return the logarithms as one vector (d + 4,)."""
        rest = [self.radial, self.quadratic, self.nugget, self.depth_noise]
        return np.log(np.concatenate([self.inverse_length_scale, rest]))

    @classmethod
    def unpack(cls, logs: np.ndarray) -> "Hyperparameters":
        """Return the hyperparameters of a vector of logarithms."""
        values = np.exp(logs)
        return cls(values[:-4], *map(float, values[-4:]))


@dataclass(frozen=True, eq=False)
class FittedValues(KernelExpansion):
    """A surrogate fitted to values.

    Attributes
    ----------
    hyperparameters : Hyperparameters
        In the coordinates in which the points have unit covariance; a start for the next fit.
    error : float
        Root mean square of the closed-form leave-one-out residuals, in units of the log density, where points
        near the mode count most.
    """

    hyperparameters: Hyperparameters
    error: float
    posterior: "_Posterior" = field(repr=False)
    has_trend: bool = False
    """Whether a quadratic was fitted by itself, as is done in many dimensions once there are enough values."""

    @within_range
    @one_blas_thread
    def covariance(self, x) -> np.ndarray:
        """Return what is not known of the log density at ``x`` (n, d): its posterior covariance, (n, n).

        Up to the constant that is not known anyway; O(n r (n + r)) for r points that carry the surrogate.
        """
        return self.posterior.covariance(self._points(x))

    @property
    def noise_sd(self) -> float:
        """The standard deviation of the noise of the values, as the fit sees it."""
        return math.sqrt(self.hyperparameters.nugget)


@dataclass(frozen=True)
class Values:
    """Kernel regression on log-density values: kernel = radial + quadratic polynomial, noise by depth.

    The quadratic makes Gaussian targets exact. The radial part has a length scale for every whitened coordinate,
    so that directions in which the log density is quadratic cost no points. Exact values in so many dimensions that a
    quadratic has more coefficients than ``learn_points`` (24 by default) are first fitted by a quadratic alone, once
    there are as many of them, and the kernels are left with the rest. Two kinds of noise: a nugget (the
    noise of estimated densities), and one that grows in proportion to the depth below the bulk, which says that
    an error of one matters where the density is high and not where it is next to nothing. All is chosen by the
    marginal likelihood with its exact gradient.

    Parameters
    ----------
    kernel : RadialKernel
        Its profile; the length scale is learnt.
    max_values : int
        How many values at most the surrogate is fitted to, a random part where there are more.
    max_points : int
        How many of their points at most carry it. They are chosen greedily, where those before leave most of the
        prior variance, and far fewer will do for a smooth density. O(values x points^2), memory O(values x points).
    learn_points : int
        How many of them the hyperparameters are learnt from, O(n^3) for each of some dozens of steps.
    window : float, optional
        Points further below the maximum are left out, but for the best 20 + 5 d; 4 d + 10 by default.
    max_iterations : int
        Of the search for hyperparameters from each start.
    """

    learns_from: ClassVar[str] = "values"
    kernel: RadialKernel = field(default_factory=Gaussian)
    max_values: int = 4000
    max_points: int = 1000
    learn_points: int = 300
    window: float | None = None
    max_iterations: int = 40

    def __post_init__(self):
        if not isinstance(self.kernel, RadialKernel):
            raise TypeError(f"kernel must be a radial one of pymc_kernel.kernels, got {self.kernel!r}.")
        for name in ("max_values", "max_points", "learn_points", "max_iterations"):
            value = getattr(self, name)
            if not (isinstance(value, int | np.integer) and value >= 1):
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")
        if self.window is not None and not (isinstance(self.window, Real) and self.window > 0):
            raise ValueError(f"window must be a positive number, got {self.window!r}.")

    @within_range
    @one_blas_thread
    def fit(
        self,
        points,
        values,
        rng=None,
        *,
        mean=None,
        factor=None,
        start=None,
        search=True,
        noisy=True,
    ) -> FittedValues:
        """Return the surrogate learnt from log-density values.

        Parameters
        ----------
        points : array_like (n, d)
        values : array_like (n,)
            Log density at the points, estimated or exact. Minus infinity and NaN are left out.
        rng : numpy.random.Generator, optional
            Draws the subsets where there are more points than ``max_points`` or ``learn_points``.
        mean, factor : ndarray (d,), (d, d), optional
            Of the whitened coordinates z = factor^-1 (x - mean); those of the points by default.
        start : Hyperparameters, optional
            Where the search for hyperparameters begins, besides two rough guesses.
        search : bool
            Otherwise it goes a few iterations on from ``start`` alone.
        noisy : bool
            Whether the values are estimates. The nugget of exact ones is kept below 0.01.

        Raises
        ------
        ValueError
            For shapes that do not fit, or fewer than d + 3 finite values.
        """
        points, values = as_points(points, finite=False), as_numbers(values, "values")
        n, d = points.shape
        if values.shape != (n,):
            raise ValueError(f"values must have shape ({n},), one per point, got {values.shape}.")
        # With more coefficients than the hyperparameters are learnt from, a quadratic is fitted by itself.
        needs_trend = not noisy and _num_coefficients(d) > self.learn_points
        fewest_for_trend = _num_coefficients(d) + 2 * d
        points, values = self._usable(points, values, fewest_for_trend if needs_trend else _LEAST_POINTS + 5 * d)
        check_magnitude(points, "points")
        # Far from the mode the best points differ by more than the window; in units of it all is as it is elsewhere.
        unit = max(1.0, float(np.ptp(values)) / self._window(d))
        values = values / unit
        rng = np.random.default_rng(0) if rng is None else rng
        if values.size > self.max_values:
            kept = rng.choice(values.size, self.max_values, replace=False)
            points, values = points[kept], values[kept]
        if mean is None or factor is None:
            mean = points.mean(axis=0)
            factor = _whitening(points)
        whitened = whiten(points, mean, factor)
        reference = np.quantile(values, _REFERENCE_QUANTILE)
        trend = np.zeros(values.size), np.zeros(d), np.zeros((d, d))
        has_trend = needs_trend and values.size >= fewest_for_trend
        if has_trend:
            trend = _quadratic_trend(whitened, values)
        departures = values - reference - trend[0]
        data = _Data(whitened, departures, np.maximum(reference - values, 0.0), self.kernel)
        chosen = rng.choice(values.size, min(values.size, self.learn_points), replace=False)
        small = data.take(chosen)
        limit = self.max_iterations if search or start is None else _FEW_ITERATIONS
        hyper = _learn(small, start, search, limit, noisy)
        pivots, weights, posterior = data.regress(hyper, self.max_points)
        # quadratic (1 + z.z_j / d)^2 summed with weights is a polynomial; the constant is dropped.
        scaled = 2.0 * hyper.quadratic / d
        linear = scaled * (weights @ whitened[pivots]) + trend[1]
        quadratic = scaled / d * (whitened[pivots].T * weights) @ whitened[pivots] + trend[2]
        inverse = np.linalg.inv(factor)
        kept, coefficients = data.take(pivots).compress(hyper, weights)
        expansion = radial_expansion(
            replace(self.kernel, length_scale=1.0),
            points[pivots[kept]],
            coefficients,
            transform=hyper.inverse_length_scale[:, None] * inverse,
            centre=mean,
            linear=inverse.T @ linear,
            quadratic=inverse.T @ quadratic @ inverse,
        )
        posterior = replace(posterior, mean=mean, inverse=inverse, unit=unit)
        return FittedValues(
            scaled_expansion(expansion, unit), hyper, unit * small.leave_one_out_error(hyper), posterior, has_trend
        )

    def _window(self, num_dims):
        return 4.0 * num_dims + 10.0 if self.window is None else self.window

    def _usable(self, points, values, num_wanted):
        num_dims = points.shape[1]
        finite = np.isfinite(values) & np.isfinite(points).all(axis=1)
        if finite.any():
            # On the way in from a far start the density grows fast, and few points are within the window.
            least = min(int(finite.sum()), num_wanted)
            level = np.sort(values[finite])[-least]
            finite &= values >= min(level, values[finite].max() - self._window(num_dims))
        if finite.sum() < num_dims + 3:
            raise ValueError(
                f"only {finite.sum()} of {values.size} points have a finite log density; at least "
                f"{num_dims + 3} are needed in {num_dims} dimensions."
            )
        return points[finite], values[finite]


def _definite(covariance):
    """Return the lower Cholesky factor of a covariance; it fails where that holds numbers that are none."""
    try:
        return jittered_cholesky(covariance)
    except np.linalg.LinAlgError:
        raise ValueError(
            "the covariance of the values is not positive definite; check the points for huge numbers."
        ) from None


def _num_coefficients(num_dims: int) -> int:
    """Return how many coefficients a quadratic has."""
    return (num_dims + 1) * (num_dims + 2) // 2


def _quadratic_trend(whitened, values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a least-squares quadratic, up to a constant: at the points (n,), its slope (d,) and curvature (d, d).

    In many dimensions the values that the hyperparameters are learnt from are too few to tell a quadratic from
    anything else. With more values than coefficients in all, there is no need to guess: the trend of a Gaussian is
    exact, and the kernels are left with what departs from it. O(n c^2) for c coefficients.
    """
    d = whitened.shape[1]
    rows, columns = np.triu_indices(d)
    design = np.hstack([np.ones((values.size, 1)), whitened, whitened[:, rows] * whitened[:, columns]])
    centre = values.mean()
    coefficients = lstsq(design, values - centre, cond=1e-10, lapack_driver="gelsy", check_finite=False)[0]
    curvature = np.zeros((d, d))
    curvature[rows, columns] = coefficients[d + 1 :]
    return design @ coefficients, coefficients[1 : d + 1], curvature + curvature.T


def _whitening(points: np.ndarray) -> np.ndarray:
    if (points == points[0]).all():
        raise ValueError("the points all coincide, so that nothing can be learnt between them.")
    covariance = np.atleast_2d(np.cov(points.T))
    return np.linalg.cholesky(covariance + np.diag(ridge_of(covariance, 1e-10)))


class _Data:
    """Whitened points with centred values: marginal likelihood, weights and residuals for given hyperparameters."""

    def __init__(self, whitened, values, depth, kernel):
        self.whitened = whitened
        self.values = values
        self.depth_squared = depth**2
        self.kernel = kernel
        self.num_dims = whitened.shape[1]

    @cached_property
    def polynomial(self):
        """The quadratic part of the covariance, with amplitude one."""
        return (1.0 + self.whitened @ self.whitened.T / self.num_dims) ** 2

    def take(self, rows):
        """Return the part with these rows."""
        return _Data(self.whitened[rows], self.values[rows], np.sqrt(self.depth_squared[rows]), self.kernel)

    def median_distance(self) -> float:
        """Return the median distance of two points."""
        squared = _squared_distances(self.whitened)
        return float(np.sqrt(np.median(squared[np.triu_indices_from(squared, 1)])))

    def _profile(self, squared, order):
        a, b = self.kernel.shape_parameters
        out = np.empty(squared.size)
        fill_profile(self.kernel.family, a, b, order, squared.ravel(), out)
        return out.reshape(squared.shape)

    def _covariance(self, hyper, squared):
        covariance = hyper.radial * self._profile(squared, 0)
        covariance += hyper.quadratic * self.polynomial
        covariance[np.diag_indices_from(covariance)] += hyper.nugget + hyper.depth_noise * self.depth_squared
        return covariance

    def negative_log_marginal(self, logs):
        """Return the negative log marginal likelihood and its gradient by the logarithms; O(n^3).

        With G = (K^-1 - a a') / 2, a = K^-1 y, the derivative by a parameter is sum(G * dK). For an inverse length
        scale t_i: dK = radial phi'(s) 2 t_i^2 (z_i - z_i')^2 by log t_i, summed through row sums and one product.
        """
        hyper = Hyperparameters.unpack(logs)
        scaled = self.whitened * hyper.inverse_length_scale
        squared = _squared_distances(scaled)
        covariance = self._covariance(hyper, squared)
        factor, info = dpotrf(covariance, lower=1)
        if info != 0:
            return 1e12, np.zeros_like(logs)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        inverse, _ = dpotri(factor, lower=1)  # zero above the diagonal, as the factor is
        inverse = inverse + inverse.T
        inverse[np.diag_indices_from(inverse)] *= 0.5
        weights = inverse @ self.values
        value = 0.5 * self.values @ weights + 0.5 * log_det
        gain = 0.5 * (inverse - np.outer(weights, weights))
        by_distance = gain * self._profile(squared, 1)
        by_distance *= hyper.radial
        spread = (scaled**2 * by_distance.sum(axis=1)[:, None]).sum(axis=0) - (scaled * (by_distance @ scaled)).sum(0)
        radial = hyper.radial * (gain * self._profile(squared, 0)).sum()
        quadratic = hyper.quadratic * (gain * self.polynomial).sum()
        diagonal = np.diag(gain)
        nugget = hyper.nugget * diagonal.sum()
        depth = hyper.depth_noise * (diagonal @ self.depth_squared)
        return value, np.concatenate([4.0 * spread, [radial, quadratic, nugget, depth]])

    def _factor(self, hyper):
        covariance = self._covariance(hyper, _squared_distances(self.whitened * hyper.inverse_length_scale))
        return _definite(covariance), True

    def regress(self, hyper, max_points) -> tuple[np.ndarray, np.ndarray, "_Posterior"]:
        """Return the points that carry the posterior mean, their weights, and the posterior, from all values.

        With the incomplete Cholesky factor F of the smooth covariance, K ~ F F', the mean at the points is F c for
        (F' N^-1 F + I) c = F' N^-1 y, N the noise; F = K_p L^-T for the pivots' columns K_p and their own factor L,
        so the weights of the pivots are L^-T c. Pivots are added until next to nothing of
        the prior variance is left.
        """
        noise = hyper.nugget + hyper.depth_noise * self.depth_squared
        diagonal = _smooth_diagonal(self.kernel, hyper, self.whitened)

        def columns(p):
            return _smooth(self.kernel, hyper, self.whitened, self.whitened[p])

        # Where the density is next to nothing, more of the prior variance may be left.
        tolerance = _LEFT_OVER * np.exp(0.5 * np.minimum(np.sqrt(self.depth_squared), 40.0))
        factor, pivots = pivoted_cholesky(diagonal, columns, max_points, tolerance)
        weighted = factor / noise[:, None]
        normal = weighted.T @ factor
        normal[np.diag_indices_from(normal)] += 1.0
        normal = _definite(normal)
        inner = cho_solve((normal, True), weighted.T @ self.values)
        own = factor[pivots]
        posterior = _Posterior(self.kernel, hyper, self.whitened[pivots], own, normal)
        return pivots, solve_triangular(own, inner, lower=True, trans=1), posterior

    def compress(self, hyper, weights) -> tuple[np.ndarray, np.ndarray]:
        """Return as few points as carry the radial part within ``_COMPRESSION``, and their coefficients.

        The projection of sum_i a_i k(., x_i) on the span of the pivots of an incomplete Cholesky factor K ~ L L' has
        the values L L'a at the points, column by column, so that the error for every rank is known at once. Smooth
        surrogates need a tenth of the points, and so a tenth of the time of a trajectory.
        """
        gram = self._profile(_squared_distances(self.whitened * hyper.inverse_length_scale), 0)
        exact = hyper.radial * (gram @ weights)
        factor, pivots, rank, _ = dpstrf(gram, lower=1, tol=1e-12, overwrite_a=1)
        factor, order = np.tril(factor)[:, :rank], pivots - 1
        columns = factor * (hyper.radial * (factor.T @ weights[order]))
        error = exact[order] - columns.sum(axis=1)
        needed = rank
        while needed > 1:
            trial = error + columns[:, needed - 1]
            if np.abs(trial).max() > _COMPRESSION:
                break
            error, needed = trial, needed - 1
        inner = factor[:, :needed].T @ weights[order]
        coefficients = hyper.radial * solve_triangular(factor[:needed, :needed], inner, lower=True, trans=1)
        return order[:needed], coefficients

    def leave_one_out_error(self, hyper) -> float:
        """Return the weighted root mean square of a_i / (K^-1)_ii, weights exp(-depth / 4)."""
        factor = self._factor(hyper)
        inverse = cho_solve(factor, np.eye(self.values.size))
        residuals = (inverse @ self.values) / np.diag(inverse)
        return float(np.sqrt(np.average(residuals**2, weights=np.exp(-0.25 * np.sqrt(self.depth_squared)))))


@dataclass(frozen=True, eq=False)
class _Posterior:
    """The law of the smooth part given the values, through the pivots that carry it."""

    kernel: RadialKernel
    hyper: Hyperparameters
    pivots: np.ndarray  # (r, d), whitened
    own: np.ndarray  # (r, r), lower: factor of the covariance of the pivots
    normal: np.ndarray  # (r, r), lower: factor of F' N^-1 F + I
    mean: np.ndarray | None = None
    inverse: np.ndarray | None = None  # x to whitened
    unit: float = 1.0  # of the log density

    def covariance(self, x):
        whitened = (x - self.mean) @ self.inverse.T
        cross = _smooth(self.kernel, self.hyper, self.pivots, whitened)
        cross = solve_triangular(self.own, cross, lower=True, overwrite_b=True)
        known = solve_triangular(self.normal, cross, lower=True)
        smooth = _smooth(self.kernel, self.hyper, whitened, whitened)
        return self.unit**2 * (smooth - cross.T @ cross + known.T @ known)


def _smooth(kernel, hyper, one, other):
    """Return radial k(|(z - z') / l|) + quadratic (1 + z'z / d)^2 for all pairs, (n, m)."""
    a, b = one * hyper.inverse_length_scale, other * hyper.inverse_length_scale
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * (a @ b.T)
    np.maximum(squared, 0.0, out=squared)
    out = np.empty(squared.size)
    fill_profile(kernel.family, *kernel.shape_parameters, 0, squared.ravel(), out)
    return hyper.radial * out.reshape(squared.shape) + hyper.quadratic * (1.0 + one @ other.T / one.shape[1]) ** 2


def _smooth_diagonal(kernel, hyper, points):
    at_zero = np.empty(1)
    fill_profile(kernel.family, *kernel.shape_parameters, 0, np.zeros(1), at_zero)
    return hyper.radial * at_zero[0] + hyper.quadratic * (1.0 + (points**2).sum(axis=1) / points.shape[1]) ** 2


def _squared_distances(points):
    norms = (points**2).sum(axis=1)
    squared = norms[:, None] + norms - 2.0 * points @ points.T
    np.maximum(squared, 0.0, out=squared)
    np.fill_diagonal(squared, 0.0)
    return squared


def _learn(data: _Data, start: Hyperparameters | None, search, max_iterations, noisy) -> Hyperparameters:
    """Return the hyperparameters with the largest marginal likelihood, length scales a priori near the distances."""
    d = data.num_dims
    distance = data.median_distance() or 1.0
    typical = -math.log(distance)
    starts = [] if start is None else [start]
    if start is None or search:
        starts += [Hyperparameters(np.full(d, 1.0 / (r * distance)), 100.0, 10.0, 1e-3, 1e-4) for r in _STARTS]
        if noisy:
            # A short length scale explains noise as well as a nugget does; begin where the nugget does.
            starts.append(Hyperparameters(np.full(d, 1.0 / (_STARTS[-1] * distance)), 1.0, 10.0, 1.0, 1e-4))
    nugget = _BOUNDS_NUGGET if noisy else _BOUNDS_NUGGET_EXACT
    prior_sd = _PRIOR_SD_NOISY if noisy else _PRIOR_SD
    radial = _BOUNDS_RADIAL_NOISY if noisy else _BOUNDS_RADIAL
    bounds = [_BOUNDS_INVERSE_LENGTH] * d + [radial, _BOUNDS_QUADRATIC, nugget, _BOUNDS_DEPTH]

    def penalised(logs):
        value, gradient = data.negative_log_marginal(logs)
        off = (logs[:d] - typical) / prior_sd
        gradient[:d] += off / prior_sd
        return value + 0.5 * off @ off, gradient

    def search(logs, iterations):
        options = {"maxiter": iterations, "ftol": _TOLERANCE}
        return minimize(penalised, logs, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    starts = [np.clip(s.pack(), *np.array(bounds).T) for s in starts]
    if len(starts) > 1:
        # A few steps from each tell which valley is the deepest.
        starts = [min((search(s, _ROUGH_ITERATIONS) for s in starts), key=lambda r: r.fun).x]
    return Hyperparameters.unpack(search(starts[0], max_iterations).x)
