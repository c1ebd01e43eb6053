"""Model blocks for simulators: approximate Bayesian computation with kernels, and synthetic likelihoods.

The estimates are computed in ``likelihood_free``; here a simulator becomes an observed variable.
"""

import math
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt
import pymc as pm
from pytensor.tensor import TensorLike, TensorVariable

from pymc_kernel.likelihood_free import (
    failures_are_raised,
    log_kernel_abc,
    log_normal_unbiased,
    log_synthetic,
    simulate_repeatedly,
)
from pymc_kernel.linalg import definite_cholesky
from pymc_kernel.plugin.arguments import check_whole
from pymc_kernel.plugin.blocks.likelihoods import EstimatedLikelihood
from pymc_kernel.plugin.blocks.pilot import learned_bandwidth
from pymc_kernel.plugin.warn import warn_user

_CALLS_BEFORE_WARNING = 100  # of the simulator: enough to know the share of failures to 5 %


def _block(function, params, observed, kwargs):
    if "random" in kwargs or "logp" in kwargs:
        raise ValueError("logp and random come from the simulator; leave them out.")

    def draw(rng, *params, size):
        """Return one data set for predictive checks; NaN where the simulator fails."""
        if failures_are_raised():
            return function.one_data_set(rng, params, size)
        run = simulate_repeatedly(lambda: function.one_data_set(rng, params, size), None, 1)
        return run.summaries[0] if run.summaries else np.full(size, np.nan)

    variable = EstimatedLikelihood(function.name, function, *params, observed=observed, random=draw, **kwargs)
    pm.Data(f"{function.name}_num_simulations", function.num_simulations)
    return variable


def KernelABC(
    name: str,
    simulator: Callable,
    *params: TensorLike,
    observed: TensorLike,
    epsilon: npt.ArrayLike | None = None,
    summary: Callable | None = None,
    num_simulations: int = 10,
    num_pilot: int = 3000,
    log_variance: float = 1.5,
    random_seed: int = 0,
    max_failures: float = 0.1,
    vectorized: bool = False,
    **kwargs: Any,
) -> TensorVariable:
    """Add data that can only be simulated, compared through summaries under a Gaussian kernel.

    The posterior is that of summaries observed with normal noise of standard deviation ``epsilon``. The kernel's
    average over the simulations is an unbiased estimate of that likelihood, so the steps of this package and the
    kernels of ``pm.sample_smc`` sample exactly this posterior for any ``num_simulations``.

    Parameters
    ----------
    name : str
        Of the observed variable.
    simulator : callable
        ``simulator(rng, *params, size)`` returns a data set of shape ``size``, that of the data, with all its
        randomness from ``rng``. Errors, NaN and infinite numbers count as a likelihood of zero.
    *params : tensor_like
    observed : array_like
    epsilon : float or array_like (q,) or (q, q), optional
        Standard deviation of the kernel in units of the summaries, one for all or one each; or a covariance matrix. By
        default it is learned from pilot simulations near the posterior; see Notes.
    summary : callable, optional
        Data set -> vector; the data, flattened, by default.
    num_simulations : int
        For each evaluation.
    num_pilot : int
        Simulations that choose the bandwidth when the model is built, if ``epsilon`` is not given; the default costs as
        much as 300 evaluations with the default ``num_simulations``.
    log_variance : float
        Variance of the log estimate near the posterior that the chosen bandwidth may cause: 1 to 3 suits chains.
    random_seed : int
        Of the pilot simulations.
    max_failures : float
        Share of failed simulations above which a warning is given.
    vectorized : bool
        Whether ``simulator`` takes ``size=(n, *shape)`` and returns n data sets at once: one call per evaluation
        instead of ``num_simulations``.
    **kwargs
        ``reuse_noise``, as in :func:`EstimatedLikelihood` (common random numbers); further arguments of
        ``pymc.CustomDist``, such as ``dims``.

    Notes
    -----
    Predictive sampling draws the observed variable, which is returned, from the simulator.

    Without ``epsilon``, rounds of regression-adjusted rejection move from the prior to parameters whose simulations
    resemble the data. The bandwidth is chosen relative to the spread of the summaries there. Along combinations of
    summaries that depend on the parameters it is as narrow as ``num_simulations`` and ``log_variance`` allow, down to
    .3 of that spread, where posterior spreads are 4 % too wide; along all others it is three times the spread. A
    bandwidth above .75 of the spread gives a warning with the number of simulations that would be enough; so does a
    model that cannot produce the data. Chains begin at a pilot simulation if the estimate is higher there than at the
    initial point. The bandwidth fits one data set and prior: build the model again for others.

    ``constant_data`` of a result holds the bandwidth as ``<name>_epsilon``, in the form that ``epsilon=`` takes, and
    ``<name>_num_simulations``. ``sample_stats["accepted_share_<name>"]`` is, for the accepted estimate of each draw,
    the share of its simulations that a kernel scaled to a maximum of one accepts.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def simulator(rng, rate, size):
    ...     return rng.exponential(1.0 / rate, size)
    >>> with pm.Model():
    ...     rate = pm.LogNormal("rate", 0, 1)
    ...     y = pk.KernelABC("y", simulator, rate, observed=np.ones(20), summary=np.mean, epsilon=0.05)
    """
    function = _SimulatedLikelihood(name, simulator, summary, num_simulations, max_failures, vectorized)
    data = _values(observed)
    target = np.ravel(function.summarized(data))
    if epsilon is None:
        factor, starts = learned_bandwidth(function, params, data.shape, target, num_pilot, log_variance, random_seed)
    else:
        factor, starts = _bandwidth_factor(name, epsilon, len(target)), {}
    scales = factor if factor.ndim == 1 else np.diag(factor)
    log_peak = float(-np.log(scales).sum() - 0.5 * len(target) * np.log(2.0 * np.pi))

    function.estimate_by(lambda sims, target: log_kernel_abc(sims, target, factor, num_simulations), log_peak, starts)
    variable = _block(function, params, observed, kwargs)
    pm.Data(f"{name}_epsilon", factor if factor.ndim == 1 else factor @ factor.T)
    return variable


def _values(observed):
    return np.asarray(observed.eval() if hasattr(observed, "eval") else observed, dtype=float)


def _bandwidth_factor(name, epsilon, width):
    epsilon = np.asarray(epsilon, dtype=float)
    if epsilon.ndim == 2 and epsilon.shape == (width, width):
        factor = definite_cholesky(epsilon)
        if factor is None:
            raise ValueError(f"epsilon of {name!r} is no covariance matrix: it is not positive definite.")
        return factor
    if epsilon.shape not in ((), (width,)) or not (np.isfinite(epsilon).all() and (epsilon > 0).all()):
        raise ValueError(
            f"epsilon of {name!r} must be a positive number, {width} of them (one for each summary) or a covariance "
            f"matrix of that size, got shape {epsilon.shape}: {epsilon}."
        )
    return np.broadcast_to(epsilon, (width,)).copy()


def SyntheticLikelihood(
    name: str,
    simulator: Callable,
    *params: TensorLike,
    observed: TensorLike,
    summary: Callable | None = None,
    num_simulations: int = 50,
    unbiased: bool = True,
    shrinkage: float = 0.0,
    max_failures: float = 0.1,
    vectorized: bool = False,
    **kwargs: Any,
) -> TensorVariable:
    """Add data that can only be simulated, with summaries assumed normal (Wood 2010).

    Mean and covariance come from ``num_simulations`` data sets at each evaluation.

    Parameters
    ----------
    name, simulator, *params, observed, summary, max_failures, vectorized, **kwargs
        As in :func:`KernelABC`.
    num_simulations : int
        More than the number of summaries plus three; about ten times that keeps chains from getting stuck.
    unbiased : bool
        Use the unbiased estimate of a normal density (Price et al. 2018): for normal summaries the posterior does not
        depend on ``num_simulations``. If False, as ``shrinkage`` requires, use the plug-in estimate, which is biased.
    shrinkage : float
        In [0, 1): correlations are multiplied by 1 - shrinkage, for many summaries and few simulations.

    Notes
    -----
    Summaries far from normal make the posterior wrong. Steps of this package measure by how much, without further
    simulations: a kernel estimate of the likelihood from the simulations behind the draws reweights the draws. A
    warning gives errors of means, spreads and outer quantiles above .2 posterior standard deviations.
    :func:`sample_smc` and :func:`sample_pmc` do so by up to 1,000 new estimates, PyMC's own steps not at all; with
    ``shrinkage`` there is no such check. Transform the summaries, or use :func:`KernelABC`.

    The unbiased estimate is exactly zero where all simulations are far from the data, and no chain can begin there: if
    the middle of the prior is such a place, give ``initvals``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def simulator(rng, rate, size):
    ...     return rng.exponential(1.0 / rate, size)
    >>> def mean_of_logs(y):
    ...     return np.log(y).mean()
    >>> with pm.Model():
    ...     rate = pm.LogNormal("rate", 0, 1)
    ...     y = pk.SyntheticLikelihood("y", simulator, rate, observed=np.ones(20), summary=mean_of_logs)
    """
    function = _SimulatedLikelihood(name, simulator, summary, num_simulations, max_failures, vectorized)
    if not 0.0 <= shrinkage < 1.0:
        raise ValueError(f"shrinkage of {name!r} must be in [0, 1), got {shrinkage!r}.")
    if unbiased and shrinkage > 0.0:
        raise ValueError(f"{name!r}: the unbiased estimate cannot be shrunk; set unbiased=False.")
    width = np.ravel(function.summarized(_values(observed))).size
    if num_simulations <= width + 3 and shrinkage == 0.0:
        raise ValueError(
            f"{name!r} has {width} summaries and needs more than {width + 3} simulations, got {num_simulations}; or "
            "set unbiased=False and a shrinkage."
        )

    def estimate(simulated, target):
        value = log_normal_unbiased(simulated, target) if unbiased else log_synthetic(simulated, target, shrinkage)
        return value + np.log(max(len(simulated), 1) / num_simulations)

    function.estimate_by(estimate, assumes_normal=shrinkage == 0.0)
    return _block(function, params, observed, kwargs)


class _SimulatedLikelihood:
    """Estimates a likelihood: simulates, counts failures, and uses the simulations that succeeded."""

    def __init__(self, name, simulator, summary, num_simulations, max_failures, vectorized):
        for what, function in (("simulator", simulator), ("summary", summary)):
            if not (callable(function) or (what == "summary" and function is None)):
                raise TypeError(f"{what} of {name!r} must be a function, got {type(function).__name__}.")
        check_whole(**{f"num_simulations of {name!r}": num_simulations})
        if not 0.0 <= max_failures <= 1.0:
            raise ValueError(f"max_failures of {name!r} is a share and must be in [0, 1], got {max_failures!r}.")
        self.name, self.simulator, self.summary = name, simulator, summary
        self.num_simulations, self.max_failures = int(num_simulations), max_failures
        self.vectorized = bool(vectorized)
        # Simulations of one evaluation that may each have random numbers of their own.
        self.num_streams = 1 if vectorized else self.num_simulations
        self._calls = self._failures = 0
        self._warned = self._has_known_size = False
        self._last = math.nan, None  # see ``failed_share`` and ``simulated``

    def estimate_by(self, estimate, log_peak=None, starts=None, assumes_normal=False) -> None:
        """Set the function that estimates the log likelihood from summaries (m, q) of simulations and (q,) of the data.

        ``log_peak`` is the largest log value of a kernel; ``assumes_normal`` is of the summaries.
        """
        self._estimate, self._log_peak, self._starts = estimate, log_peak, starts or {}
        self.assumes_normal = assumes_normal

    def __call__(self, rng, *inputs):
        """Return the log of an estimate of the likelihood; the last input is the data."""
        *params, observed = inputs
        size = (self.num_simulations, *observed.shape) if self.vectorized else observed.shape
        sources = iter(rng) if isinstance(rng, list) else repeat(rng)
        summary, times = self.summary_of(observed.shape), self.num_simulations
        run = simulate_repeatedly(lambda: self.simulator(next(sources), *params, size), summary, times, self.vectorized)
        self._calls += self.num_simulations
        self._failures += run.failed
        self._warn(run.first_error)
        target = np.ravel(self.summarized(observed))
        simulated = np.reshape(run.summaries, (len(run.summaries), target.size))
        self._last = run.failed / self.num_simulations, (simulated, target) if self.assumes_normal else None
        return self._estimate(simulated, target)

    # Attributes that an evaluation changes are private: public ones identify the model, and stored simulations are
    # refused once they differ.
    @property
    def failed_share(self) -> float:
        """Share of the simulations of the last evaluation that failed."""
        return self._last[0]

    @property
    def simulated(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Summaries (m, q) of the last evaluation, and of the data (q,), where they are assumed normal."""
        return self._last[1]

    @property
    def starts(self) -> dict[str, np.ndarray]:
        """Where chains may begin: value variable's name -> draws (n, ...) of an approximate posterior, or nothing."""
        return self._starts

    def accepted_share(self, log_estimate: float) -> float | None:
        """Return the share of simulations that a kernel with values up to one accepts; None for blocks without one."""
        return None if self._log_peak is None else math.exp(log_estimate - self._log_peak)

    def summary_of(self, shape) -> Callable | None:
        """Return the summary function, which warns if the first simulated data set has another shape than the data."""

        def summarized(data):
            if not self._has_known_size:
                self._has_known_size = True
                if _sides(data.shape) != _sides(shape):
                    warn_user(
                        f"the simulator of {self.name!r} returned data of shape {data.shape} where {tuple(shape)} was "
                        "asked for: are its data sets as large as the observed one?"
                    )
            return self.summary(data)

        return None if self.summary is None else summarized

    def one_data_set(self, rng, params, shape):
        """Return one simulated data set; failures are raised."""
        size = (1, *shape) if self.vectorized else shape
        data = np.asarray(self.simulator(rng, *params, size), dtype=float)
        return data[0] if self.vectorized else data

    def summarized(self, data) -> np.ndarray:
        """Return the summary of a data set, the data themselves without one."""
        return np.asarray(data if self.summary is None else self.summary(data), dtype=float)

    def _warn(self, error):
        share = self._failures / self._calls
        if not self._warned and self._calls >= _CALLS_BEFORE_WARNING and share > self.max_failures:
            self._warned = True
            last = f" The first error was {type(error).__name__}: {error}" if error is not None else ""
            warn_user(
                f"{100 * share:.0f} % of the first {self._calls} simulations of {self.name!r} failed (errors, NaN or "
                f"infinite numbers); each counts as a likelihood of zero.{last}"
            )


def _sides(shape):
    """Return a shape without dimensions of length one: a column is as good as a row."""
    return [n for n in shape if n != 1]
