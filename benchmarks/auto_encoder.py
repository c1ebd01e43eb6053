"""Scores by a denoising auto-encoder, a rival of kernel estimators (Alain and Bengio 2014).

As in Strathmann (2018), section 6.3: two layers, tanh and linear, trained by BFGS (with limited memory here) under
falling noise, which is drawn once.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

NUM_COPIES = 4  # noisy copies of each point


@dataclass(frozen=True)
class AutoEncoder:
    """A denoising auto-encoder r(x) = A tanh(B x + b) + a; the score is (r(x) - x) / noise^2."""

    noise: float
    num_hidden: int

    def fit(self, points, rng):
        """Return the fitted encoder: noise of 100, 10 and 1 times its own, up to 1,000 steps of L-BFGS at each."""
        d = points.shape[1]
        shapes = (self.num_hidden, d), (self.num_hidden,), (d, self.num_hidden), (d,)
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])

        def unpacked(flat):
            return [flat[a:b].reshape(shape) for a, b, shape in zip(ends[:-1], ends[1:], shapes, strict=True)]

        def loss(flat, noisy, clean):
            inner, shift, outer, center = unpacked(flat)
            hidden = np.tanh(noisy @ inner.T + shift)
            error = hidden @ outer.T + center - clean
            back = (error @ outer) * (1.0 - hidden**2)
            slopes = back.T @ noisy, back.sum(0), error.T @ hidden, error.sum(0)
            return 0.5 * (error**2).sum() / len(clean), np.concatenate([s.ravel() for s in slopes]) / len(clean)

        flat = np.concatenate([rng.normal(size=np.prod(shape)) / np.sqrt(shape[-1]) for shape in shapes])
        clean = np.tile(points, (NUM_COPIES, 1))
        for factor in (100.0, 10.0, 1.0):
            noisy = clean + factor * self.noise * rng.normal(size=clean.shape)
            flat = minimize(loss, flat, (noisy, clean), "L-BFGS-B", jac=True, options={"maxiter": 1000}).x
        return _Encoded(*unpacked(flat), self.noise)


@dataclass(frozen=True)
class _Encoded:
    inner: np.ndarray
    shift: np.ndarray
    outer: np.ndarray
    center: np.ndarray
    noise: float

    def score(self, x):
        """Return the scores, (n, d), at points (n, d)."""
        return (np.tanh(x @ self.inner.T + self.shift) @ self.outer.T + self.center - x) / self.noise**2

    def objective(self, x):
        """Return the mean of the divergence of the score plus half its square at points (n, d)."""
        hidden = np.tanh(x @ self.inner.T + self.shift)
        divergence = (1.0 - hidden**2) @ (self.inner * self.outer.T).sum(axis=1) - x.shape[1]
        return float((divergence / self.noise**2 + 0.5 * (self.score(x) ** 2).sum(axis=1)).mean())
