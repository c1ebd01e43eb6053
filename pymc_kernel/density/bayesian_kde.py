"""Gaussian kernel density estimation with a posterior over the bandwidth. Imports NumPy, SciPy and the lower floors."""

import math
import warnings
from typing import NamedTuple

import numba
import numpy as np
from scipy.special import gammaln, logsumexp

from pymc_kernel.density.propagation import gamma_sweep, log_gamma_constant, log_wishart_constant, wishart_sweep
from pymc_kernel.kernels.base import as_points
from pymc_kernel.parallel import one_blas_thread, over_row_blocks

__all__ = ["STRUCTURES", "BayesianKDE", "GammaPosterior", "WishartPosterior"]

STRUCTURES = ("full", "diagonal", "isotropic")
_PRIOR_RATE = 0.1  # of a gamma law with shape 1, for data of unit variance
_TOLERANCE = 1e-3  # of degrees of freedom and log evidence between sweeps
_DAMPED_AFTER = 15  # sweeps; then half steps
_MANY_REPAIRS = 0.05  # of the sites in the last sweep


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


class GammaPosterior(NamedTuple):
    """Independent l_k^(shape_k - 1) exp(-rate_k l_k), one for each coordinate or one for all."""

    shape: np.ndarray  # (g,)
    rate: np.ndarray  # (g,)
    groups: np.ndarray  # (d,) of int: which of them each coordinate has

    def mean(self) -> np.ndarray:
        """Return the expected precision (d, d)."""
        return np.diag((self.shape / self.rate)[self.groups])

    def sample(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return precisions (size, d, d)."""
        drawn = rng.gamma(self.shape, 1.0 / self.rate, size=(size, len(self.shape)))[:, self.groups]
        return drawn[:, :, None] * np.eye(len(self.groups))


class BayesianKDE:
    """Kernel density estimate whose bandwidth has a posterior, by expectation propagation.

    The estimate is the mean of normal densities N(x | x_r, L^-1) around the data, L a precision with a Wishart prior
    (full) or gamma priors (diagonal, isotropic). Its likelihood is that of each point under the kernels at all others;
    the posterior is approximated by the family of the prior, and the evidence tells which structure fits (Filippone and
    Sanguinetti 2011).

    Parameters
    ----------
    structure : {"auto", "full", "diagonal", "isotropic"}
        ``"auto"`` fits all three and keeps the one with the largest evidence.
    prior_shape : float, optional
        Of the prior: degrees of freedom of the Wishart law, d + 1 by default, or shape of the gamma laws, 1.
    prior_rate : float or array_like (d,), optional
        Rates of the gamma laws, in squared units of the data; the Wishart law has twice as much on the diagonal of its
        inverse scale. By default a tenth of the variances: a flat and proper prior in any units.
    max_sweeps : int
    random_state : int or numpy.random.Generator, optional
        Breaks ties in the data.

    Attributes
    ----------
    structure_ : str
    posterior_ : WishartPosterior or GammaPosterior
    precision_ : ndarray (d, d)
        Its mean; ``bandwidth_`` (d, d) is the inverse, the covariance of the kernel.
    log_evidence_ : float
        Approximate log of the likelihood averaged over the prior, in units of the data.
    centres_ : ndarray (n, d)
    num_sweeps_, num_repairs_ : int
        Sweeps, and site updates that were left out because a cavity or a new site was no proper law.
    converged_ : bool

    Notes
    -----
    A sweep costs O(n^2 d^2) (full) or O(n^2 d); memory O(n d^2) or O(n d). Some ten sweeps. The Wishart law is
    unimodal: where many updates have to be left out (few data in many dimensions), the fit says so and the evidence
    favours a simpler structure.

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.density import BayesianKDE
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> BayesianKDE().fit(x).structure_
    'isotropic'
    """

    def __init__(self, structure="auto", *, prior_shape=None, prior_rate=None, max_sweeps=100, random_state=0):
        if structure not in (*STRUCTURES, "auto"):
            raise ValueError(f'structure must be "auto", {", ".join(map(repr, STRUCTURES))}, got {structure!r}.')
        if prior_shape is not None and not (np.isfinite(prior_shape) and prior_shape > 0):
            raise ValueError(f"prior_shape must be a positive number, got {prior_shape!r}.")
        if prior_shape is not None and structure == "auto":
            raise ValueError('prior_shape means another thing for each structure: name one instead of "auto".')
        if not (isinstance(max_sweeps, int | np.integer) and max_sweeps >= 1):
            raise ValueError(f"max_sweeps must be a whole number >= 1, got {max_sweeps!r}.")
        self.structure = structure
        self.prior_shape = prior_shape
        self.prior_rate = prior_rate
        self.max_sweeps = max_sweeps
        self.random_state = random_state

    # -- learning -------------------------------------------------------------------------------------------

    @one_blas_thread
    def fit(self, X) -> "BayesianKDE":
        """Learn the posterior from data (n, d), or (n,) for one dimension; returns self.

        Raises
        ------
        ValueError
            For fewer than d + 2 points, constant columns, or numbers that are not finite.

        Warns
        -----
        UserWarning
            For ties, which are broken by noise (of the data's resolution, or of the rule of thumb's width), and where
            the fit has not converged or had to leave many updates out.
        """
        rng = np.random.default_rng(self.random_state)
        x = _without_ties(_checked(X), rng)
        rate = self._rates(x)
        if self.structure != "auto":
            return self._fit_one(x, rate, self.structure)
        fits = [self._copy(s)._fit_one(x, rate, s, warn=False) for s in STRUCTURES]
        best = max(fits, key=lambda f: f.log_evidence_ if f.converged_ else -math.inf)
        self.__dict__.update({name: value for name, value in best.__dict__.items() if name != "structure"})
        self.log_evidences_ = {s: f.log_evidence_ for s, f in zip(STRUCTURES, fits, strict=True)}
        self._warn()
        return self

    def _copy(self, structure):
        return BayesianKDE(
            structure,
            prior_shape=self.prior_shape,
            prior_rate=self.prior_rate,
            max_sweeps=self.max_sweeps,
            random_state=self.random_state,
        )

    def _rates(self, x):
        d = x.shape[1]
        rate = _PRIOR_RATE * x.var(axis=0) if self.prior_rate is None else np.broadcast_to(self.prior_rate, d)
        rate = np.array(rate, dtype=float)
        if not (np.isfinite(rate).all() and (rate > 0).all()):
            raise ValueError(f"prior_rate must be positive, got {self.prior_rate!r}.")
        return rate

    def _fit_one(self, x, rate, structure, warn=True):
        n, d = x.shape
        self.structure_, self.centres_ = structure, x
        self._prior = _make_prior(structure, d, rate, self.prior_shape)
        self._sites = _empty_sites(self._prior, n)
        self._start_at_rule_of_thumb(x)
        self._run(x, np.arange(n), x, self._sites, None, n - 1.0)
        if warn:
            self._warn()
        return self

    def _start_at_rule_of_thumb(self, x):
        """Share out among the sites a law around Silverman's rule, with half a degree of freedom a point."""
        n, d = x.shape
        precision = 1.0 / ((4.0 / ((d + 2.0) * n)) ** (2.0 / (d + 4.0)) * x.var(axis=0))
        law, sites = self._prior, self._sites
        if isinstance(law, WishartPosterior):
            added = 0.5
            sites.exponents[:] = added
            wanted = (law.dof + n * added) / precision
            sites.scales[:] = np.diag(np.maximum(wanted - np.diag(law.inverse_scale), 1e-3 * wanted)) / n
            self.posterior_ = WishartPosterior(law.dof + n * added, law.inverse_scale + sites.scales.sum(axis=0))
        else:
            common = np.array([precision[law.groups == k].mean() for k in range(len(law.shape))])
            sites.exponents[:] = 0.25 * np.bincount(law.groups)
            shape = law.shape + sites.exponents.sum(axis=0)
            wanted = shape / common
            sites.scales[:] = np.maximum(wanted - law.rate, 1e-3 * wanted) / n
            self.posterior_ = GammaPosterior(shape, law.rate + sites.scales.sum(axis=0), law.groups)

    def _run(self, points, own, centres, sites, old, num_centres, fixed_log=0.0):
        """Sweep until degrees of freedom and log evidence stand still; ``sites`` are those of the points."""
        self.num_repairs_, self.converged_ = 0, False
        evidence, size = -math.inf, -math.inf
        for sweep in range(self.max_sweeps):
            damping = 1.0 if sweep < _DAMPED_AFTER else 0.5
            repairs = self._sweep(points, own, centres, sites, old, num_centres, damping)
            self.num_repairs_ += repairs
            self.num_sweeps_ = sweep + 1
            now = np.sum(
                self.posterior_.dof if isinstance(self.posterior_, WishartPosterior) else self.posterior_.shape
            )
            new_evidence = self._evidence(sites, fixed_log)
            if abs(now - size) < _TOLERANCE and abs(new_evidence - evidence) < _TOLERANCE:
                self.converged_ = True
                break
            evidence, size = new_evidence, now
        self._last_repairs = repairs / len(points)
        # Constants of the sites at one and the same posterior.
        self._sweep(points, own, centres, sites, old, num_centres, 0.0)
        self.log_evidence_ = self._evidence(sites, fixed_log)
        self.precision_ = self.posterior_.mean()
        self.bandwidth_ = np.linalg.inv(self.precision_)

    def _sweep(self, points, own, centres, sites, old, num_centres, damping):
        old = _no_sites(self._prior) if old is None else old
        law = self.posterior_
        if isinstance(law, WishartPosterior):
            scale = law.inverse_scale.copy()
            dof, repairs = wishart_sweep(
                points, own, centres, *sites, law.dof, scale, *old, float(num_centres), float(damping)
            )
            self.posterior_ = WishartPosterior(float(dof), scale)
            return repairs
        shape, rate = law.shape.copy(), law.rate.copy()
        repairs = gamma_sweep(
            points, own, centres, law.groups, np.bincount(law.groups).astype(float), *sites, shape, rate, *old,
            float(num_centres), float(damping),
        )  # fmt: skip
        self.posterior_ = GammaPosterior(shape, rate, law.groups)
        return repairs

    def _evidence(self, sites, fixed_log):
        return _log_constant(self.posterior_) - _log_constant(self._prior) + float(sites.constants.sum()) + fixed_log

    def _warn(self):
        if not self.converged_:
            warnings.warn(
                f"expectation propagation has not converged in {self.num_sweeps_} sweeps: the posterior of the "
                f"bandwidth may not be unimodal. Give a simpler structure than {self.structure_!r}, more data, or more "
                "max_sweeps.",
                stacklevel=4,
            )
        elif self._last_repairs > _MANY_REPAIRS:
            warnings.warn(
                f"{100 * self._last_repairs:.0f} % of the sites could not be updated: one unimodal law does not fit "
                f"the posterior of the bandwidth. Give a simpler structure than {self.structure_!r}, or more data.",
                stacklevel=4,
            )

    @one_blas_thread
    def partial_fit(self, Y) -> "BayesianKDE":
        """Learn from further data (m, d), without looking at pairs of earlier points again; returns self.

        First the sites of the earlier points take in the new centres, then the new points get sites of their own,
        O((n + m) m d^2) a sweep. The spread of the posterior is a little too small for it. The prior and the structure
        stay those of the first fit.
        """
        if not hasattr(self, "posterior_"):
            return self.fit(Y)
        y = _checked(Y, least=1)
        if y.shape[1] != self.centres_.shape[1]:
            raise ValueError(f"further data have {y.shape[1]} dimensions, the first had {self.centres_.shape[1]}.")
        both = np.concatenate([self.centres_, y])
        y = _without_ties(both, np.random.default_rng(self.random_state))[len(self.centres_) :]
        n, m = len(self.centres_), len(y)
        total = n + m - 1.0
        old = _Sites(*(a.copy() for a in self._sites))
        old.constants[:] += math.log(n - 1.0)
        self._run(self.centres_, np.full(n, -1), y, self._sites, old, total)
        new = _empty_sites(self._prior, m)
        fixed = float(self._sites.constants.sum())
        centres = np.concatenate([self.centres_, y])
        self._run(y, np.arange(n, n + m), centres, new, None, total, fixed)
        self._sites = _Sites(*(np.concatenate([a, b]) for a, b in zip(self._sites, new, strict=True)))
        self.centres_ = centres
        self._warn()
        return self

    # -- what the fit says ----------------------------------------------------------------------------------

    @one_blas_thread
    def log_density(self, x, *, averaged: bool = False) -> np.ndarray:
        """Return the log density at ``x`` (m, d), shape (m,), O(n m d) in compiled code.

        Parameters
        ----------
        averaged : bool
            Over the posterior, which is a mixture of Student t in closed form; at the mean precision otherwise.
        """
        x = self._places(x)
        if not averaged:
            return _normal_mixture(x, self.centres_, self.precision_)
        return _student_mixture(x, self.centres_, self.posterior_)

    def sample_precision(self, size: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return draws of the precision from the posterior, (size, d, d)."""
        self._check_fitted()
        return self.posterior_.sample(np.random.default_rng() if rng is None else rng, size)

    @one_blas_thread
    def interval(self, x, probability: float = 0.9, *, size: int = 200, rng=None) -> np.ndarray:
        """Return the band of the density at ``x`` (m, d) under the posterior of the bandwidth, shape (2, m).

        Quantiles over ``size`` draws of the precision. It says how sure the bandwidth is, not how sure the density is.
        """
        if not 0.0 < probability < 1.0:
            raise ValueError(f"probability must lie between 0 and 1, got {probability!r}.")
        x = self._places(x)
        rng = np.random.default_rng(0) if rng is None else rng
        levels = [_normal_mixture(x, self.centres_, p) for p in self.sample_precision(size, rng)]
        return np.exp(np.quantile(levels, [0.5 - 0.5 * probability, 0.5 + 0.5 * probability], axis=0))

    @one_blas_thread
    def sample(self, size: int, rng: np.random.Generator | None = None) -> np.ndarray:
        """Return draws from the estimated density at the mean precision, (size, d)."""
        self._check_fitted()
        rng = np.random.default_rng() if rng is None else rng
        root = np.linalg.cholesky(self.bandwidth_)
        chosen = rng.integers(len(self.centres_), size=size)
        return self.centres_[chosen] + rng.standard_normal((size, len(root))) @ root.T

    @one_blas_thread
    def bayes_factor(self, other: "BayesianKDE") -> float:
        """Return the evidence of this fit over that of another one of the same data; above 3 is taken as a preference.

        Raises
        ------
        ValueError
            Where the fits are of different data.
        """
        self._check_fitted()
        other._check_fitted()
        if not np.array_equal(self.centres_, other.centres_):
            raise ValueError("the two fits are of different data, so their evidences cannot be compared.")
        return float(np.exp(min(self.log_evidence_ - other.log_evidence_, 700.0)))

    def _check_fitted(self):
        if not hasattr(self, "posterior_"):
            raise ValueError("this BayesianKDE has not been fitted yet: call fit(X) first.")

    def _places(self, x):
        self._check_fitted()
        x = np.asarray(x, dtype=float)
        x = as_points(x[:, None] if x.ndim == 1 and self.centres_.shape[1] == 1 else x)
        if x.shape[1] != self.centres_.shape[1]:
            raise ValueError(f"x has {x.shape[1]} dimensions, the data {self.centres_.shape[1]}.")
        return np.ascontiguousarray(x)


class _Sites(NamedTuple):
    exponents: np.ndarray  # (m,) or (m, g)
    scales: np.ndarray  # (m, d, d) or (m, g)
    constants: np.ndarray  # (m,)


def _empty_sites(law, size) -> _Sites:
    if isinstance(law, WishartPosterior):
        return _Sites(np.zeros(size), np.zeros((size, *law.inverse_scale.shape)), np.zeros(size))
    return _Sites(np.zeros((size, len(law.shape))), np.zeros((size, len(law.shape))), np.zeros(size))


def _no_sites(law) -> _Sites:
    return _empty_sites(law, 0)


def _make_prior(structure, num_dims, rate, prior_shape):
    if structure == "full":
        dof = num_dims + 1.0 if prior_shape is None else float(prior_shape)
        if dof <= num_dims - 1:
            raise ValueError(f"prior_shape must be above d - 1 = {num_dims - 1} for a full precision, got {dof}.")
        return WishartPosterior(dof, np.diag(2.0 * rate))
    shape = 1.0 if prior_shape is None else float(prior_shape)
    if structure == "diagonal":
        return GammaPosterior(np.full(num_dims, shape), rate, np.arange(num_dims))
    return GammaPosterior(np.array([shape]), np.array([rate.mean()]), np.zeros(num_dims, dtype=np.int64))


def _log_constant(law) -> float:
    if isinstance(law, WishartPosterior):
        d = len(law.inverse_scale)
        return float(log_wishart_constant(law.dof, np.linalg.slogdet(law.inverse_scale)[1], d))
    return float(sum(log_gamma_constant(a, b) for a, b in zip(law.shape, law.rate, strict=True)))


def _checked(X, least=None):
    """Return data as (n, d), or raise."""
    x = np.asarray(X, dtype=float)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or x.shape[1] == 0:
        raise ValueError(f"data must have shape (n, d) or (n,), got {np.shape(X)}.")
    bad = int((~np.isfinite(x)).any(axis=1).sum())
    if bad:
        raise ValueError(f"{bad} of {len(x)} points are not finite; leave them out.")
    n, d = x.shape
    least_points = d + 2 if least is None else least
    if n < least_points:
        raise ValueError(f"{n} points in {d} dimensions are too few: a bandwidth needs at least {least_points}.")
    if least is None:
        constant = np.flatnonzero(np.ptp(x, axis=0) == 0.0)
        if constant.size:
            raise ValueError(f"columns {constant.tolist()} are constant: a density over them does not exist.")
    return x


def _without_ties(x, rng):
    """Return the data with uniform noise on rows that coincide, where there are some.

    With a tie the leave-one-out likelihood grows without bound as the bandwidth goes to zero (Zychaluk and Patil 2008).
    Rounded data get noise of their resolution, the least gap between values of a column; continuous data of which some
    repeat get noise as wide as the rule of thumb's bandwidth: a smaller one would pull the bandwidth down with it.
    """
    _, first, inverse = np.unique(x, axis=0, return_index=True, return_inverse=True)
    tied = len(x) - len(first)
    if tied == 0:
        return x
    n, d = x.shape
    thumb = (4.0 / ((d + 2.0) * n)) ** (1.0 / (d + 4.0)) * x.std(axis=0)
    rows = np.bincount(inverse.ravel())[inverse.ravel()] > 1
    x = x.copy()
    widths = []
    for k in range(d):
        values = np.unique(x[:, k])
        gaps = np.diff(values)
        # Values on a grid: every gap is a whole number of the least one.
        on_grid = (
            gaps.size > 0 and len(values) < n and np.allclose(gaps / gaps.min(), np.rint(gaps / gaps.min()), atol=0.01)
        )
        widths.append(gaps.min() if on_grid and gaps.min() > 1e-6 * thumb[k] else 2.0 * thumb[k])
        x[rows, k] += widths[-1] * (rng.random(int(rows.sum())) - 0.5)
    told = ", ".join(f"{w:.2g}" for w in widths)
    warnings.warn(
        f"{tied} of {n} points repeat an earlier one; uniform noise of the widths {told} is added to all rows that are "
        "tied, as their likelihood has no bound otherwise.",
        stacklevel=4,
    )
    return x


def _normal_mixture(x, centres, precision):
    """Return log of the mean normal density around the centres, (m,)."""
    root = np.linalg.cholesky(precision)
    d = len(precision)
    constant = np.log(np.diag(root)).sum() - 0.5 * d * math.log(2.0 * math.pi)
    return constant + _log_mean_kernel(x @ root, centres @ root, 0.0)


def _student_mixture(x, centres, law):
    """Return log of the mean of N(x | x_r, L^-1) over the posterior of L and the centres, (m,)."""
    d = x.shape[1]
    if isinstance(law, WishartPosterior):
        root = np.linalg.cholesky(np.linalg.inv(law.inverse_scale))
        constant = gammaln(0.5 * (law.dof + 1.0)) - gammaln(0.5 * (law.dof + 1.0 - d)) - 0.5 * d * math.log(math.pi)
        constant += np.log(np.diag(root)).sum()
        return constant + _log_mean_kernel(x @ root, centres @ root, law.dof + 1.0)
    if len(law.shape) == 1:
        a, b = law.shape[0], law.rate[0]
        constant = gammaln(a + 0.5 * d) - gammaln(a) - 0.5 * d * math.log(2.0 * math.pi * b)
        unit = 1.0 / math.sqrt(2.0 * b)
        return constant + _log_mean_kernel(x * unit, centres * unit, 2.0 * a + d)
    # Independent coordinates: a product of Student t, a block of rows at a time.
    out = np.empty(len(x))
    constant = (gammaln(law.shape + 0.5) - gammaln(law.shape) - 0.5 * np.log(2.0 * math.pi * law.rate)).sum()
    block = max(1, 2**22 // (len(centres) * d))
    for start in range(0, len(x), block):
        squared = (x[start : start + block, None] - centres) ** 2 / (2.0 * law.rate)
        logs = -((law.shape + 0.5) * np.log1p(squared)).sum(axis=2)
        out[start : start + block] = logsumexp(logs, axis=1) - math.log(len(centres))
    return constant + out


def _log_mean_kernel(x, centres, power):
    """Return log of the mean over centres of exp(-s / 2), or of (1 + s)^(-power / 2), s the squared distance; (m,)."""
    x, centres = np.ascontiguousarray(x), np.ascontiguousarray(centres)
    out = np.empty(len(x))

    def block(start, stop):
        _kernel_rows(x, centres, power, out, start, stop)

    over_row_blocks(block, len(x), float(centres.size))
    return out


@numba.njit(cache=True, nogil=True, error_model="numpy")
def _kernel_rows(x, centres, power, out, start, stop):
    n, d = centres.shape
    logs = np.empty(n)
    for i in range(start, stop):
        largest = -np.inf
        for r in range(n):
            squared = 0.0
            for k in range(d):
                squared += (x[i, k] - centres[r, k]) ** 2
            logs[r] = -0.5 * squared if power == 0.0 else -0.5 * power * math.log(1.0 + squared)
            largest = max(largest, logs[r])
        total = 0.0
        for r in range(n):
            total += math.exp(logs[r] - largest)
        out[i] = largest + math.log(total / n)
