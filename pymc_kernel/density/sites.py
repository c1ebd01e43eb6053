"""Distributions of a precision (Wishart, or gamma by coordinate), and expectation propagation until convergence."""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.density.propagation import gamma_sweep, log_gamma_constant, log_wishart_constant, wishart_sweep
from pymc_kernel.errors import warn_caller

STRUCTURES = ("full", "diagonal", "isotropic")


class WishartPosterior(NamedTuple):
    """|L|^((dof - d - 1) / 2) exp(-tr(inverse_scale L) / 2): mean dof inverse_scale^-1."""

    dof: float
    inverse_scale: np.ndarray  # (d, d)

    def mean(self) -> np.ndarray:
        """Return the expected precision (d, d)."""
        return self.dof * np.linalg.inv(self.inverse_scale)

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return precisions (size, d, d), by Bartlett's decomposition."""
        d = len(self.inverse_scale)
        lower = np.tril(rng.standard_normal((size, d, d)), -1)
        lower[:, np.arange(d), np.arange(d)] = np.sqrt(rng.chisquare(self.dof - np.arange(d), size=(size, d)))
        root = np.linalg.cholesky(np.linalg.inv(self.inverse_scale)) @ lower
        return root @ root.transpose(0, 2, 1)

    def concentration(self) -> float:
        """Return the degrees of freedom, which grow with the data."""
        return self.dof

    def log_constant(self) -> float:
        """Return the log of the integral of the density as it is written above."""
        d = len(self.inverse_scale)
        return float(log_wishart_constant(self.dof, np.linalg.slogdet(self.inverse_scale)[1], d))


class GammaPosterior(NamedTuple):
    """Independent l_k^(shape_k - 1) exp(-rate_k l_k), one for each coordinate or one for all."""

    shape: np.ndarray  # (g,)
    rate: np.ndarray  # (g,)
    groups: np.ndarray  # (d,) of int: index of the precision of each coordinate

    def mean(self) -> np.ndarray:
        """Return the expected precision (d, d)."""
        return np.diag((self.shape / self.rate)[self.groups])

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return precisions (size, d, d)."""
        drawn = rng.gamma(self.shape, 1.0 / self.rate, size=(size, len(self.shape)))[:, self.groups]
        return drawn[:, :, None] * np.eye(len(self.groups))

    def concentration(self) -> float:
        """Return the sum of the shapes, which grow with the data."""
        return float(self.shape.sum())

    def log_constant(self) -> float:
        """Return the log of the integral of the density as it is written above."""
        return float(log_gamma_constant(self.shape, self.rate))


def precision_prior(structure: str, rate: np.ndarray, shape: float | None) -> WishartPosterior | GammaPosterior:
    """Return the prior of a structure, with rates (d,) and a shape; see ``BayesianKDE``."""
    d = len(rate)
    if structure == "full":
        dof = d + 1.0 if shape is None else float(shape)
        if dof <= d - 1:
            raise ValueError(f"prior_shape must be above d - 1 = {d - 1} for a full precision, got {dof}.")
        return WishartPosterior(dof, np.diag(2.0 * rate))
    shape = 1.0 if shape is None else float(shape)
    if structure == "diagonal":
        return GammaPosterior(np.full(d, shape), rate, np.arange(d))
    return GammaPosterior(np.array([shape]), np.array([rate.mean()]), np.zeros(d, dtype=np.int64))


_TOLERANCE = 1e-3  # of degrees of freedom and log evidence between sweeps
_DAMPED_AFTER = 15  # sweeps; then half steps
_MAX_REPAIRED_SHARE = 0.05  # of the sites in the last sweep, above which a warning is given


class Sites(NamedTuple):
    """Approximate likelihoods of the points."""

    exponents: np.ndarray  # (m,) or (m, g)
    scales: np.ndarray  # (m, d, d) or (m, g)
    constants: np.ndarray  # (m,) logs


class Likelihood(NamedTuple):
    """The factors that sites approximate: the density of each point under the kernels at all centers but itself."""

    points: np.ndarray  # (m, d)
    own: np.ndarray  # (m,) of int: index of each point among the centers, -1 where it is none
    centers: np.ndarray  # (n, d)
    num_centers: float  # divisor of the sum of kernels
    old: Sites | None = None  # of kernels at earlier centers, with the log of their number in the constants


class Propagation(NamedTuple):
    """The result of expectation propagation."""

    posterior: WishartPosterior | GammaPosterior
    sites: Sites
    log_evidence: float
    num_sweeps: int
    repaired_share: float  # of the sites, in the last sweep
    converged: bool

    def warn(self, structure: str) -> None:
        """Warn where the posterior is unreliable."""
        if not self.converged:
            warn_caller(
                f"expectation propagation has not converged in {self.num_sweeps} sweeps: the posterior of the "
                f"bandwidth may not be unimodal. Give a simpler structure than {structure!r}, more data, or more "
                "max_sweeps."
            )
        elif self.repaired_share > _MAX_REPAIRED_SHARE:
            warn_caller(
                f"{100 * self.repaired_share:.0f} % of the sites could not be updated: no unimodal distribution fits "
                f"the posterior of the bandwidth. Give a simpler structure than {structure!r}, or more data."
            )


def empty_sites(prior, size: int) -> Sites:
    """Return ``size`` constant sites, in the family of the prior."""
    if isinstance(prior, WishartPosterior):
        return Sites(np.zeros(size), np.zeros((size, *prior.inverse_scale.shape)), np.zeros(size))
    return Sites(np.zeros((size, len(prior.shape))), np.zeros((size, len(prior.shape))), np.zeros(size))


def start_at_rule_of_thumb(prior, x: np.ndarray) -> tuple[WishartPosterior | GammaPosterior, Sites]:
    """Return a posterior around Silverman's rule, with half a degree of freedom a point, and the sites that make it."""
    n, d = x.shape
    precision = 1.0 / ((4.0 / ((d + 2.0) * n)) ** (2.0 / (d + 4.0)) * x.var(axis=0))
    sites = empty_sites(prior, n)
    if isinstance(prior, WishartPosterior):
        sites.exponents[:] = 0.5
        dof = prior.dof + 0.5 * n
        wanted = dof / precision
        sites.scales[:] = np.diag(np.maximum(wanted - np.diag(prior.inverse_scale), 1e-3 * wanted)) / n
        return WishartPosterior(dof, prior.inverse_scale + sites.scales.sum(axis=0)), sites
    common = np.array([precision[prior.groups == k].mean() for k in range(len(prior.shape))])
    sites.exponents[:] = 0.25 * np.bincount(prior.groups)
    shape = prior.shape + sites.exponents.sum(axis=0)
    wanted = shape / common
    sites.scales[:] = np.maximum(wanted - prior.rate, 1e-3 * wanted) / n
    return GammaPosterior(shape, prior.rate + sites.scales.sum(axis=0), prior.groups), sites


def propagate(prior, posterior, sites: Sites, likelihood: Likelihood, max_sweeps: int) -> Propagation:
    """Return the posterior after sweeps until its degrees of freedom and the log evidence converge.

    The iteration starts from ``posterior``: the prior times the ``sites`` of the likelihood's points and any other
    sites, which stay fixed and whose log constants are not part of the log evidence.
    """
    sites, evidence, size = Sites(*map(np.copy, sites)), -math.inf, -math.inf
    for sweep in range(max_sweeps):
        posterior, repairs = _sweep(posterior, sites, likelihood, 1.0 if sweep < _DAMPED_AFTER else 0.5)
        new_size, new_evidence = posterior.concentration(), _log_evidence(prior, posterior, sites)
        converged = bool(abs(new_size - size) < _TOLERANCE and abs(new_evidence - evidence) < _TOLERANCE)
        if converged:
            break
        evidence, size = new_evidence, new_size
    # A last sweep without updates gives the constants of all sites at the same posterior.
    posterior, _ = _sweep(posterior, sites, likelihood, 0.0)
    evidence = _log_evidence(prior, posterior, sites)
    share = repairs / len(likelihood.points)
    return Propagation(posterior, sites, evidence, sweep + 1, share, converged)


def _sweep(posterior, sites, likelihood, damping):
    """Update the sites in place; return the posterior, and how many sites were left as they were."""
    points, own, centers, num_centers, old = likelihood
    old = empty_sites(posterior, 0) if old is None else old
    if isinstance(posterior, WishartPosterior):
        scale = posterior.inverse_scale.copy()
        dof, repairs = wishart_sweep(points, own, centers, *sites, posterior.dof, scale, *old, num_centers, damping)
        return WishartPosterior(dof, scale), repairs
    shape, rate, groups = posterior.shape.copy(), posterior.rate.copy(), posterior.groups
    groups_and_sizes = groups, np.bincount(groups).astype(float)
    repairs = gamma_sweep(points, own, centers, *groups_and_sizes, *sites, shape, rate, *old, num_centers, damping)
    return GammaPosterior(shape, rate, groups), repairs


def _log_evidence(prior, posterior, sites):
    return posterior.log_constant() - prior.log_constant() + float(sites.constants.sum())
