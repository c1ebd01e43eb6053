"""Regression of values on places by a Gaussian process: its marginal likelihood, mean and covariance.

The values are a log density, or many outputs of a function, which share one factorization.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpstrf
from scipy.optimize import minimize
from scipy.spatial.distance import cdist, pdist
from scipy.stats import chi2

from pymc_kernel.kernels import RadialKernel
from pymc_kernel.kernels.profiles import fill_derivatives, fill_profile
from pymc_kernel.linalg import jittered_solve, pivoted_cholesky, squared_distances

_REFERENCE_QUANTILE = 0.75  # of the values: typical of the posterior, unlike the largest
FEW_ITERATIONS = 8  # from each start, and from where the last search ended
_TOLERANCE = 1e-5  # of the log marginal likelihood, relative: some hundredths, where differences of one hardly matter
_PRIOR_SD = (2.0, 1.0)  # of the log length scales, of exact values and of noisy ones
_COMPRESSION = 1e-3  # in units of the log density
_LEFT_OVER = 1e-4  # of the prior variance, in squared units of the log density
_STARTS = (0.5, 1.5)  # of the length scale, in units of the median distance
# Bounds of hyperparameters: of a log density in its squared units, of outputs each relative to its own amplitude. At
# their ends the covariance stays solvable; that of outputs at a thousand points.
_BOUNDS = {
    "inverse length": (1e-4, 30.0),  # of the radial kernel, in whitened units
    "radial": (1.0, 1e5),
    "quadratic": (1e-2, 1e5),  # under noise of the radial part, too: a larger floor would serve as noise
    "nugget": (1e-5, 1e-2),  # of exact values: rounding, and what the kernels cannot follow
    "noise": (1e-5, 400.0),  # up to a standard deviation of twenty
    "depth": (1e-7, 0.1),  # noise in proportion to how far a value lies below the best: deep ones may be fitted worse
    "quadratic of outputs": (1e-2, 1e3),
    "nugget of outputs": (1e-9, 1e-1),
}


def window_of(num_dims: int) -> float:
    """Return how many nats below the largest value still matter: normal draws lie d / 2 below it on average."""
    return 4.0 * num_dims + 10.0


def depth_of_draws(num_dims: int) -> float:
    """Return the depth below the mode of a normal distribution, in nats, that one draw in 1,000 exceeds.

    The log density of a draw is below its maximum by half a chi-squared variable.
    """
    return 0.5 * float(chi2.isf(1e-3, num_dims))


def log_excess(depth: np.ndarray, span: float) -> np.ndarray:
    """Return the excess of depths (n,) over ``span``, on a log scale that begins there with a slope of one."""
    return span * np.log1p(np.maximum(depth - span, 0.0) / span)


def reference_of(values: np.ndarray) -> float:
    """Return a value of log densities (n,) that is typical of the posterior."""
    return float(np.quantile(values, _REFERENCE_QUANTILE))


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


class Regression:
    """Whitened points with centered values: marginal likelihood, weights and residuals for given hyperparameters.

    Values (n,) are a log density. Values (n, q) are outputs of a function: they share a covariance except for an
    amplitude of each, which is set to its best value, y'K^-1 y / n. The cost is that of one output (Gu and Berger 2016,
    parallel partial emulation).
    """

    def __init__(self, whitened, values, depth, kernel):
        self.whitened, self.values, self.depth = whitened, values, depth
        self.kernel = replace(kernel, length_scale=1.0)
        self.num_dims = whitened.shape[1]

    @cached_property
    def polynomial(self):
        """The quadratic part of the covariance, with amplitude one."""
        return (1.0 + self.whitened @ self.whitened.T / self.num_dims) ** 2

    def take(self, rows):
        """Return the part with these rows."""
        return Regression(self.whitened[rows], self.values[rows], self.depth[rows], self.kernel)

    def _noise(self, hyper):
        return hyper.nugget + hyper.depth_noise * self.depth**2

    def negative_log_marginal(self, logs):
        """Return the negative log marginal likelihood and its gradient by the logarithms; O(n^3).

        With G = (K^-1 - a a') / 2, a = K^-1 y, the derivative by a parameter is sum(G * dK). For an inverse length
        scale t_i: dK = radial phi'(s) 2 t_i^2 (z_i - z_i')^2 by log t_i, summed through row sums and one product.
        """
        hyper = Hyperparameters.unpack(logs)
        scaled = self.whitened * hyper.inverse_length_scale
        squared = cdist(scaled, scaled, "sqeuclidean")
        value, slope, curvature = np.empty((3, *squared.shape))
        profile = self.kernel.family, *self.kernel.shape_parameters
        fill_derivatives(*profile, squared.ravel(), value.ravel(), slope.ravel(), curvature.ravel())
        covariance = hyper.radial * value + hyper.quadratic * self.polynomial
        covariance[np.diag_indices_from(covariance)] += self._noise(hyper)
        # All matrices are symmetric and row-major. LAPACK is column-major: its lower triangle is the upper one here.
        factor, info = dpotrf(covariance.T, lower=1, overwrite_a=1)
        if info != 0:
            return 1e12, np.zeros_like(logs)
        log_det = 2.0 * np.log(np.diag(factor)).sum()
        inverse, _ = dpotri(factor, lower=1, overwrite_c=1)  # zero above the diagonal, as the factor is
        inverse = inverse.T + inverse
        inverse[np.diag_indices_from(inverse)] *= 0.5
        weights = inverse @ self.values
        if self.values.ndim == 1:
            negative = 0.5 * self.values @ weights + 0.5 * log_det
            gain = 0.5 * (inverse - np.outer(weights, weights))
        else:
            # A constant output has none.
            amplitudes = np.maximum(np.einsum("nq,nq->q", self.values, weights) / len(weights), 1e-300)
            negative = 0.5 * len(weights) * np.log(amplitudes).sum() + 0.5 * amplitudes.size * log_det
            weights /= np.sqrt(amplitudes)
            gain = 0.5 * (amplitudes.size * inverse - weights @ weights.T)
        slope = slope * gain * hyper.radial
        spread = (scaled**2 * slope.sum(axis=1)[:, None]).sum(axis=0) - (scaled * (slope @ scaled)).sum(axis=0)
        radial = hyper.radial * np.vdot(gain, value)
        quadratic = hyper.quadratic * np.vdot(gain, self.polynomial)
        diagonal = np.diag(gain)
        nugget = hyper.nugget * diagonal.sum()
        depth = hyper.depth_noise * (diagonal @ self.depth**2)
        return negative, np.concatenate([4.0 * spread, [radial, quadratic, nugget, depth]])

    def regress(self, hyper, num_basis) -> tuple[np.ndarray, np.ndarray]:
        """Return the points that carry the posterior mean, and their weights, from all values.

        With the incomplete Cholesky factor F of the smooth covariance, K ~ F F', the mean at the points is F c for (F'
        N^-1 F + I) c = F' N^-1 y, N the noise; F = K_p L^-T for the pivots' columns K_p and their own factor L, so the
        weights of the pivots are L^-T c. Pivots are added until almost none of the prior variance is left.
        """
        noise = self._noise(hyper)

        def columns(p):
            return covariance_of(hyper, self.kernel, self.whitened, self.whitened[p])

        # Where the density is nearly zero, more of the prior variance may be left.
        tolerance = _LEFT_OVER * np.exp(0.5 * np.minimum(self.depth, 40.0))
        factor, pivots = pivoted_cholesky(variance_of(hyper, self.whitened), columns, num_basis, tolerance)
        # F' N^-1 F as the product of one matrix with itself: half the work.
        scaled = factor / np.sqrt(noise)[:, None]
        normal = scaled.T @ scaled
        normal[np.diag_indices_from(normal)] += 1.0
        inner = jittered_solve(normal, scaled.T @ (self.values / np.sqrt(noise)))
        return pivots, solve_triangular(factor[pivots], inner, lower=True, trans=1)

    def compress(self, hyper, weights) -> tuple[np.ndarray, np.ndarray]:
        """Return the fewest points that carry the radial part within ``_COMPRESSION``, and their coefficients.

        The projection of sum_i a_i k(., x_i) on the span of the pivots of an incomplete Cholesky factor K ~ L L' has
        the values L L'a at the points, column by column, so that the error for every rank is known at once. Smooth
        surrogates need a tenth of the points, and so a tenth of the time of a trajectory.
        """
        scaled = self.whitened * hyper.inverse_length_scale
        gram = self.kernel.profile_matrix(scaled, scaled, 0)
        exact = hyper.radial * (gram @ weights)
        factor, pivots, rank, _ = dpstrf(gram, lower=1, tol=1e-12, overwrite_a=1)
        factor, order = np.tril(factor)[:, :rank], pivots - 1
        columns = factor * (hyper.radial * (factor.T @ weights[order]))
        errors = np.abs(exact[order, None] - columns.cumsum(axis=1)).max(axis=0)
        needed = min(rank, 2 + np.flatnonzero(errors > _COMPRESSION).max(initial=-1))
        inner = factor[:, :needed].T @ weights[order]
        coefficients = hyper.radial * solve_triangular(factor[:needed, :needed], inner, lower=True, trans=1)
        return order[:needed], coefficients

    def leave_one_out_error(self, hyper) -> float:
        """Return the root mean square of leave-one-out residuals a_i / (K^-1)_ii, weighted by exp(-depth / 4)."""
        covariance = covariance_of(hyper, self.kernel, self.whitened, self.whitened)
        covariance[np.diag_indices_from(covariance)] += self._noise(hyper)
        inverse = jittered_solve(covariance, np.eye(self.values.size))
        residuals = (inverse @ self.values) / np.diag(inverse)
        return float(np.sqrt(np.average(residuals**2, weights=np.exp(-0.25 * self.depth))))


def variance_of(hyper: Hyperparameters, z: np.ndarray) -> np.ndarray:
    """Return the prior variance (n,) of values at z (n, d), without noise."""
    return hyper.radial + hyper.quadratic * (1.0 + (z**2).sum(axis=1) / z.shape[1]) ** 2


def covariance_of(hyper: Hyperparameters, kernel: RadialKernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the covariance (n, m) of values at a (n, d) and b (m, d), without noise."""
    radial = profile_of(kernel, a * hyper.inverse_length_scale, b * hyper.inverse_length_scale)
    return hyper.radial * radial + hyper.quadratic * (1.0 + a @ b.T / a.shape[1]) ** 2


def profile_of(kernel: RadialKernel, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the profile (n, m) of a kernel at scaled points (n, d) and (m, d).

    One matrix product, which is faster than ``profile_matrix``; the distance of equal points is rounding error.
    """
    squared = squared_distances(a, b)
    out = np.maximum(squared, 0.0, out=squared).ravel()
    fill_profile(kernel.family, *kernel.shape_parameters, 0, out, out)
    return out.reshape(squared.shape)


def trend_features(z: np.ndarray) -> np.ndarray:
    """Return 1, z_i and z_i z_j for i <= j, (n, 1 + k + k (k + 1) / 2)."""
    rows, columns = np.triu_indices(z.shape[1])
    return np.hstack([np.ones((len(z), 1)), z, z[:, rows] * z[:, columns]])


def curvature_of(coefficients: np.ndarray, num_dims: int) -> np.ndarray:
    """Return the curvature (k, k) of products z_i z_j with these coefficients, as :func:`trend_features` has them."""
    curvature = np.zeros((num_dims, num_dims))
    curvature[np.triu_indices(num_dims)] = coefficients
    return curvature + curvature.T


def learn_hyperparameters(
    data: Regression, start: Hyperparameters | None, search: bool, max_iterations: int, noisy: bool
) -> Hyperparameters:
    """Return the hyperparameters of largest marginal likelihood, with a prior on length scales near the distances."""
    d = data.num_dims
    distance = float(np.median(pdist(data.whitened))) or 1.0
    starts = [] if start is None else [start]
    if start is None or search:
        starts += [Hyperparameters(np.full(d, 1.0 / (r * distance)), 100.0, 10.0, 1e-3, 1e-4) for r in _STARTS]
        if noisy or data.values.ndim == 1:
            # A short length scale explains noise as well as a nugget does, or a quadratic that is all there is: this
            # start lets the nugget do it, or the quadratic, with all else at the lower ends of its bounds.
            rest = (1.0, 10.0, 1.0, 1e-4) if noisy else (1.0, 1e3, 1e-5, 1e-7)
            starts.append(Hyperparameters(np.full(d, 1.0 / (_STARTS[-1] * distance)), *rest))
    of = {name: tuple(map(math.log, ends)) for name, ends in _BOUNDS.items()}
    nugget, radial = of["noise" if noisy else "nugget"], of["quadratic" if noisy else "radial"]
    prior_sd = _PRIOR_SD[bool(noisy)]
    bounds = [of["inverse length"]] * d + [radial, of["quadratic"], nugget, of["depth"]]
    if data.values.ndim == 2:  # outputs: their amplitudes stand for the radial part's
        # Estimates may have as much noise as a log density.
        nugget = (of["nugget of outputs"][0], nugget[1]) if noisy else of["nugget of outputs"]
        bounds[d:] = [(0.0, 0.0), of["quadratic of outputs"], nugget, of["depth"]]

    def penalized(logs):
        value, gradient = data.negative_log_marginal(logs)
        off = (logs[:d] + math.log(distance)) / prior_sd
        gradient[:d] += off / prior_sd
        return value + 0.5 * off @ off, gradient

    def climb(logs, iterations):
        options = {"maxiter": iterations, "ftol": _TOLERANCE}
        return minimize(penalized, logs, jac=True, method="L-BFGS-B", bounds=bounds, options=options)

    starts = [np.clip(s.pack(), *np.array(bounds).T) for s in starts]
    if len(starts) > 1:
        # A few steps from each start show which leads to the lowest minimum.
        starts = [min((climb(s, FEW_ITERATIONS) for s in starts), key=lambda r: r.fun).x]
    return Hyperparameters.unpack(climb(starts[0], max_iterations).x)
