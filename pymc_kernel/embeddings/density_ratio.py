"""Ratio of two densities from samples, by least squares in an RKHS."""

from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from pymc_kernel.embeddings.inputs import latent_kernel
from pymc_kernel.embeddings.ridge import GramFactor, RidgePath, factorize
from pymc_kernel.kernels.points import as_points, as_weights, check_between
from pymc_kernel.parallel import one_blas_thread


class RatioSolution(NamedTuple):
    """The ratio as a linear function of features."""

    coefficients: np.ndarray  # (r,)
    regularization: float
    loss: float  # leave-one-out estimate of E_q[r^2] / 2 - E_p[r]


@dataclass(frozen=True)
class DensityRatio:
    """Estimator of p(z) / q(z) from samples of both: KuLSIF, or its relative form.

    r = <beta, features>, beta = (A + eta I)^-1 h, A the second moments of the features under q (or the mixture), h
    their mean under p; truncated at zero. O((n + l) r^2) time, O((n + l) r) memory. Leaving one point out changes A by
    a rank-one term, h by one feature, or both: O(r) a point. The relative form ignores that the shares of the other
    points change, by a factor of order 1 / n. Points of the numerator with signed weights cannot be left out one by
    one; the second term then uses all of h.

    Parameters
    ----------
    kernel : kernel, optional
        By default Gaussian at the median distance, a length scale for each coordinate.
    relative : float
        0 for the ratio p / q (Kanamori, Suzuki and Sugiyama 2012). With 0 < relative < 1 the ratio of p to the mixture
        relative p + (1 - relative) q (Yamada et al. 2011), which never exceeds 1 / relative and is the safer choice
        where q has almost no mass in regions where p has some.
    regularization : float, optional
        eta of the papers; by default the strongest whose leave-one-out loss, in closed form, is within one standard
        error of the smallest (Breiman et al. 1984, section 3.4.3): too smooth a ratio costs less than a noisy one.
    num_basis, tolerance
        Of the low-rank factor, see :func:`~pymc_kernel.embeddings.ridge.factorize`.
    """

    kernel: Any = None
    relative: float = 0.0
    regularization: float | None = None
    num_basis: int = 300
    tolerance: float = 1e-3

    def __post_init__(self):
        if not (isinstance(self.relative, Real) and 0.0 <= self.relative < 1.0):
            raise ValueError(f"relative must be in [0, 1), got {self.relative!r}.")
        check_between("regularization", high=np.inf, regularization=self.regularization)

    @one_blas_thread
    def fit(self, numerator, denominator, weights=None, *, rng=None) -> "FittedRatio":
        """Return the ratio estimated from samples ``numerator`` (l, d) of p and ``denominator`` (n, d) of q.

        The ``weights`` (l,) of the numerator's points are equal by default; ``rng`` is a generator or a seed.
        """
        numerator = as_points(numerator, "numerator")
        denominator = as_points(denominator, "denominator", num_dims=numerator.shape[1])
        weights = as_weights(weights, len(numerator), signed=True)
        if self.relative > 0.0 and (weights < 0.0).any():
            raise ValueError("a relative ratio needs weights that are not negative; relative=0 takes signed ones.")
        rng = np.random.default_rng(rng)
        kernel = latent_kernel(self.kernel, denominator, rng)
        factor = factorize(kernel, denominator, self.num_basis, self.tolerance, rng)
        return FittedRatio(factor, self.solve(factor.features, factor.extend(numerator), weights))

    def solve(self, below: np.ndarray, above: np.ndarray, weights: np.ndarray) -> RatioSolution:
        """Return the fit to features: ``below`` (n, r) of the denominator, ``above`` (l, r) of the numerator."""
        points, n = np.concatenate([below, above]), len(below)
        shares = np.concatenate([np.full(n, (1.0 - self.relative) / n), self.relative * weights])
        # RidgePath works with weights of mean one: its eigenvalues are those of A times the number of points.
        path = RidgePath.of(points, shares * len(points))
        values, turned = path.eigenvalues / len(points), path.vectors.T @ (weights @ above)
        grid = path.grid if self.regularization is None else np.array([float(self.regularization)])
        # The terms (g, n), (g, l) of E_q[r^2] / 2 - E_p[r], leaving one point out. Dropping one of the denominator from
        # A leaves (A - s f f') / (1 - s), s its share; one of the numerator is part of A, with share a w, and of h,
        # with w.
        below, above, strength = path.projected[:n], path.projected[n:], grid[:, None]
        a, share = self.relative, (1.0 - self.relative) / n
        shrunk = 1.0 / (values + strength * (1.0 - share))  # (g, r)
        leverage = share * (shrunk @ (below**2).T)
        at_q = (1.0 - share) * ((shrunk * turned) @ below.T) / np.maximum(1.0 - leverage, 1e-10)
        full = 1.0 / (values + strength)
        at_p = (full * turned) @ above.T
        if (weights >= 0).all() and (weights < 1).all():
            own = weights * (full @ (above**2).T)
            at_p = (at_p - own) / ((1.0 - weights) * np.maximum(1.0 - a * own, 1e-10))
        at_q, at_p = np.maximum(0.0, at_q), np.maximum(0.0, at_p)
        terms = 0.5 * share * at_q**2, weights * (0.5 * a * at_p**2 - at_p)
        losses = sum(part.sum(axis=1) for part in terms)
        best = losses.argmin()
        variance = sum(part.shape[1] * (part - part[best]).var(axis=1) for part in terms)
        chosen = np.flatnonzero(losses - losses[best] <= np.sqrt(variance)).max()
        coefficients = path.vectors @ (turned / (values + grid[chosen]))
        return RatioSolution(coefficients, float(grid[chosen]), float(losses[chosen]))


@dataclass(frozen=True, eq=False)
class FittedRatio:
    """An estimated ratio of densities, not negative."""

    factor: GramFactor  #: features of the denominator's points
    solution: RatioSolution  #: with the regularization and its loss

    @one_blas_thread
    def __call__(self, points) -> np.ndarray:
        """Return the ratio at ``points`` (m, d), shape (m,)."""
        return np.maximum(0.0, self.factor.extend(as_points(points, "points")) @ self.solution.coefficients)

    @cached_property
    def ratio(self) -> np.ndarray:
        """The ratio (n,) at the points of the denominator."""
        return np.maximum(0.0, self.factor.features @ self.solution.coefficients)
