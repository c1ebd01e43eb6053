"""A fitted function with many outputs and few inputs: its predictions and their uncertainty.

The variance is computed with every gradient; for exact values it is a bound from some of the rows.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.kernels import Gaussian
from pymc_kernel.linalg import pivoted_cholesky
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.value_regression import Hyperparameters, covariance_of, profile_of, trend_features, variance_of

_KERNEL = Gaussian()
SMALLEST = np.finfo(float).tiny  # replaces inputs that are not positive before the logarithm: beyond the range
_STEP = 1e-4  # of scaled inputs, in differences: relative error some 1e-8 of a slope, rounding error less
_LEFT_OVER = 1e-9  # of a row's prior variance, below which the row is not needed: the smallest nugget
BOUND_ROWS = 128  # with 64, 12 subjects took up to 100 evaluations, not 52; gradients take 41 microseconds, 23 without


@dataclass(frozen=True, eq=False)
class FittedOutputs:
    """The fit: outputs(x) = back(K(z, points) @ weights + trend(z) @ coefficients), z the scaled inputs.

    Inputs beyond ``low`` and ``high`` get the outputs of the border: an extrapolated trend can create false modes. A
    log likelihood follows its trend where that is lower: a tail as high as the border would hold most of the mass
    beside a flat prior.
    """

    log_inputs: np.ndarray  #: (k,), which are learned by their logarithms: if not positive, they are beyond the range
    log_outputs: np.ndarray  #: (q,), which are learned by their logarithms
    center: np.ndarray  #: (k,), of the inputs
    scale: np.ndarray  #: (k,), of the inputs
    rotation: np.ndarray  #: (k, k): scaled inputs are (inputs - center) / scale @ rotation
    low: np.ndarray  #: (k,), least (inputs - center) / scale that was learned from, less a quarter of its range
    high: np.ndarray  #: (k,), largest one, plus a quarter
    inverse_length_scale: np.ndarray  #: (k,), of the scaled inputs
    points: np.ndarray  #: (r, k), scaled inputs times inverse length scales
    weights: np.ndarray  #: (r, q)
    coefficients: np.ndarray  #: (1 + k + k (k + 1) / 2, q), of polynomials in scaled inputs: see :func:`trend_features`
    hyperparameters: Hyperparameters
    directions: np.ndarray
    """(m, q), a root of the covariance of the outputs, or of their logarithms where these are learned: its diagonal has
    the squared amplitudes, and similar outputs have correlated errors."""
    factor: np.ndarray  #: (r, r), triangular, of the covariance of the points
    normal: np.ndarray  #: (r, r), triangular, of the normal equations of their coefficients
    is_log_likelihood: bool  #: whether the one output is a log likelihood
    total: float  #: sum of each ``block`` consecutive outputs, if it is always the same and all are positive; else zero
    block: int
    reach: np.ndarray  #: (q,), amplitude, or range of learned values if smaller: at a jump the amplitude has no bound
    span: float  #: of a log likelihood: depth below its largest value from which on it is learned on a log scale

    def scaled(self, inputs: np.ndarray, inside: bool = True) -> np.ndarray:
        """Return scaled inputs (n, k), by default clipped to between ``low`` and ``high``."""
        z = (on_scale(inputs, self.log_inputs) - self.center) / self.scale
        return (np.clip(z, self.low, self.high) if inside else z) @ self.rotation

    @one_blas_thread
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs (n, q) at inputs (n, k)."""
        z = self.scaled(inputs)
        trend = self._trend(z)
        if self.is_log_likelihood:
            trend = np.minimum(trend, self._trend(self.scaled(inputs, inside=False)))
        return self._back(self._radial(z) + trend)

    @one_blas_thread
    def random_at(self, inputs: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Return a function that draws outputs (n, q) at inputs (n, k) from the posterior of the fit.

        Errors are independent between places and correlated between the outputs of a place. Beyond the range that was
        learned from, trend and errors are extrapolated.
        """
        z = self.scaled(inputs, inside=False)
        mean, sd, size = self._mean(z), self._relative_sd(z)[:, None], (len(z), len(self.directions))
        return lambda rng: self._back(mean + sd * (rng.standard_normal(size) @ self.directions))

    def moved(self, outputs: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return outputs (q,) shifted by ``steps`` (q,) times their reach, on the scale they are learned on."""
        learned = on_scale(outputs, self.log_outputs) + steps * self.reach
        return self._back(learned[None])[0]

    def directions_of_change(self, z: np.ndarray) -> np.ndarray:
        """Return an orthogonal matrix (k, k): directions in which the outputs change, at scaled inputs z (n, k)."""
        steps = _STEP * np.eye(z.shape[1])
        amplitude = np.sqrt((self.directions**2).sum(axis=0)) + SMALLEST
        slopes = np.array([((self._mean(z + h) - self._mean(z - h)) / amplitude).ravel() for h in steps])
        return np.linalg.svd(slopes, full_matrices=False)[0]

    def _mean(self, z):
        return self._radial(z) + self._trend(z)

    def _radial(self, z):
        return profile_of(_KERNEL, z * self.inverse_length_scale, self.points) @ self.weights

    def _trend(self, z):
        return trend_features(z) @ self.coefficients

    def _back(self, learned):
        with np.errstate(over="ignore"):  # far beyond all evaluations
            outputs = np.where(self.log_outputs, np.exp(np.where(self.log_outputs, learned, 0.0)), learned)
        if not self.total:
            return outputs
        blocks = outputs.reshape(len(outputs), -1, self.block)
        return (blocks * (self.total / blocks.sum(axis=2, keepdims=True))).reshape(outputs.shape)

    def _relative_sd(self, z):
        """Return the posterior standard deviation (n,) of an output of amplitude one."""
        hyper = self.hyperparameters
        points = self.points / hyper.inverse_length_scale
        c = solve_triangular(self.factor, covariance_of(hyper, _KERNEL, points, z), lower=True)
        own = variance_of(hyper, z) - (c**2).sum(axis=0)
        own += hyper.nugget * (solve_triangular(self.normal, c, trans=1) ** 2).sum(axis=0)
        return np.sqrt(np.maximum(own, 0.0))


def on_scale(values: np.ndarray, by_log: np.ndarray) -> np.ndarray:
    """Return values (n, k), or their logarithms where ``by_log`` (k,)."""
    return np.where(by_log, np.log(np.maximum(values, SMALLEST)), values)


def carrying_rows(hyper: Hyperparameters, z: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a factor (n, m) of the covariance of scaled inputs (n, k), and its pivots (m,), ``most`` of them at most.

    Each pivot is the row where those before it leave most of the prior variance.
    """
    return pivoted_cholesky(variance_of(hyper, z), lambda p: covariance_of(hyper, _KERNEL, z, z[p]), most, _LEFT_OVER)


@dataclass(frozen=True, eq=False)
class VarianceBound:
    """A variance of an output of amplitude one: k(z, z) - |A k(points, z)|^2.

    The kernel is a Gaussian plus quadratic times (1 + z'z / k)^2.
    """

    points: np.ndarray  #: (m, k), scaled inputs
    reduction: np.ndarray  #: (m, m), A
    quadratic: float


@one_blas_thread
def variance_bound(fit: FittedOutputs, inputs: np.ndarray) -> VarianceBound:
    """Return an upper bound of the posterior variance: that from at most 128 rows, as more rows only lower it.

    The rows are among ``inputs`` (n, k), where the bound should be tight and which ``fit`` was learned from: each is
    where those before it leave most of the variance. Noise is ignored.
    """
    z, hyper = fit.scaled(inputs, inside=False), fit.hyperparameters
    factor, pivots = carrying_rows(hyper, z, BOUND_ROWS)
    reduction = solve_triangular(factor[pivots], np.eye(len(pivots)), lower=True)
    return VarianceBound(z[pivots], reduction, hyper.quadratic)


@one_blas_thread
def noisy_variance(fit: FittedOutputs) -> VarianceBound:
    """Return the posterior variance of what was learned from values with noise.

    With K = L L' of the points that carry the fit, the variance is k(z, z) - c'c + s |R'^-1 c|^2, where c = L^-1 k, s
    is the variance of the noise and R'R the matrix of the normal equations. So A'A = L'^-1 (I - s (R'R)^-1) L^-1.
    """
    unit = np.eye(len(fit.points))
    inverse = solve_triangular(fit.normal, unit, trans=1)
    shares, vectors = np.linalg.eigh(unit - fit.hyperparameters.nugget * inverse.T @ inverse)
    root = np.sqrt(np.maximum(shares, 0.0))[:, None] * vectors.T
    reduction = solve_triangular(fit.factor, root.T, lower=True, trans=1).T
    return VarianceBound(fit.points / fit.inverse_length_scale, reduction, fit.hyperparameters.quadratic)
