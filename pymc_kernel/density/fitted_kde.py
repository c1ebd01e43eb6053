"""A kernel density estimate, the posterior of its bandwidth, and its mixtures of normal or Student t densities."""

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy.special import gammaln

from pymc_kernel.density.propagation import (
    GammaPosterior,
    Likelihood,
    Propagation,
    WishartPosterior,
    empty_sites,
    propagate,
)
from pymc_kernel.errors import warn_caller
from pymc_kernel.kernels.points import as_points, check_between
from pymc_kernel.linalg import LOG_2PI, definite_cholesky
from pymc_kernel.machine_code import compiled
from pymc_kernel.parallel import one_blas_thread, over_row_blocks


def without_ties(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the data with uniform noise added to rows that coincide.

    With a tie the leave-one-out likelihood grows without bound as the bandwidth goes to zero (Zychaluk and Patil 2008).
    Rounded data get noise as wide as their resolution, the smallest gap between values of a column. Repeats among
    continuous data get noise up to the rule of thumb's bandwidth either way: less would make the bandwidth too small.
    """
    _, first, inverse = np.unique(x, axis=0, return_index=True, return_inverse=True)
    num_tied = len(x) - len(first)
    if num_tied == 0:
        return x
    n, d = x.shape
    thumb = (4.0 / ((d + 2.0) * n)) ** (1.0 / (d + 4.0)) * x.std(axis=0)
    rows = np.bincount(inverse.ravel())[inverse.ravel()] > 1
    widths = [_noise_width(np.unique(column), n, width) for column, width in zip(x.T, thumb, strict=True)]
    x = x.copy()
    x[rows] += widths * (rng.random((d, int(rows.sum()))).T - 0.5)
    shown = ", ".join(f"{width:.2g}" for width in widths)
    warn_caller(
        f"{num_tied} of {n} points repeat an earlier one; uniform noise of the widths {shown} is added to all rows "
        "that are tied, as their likelihood has no bound otherwise."
    )
    return x


def _noise_width(values, n, thumb):
    """Return the resolution of a column with these distinct values, or twice the rule of thumb's bandwidth."""
    gaps = np.diff(values)
    # Values on a grid: every gap is a whole multiple of the smallest.
    may_be_rounded = gaps.size > 0 and len(values) < n and gaps.min() > 1e-6 * thumb
    if may_be_rounded and np.allclose(gaps / gaps.min(), np.rint(gaps / gaps.min()), atol=0.01):
        return gaps.min()
    return 2.0 * thumb


@dataclass(frozen=True, eq=False)
class FittedKDE:
    """The result of ``BayesianKDE().fit(x)``.

    Attributes
    ----------
    structure : {"full", "diagonal", "isotropic"}
    prior : WishartPosterior or GammaPosterior
        Of the precision.
    centers : ndarray (n, d)
        The data, without ties.
    propagation : Propagation
        The posterior of the precision, the sites, and diagnostics: number of sweeps, share of updates skipped because a
        cavity or its update was not a proper distribution, and convergence.
    max_sweeps : int
    log_evidences : dict
        Structure -> log evidence, of all that were fitted.
    """

    structure: str
    prior: WishartPosterior | GammaPosterior
    centers: np.ndarray
    propagation: Propagation
    max_sweeps: int
    log_evidences: dict[str, float]

    @property
    def posterior(self) -> WishartPosterior | GammaPosterior:
        """Posterior of the precision."""
        return self.propagation.posterior

    @property
    def log_evidence(self) -> float:
        """Approximate log of the likelihood averaged over the prior, in units of the data."""
        return self.propagation.log_evidence

    @cached_property
    def precision(self) -> np.ndarray:
        """Posterior mean (d, d) of the precision."""
        return self.posterior.mean()

    @cached_property
    def bandwidth(self) -> np.ndarray:
        """Covariance (d, d) of the kernel, the inverse of the mean precision."""
        return np.linalg.inv(self.precision)

    @one_blas_thread
    def updated(self, x, *, rng=None) -> "FittedKDE":
        """Return the estimate from the earlier and further data (m, d), without revisiting pairs of earlier points.

        First the sites of the earlier points take in the new centers, then the new points get sites of their own,
        O((n + m) m d^2) a sweep. The resulting posterior is slightly too narrow. The prior and the structure stay those
        of the first fit. ``rng`` draws the noise that breaks ties, as in :meth:`BayesianKDE.fit
        <pymc_kernel.density.BayesianKDE.fit>`. Data so far from the first that no posterior fits both raise ValueError.
        """
        new = as_points(x, "further data", num_dims=self.centers.shape[1])
        n, m = len(self.centers), len(new)
        new = without_ties(np.concatenate([self.centers, new]), np.random.default_rng(rng))[n:]
        sites = self.propagation.sites
        old = sites._replace(constants=sites.constants + math.log(n - 1.0))
        likelihood = Likelihood(self.centers, np.full(n, -1), new, n + m - 1.0, old)
        first = propagate(self.prior, self.posterior, sites, likelihood, self.max_sweeps)
        centers = np.concatenate([self.centers, new])
        likelihood = Likelihood(new, np.arange(n, n + m), centers, n + m - 1.0)
        second = propagate(self.prior, first.posterior, empty_sites(self.prior, m), likelihood, self.max_sweeps)
        with np.errstate(all="ignore"):
            factor = definite_cholesky(second.posterior.mean())
        if factor is None or not second.posterior.concentration() > 0.0:
            raise ValueError("x lies so far from the first data that no bandwidth fits both: fit all data anew.")
        second.warn(self.structure)
        sites = sites._make(map(np.concatenate, zip(first.sites, second.sites, strict=True)))
        log_evidence = second.log_evidence + float(first.sites.constants.sum())
        propagation = second._replace(sites=sites, log_evidence=log_evidence)
        return replace(self, centers=centers, propagation=propagation, log_evidences={self.structure: log_evidence})

    @one_blas_thread
    def log_density(self, x, *, averaged: bool = False) -> np.ndarray:
        """Return the log density at ``x`` (m, d), shape (m,), O(n m d) in compiled code.

        At the mean precision; where ``averaged``, over its posterior: a mixture of Student t densities.
        """
        x = as_points(x, "x", num_dims=self.centers.shape[1])
        if not averaged:
            return normal_mixture(x, self.centers, self.precision)
        return student_mixture(x, self.centers, self.posterior)

    @one_blas_thread
    def interval(self, x, probability: float = 0.9, *, size: int = 200, rng=None) -> np.ndarray:
        """Return a pointwise band of the density at ``x`` (m, d) under the posterior of the bandwidth, shape (2, m).

        Quantiles over ``size`` draws of the precision. It shows only the uncertainty that comes from the bandwidth.
        """
        check_between(probability=probability)
        x = as_points(x, "x", num_dims=self.centers.shape[1])
        draws = self.posterior.sample(np.random.default_rng(rng), size)
        levels = np.exp([normal_mixture(x, self.centers, precision) for precision in draws])
        return np.quantile(levels, [0.5 - 0.5 * probability, 0.5 + 0.5 * probability], axis=0)

    @one_blas_thread
    def sample(self, size: int, rng=None) -> np.ndarray:
        """Return draws from the estimated density at the mean precision, (size, d)."""
        rng = np.random.default_rng(rng)
        root = np.linalg.cholesky(self.bandwidth)
        chosen = rng.integers(len(self.centers), size=size)
        return self.centers[chosen] + rng.standard_normal((size, len(root))) @ root.T


def normal_mixture(x: np.ndarray, centers: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return the log of the mean normal density around the centers (n, d), at ``x`` (m, d); shape (m,)."""
    root = np.linalg.cholesky(precision)
    return _log_mean_kernel(x, centers, root, np.zeros(1)) - 0.5 * len(precision) * LOG_2PI


def student_mixture(x: np.ndarray, centers: np.ndarray, posterior) -> np.ndarray:
    """Return the log of the mean of N(x | x_r, L^-1) over the posterior of L and the centers x_r, shape (m,)."""
    d = x.shape[1]
    if isinstance(posterior, WishartPosterior):
        root, powers = np.linalg.cholesky(np.linalg.inv(posterior.inverse_scale)), np.array([posterior.dof + 1.0])
    else:
        root = np.diag(1.0 / np.sqrt(np.broadcast_to(2.0 * posterior.rate, d)))
        powers = 2.0 * posterior.shape + d / len(posterior.shape)
    constant = (gammaln(0.5 * powers) - gammaln(0.5 * (powers - d / len(powers)))).sum() - 0.5 * d * math.log(math.pi)
    return constant + _log_mean_kernel(x, centers, root, powers)


def _log_mean_kernel(x, centers, root, powers):
    """Return the log determinant of a root plus the log of the mean over centers of a kernel, (m,).

    The kernel is a product over blocks of coordinates, one for each of the ``powers``: exp(-s / 2), or
    (1 + s)^(-power / 2) if the power is not zero; s is the squared distance of a point and a center in the block, both
    multiplied by the root.
    """
    x, centers, out = x @ root, centers @ root, np.empty(len(x))
    over_row_blocks(partial(_kernel_rows, x, centers, powers, out), len(x), float(centers.size))
    return np.log(np.diag(root)).sum() + out


@compiled
def _kernel_rows(x, centers, powers, out, start, stop):
    n, width = len(centers), centers.shape[1] // len(powers)
    logs = np.empty(n)
    for i in range(start, stop):
        largest = -np.inf
        for r in range(n):
            logs[r] = 0.0
            for block, power in enumerate(powers):
                squared = 0.0
                for k in range(block * width, (block + 1) * width):
                    squared += (x[i, k] - centers[r, k]) ** 2
                logs[r] -= 0.5 * (squared if power == 0.0 else power * math.log(1.0 + squared))
            largest = max(largest, logs[r])
        if largest == -np.inf:  # so far from all centers that squared distances overflow
            out[i] = largest
            continue
        total = 0.0
        for r in range(n):
            total += math.exp(logs[r] - largest)
        out[i] = largest + math.log(total / n)
