"""Expectations with less variance than the mean of the draws, from the scores."""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.stein import tiles
from pymc_kernel.stein.discrepancy import prepared
from pymc_kernel.stein.draws import as_chains, checked_weights

_RIDGES = 10.0 ** np.arange(-8.0, 1.0)  # of which cross-validation chooses one
_FOLDS = 5  # a fifth held out; the fits are five for each ridge


@dataclass(frozen=True)
class ControlledExpectation:
    """Expectations under the target.

    Attributes
    ----------
    value : ndarray (p,)
    mean : ndarray (p,)
        Plain means of the draws, for comparison.
    variance_ratio : ndarray (p,)
        Variance of the held-out residuals of the control over that of the values: small where the control helps.
    ridge : ndarray (p,)
        Chosen regularization, in units of the mean diagonal of the kernel.
    """

    value: np.ndarray
    mean: np.ndarray
    variance_ratio: np.ndarray
    ridge: np.ndarray


@one_blas_thread
def controlled_expectation(
    values, draws, scores, kernel=None, *, num_basis: int = 500, how: str = "whiten", weights=None
) -> ControlledExpectation:
    """Return expectations of functions under the target, by control functionals.

    A function with mean zero under the target, of the form sum_j alpha_j h(x, y_j) with h the Stein kernel, is
    regressed on the values together with a constant; the mean of what it leaves, plus the constant, is the estimate.

    Parameters
    ----------
    values : array_like (n,) or (n, p)
        Of the functions at the draws, chains one after the other.
    draws, scores, kernel, how
        As in ``ksd_squared``.
    num_basis : int
        Points y_j, evenly spaced among the draws.
    weights : array_like (n,) or (chain, draw), optional
        As of ``ksd_test``, for scores of another density q than that of the target p: q / p at the draws. Then the
        functions q / p h(., y_j) have mean zero under the target.

    Returns
    -------
    ControlledExpectation
        The ridge minimizes the squared error on held-out blocks of draws; where no ridge is better than a constant,
        the plain mean is returned.

    Notes
    -----
    Each held-out block is corrected by a regression on the other blocks: no bias from fitting. O(n m^2) time and O(n m)
    memory for m basis points.

    References
    ----------
    Oates, Girolami and Chopin (2017), with South et al. (2022) for the constant and the basis.
    """
    chains = as_chains(draws, scores)
    n = len(chains.draws)
    values = np.asarray(values, dtype=float)
    values = values.reshape(n, -1) if values.size % n == 0 and values.size else values
    if values.ndim != 2 or len(values) != n:
        raise ValueError(f"values must have one row for each of the {n} draws, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise ValueError("values must be finite.")
    if num_basis < 1:
        raise ValueError(f"num_basis must be at least 1, got {num_basis!r}.")
    stein, _ = prepared(chains.draws, chains.scores, kernel, how)
    basis = np.unique(np.linspace(0, n - 1, min(n, num_basis)).astype(int))
    full = tiles.fill(stein, basis, 0, np.empty((len(basis), n))).T  # draws and basis, (n, m)
    gram = full[basis]
    if weights is not None:
        full = checked_weights(weights, chains.lengths)[:, None] * full
    scale = np.trace(gram) / len(basis)
    folds = np.arange(n) * _FOLDS // n  # blocks of draws: neighbors in a chain are alike
    spread = values.std(axis=0)
    center = values.mean(axis=0)
    scaled = (values - center) / np.where(spread > 0.0, spread, 1.0)
    left = np.empty((len(_RIDGES), *values.shape))
    for fold in range(_FOLDS):
        held = folds == fold
        fits = _ridge_path(full[~held], gram, scaled[~held], scale)
        for r, weights in enumerate(fits):
            left[r, held] = scaled[held] - full[held] @ weights
    # The mean of the residuals is the estimate; the control is to reduce their variance.
    errors = np.stack([part.var(axis=0) for part in left])
    best = errors.argmin(axis=0)
    columns = np.arange(values.shape[1])
    ratio = errors[best, columns]
    useful = ratio < 1.0
    estimate = np.where(useful, left[best, :, columns].mean(axis=1), 0.0)
    return ControlledExpectation(
        value=center + spread * estimate,
        mean=center,
        variance_ratio=np.where(useful, ratio, 1.0),
        ridge=_RIDGES[best],
    )


def _ridge_path(features, gram, values, scale):
    """Return weights (m, p) of ridge regression on features and a constant, for each ridge."""
    n = len(features)
    features = features - features.mean(axis=0)
    normal = features.T @ features / n
    target = features.T @ (values - values.mean(axis=0)) / n
    fits = []
    for ridge in _RIDGES:
        # |values - constant - features w|^2 / n + ridge scale w' gram w / m; the jitter keeps the matrix positive
        # definite.
        matrix = normal + ridge * scale * gram
        matrix[np.diag_indices_from(matrix)] += 1e-10 * np.trace(matrix) / len(matrix)
        fits.append(cho_solve(cho_factor(matrix), target))
    return fits
