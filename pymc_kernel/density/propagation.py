"""Expectation propagation for the precision of a Gaussian kernel under the leave-one-out likelihood.

Filippone and Sanguinetti (2011). The likelihood of point j is a mixture over the other points r,

    f_j(L) = 1 / (n - 1) sum_r N(x_j | x_r, L^-1),

and is replaced by a site s_j |L|^(e_j / 2) exp(-tr(S_j L) / 2). With a Wishart prior |L|^((v - d - 1) / 2)
exp(-tr(S L) / 2) the approximate posterior is the Wishart with dof v + sum_j e_j and inverse scale S + sum_j S_j. For
diagonal and isotropic precisions it is the same with a gamma distribution for each group of coordinates that share one
number.

Differences from the paper: sites have exponents that add up, so the (d + 1) n of its equations is gone; the inverse
scale of an updated site is the difference of two inverse scales (its equation 19 inverts once too often); mixture
weights are normalized over r != j. With h_r = a_r' Q a_r, Q the inverse of the cavity's inverse scale and
a_r = x_r - x_j, determinants and inverses of rank-one changes need no factorization, so a sweep costs O(n^2 d^2) in
place of O(n^2 d^3). A site whose cavity is no proper distribution keeps its old value in that sweep and is counted; the
paper raises the diagonal instead.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.errors import warn_caller
from pymc_kernel.linalg import LOG_2PI, cholesky_in_place, solve_lower
from pymc_kernel.machine_code import compiled

STRUCTURES = ("full", "diagonal", "isotropic")
_TOLERANCE = 1e-3  # of degrees of freedom and log evidence between sweeps
_DAMPED_AFTER = 15  # sweeps; then half steps
_MAX_REPAIRED_SHARE = 0.05  # of the sites in the last sweep, above which a warning is given


@compiled
def log_wishart_constant(dof, log_det, num_dims):
    """Return log of the integral of |L|^((dof - d - 1) / 2) exp(-tr(S L) / 2), ``log_det`` that of S."""
    total = 0.25 * num_dims * (num_dims - 1) * math.log(math.pi) + 0.5 * dof * (num_dims * math.log(2.0) - log_det)
    for k in range(num_dims):
        total += math.lgamma(0.5 * (dof - k))
    return total


@compiled
def log_gamma_constant(shapes, rates):
    """Return log of the integral of the product of l_k^(shape_k - 1) exp(-rate_k l_k)."""
    total = 0.0
    for k in range(len(shapes)):
        total += math.lgamma(shapes[k]) - shapes[k] * math.log(rates[k])
    return total


@compiled
def _inverse(matrix):
    """Return the inverse of a positive definite matrix and its log determinant, NaN for other matrices."""
    d = matrix.shape[0]
    factor, columns, log_det = matrix.copy(), np.zeros((d, d)), 0.0
    if not cholesky_in_place(factor):
        return columns, math.nan
    for k in range(d):
        log_det += 2.0 * math.log(factor[k, k])
        columns[k, k] = 1.0
        solve_lower(factor, columns[k], columns[k])
    return columns @ columns.T, log_det


@compiled
def _normalize(logs):
    """Turn logs of weights (n,) into weights that sum to one; return the log of what they summed to."""
    largest = logs.max()
    logs[:] = np.exp(logs - largest)
    mass = logs.sum()
    logs /= mass
    return largest + math.log(mass)


@compiled
def wishart_sweep(
    points, own, centers, exponents, scales, constants, dof, scale, old_exponents, old_scales, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once; return the new degrees of freedom and the number of sites that were left as they were.

    Each of the ``points`` (m, d) has a site. ``own`` (m,) are their indices among the ``centers`` (n, d), -1 for none;
    the sum of kernels is divided by ``num_centers``. ``exponents`` (m,), ``scales`` (m, d, d) and ``constants`` (m,)
    are e_j, S_j and log s_j; these and ``scale`` (d, d), the inverse scale of the posterior, are updated in place. The
    old sites, which may be empty, stand for kernels at earlier centers, with the log of their number in the constants:
    online learning. ``damping`` is the share of a full update in [0, 1]; 0 only computes the constants.
    """
    m, d = points.shape
    n, repairs = centers.shape[0], 0
    centers_t, weights = np.ascontiguousarray(centers.T), np.empty(n + 1)
    old_inverse, old_dof = np.empty((d, d)), 0.0
    for j in range(m):
        cavity, cavity_dof = scale - scales[j], dof - exponents[j]
        inverse, log_det = _inverse(cavity)
        if not (log_det == log_det and cavity_dof > d - 1.0):
            repairs += 1
            continue
        alpha = cavity_dof + 1.0
        off = centers_t - points[j].reshape(d, 1)
        bent = inverse @ off
        heights = 1.0 + (off * bent).sum(axis=0)
        weights[:n] = -0.5 * alpha * np.log(heights)
        weights[n] = -np.inf
        if own[j] >= 0:
            weights[own[j]] = -np.inf
        # Relative to the normalized cavity, all components of the mixture share this constant.
        cavity_constant = log_wishart_constant(cavity_dof, log_det, d)
        shared = log_wishart_constant(alpha, log_det, d) - cavity_constant - 0.5 * d * LOG_2PI
        if old_exponents.shape[0] > 0:
            old_dof = cavity_dof + old_exponents[j]
            old_inverse, old_log_det = _inverse(cavity + old_scales[j])
            if old_log_det == old_log_det and old_dof > d - 1.0:
                ratio = log_wishart_constant(old_dof, old_log_det, d) - cavity_constant
                weights[n] = old_constants[j] + ratio - shared
        log_mass = _normalize(weights)
        # Mean and total second moment of the mixture, by U_r = Q - b b' / (1 + h), b = Q a.
        new, length = weights[:n], (bent * bent).sum(axis=0) / heights
        along = np.trace(inverse) - length
        size = (inverse * inverse).sum() - 2.0 * (bent * (inverse @ bent)).sum(axis=0) / heights + length * length
        second = (new * ((alpha + alpha * alpha) * size + alpha * along * along)).sum()
        mean = alpha * (new.sum() * inverse - (bent * (new / heights)) @ bent.T)
        if weights[n] > 0.0:
            trace = np.trace(old_inverse)
            size_of_old = (old_dof + old_dof * old_dof) * (old_inverse * old_inverse).sum()
            second += weights[n] * (size_of_old + old_dof * trace * trace)
            mean += weights[n] * old_dof * old_inverse
        norm, trace = (mean * mean).sum(), np.trace(mean)
        if damping > 0.0:
            variance = second - norm
            new_dof = (norm + trace * trace) / variance
            inverse_mean, log_det_mean = _inverse(mean)
            if not (variance > 0.0 and new_dof > d - 1.0 and log_det_mean == log_det_mean):
                repairs += 1
                continue
            change = damping * (new_dof - cavity_dof - exponents[j])
            exponents[j] += change
            dof += change
            change_of_scale = damping * (new_dof * inverse_mean - cavity - scales[j])
            scales[j] += change_of_scale
            scale += change_of_scale
        _, posterior_log_det = _inverse(scale)
        constants[j] = shared + log_mass - math.log(num_centers) + cavity_constant
        constants[j] -= log_wishart_constant(dof, posterior_log_det, d)
    return dof, repairs


@compiled
def gamma_sweep(
    points, own, centers, groups, sizes, shapes, rates, constants, shape, rate, old_shapes, old_rates, old_constants,
    num_centers, damping,
):  # fmt: skip
    """Update every site once, for one gamma distribution a group; return the number of sites left as they were.

    As :func:`wishart_sweep`, except for: ``groups`` (d,), which precision each coordinate has, and ``sizes`` (g,), how
    many coordinates have it; ``shapes``, ``rates`` (m, g), exponents e_jk of the precisions l_k and rates of the sites;
    ``shape``, ``rate`` (g,) of the posterior l^(shape - 1) exp(-rate l). All are updated in place.
    """
    m, d = points.shape
    n, g, repairs = centers.shape[0], shape.shape[0], 0
    centers_t, weights = np.ascontiguousarray(centers.T), np.empty(n + 1)
    betas, first, second = np.empty((g, n)), np.empty(g), np.empty(g)
    for j in range(m):
        cavity_shape, cavity_rate = shape - shapes[j], rate - rates[j]
        if not (cavity_shape.min() > 0.0 and cavity_rate.min() > 0.0):
            repairs += 1
            continue
        alphas = cavity_shape + 0.5 * sizes
        cavity_constant = log_gamma_constant(cavity_shape, cavity_rate)
        shared = -0.5 * d * LOG_2PI - cavity_constant
        weights[:] = 0.0
        for k in range(g):
            betas[k] = cavity_rate[k]
            shared += math.lgamma(alphas[k])
        for p in range(d):
            betas[groups[p]] += 0.5 * (centers_t[p] - points[j, p]) ** 2
        for k in range(g):
            weights[:n] -= alphas[k] * np.log(betas[k])
        weights[n] = -np.inf
        if own[j] >= 0:
            weights[own[j]] = -np.inf
        old_alphas, old_betas = cavity_shape, cavity_rate
        if old_shapes.shape[0] > 0:
            old_alphas, old_betas = cavity_shape + old_shapes[j], cavity_rate + old_rates[j]
            if old_alphas.min() > 0.0 and old_betas.min() > 0.0:
                constant = log_gamma_constant(old_alphas, old_betas)
                weights[n] = old_constants[j] + constant - cavity_constant - shared
        log_mass = _normalize(weights)
        for k in range(g):
            expected = alphas[k] / betas[k]
            first[k] = (weights[:n] * expected).sum()
            second[k] = (weights[:n] * (expected / betas[k] + expected * expected)).sum()
        if weights[n] > 0.0:
            expected = old_alphas / old_betas
            first += weights[n] * expected
            second += weights[n] * (expected / old_betas + expected * expected)
        if damping > 0.0:
            variance = second - first * first
            if not variance.min() > 0.0:
                repairs += 1
                continue
            change = damping * (first * first / variance - cavity_shape - shapes[j])
            shapes[j] += change
            shape += change
            change = damping * (first / variance - cavity_rate - rates[j])
            rates[j] += change
            rate += change
        constants[j] = shared + log_mass - math.log(num_centers) + cavity_constant - log_gamma_constant(shape, rate)
    return repairs


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
