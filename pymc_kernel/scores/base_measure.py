"""The density q0 that a kernel exponential family multiplies: exp(f) q0. Imports NumPy and the lower floors only."""

from typing import NamedTuple

import numpy as np

__all__ = ["BaseMeasure", "base_measure", "ridge_of"]


class BaseMeasure(NamedTuple):
    """log q0(x) = g . z + z' Q z / 2 with z = x - center, up to a constant."""

    center: np.ndarray  # (d,)
    linear: np.ndarray  # (d,)
    quadratic: np.ndarray  # (d, d)

    def score(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient of log q0 at each row of ``x`` (n, d), shape (n, d)."""
        return self.linear + (x - self.center) @ self.quadratic


def base_measure(name: str, x: np.ndarray, weights: np.ndarray) -> BaseMeasure:
    """Return q0: "uniform" (one everywhere) or "gaussian" (with mean and covariance of the weighted points).

    A Gaussian one gives the surrogate tails where there are no points, and makes Gaussian targets easy.
    """
    d = x.shape[1]
    if name == "uniform":
        return BaseMeasure(np.zeros(d), np.zeros(d), np.zeros((d, d)))
    if name != "gaussian":
        raise ValueError(f'base must be "uniform" or "gaussian", got {name!r}.')
    inside = x[weights > 0.0]
    if (inside == inside[0]).all():
        raise ValueError(
            "the points of x all coincide, so that the Gaussian base measure has no spread: give others, or "
            'base="uniform".'
        )
    mean = weights @ x
    difference = x - mean
    covariance = (difference * weights[:, None]).T @ difference
    return BaseMeasure(mean, np.zeros(d), -np.linalg.inv(covariance + np.diag(ridge_of(covariance, 1e-8))))


def ridge_of(covariance: np.ndarray, share: float) -> np.ndarray:
    """Return a share of each variance (d,), so that units do not matter; of their mean where one is zero."""
    variances = np.diag(covariance)
    return share * np.where(variances > 0.0, variances, max(variances.mean(), 1e-300))
