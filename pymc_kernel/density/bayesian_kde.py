"""Gaussian kernel density estimation with a posterior over the bandwidth."""

import math
from dataclasses import dataclass, replace

import numpy as np

from pymc_kernel.density.fitted_kde import FittedKDE, without_ties
from pymc_kernel.density.propagation import STRUCTURES, Likelihood, precision_prior, propagate, start_at_rule_of_thumb
from pymc_kernel.kernels.points import as_points, check_between, check_whole
from pymc_kernel.parallel import one_blas_thread

_PRIOR_RATE = 0.1  # of a gamma distribution with shape 1, for data of unit variance


@dataclass(frozen=True)
class BayesianKDE:
    """Kernel density estimate whose bandwidth has a posterior, by expectation propagation.

    The estimate is the mean of normal densities N(x | x_r, L^-1) around the data, L a precision with a Wishart prior
    (full) or gamma priors (diagonal, isotropic). The likelihood is leave-one-out, each point under the kernels at all
    others; the posterior is approximated within the family of the prior, and the evidence tells which structure fits
    (Filippone and Sanguinetti 2011). A sweep costs O(n^2 d^2) (full) or O(n^2 d); memory O(n d^2) or O(n d). About ten
    sweeps are needed. The approximation is unimodal: if many updates have to be skipped (few data in many dimensions),
    the fit warns and the evidence favors a simpler structure.

    Parameters
    ----------
    structure : {"auto", "full", "diagonal", "isotropic"}
        ``"auto"`` fits all three and keeps the one with the largest evidence.
    prior_shape : float, optional
        Degrees of freedom of the Wishart prior, d + 1 by default, or shape of the gamma priors, 1 by default.
    prior_rate : float or array_like (d,), optional
        Rates of the gamma priors, in squared units of the data; the inverse scale of the Wishart prior has twice these
        on its diagonal. By default a tenth of the variances: a flat and proper prior in any units.
    max_sweeps : int

    Examples
    --------
    >>> import numpy as np
    >>> from pymc_kernel.density import BayesianKDE
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> BayesianKDE().fit(x).structure
    'isotropic'
    """

    structure: str = "auto"
    prior_shape: float | None = None
    prior_rate: float | np.ndarray | None = None
    max_sweeps: int = 100

    def __post_init__(self):
        if self.structure not in (*STRUCTURES, "auto"):
            raise ValueError(f'structure must be "auto", {", ".join(map(repr, STRUCTURES))}, got {self.structure!r}.')
        check_between("prior_shape", high=np.inf, prior_shape=self.prior_shape)
        if self.prior_shape is not None and self.structure == "auto":
            raise ValueError('prior_shape has a different meaning for each structure: name one instead of "auto".')
        check_whole(max_sweeps=self.max_sweeps)

    @one_blas_thread
    def fit(self, x, *, rng=None) -> FittedKDE:
        """Return the estimate from data ``x`` (n, d) or (n,); ``rng``, or a seed, draws the noise that breaks ties.

        Raises ``ValueError`` for fewer than d + 2 points, constant columns, or numbers that are not finite. Warns of
        ties, which are broken by noise (of the data's resolution, or of the rule of thumb's width), and if the fit has
        not converged or had to skip many updates.
        """
        x = as_points(x, "data")
        n, d = x.shape
        if n < d + 2:
            raise ValueError(f"{n} points in {d} dimensions are too few: a bandwidth needs at least {d + 2}.")
        constant = np.flatnonzero(np.ptp(x, axis=0) == 0.0)
        if constant.size:
            raise ValueError(f"columns {constant.tolist()} are constant: a density over them does not exist.")
        x = without_ties(x, np.random.default_rng(rng))
        rate = _PRIOR_RATE * x.var(axis=0) if self.prior_rate is None else self.prior_rate
        rate = np.broadcast_to(rate, d).astype(float)
        if not (np.isfinite(rate).all() and (rate > 0).all()):
            raise ValueError(f"prior_rate must be positive, got {self.prior_rate!r}.")
        fits, likelihood = [], Likelihood(x, np.arange(n), x, n - 1.0)
        for structure in STRUCTURES if self.structure == "auto" else (self.structure,):
            prior = precision_prior(structure, rate, self.prior_shape)
            posterior, sites = start_at_rule_of_thumb(prior, x)
            found = propagate(prior, posterior, sites, likelihood, self.max_sweeps)
            fits.append(FittedKDE(structure, prior, x, found, self.max_sweeps, {structure: found.log_evidence}))
        best = max(fits, key=lambda fit: fit.log_evidence if fit.propagation.converged else -math.inf)
        best.propagation.warn(best.structure)
        return replace(best, log_evidences={fit.structure: fit.log_evidence for fit in fits})
