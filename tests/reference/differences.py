"""Derivatives by central differences, and the loss of score matching by them."""

import numpy as np


def central_differences(function, x, step=1e-5):
    """Return the derivatives of a function at places (..., d), along a new last axis (..., d)."""
    return np.stack(
        [(np.asarray(function(x + e)) - function(x - e)) / (2.0 * step) for e in step * np.eye(x.shape[-1])], axis=-1
    )


def assert_derivative(found, function, x, step=1e-5, **tolerances):
    """See that ``found`` is, to ``tolerances``, the derivative of a function at places (..., d)."""
    np.testing.assert_allclose(found, central_differences(function, x, step), **tolerances)


def score_matching_loss(fitted, x, weights=None):
    """Return the mean of laplacian + |score|^2 / 2 over the rows of ``x`` (n, d), with weights (n,)."""
    laplacian = np.einsum("nii->n", central_differences(fitted.score, x))
    return np.average(laplacian + 0.5 * (fitted.score(x) ** 2).sum(axis=1), weights=weights)
