"""Many outputs of a function of few inputs, learned from some of its values.

A Gaussian process with a length scale for each input and a quadratic trend, shared by all outputs but for an amplitude
each: the engine of ``scores.value_regression``. Positive inputs and outputs may be learned by their logarithms.
Positive outputs that always have the same sum, as probabilities have, keep it: their logarithms are learned, and what
comes back is divided by its sum. Imports NumPy, SciPy and the lower floors only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import as_points
from pymc_kernel.linalg import pivoted_cholesky
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.value_regression import Hyperparameters, Regression, learn_hyperparameters

LEARN_ROWS = 200  # the hyperparameters are learned from so many rows: O(n^3) a step, some dozens of steps
_LEARN_OUTPUTS = 64  # and from so many outputs, evenly spaced: neighbors of an image or a series say the same
MAX_ROWS = 1000  # rows that carry a fit, chosen where the others leave most of the prior variance
_LEFT_OVER = 1e-9  # of the prior variance of a row, which is then not needed: the smallest nugget
SMALLEST = np.finfo(float).tiny  # whose logarithm stands for those of inputs that are not positive: beyond the range
_MARGIN = 0.25  # of the range of an input, by which what was learned goes on beyond it
_SAME_SUM = 1e-5  # of the largest range of an output: by less PyMC lets the sum of probabilities differ from one
ITERATIONS = 40  # of the search for hyperparameters


@dataclass(frozen=True, eq=False)
class FittedOutputs:
    """What was learned: outputs(x) = back(K(z, points) @ weights + trend(z) @ coefficients), z the scaled inputs.

    Attributes
    ----------
    log_inputs, log_outputs : ndarray of bool (k,), (q,)
        Which ones are learned by their logarithms. Inputs that are not positive are beyond the range then.
    center, scale : ndarray (k,)
        Of the inputs.
    low, high : ndarray (k,)
        Range of the scaled inputs that were learned from, and a quarter of it on each side. What lies beyond has the
        outputs of the border: a trend that goes on there invents modes.
    inverse_length_scale : ndarray (k,)
        Of the scaled inputs.
    points : ndarray (r, k)
        Scaled inputs times inverse length scales.
    weights : ndarray (r, q)
    coefficients : ndarray (1 + k + k (k + 1) / 2, q)
        Of the polynomials in the scaled inputs, as :func:`trend_features` has them.
    hyperparameters : Hyperparameters
    directions : ndarray (m, q)
        A root of the covariance of the outputs, or of their logarithms where they are learned by these: its diagonal
        is that of the squared amplitudes, and outputs that are alike have errors that are.
    factor, normal : ndarray (r, r)
        Triangular: of the covariance of the points, and of the normal equations of their coefficients.
    total : float
        The sum of each ``block`` consecutive outputs, where it is always the same and all are positive; else zero.
    reach : ndarray (q,)
        The amplitude, or the range of what was learned where this is smaller: at a jump the amplitude has no bound.
        None of estimates.
    """

    log_inputs: np.ndarray
    log_outputs: np.ndarray
    center: np.ndarray
    scale: np.ndarray
    low: np.ndarray
    high: np.ndarray
    inverse_length_scale: np.ndarray
    points: np.ndarray
    weights: np.ndarray
    coefficients: np.ndarray
    hyperparameters: Hyperparameters
    directions: np.ndarray
    factor: np.ndarray
    normal: np.ndarray
    total: float = 0.0
    block: int = 1
    reach: np.ndarray | None = None

    def scaled(self, inputs: np.ndarray, inside: bool = True) -> np.ndarray:
        """Return scaled inputs (n, k), by default within the range that was learned from."""
        z = (on_scale(inputs, self.log_inputs) - self.center) / self.scale
        return np.clip(z, self.low, self.high) if inside else z

    @one_blas_thread
    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs (n, q) at inputs (n, k)."""
        return self._back(self._mean(self.scaled(inputs)))

    @one_blas_thread
    def random_at(self, inputs: np.ndarray) -> Callable[[np.random.Generator], np.ndarray]:
        """Return a function that draws outputs (n, q) at inputs (n, k) as they may be, by what was learned.

        Each place has errors of its own, those of its outputs are correlated. Beyond the range that was learned from,
        trend and errors go on.
        """
        z = self.scaled(inputs, inside=False)
        mean, sd, size = self._mean(z), self._relative_sd(z)[:, None], (len(z), len(self.directions))
        return lambda rng: self._back(mean + sd * (rng.standard_normal(size) @ self.directions))

    def moved(self, outputs: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return outputs (q,) that are off by so many times their reach (q,), on the scale they are learned on."""
        learned = on_scale(outputs, self.log_outputs) + steps * self.reach
        return self._back(learned[None])[0]

    def _mean(self, z):
        radial = _gaussian(z * self.inverse_length_scale, self.points) @ self.weights
        return radial + trend_features(z) @ self.coefficients

    def _back(self, learned):
        outputs = np.where(self.log_outputs, np.exp(np.where(self.log_outputs, learned, 0.0)), learned)
        if not self.total:
            return outputs
        blocks = outputs.reshape(len(outputs), -1, self.block)
        return (blocks * (self.total / blocks.sum(axis=2, keepdims=True))).reshape(outputs.shape)

    def _relative_sd(self, z):
        """Return the posterior standard deviation (n,) of an output of amplitude one."""
        hyper = self.hyperparameters
        points = self.points / hyper.inverse_length_scale
        c = solve_triangular(self.factor, covariance_of(hyper, points, z), lower=True)
        own = variance_of(hyper, z) - (c**2).sum(axis=0)
        own += hyper.nugget * (solve_triangular(self.normal, c, trans=1) ** 2).sum(axis=0)
        return np.sqrt(np.maximum(own, 0.0))


@one_blas_thread
def fit_outputs(
    inputs: np.ndarray, outputs: np.ndarray, rng: np.random.Generator, block: int | None = None
) -> FittedOutputs:
    """Return what is learned of a function from its values.

    Which of the positive inputs and outputs are learned by their logarithms is chosen by the marginal likelihood: none,
    all inputs, all outputs, or both. Positive outputs with the same sum at all inputs are always learned by them.

    Parameters
    ----------
    inputs : ndarray (n, k)
    outputs : ndarray (n, q)
        Finite.
    rng : numpy.random.Generator
        Draws the rows that the hyperparameters are learned from.
    block : int, optional
        So many consecutive outputs may be those that always have the same sum, as in rows of a matrix; all by default.

    Raises
    ------
    ValueError
        For shapes that do not fit, or fewer than two different inputs.
    """
    inputs, outputs = as_points(inputs), as_points(outputs)
    rows, best = rows_to_learn_from(inputs, outputs, rng), None
    block = outputs.shape[1] if block is None else block
    positive, total = (outputs > 0.0).all(axis=0), _same_sum(outputs.reshape(-1, block))
    for log_inputs, log_outputs in product(input_scales(inputs), [positive] if total else _both(positive)):
        center, scale = center_and_scale(on_scale(inputs, log_inputs))
        z = (on_scale(inputs, log_inputs) - center) / scale
        moved = on_scale(outputs, log_outputs)
        data = _regression(z[rows], moved[rows])
        hyper = learn_hyperparameters(data, None, True, ITERATIONS, False)
        # The density of the outputs themselves: each logarithm brings a factor of one over the output.
        # With more outputs than are learned from, each of these stands for several.
        share = data.values.shape[1] / moved.shape[1]
        loss = data.negative_log_marginal(hyper.pack())[0] + share * moved[rows][:, log_outputs].sum()
        if best is None or loss < best[0]:
            best = loss, (log_inputs, log_outputs), (center, scale), z, moved, hyper
    _, scales, place, z, moved, hyper = best
    return _fitted(scales, place, z, moved, hyper, (total, block))


@one_blas_thread
def held_out_outputs(fit: FittedOutputs, inputs: np.ndarray, outputs: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return for each row what is learned from the rows of other folds, (n, q), with the hyperparameters of all.

    Parameters
    ----------
    fit : FittedOutputs
        To all rows.
    inputs, outputs : ndarray (n, k), (n, q)
    folds : ndarray of int (n,)
        At least two different ones.
    """
    moved, z = on_scale(outputs, fit.log_outputs), fit.scaled(inputs)
    scales, place = (fit.log_inputs, fit.log_outputs), (fit.center, fit.scale)
    rest = fit.hyperparameters, (fit.total, fit.block)
    return held_out(inputs, folds, lambda kept: _fitted(scales, place, z[kept], moved[kept], *rest))


def held_out(inputs: np.ndarray, folds: np.ndarray, fitted: Callable[[np.ndarray], FittedOutputs]) -> np.ndarray:
    """Return outputs (n, q) at inputs (n, k), each by what is ``fitted`` to the rows (n,) of other folds."""
    predicted = None
    for fold in np.unique(folds):
        left = folds == fold
        outputs = fitted(~left)(inputs[left])
        predicted = np.empty((len(inputs), outputs.shape[1])) if predicted is None else predicted
        predicted[left] = outputs
    return predicted


def rows_to_learn_from(inputs: np.ndarray, outputs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the rows (m,) of inputs (n, k) that hyperparameters are learned from; there are as many outputs."""
    if len(inputs) != len(outputs):
        raise ValueError(f"inputs and outputs must have as many rows, got {len(inputs)} and {len(outputs)}.")
    if len(inputs) <= LEARN_ROWS:
        return np.arange(len(inputs))
    return np.sort(rng.choice(len(inputs), LEARN_ROWS, replace=False))


def _both(positive):
    return [np.zeros_like(positive), positive] if positive.any() else [positive]


def _same_sum(outputs):
    """Return the sum of each row of outputs (n, q), where all are positive and it is always the same; else zero."""
    sums = outputs.sum(axis=1)
    is_same = np.ptp(sums) <= _SAME_SUM * np.ptp(outputs, axis=0).max()
    return float(sums[0]) if outputs.shape[1] > 1 and is_same and (outputs > 0.0).all() else 0.0


def _regression(z, moved):
    """Return the data of the engine, of outputs that stand for all."""
    chosen = np.unique(np.linspace(0, moved.shape[1] - 1, min(moved.shape[1], _LEARN_OUTPUTS)).round().astype(int))
    centered = moved[:, chosen] - moved[:, chosen].mean(axis=0)
    return Regression(z, np.ascontiguousarray(centered), np.zeros(len(z)), Gaussian())


def _fitted(scales, place, z, moved, hyper, sums):
    """Return the fit to all rows, carried by those that the others do not predict."""
    n = len(z)
    factor, pivots = carrying_rows(hyper, z, MAX_ROWS)
    mean = moved.mean(axis=0)
    # With K ~ F F', the mean at the pivots is F c for the least squares of F c against the outputs, and of c against
    # zero with the weight of the nugget. By an orthogonal factor: the normal equations would square its condition.
    q, r = np.linalg.qr(np.concatenate([factor, np.sqrt(hyper.nugget) * np.eye(len(pivots))]))
    inner = solve_triangular(r, q[:n].T @ (moved - mean))
    misfit = (moved - mean - factor @ inner) / np.sqrt(hyper.nugget)
    # The root of sums of squares and products: amplitudes, and how alike the outputs are.
    directions = np.linalg.qr(np.concatenate([inner, misfit]) / np.sqrt(n), mode="r")
    amplitude = np.sqrt((directions**2).sum(axis=0))
    weights = solve_triangular(factor[pivots], inner, lower=True, trans=1)
    borders, z = borders_of(z), z[pivots]
    coefficients = trend_of(hyper, z, weights)
    coefficients[0] += mean
    points = z * hyper.inverse_length_scale
    learned = hyper.inverse_length_scale, points, weights, coefficients, hyper, directions, factor[pivots], r
    return FittedOutputs(*scales, *place, *borders, *learned, *sums, np.minimum(amplitude, np.ptp(moved, axis=0)))


def carrying_rows(hyper: Hyperparameters, z: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a factor (n, m) of the covariance of scaled inputs (n, k), and its pivots (m,): at most so many rows.

    Each is where those before it leave most of the prior variance.
    """
    return pivoted_cholesky(
        variance_of(hyper, z), lambda p: covariance_of(hyper, z, z[p]), min(len(z), most), _LEFT_OVER
    )


def borders_of(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how far, (k,) each, what is learned at scaled inputs (n, k) goes on."""
    low, high = z.min(axis=0), z.max(axis=0)
    return low - _MARGIN * (high - low), high + _MARGIN * (high - low)


def trend_of(hyper: Hyperparameters, z: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the coefficients (m, q) of the polynomial part, of weights (r, q) of scaled inputs (r, k)."""
    return hyper.quadratic * (_trend_weights(z.shape[1])[:, None] * trend_features(z).T) @ weights


def on_scale(values: np.ndarray, by_log: np.ndarray) -> np.ndarray:
    """Return values (n, k), or their logarithms where ``by_log`` (k,)."""
    return np.where(by_log, np.log(np.maximum(values, SMALLEST)), values)


def input_scales(inputs: np.ndarray) -> list[np.ndarray]:
    """Return the choices of inputs (n, k) that are learned by their logarithms: none, and all that are positive."""
    return _both((inputs > 0.0).all(axis=0))


def center_and_scale(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations (k,); one for what does not vary."""
    scale = values.std(axis=0)
    if not (scale > 0.0).any():
        raise ValueError("the inputs all coincide, so that nothing can be learned between them.")
    return values.mean(axis=0), np.where(scale > 0.0, scale, 1.0)


def _gaussian(a, b):
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * (a @ b.T)
    return np.exp(-0.5 * np.maximum(squared, 0.0))


def variance_of(hyper, z):
    """Return the prior variance (n,) of outputs of amplitude one, without the nugget."""
    return hyper.radial + hyper.quadratic * (1.0 + (z**2).sum(axis=1) / z.shape[1]) ** 2


def covariance_of(hyper, a, b):
    """Return the covariance (n, m) of outputs of amplitude one at scaled inputs, without the nugget."""
    radial = _gaussian(a * hyper.inverse_length_scale, b * hyper.inverse_length_scale)
    return hyper.radial * radial + hyper.quadratic * (1.0 + a @ b.T / a.shape[1]) ** 2


def trend_features(z: np.ndarray) -> np.ndarray:
    """Return 1, z_i and z_i z_j for i <= j, (n, 1 + k + k (k + 1) / 2)."""
    rows, columns = np.triu_indices(z.shape[1])
    return np.hstack([np.ones((len(z), 1)), z, z[:, rows] * z[:, columns]])


def _trend_weights(k):
    """Return the coefficients with which products of features sum up to (1 + z'z / k)^2."""
    rows, columns = np.triu_indices(k)
    return np.concatenate([[1.0], np.full(k, 2.0 / k), np.where(rows == columns, 1.0, 2.0) / k**2])
