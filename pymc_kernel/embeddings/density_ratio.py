"""Ratio of two densities from samples, by least squares in an RKHS. Imports NumPy, ``kernels`` and siblings."""

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from pymc_kernel.embeddings.gram import GramFactor, factorize
from pymc_kernel.embeddings.inputs import as_sample, as_weights, check_positive, latent_kernel
from pymc_kernel.embeddings.ridge import RidgePath
from pymc_kernel.parallel import one_blas_thread

__all__ = ["DensityRatio", "FittedRatio", "RatioSolution"]


class RatioSolution(NamedTuple):
    """The ratio as a linear function of features."""

    coefficients: np.ndarray  # (r,)
    least_loss_coefficients: np.ndarray  # (r,) at the regularization of the smallest loss, whatever ``caution`` is
    regularization: float
    loss: float  # leave-one-out estimate of E_q[r^2] / 2 - E_p[r]


@dataclass(frozen=True)
class DensityRatio:
    """Estimator of p(z) / q(z) from samples of both: KuLSIF, or its relative form.

    Parameters
    ----------
    kernel : kernel, optional
        By default Gaussian at the median distance, a length scale for each coordinate.
    relative : float
        0 for the ratio p / q (Kanamori, Suzuki and Sugiyama 2012). With 0 < relative < 1 that of p to the mixture
        relative p + (1 - relative) q (Yamada et al. 2011), which never exceeds 1 / relative and is the safer choice
        where q has almost no mass in regions where p has some.
    regularization : float, optional
        eta of the papers; by default chosen by the leave-one-out loss, in closed form.
    caution : float
        The strongest regularization is chosen whose loss is within this many standard errors of the smallest.
    num_basis, tolerance
        Of the low-rank factor, see :func:`~pymc_kernel.embeddings.gram.factorize`.

    Notes
    -----
    r = <beta, features>, beta = (A + eta I)^-1 h, A the second moments of the features under q (or the mixture), h
    their mean under p; truncated at zero. O((n + l) r^2) time, O((n + l) r) memory. Leaving one point out changes A
    by a rank-one term, h by one feature, or both: O(r) a point. The relative form ignores that the shares of the
    other points change, by a factor of order 1 / n. Points of the numerator with signed weights cannot be left out
    one by one; there the second term is taken at the whole h.
    """

    kernel: Any = None
    relative: float = 0.0
    regularization: float | None = None
    caution: float = 1.0
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        if not (isinstance(self.relative, Real) and 0.0 <= self.relative < 1.0):
            raise ValueError(f"relative must be in [0, 1), got {self.relative!r}.")
        check_positive(regularization=self.regularization)

    @one_blas_thread
    def fit(self, numerator, denominator, weights=None, *, rng=None) -> "FittedRatio":
        """Return the ratio estimated from samples of p and q.

        Parameters
        ----------
        numerator : array_like (l, d)
            Sample of p.
        denominator : array_like (n, d)
            Sample of q.
        weights : array_like (l,), optional
            Of the numerator's points; equal by default.
        rng : int or numpy.random.Generator, optional
        """
        numerator, denominator = as_sample(numerator, "numerator"), as_sample(denominator, "denominator")
        if numerator.shape[1] != denominator.shape[1]:
            raise ValueError(
                f"numerator has {numerator.shape[1]} dimensions, denominator {denominator.shape[1]}; they must agree."
            )
        weights = as_weights(weights, len(numerator), "weights")
        if self.relative > 0.0 and (weights < 0.0).any():
            raise ValueError("a relative ratio needs weights that are not negative; relative=0 takes signed ones.")
        rng = np.random.default_rng(rng)
        kernel = latent_kernel(self.kernel, denominator, rng)
        factor = factorize(kernel, denominator, self.num_basis, self.tolerance, rng)
        return FittedRatio(factor, self.solve(factor.features, factor(numerator), weights))

    def solve(self, below: np.ndarray, above: np.ndarray, weights: np.ndarray) -> RatioSolution:
        """Return the fit to features: ``below`` (n, r) of the denominator, ``above`` (l, r) of the numerator."""
        n, a = len(below), self.relative
        mean = weights @ above
        if a > 0.0:
            # The mixture's second moments, as those of one sample with weights.
            points = np.concatenate([below, above])
            shares = np.concatenate([np.full(n, (1.0 - a) / n), a * weights])
        else:
            points, shares = below, np.full(n, 1.0 / n)
        # RidgePath works with weights of mean one: its eigenvalues are those of A times the number of points.
        path = RidgePath.of(points, shares * len(points))
        turned = path.vectors.T @ mean
        grid = path.grid if self.regularization is None else np.array([float(self.regularization)])
        first, second = self._losses(path, turned, above @ path.vectors, weights, shares, grid)
        chosen, loss, least = self._choose(grid, first, second)
        coefficients = [path.vectors @ (turned * path.shrinkage(eta) * len(points)) for eta in (chosen, least)]
        return RatioSolution(*coefficients, chosen, loss)

    def _choose(self, grid, first, second):
        """Return the strongest regularization close to the smallest loss, its loss, and that of the smallest."""
        totals = first.sum(axis=1) - second.sum(axis=1)
        best = int(totals.argmin())
        variance = sum(p.shape[1] * (p - p[best]).var(axis=1) for p in (first, second))
        close = totals - totals[best] <= self.caution * np.sqrt(variance)
        close[:best] = False
        chosen = int(np.flatnonzero(close).max())
        return float(grid[chosen]), float(totals[chosen]), float(grid[best])

    def _losses(self, path, turned, above, weights, shares, grid):
        """Return the terms (g, n) of E_q[r^2] / 2 and (g, l) of E_p[r] for g regularizations, each r without its point.

        Dropping point i from A leaves (A - s_i f f') / (1 - s_i), s_i its share.
        """
        values, strength = path.eigenvalues / len(path.projected), grid[:, None]
        full = 1.0 / (values + strength)  # (g, r)
        at, own = (full * turned) @ above.T, full @ (above**2).T
        alone = bool((weights >= 0).all() and (weights < 1).all())
        if self.relative == 0.0:
            # (A_-i + eta)^-1 = (1 - s) (A + eta (1 - s) - s f f')^-1, s = 1 / n.
            kept = 1.0 - 1.0 / len(path.projected)
            shrunk = 1.0 / (values + strength * kept)
            leverage = shrunk @ (path.projected**2).T / len(path.projected)
            out = kept * ((shrunk * turned) @ path.projected.T) / np.maximum(1.0 - leverage, 1e-10)
            if alone:
                at = (at - weights * own) / (1.0 - weights)
            return 0.5 * shares * np.maximum(0.0, out) ** 2, weights * np.maximum(0.0, at)
        # A point of the numerator is part of A, with share a w, and of h, with w: it is removed from both.
        below = path.projected[: len(path.projected) - len(weights)]
        leverage = shares[0] * (full @ (below**2).T)
        out = ((full * turned) @ below.T) / np.maximum(1.0 - leverage, 1e-10)
        if alone:
            at = (at - weights * own) / ((1.0 - weights) * np.maximum(1.0 - self.relative * weights * own, 1e-10))
        both = np.concatenate([out, at], axis=1)
        return 0.5 * shares * np.maximum(0.0, both) ** 2, weights * np.maximum(0.0, at)


@dataclass(frozen=True, eq=False)
class FittedRatio:
    """An estimated ratio of densities, not negative.

    Attributes
    ----------
    factor : GramFactor
        Features of the denominator's points.
    solution : RatioSolution
        With the regularization and its loss.
    """

    factor: GramFactor
    solution: RatioSolution

    @one_blas_thread
    def __call__(self, points) -> np.ndarray:
        """Return the ratio at ``points`` (m, d), shape (m,)."""
        return np.maximum(0.0, self.factor(as_sample(points, "points")) @ self.solution.coefficients)

    @cached_property
    @one_blas_thread
    def ratio(self) -> np.ndarray:
        """The ratio (n,) at the points of the denominator."""
        return np.maximum(0.0, self.factor.features @ self.solution.coefficients)

    @cached_property
    @one_blas_thread
    def least_loss_ratio(self) -> np.ndarray:
        """The same at the regularization of the smallest loss, whatever the caution: noisier and less biased."""
        return np.maximum(0.0, self.factor.features @ self.solution.least_loss_coefficients)
