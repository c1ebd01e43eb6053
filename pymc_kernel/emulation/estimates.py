"""A log likelihood of few inputs, learned from noisy estimates of it.

The engine of ``scores.value_regression``, with noise whose size is learned. Imports NumPy, SciPy and the lower floors
only.
"""

import numpy as np

from pymc_kernel.emulation.fitted_outputs import FittedOutputs, on_scale
from pymc_kernel.emulation.outputs import (
    ITERATIONS,
    MAX_ROWS,
    borders_of,
    center_and_scale,
    held_out,
    input_scales,
    raised,
    rows_to_learn_from,
    trend_of,
)
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import as_points
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.value_regression import (
    Hyperparameters,
    Regression,
    depth_of,
    learn_hyperparameters,
    window_of,
)


@one_blas_thread
def fit_estimates(inputs: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> FittedOutputs:
    """Return what is learned of the mean of log estimates.

    Differences between values far below the largest do not matter, but are large and noisy. So a depth beyond w =
    4 k + 10 nats below it, w (1 + t), is learned as w (1 + log(1 + t)): what was deep stays deep.

    Parameters
    ----------
    inputs : ndarray (n, k)
    values : ndarray (n,) or (n, 1)
        Finite, with independent noise: of one variance, and in proportion to the depth.
    rng : numpy.random.Generator
        Draws the rows that the hyperparameters are learned from.

    Raises
    ------
    ValueError
        For shapes that do not fit, or fewer than two different inputs.
    """
    inputs, values = as_points(inputs), np.ravel(values)
    rows, best = rows_to_learn_from(inputs, values, rng), None
    shallow, is_near = _without_depths(values, inputs.shape[1])
    for log_inputs in input_scales(inputs):
        moved = on_scale(inputs, log_inputs)
        center, scale = center_and_scale(moved[is_near] if np.ptp(moved[is_near], axis=0).any() else moved)
        z = (moved - center) / scale
        data = _regression(z[rows], shallow[rows])
        hyper = learn_hyperparameters(data, None, True, ITERATIONS, True)
        loss = data.negative_log_marginal(hyper.pack())[0]
        if best is None or loss < best[0]:
            best = loss, log_inputs, (center, scale, np.eye(len(scale))), z, hyper
    _, log_inputs, place, z, hyper = best
    return _fitted(log_inputs, place, z, shallow, hyper)


@one_blas_thread
def held_out_estimates(fit: FittedOutputs, inputs: np.ndarray, values: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Return for each row what is learned from the rows of other folds, (n, 1), with the hyperparameters of all.

    Parameters
    ----------
    fit : FittedOutputs
        To all rows.
    inputs, values : ndarray (n, k), (n, 1)
    folds : ndarray of int (n,)
        At least two different ones.
    """
    shallow, _ = _without_depths(np.ravel(values), inputs.shape[1])
    z, place = fit.scaled(inputs, inside=False), (fit.center, fit.scale, fit.rotation)
    return held_out(
        inputs, folds, lambda kept: _fitted(fit.log_inputs, place, z[kept], shallow[kept], fit.hyperparameters)
    )


def _without_depths(values, num_inputs):
    """Return values (n,) of which the lowest are less deep, and which ones are as they were, or among the best."""
    window = window_of(num_inputs)
    depth = values.max() - values
    few = min(values.size, 20 + 5 * num_inputs)
    is_near = depth <= max(window, np.sort(depth)[few - 1])
    return raised(values, window), is_near


def _regression(z, values):
    depth = np.minimum(depth_of(values), window_of(z.shape[1]))
    return Regression(z, values - values.min(), depth, Gaussian())


def _fitted(log_inputs, place, z, values, hyper: Hyperparameters):
    pivots, weights, posterior = _regression(z, values).regress(hyper, MAX_ROWS)
    weights, z_pivots = weights[:, None], z[pivots]
    coefficients = trend_of(hyper, z_pivots, weights)
    coefficients[0] += values.min()  # away from all rows the likelihood is small, whatever most of them say
    return FittedOutputs(
        log_inputs, np.zeros(1, bool), *place, *borders_of(z), hyper.inverse_length_scale,
        z_pivots * hyper.inverse_length_scale, hyper.radial * weights, coefficients, hyper, np.ones((1, 1)),
        posterior.own, np.sqrt(hyper.nugget) * posterior.normal.T,
    )  # fmt: skip
