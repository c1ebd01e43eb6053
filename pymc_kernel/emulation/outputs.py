"""Many outputs of a function of few inputs, learned from some of its values.

A Gaussian process with a length scale for each input and a quadratic trend, shared by all outputs except for an
amplitude of each, by ``scores.value_regression``. Positive outputs that always have the same sum, as probabilities
have, keep it: their logarithms are learned, and predictions are rescaled to that sum.
"""

from itertools import product
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from pymc_kernel.emulation.fitted_outputs import FittedOutputs, carrying_rows, on_scale
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import as_points
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.value_regression import (
    Hyperparameters,
    Regression,
    depth_of_draws,
    learn_hyperparameters,
    log_excess,
    trend_features,
)

LEARN_ROWS = 200  # the hyperparameters are learned from so many rows: O(n^3) a step, some dozens of steps
_LEARN_OUTPUTS = 64  # and from so many outputs, evenly spaced: neighbors in an image or a series are alike
_MAX_ROWS = 1000  # rows that carry a fit, chosen where the others leave most of the prior variance
_MARGIN = 0.25  # of the range of an input, by which the fit extends beyond it
_SAME_SUM = 1e-5  # of the largest range of an output: by less PyMC lets the sum of probabilities differ from one
_ITERATIONS = 40  # of the search for hyperparameters


class _Way(NamedTuple):
    """A way to learn outputs: inputs and outputs on its scales, and its hyperparameters."""

    scales: tuple[np.ndarray, np.ndarray]  # which inputs and outputs are learned by their logarithms
    place: tuple[np.ndarray, np.ndarray, np.ndarray]  # center, scale, rotation
    span: float
    z: np.ndarray
    moved: np.ndarray
    hyper: Hyperparameters
    loss: float  # negative log marginal likelihood


@one_blas_thread
def fit_outputs(
    inputs: np.ndarray,
    outputs: np.ndarray,
    rng: np.random.Generator,
    block: int | None = None,
    near: np.ndarray | None = None,
    is_log_likelihood: bool = False,
    is_noisy: bool = False,
) -> FittedOutputs:
    """Return a fit of a function to its values.

    Which of the positive inputs and outputs are learned by their logarithms is chosen by the marginal likelihood: none,
    all inputs, all outputs, or both. Positive outputs with the same sum at all inputs are always learned by logarithms.

    With ``near``, it also chooses whether length scales are those of inputs or of the directions of change of outputs:
    eigenvectors of the mean outer product of slopes (active subspaces, Constantine 2015).

    Parameters
    ----------
    inputs : ndarray (n, k)
    outputs : ndarray (n, q)
        Finite.
    rng : numpy.random.Generator
        Draws the rows that the hyperparameters are learned from.
    block : int, optional
        Number of consecutive outputs that may always have the same sum, as in rows of a matrix; all by default.
    near : ndarray of bool (n,), optional
        Rows by whose slopes directions are chosen: those where the outputs matter. Without it length scales are those
        of the inputs.
    is_log_likelihood : bool
        Whether the one output is a log likelihood, whose differences hardly matter far below its largest value: there
        it may be learned, and is returned, on a log scale.
    is_noisy : bool
        Whether outputs are estimates, with independent noise whose size is learned.

    Raises
    ------
    ValueError
        For shapes that do not fit, or fewer than two different inputs.
    """
    inputs, outputs = as_points(inputs), as_points(outputs)
    if len(inputs) != len(outputs):
        raise ValueError(f"inputs and outputs must have as many rows, got {len(inputs)} and {len(outputs)}.")
    # With 200 estimates of standard deviation one, posteriors of ten dimensions were too narrow by a fifth.
    n, most = len(inputs), 2 * LEARN_ROWS if is_noisy else LEARN_ROWS
    rows = np.arange(n) if n <= most else np.sort(rng.choice(n, most, replace=False))
    block = outputs.shape[1] if block is None else block
    positive, total = (outputs > 0.0).all(axis=0), _same_sum(outputs.reshape(-1, block))
    none, k = np.zeros_like(positive), inputs.shape[1]
    if is_log_likelihood:
        output_scales = [(none, np.inf), (none, depth_of_draws(k))]
    else:
        output_scales = [(by_log, np.inf) for by_log in ([positive] if total else _both(positive))]
    along_axes = [
        _way(inputs, outputs, rows, (log_inputs, log_outputs), np.eye(k), span, is_noisy)
        for log_inputs, (log_outputs, span) in product(_both((inputs > 0.0).all(axis=0)), output_scales)
    ]
    best = min(along_axes, key=lambda way: way.loss)
    kind = is_log_likelihood, total, block
    fit = _fitted(best, kind)
    if near is None or k == 1:
        return fit
    directions = fit.directions_of_change(best.z[near])
    along_change = _way(inputs, outputs, rows, best.scales, directions, best.span, is_noisy)
    return _fitted(along_change, kind) if along_change.loss < best.loss else fit


def _way(inputs, outputs, rows, scales, rotation, span, is_noisy):
    """Return the hyperparameters learned on these scales and along these directions, from some rows."""
    log_inputs, log_outputs = scales
    axes = on_scale(inputs, log_inputs)
    center, scale = axes.mean(axis=0), axes.std(axis=0)
    if not (scale > 0.0).any():
        raise ValueError("the inputs all coincide, so that nothing can be learned between them.")
    scale = np.where(scale > 0.0, scale, 1.0)
    z = (axes - center) / scale @ rotation
    moved = _raised(on_scale(outputs, log_outputs), span)
    data = _regression(z[rows], moved[rows])
    hyper = learn_hyperparameters(data, None, True, _ITERATIONS, is_noisy)
    # The density of the outputs themselves: the Jacobian of each logarithm is one over the output. With more outputs
    # than are learned from, each of these stands for several.
    share = data.values.shape[1] / moved.shape[1]
    loss = data.negative_log_marginal(hyper.pack())[0] + share * moved[rows][:, log_outputs].sum()
    loss += np.log(np.maximum((outputs.max() - outputs[rows]) / span, 1.0)).sum()  # the Jacobian of depths
    return _Way(scales, (center, scale, rotation), span, z, moved, hyper, loss)


@one_blas_thread
def held_out_outputs(fit: FittedOutputs, inputs: np.ndarray, outputs: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return predictions (n, q) of each row from the rows of other folds (n,), two at least.

    The hyperparameters are those of all rows, to which ``fit`` was made.
    """
    moved, z = _raised(on_scale(outputs, fit.log_outputs), fit.span), fit.scaled(inputs)
    scales, place = (fit.log_inputs, fit.log_outputs), (fit.center, fit.scale, fit.rotation)
    whole = _Way(scales, place, fit.span, z, moved, fit.hyperparameters, np.nan)
    kind = fit.is_log_likelihood, fit.total, fit.block
    predicted = np.empty_like(outputs, dtype=float)
    for fold in np.unique(folds):
        left = folds == fold
        predicted[left] = _fitted(whole._replace(z=z[~left], moved=moved[~left]), kind)(inputs[left])
    return predicted


def _raised(values: np.ndarray, span: float) -> np.ndarray:
    """Return log likelihoods (n, ...) of which those more than ``span`` below the largest are on a log scale."""
    if np.isinf(span):
        return values
    depth = values.max() - values
    return values.max() - np.minimum(depth, span) - log_excess(depth, span)


def _both(positive):
    """Return the choices of columns that are learned by their logarithms: none, and all that are positive."""
    return [np.zeros_like(positive), positive] if positive.any() else [positive]


def _same_sum(outputs):
    """Return the sum of each row of outputs (n, q), where all are positive and it is always the same; else zero."""
    sums = outputs.sum(axis=1)
    is_same = np.ptp(sums) <= _SAME_SUM * np.ptp(outputs, axis=0).max()
    return float(sums[0]) if outputs.shape[1] > 1 and is_same and (outputs > 0.0).all() else 0.0


def _regression(z, moved):
    """Return the regression data, with evenly spaced outputs that stand for all."""
    chosen = np.unique(np.linspace(0, moved.shape[1] - 1, min(moved.shape[1], _LEARN_OUTPUTS)).round().astype(int))
    centered = moved[:, chosen] - moved[:, chosen].mean(axis=0)
    return Regression(z, np.ascontiguousarray(centered), np.zeros(len(z)), Gaussian())


def _fitted(way, kind):
    """Return the fit to all rows, carried by the rows that the others do not predict."""
    scales, (center, scale, rotation), span, z, moved, hyper, _ = way
    n = len(z)
    factor, pivots = carrying_rows(hyper, z, _MAX_ROWS)
    mean = moved.mean(axis=0)
    # With K ~ F F' the mean is F c, where c minimizes |outputs - F c|^2 + nugget |c|^2. This is solved by QR, since the
    # normal equations would square the condition number.
    q, r = np.linalg.qr(np.concatenate([factor, np.sqrt(hyper.nugget) * np.eye(len(pivots))]))
    inner = solve_triangular(r, q[:n].T @ (moved - mean))
    misfit = (moved - mean - factor @ inner) / np.sqrt(hyper.nugget)
    # A root of the sums of squares and products: amplitudes, and correlations of the outputs.
    directions = np.linalg.qr(np.concatenate([inner, misfit]) / np.sqrt(n), mode="r")
    amplitude = np.sqrt((directions**2).sum(axis=0))
    weights = solve_triangular(factor[pivots], inner, lower=True, trans=1)
    axes, z = z @ rotation.T, z[pivots]
    low, high = axes.min(axis=0), axes.max(axis=0)
    margin = _MARGIN * (high - low)
    coefficients = hyper.quadratic * (_trend_weights(z.shape[1])[:, None] * trend_features(z).T) @ weights
    coefficients[0] += mean
    points = z * hyper.inverse_length_scale
    learned = hyper.inverse_length_scale, points, weights, coefficients, hyper, directions, factor[pivots], r
    reach = np.minimum(amplitude, np.ptp(moved, axis=0))
    return FittedOutputs(*scales, center, scale, rotation, low - margin, high + margin, *learned, *kind, reach, span)


def _trend_weights(k):
    """Return the coefficients with which products of features sum up to (1 + z'z / k)^2."""
    rows, columns = np.triu_indices(k)
    return np.concatenate([[1.0], np.full(k, 2.0 / k), np.where(rows == columns, 1.0, 2.0) / k**2])
