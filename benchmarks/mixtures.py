"""Mixtures of normal distributions, and the error of a kernel density estimate of one, in closed form."""

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.stats import multivariate_normal


class Mixture(NamedTuple):
    """A mixture of normal distributions."""

    weights: np.ndarray  # (k,)
    means: np.ndarray  # (k, d)
    covariances: np.ndarray  # (k, d, d)

    def sample(self, rng, n):
        """Return n draws (n, d)."""
        which = rng.choice(len(self.weights), size=n, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        noise = rng.standard_normal((n, self.means.shape[1]))
        return self.means[which] + np.einsum("nij,nj->ni", roots[which], noise)

    def density(self, x):
        """Return the density at points x (n, d), or (n,) in one dimension."""
        return sum(w * multivariate_normal(m, c).pdf(x) for w, m, c in zip(*self, strict=True))


def mixture(weights, means, covariances):
    """Return a mixture of plain lists."""
    weights = np.array(weights, dtype=float)
    means = np.array(means, dtype=float).reshape(len(weights), -1)
    d = means.shape[1]
    return Mixture(weights / weights.sum(), means, np.array(covariances, dtype=float).reshape(len(weights), d, d))


POWERS = np.arange(-2, 3)
CLAW = mixture(
    [0.5, *(2.0 ** (1 - POWERS) / 31)], [0.0, *(POWERS + 0.5)], [1.0, *((2.0**-POWERS / 10) ** 2)]
)  # Marron and Wand 1992
TRIMODAL = mixture(
    [3 / 7, 3 / 7, 1 / 7],
    [[-1, 0], [1, 2 / math.sqrt(3)], [1, -2 / math.sqrt(3)]],
    [[[9 / 25, 63 / 250], [63 / 250, 49 / 100]], [[9 / 25, 0], [0, 49 / 100]], [[9 / 25, 0], [0, 49 / 100]]],
)  # Wand and Jones 1993
DENSITIES = {
    "asymmetric claw, 1-d": CLAW,
    "bimodal, 1-d": mixture([0.5, 0.5], [-1.0, 1.0], [4 / 9, 4 / 9]),
    "trimodal, 2-d": TRIMODAL,
    "correlated normal, 3-d": mixture([1.0], [0, 0, 0], np.array([[1, 0.7, 0.3], [0.7, 1, 0], [0.3, 0, 4]])),
}
SHAPES = {  # three bivariate shapes, for the choice of the structure
    "isotropic": mixture([0.5, 0.5], [[-1.5, 0], [1.5, 0]], [np.eye(2), np.eye(2)]),
    "diagonal": mixture([0.5, 0.5], [[-1.5, 0], [1.5, 0]], [np.diag([1.0, 36.0])] * 2),
    "full": mixture([1.0], [0, 0], np.array([[1.0, 0.9], [0.9, 1.0]])),
}


def _overlap(one, weights_one, other, weights_other, covariance):
    root = np.linalg.cholesky(covariance)
    squared = cdist(solve_triangular(root, one.T, lower=True).T, solve_triangular(root, other.T, lower=True).T) ** 2
    constant = np.log(np.diag(root)).sum() + 0.5 * len(root) * math.log(2.0 * math.pi)
    return weights_one @ np.exp(-0.5 * squared - constant) @ weights_other


def integrated_squared_error(target, points, bandwidth):
    """Return the integral of (target - estimate)^2 in closed form; ``bandwidth`` is the covariance of the kernel."""
    n = len(points)
    equal = np.full(n, 1.0 / n)
    total = _overlap(points, equal, points, equal, 2.0 * bandwidth)
    for w, m, c in zip(*target, strict=True):
        total -= 2.0 * _overlap(m[None], np.array([w]), points, equal, c + bandwidth)
        for w2, m2, c2 in zip(*target, strict=True):
            total += _overlap(m[None], np.array([w]), m2[None], np.array([w2]), c + c2)
    return total
