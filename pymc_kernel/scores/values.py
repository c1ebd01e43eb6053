"""A surrogate of a log density from its values: kernel regression on every point that was ever evaluated.

Score matching learns from the points that a chain visited and ignores the log density there; rejected proposals have
values, too. Here all values are regressed on their points (a Gaussian process's posterior mean; Rasmussen 2003 ran
Hamiltonian trajectories along one).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.linalg import lstsq

from pymc_kernel.kernels import Gaussian, RadialKernel
from pymc_kernel.kernels.points import as_numbers, as_points, check_magnitude, check_whole
from pymc_kernel.linalg import whiten
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.expansion import KernelExpansion, radial_expansion, within_range
from pymc_kernel.scores.score_matching import ridge_of
from pymc_kernel.scores.value_regression import (
    FEW_ITERATIONS,
    Hyperparameters,
    Regression,
    curvature_of,
    learn_hyperparameters,
    reference_of,
    trend_features,
    window_of,
)

_LEAST_POINTS = 20  # in addition to five a dimension: fewer do not determine the kernel's settings


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
    has_trend : bool
        Whether a quadratic was fitted first, as in many dimensions once there are enough values.
    """

    hyperparameters: Hyperparameters
    error: float
    has_trend: bool = False

    @property
    def noise_sd(self) -> float:
        """The estimated standard deviation of the noise of the values."""
        return math.sqrt(self.hyperparameters.nugget)


@dataclass(frozen=True)
class Values:
    """Kernel regression on log-density values: kernel = radial + quadratic polynomial, noise by depth.

    The quadratic makes Gaussian targets exact. The radial part has a length scale for every whitened coordinate, so
    that directions in which the log density is quadratic cost no points. In so many dimensions (24 by default) that a
    quadratic has more coefficients than ``learn_points``, exact values are first fitted by a quadratic alone, once
    there are 2 d more values than coefficients, and the kernels fit the residuals. Two kinds of noise: a nugget (the
    noise of estimated densities), and one that grows in proportion to the depth below the bulk, since an error of one
    matters where the density is high and not where it is nearly zero. All settings are chosen by the marginal
    likelihood with its exact gradient.

    Parameters
    ----------
    kernel : RadialKernel
        Its profile; the length scale is learned.
    max_values : int
        The surrogate is fitted to at most so many values, a random subset where there are more.
    num_basis : int
        At most so many of their points carry it. They are chosen greedily, each where the earlier ones leave most of
        the prior variance; for a smooth density far fewer are enough. O(values x points^2), memory O(values x points).
    learn_points : int
        The hyperparameters are learned from so many of them, O(n^3) for each of some dozens of steps.
    max_iterations : int
        Of the search for hyperparameters from each start.
    """

    learns_from: ClassVar[str] = "values"
    kernel: RadialKernel = field(default_factory=Gaussian)
    max_values: int = 4000
    num_basis: int = 1000
    learn_points: int = 300
    max_iterations: int = 40

    def __post_init__(self):
        if not isinstance(self.kernel, RadialKernel):
            raise TypeError(f"kernel must be a radial one of pymc_kernel.kernels, got {self.kernel!r}.")
        names = "max_values", "num_basis", "learn_points", "max_iterations"
        check_whole(**{name: getattr(self, name) for name in names})

    @within_range
    @one_blas_thread
    def fit(
        self, points, values, rng=None, *, mean=None, factor=None, start=None, search=True, noisy=True
    ) -> FittedValues:
        """Return the surrogate learned from log-density values.

        Raises ``ValueError`` for shapes that do not fit, or fewer than d + 3 finite values.

        Parameters
        ----------
        points : array_like (n, d)
        values : array_like (n,)
            Log density at the points, estimated or exact. Minus infinity and NaN are left out.
        rng : numpy.random.Generator, optional
            Draws the subsets where there are more points than ``max_values`` or ``learn_points``.
        mean, factor : ndarray (d,), (d, d), optional
            Of the whitened coordinates z = factor^-1 (x - mean); those of the points by default.
        start : Hyperparameters, optional
            Where the search for hyperparameters begins, besides two rough guesses.
        search : bool
            Whether the search is a full one; otherwise it takes a few iterations from ``start`` alone.
        noisy : bool
            Whether the values are estimates. The nugget of exact ones is kept below 0.01.
        """
        points, values = as_points(points, finite=False), as_numbers(values, "values")
        n, d = points.shape
        if values.shape != (n,):
            raise ValueError(f"values must have shape ({n},), one per point, got {values.shape}.")
        # A quadratic with more coefficients than ``learn_points`` is fitted by itself first.
        num_coefficients = (d + 1) * (d + 2) // 2
        needs_trend = not noisy and num_coefficients > self.learn_points
        fewest_for_trend = num_coefficients + 2 * d
        kept = self._usable(points, values, fewest_for_trend if needs_trend else _LEAST_POINTS + 5 * d)
        rng = np.random.default_rng(0) if rng is None else rng
        # Far from the mode the best points differ by more than the window; dividing by it makes this case like others.
        unit = max(1.0, float(np.ptp(values[kept])) / window_of(d))
        if kept.size > self.max_values:
            kept = kept[rng.choice(kept.size, self.max_values, replace=False)]
        points, values = points[kept], values[kept] / unit
        check_magnitude(points, "points")
        if mean is None or factor is None:
            if (points == points[0]).all():
                raise ValueError("the points all coincide, so that nothing can be learned between them.")
            mean, covariance = points.mean(axis=0), np.atleast_2d(np.cov(points.T))
            factor = np.linalg.cholesky(covariance + np.diag(ridge_of(covariance, 1e-10)))
        whitened = whiten(points, mean, factor)
        has_trend = needs_trend and values.size >= fewest_for_trend
        trend = _quadratic_trend(whitened, values) if has_trend else (0.0, 0.0, 0.0)
        above = values - reference_of(values)  # a value that is typical of the posterior
        data = Regression(whitened, above - trend[0], np.maximum(-above, 0.0), self.kernel)
        small = data.take(rng.choice(values.size, min(values.size, self.learn_points), replace=False))
        limit = self.max_iterations if search or start is None else FEW_ITERATIONS
        hyper = learn_hyperparameters(small, start, search, limit, noisy)
        pivots, weights = data.regress(hyper, self.num_basis)
        # quadratic (1 + z.z_j / d)^2 summed with weights is a polynomial; the constant is dropped.
        scaled = 2.0 * hyper.quadratic / d
        linear = scaled * (weights @ whitened[pivots]) + trend[1]
        quadratic = scaled / d * (whitened[pivots].T * weights) @ whitened[pivots] + trend[2]
        inverse = np.linalg.inv(factor)
        kept, coefficients = data.take(pivots).compress(hyper, weights)
        linear, quadratic = unit * (inverse.T @ linear), unit * (inverse.T @ quadratic @ inverse)
        polynomial = {"center": mean, "linear": linear, "quadratic": quadratic}
        transform = hyper.inverse_length_scale[:, None] * inverse
        carrying = points[pivots[kept]]
        expansion = radial_expansion(data.kernel, carrying, unit * coefficients, **polynomial, transform=transform)
        return FittedValues(expansion, hyper, unit * small.leave_one_out_error(hyper), has_trend)

    def _usable(self, points, values, num_wanted):
        num_dims = points.shape[1]
        finite = np.isfinite(values) & np.isfinite(points).all(axis=1)
        if finite.sum() < num_dims + 3:
            raise ValueError(f"only {finite.sum()} of {values.size} points have finite values; {num_dims + 3} needed.")
        # During burn-in from a far start the density grows fast, and few points are within the window.
        level = np.sort(values[finite])[-min(int(finite.sum()), num_wanted)]
        return np.flatnonzero(finite & (values >= min(level, values[finite].max() - window_of(num_dims))))


def _quadratic_trend(whitened, values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a least-squares quadratic, up to a constant: at the points (n,), its slope (d,) and curvature (d, d).

    In many dimensions the hyperparameters are learned from too few values to identify a quadratic. With more values
    than coefficients least squares can: for a Gaussian the trend is exact, and the kernels fit what departs from it.
    O(n c^2) for c coefficients.
    """
    d = whitened.shape[1]
    design = trend_features(whitened)
    center = values.mean()
    coefficients = lstsq(design, values - center, cond=1e-10, lapack_driver="gelsy", check_finite=False)[0]
    return design @ coefficients, coefficients[1 : d + 1], curvature_of(coefficients[d + 1 :], d)
