"""``pm.sample_smc`` with kernels of this package, adapters to ``pymc_kernel.smc``, and its statistics made tidy."""

from dataclasses import replace
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from pymc.smc.kernels import SMC_KERNEL

from pymc_kernel.kernels import Gaussian, Kernel
from pymc_kernel.mcmc import kameleon
from pymc_kernel.plugin.arguments import check_keywords, keywords_of
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import check_prior_draws, prior_expression, with_finite_columns
from pymc_kernel.plugin.reports.likelihood_checks import normality_of_posterior
from pymc_kernel.plugin.warn import report, report_checks
from pymc_kernel.smc import moves, tempering
from pymc_kernel.smc.moves import Hamiltonian

_STATS = tempering.Info._fields[1:]  # PyMC has the inverse temperature
_HANDED_OVER = {"self", "args", "kwargs", "kernel_kwargs", "moves", "var_info"}  # not arguments of the user
# R-hat of populations above which to warn: PyMC's own limit. Each is then worth about fifty independent draws.
_LARGEST_RHAT = 1.01


class ParticleKernel(SMC_KERNEL):
    """Base class of all kernels; a subclass builds its ``moves``.

    PyMC's own evaluation, one particle and one function at a time, is replaced by one vectorized call.
    """

    stats_dtypes_shapes = SMC_KERNEL.stats_dtypes_shapes | dict.fromkeys(_STATS, (float, []))

    def __init__(
        self, moves, *, threshold=0.5, schedule=None, min_moves=4, max_moves=None, correlation=0.2,
        importance=True, executor=None, compile_kwargs=None, **kwargs,
    ):  # fmt: skip
        config = tempering.Config(moves, threshold, schedule, min_moves, max_moves, correlation, importance=importance)
        model = pm.modelcontext(kwargs.get("model"))
        # A model that cannot be sampled is refused here, before PyMC compiles it, too.
        self.evaluate = compile_particle_density(model, type(self).__name__, compile_kwargs, executor)
        is_noisy = self.evaluate.estimated and isinstance(moves, Hamiltonian)
        self.config = replace(config, moves=replace(moves, noisy=True)) if is_noisy else config
        # PyMC's own functions are never called.
        super().__init__(threshold=threshold, compile_kwargs={"mode": "FAST_COMPILE"}, **kwargs)
        if not self.start:
            check_prior_draws(
                model,
                "Particles begin at draws of the prior, and the evidence is relative to it: give it a proper one, or "
                "take pk.sample_khmc.",
            )
        # Where a variable has an initval, PyMC would put all particles there.
        self._prior_expression = prior_expression(model)
        num_dims = sum(size for _, size in self.var_info.values())
        if self.draws < 2 * num_dims + 2:
            raise ValueError(
                f"{self.draws} particles are too few for {num_dims} parameters: their "
                "covariance has no inverse. Take draws= at least twice as many as parameters, better some hundred."
            )

    def set_rng(self, rng):  # noqa: D102
        self.rng = rng
        self.evaluate.seed(rng)

    def _initialize_kernel(self):
        if self.start:
            self._check_start()
        drawn = self.start or self.initialize_population()
        columns = [np.reshape(drawn[name], (self.draws, -1)) for name in self.var_info]
        positions = np.concatenate(columns, axis=1).astype(float)
        if not self.start:
            positions = with_finite_columns(positions, self.rng)
        self._state = tempering.init(moves.Evaluated(positions, *self.evaluate(positions)))

    def _check_start(self):
        """Raise where a dictionary of value variables does not hold all particles."""
        for name, (shape, _) in self.var_info.items():
            if name not in self.start:
                needed = ", ".join(self.var_info)
                raise ValueError(f"start has no {name}; it needs {needed}, on the unconstrained scale.")
            given = np.shape(self.start[name])
            if given != (self.draws, *shape):
                raise ValueError(f"start[{name!r}] must have shape {(self.draws, *shape)}, got {given}.")

    def update_beta_and_weights(self):
        """Choose the next inverse temperature and weight all states of the last stage by it."""
        self._chosen = tempering.choose_temperature(self._state, self.config)
        self.beta, self.weights, _ = self._chosen

    def resample(self):
        """Do nothing: :meth:`mutate` resamples, with ancestors from all states of the last stage."""

    def mutate(self):
        """Resample and move the particles."""
        self._state, self._info = tempering.rejuvenate(self.rng, self._state, self.evaluate, self._chosen, self.config)
        if self.beta == 1.0:
            self._state, self._info = tempering.finish(self.rng, self._state, self._info, self.evaluate, self.config)
        self.log_marginal_likelihood = self._state.log_evidence
        self.tempered_posterior = self._state.particles.positions

    def sample_stats(self):
        """Return what the stage reports."""
        return {
            "log_marginal_likelihood": self.log_marginal_likelihood if self.beta == 1 else np.nan,
            "beta": self.beta,
            **{name: float(getattr(self._info, name)) for name in _STATS},
        }

    def sample_settings(self):
        """Return the settings, for the attributes of the result."""
        settings = {"_n_draws": self.draws, "threshold": self.config.threshold, "smc_kernel": type(self).__name__}
        return settings | {"surrogate": int(isinstance(self.config.moves, Hamiltonian))}


class ASMC(ParticleKernel):
    """Random-walk moves along the covariance of the particles for ``pm.sample_smc`` (Fearnhead and Taylor 2013).

    Each quarter of the particles moves along the covariance of the others: along their own covariance, few particles
    would contract, and the evidence would be too large.

    Parameters
    ----------
    learn_covariance, learn_scale : bool
        What is adapted. With both False this is plain Metropolis with covariance nu^2 I on the unconstrained scale.
    scale : float, optional
        nu at the start; 2.38 / sqrt(d) by default, then learned from the mean acceptance.
    target_accept : float
    learning_rate : float, optional
        Size of the Robbins-Monro steps on log nu, one for each move of all particles; t^-1/2 by default.
    kwargs
        As in :class:`KernelHMCSMC`.
    """

    def __init__(
        self,
        *,
        learn_covariance: bool = True,
        scale: float | None = None,
        learn_scale: bool = True,
        target_accept: float = 0.234,
        learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        walk = moves.Walk(learn_covariance, learn_scale, scale, target_accept, learning_rate)
        super().__init__(walk, **kwargs)


class KASMC(ParticleKernel):
    """Kernel adaptive moves for ``pm.sample_smc``: the local covariance of Kameleon at every particle.

    Strathmann 2018, section 5.2.1. Adaptation never has to stop: each stage learns from the particles of the last one.
    Each quarter of the particles moves by what was learned from the others; otherwise, with few particles, the evidence
    would be too large.

    Parameters
    ----------
    proposal_kernel : pymc_kernel.kernels.Kernel, optional
        Gaussian with the median heuristic by default.
    num_basis : int
        m, the particles that shape the proposals. A pass over n particles costs O(n m d^2), on all cores.
    isotropic_share, gamma, scale, target_accept
        As in :class:`KAMH`.
    whiten : bool
        Whether the kernel acts in coordinates in which the particles have unit covariance.
    learning_rate : float, optional
        As in :class:`ASMC`.
    kwargs
        As in :class:`KernelHMCSMC`.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     pm.Normal("y", x[0] ** 2 + x[1], 0.1, observed=1.0)
    ...     idata = pm.sample_smc(kernel=pk.KASMC, progressbar=False)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        proposal_kernel: Kernel | None = None,
        num_basis: int = 1000,
        isotropic_share: float = 0.5,
        gamma: float | None = None,
        scale: float | None = None,
        target_accept: float = 0.234,
        whiten: bool = True,
        learning_rate: float | None = None,
        **kwargs: Any,
    ) -> None:
        kernel = Gaussian("median") if proposal_kernel is None else proposal_kernel
        config = kameleon.Config(kernel, num_basis, isotropic_share, gamma, scale, True, target_accept, whiten)
        super().__init__(moves.Kameleon(config, learning_rate), **kwargs)


class KernelHMCSMC(ParticleKernel):
    """Hamiltonian moves along a learned surrogate for ``pm.sample_smc``: the fewest evaluations of the likelihood.

    At each temperature the surrogate is refitted to all evaluations so far, of prior and likelihood separately; a move
    is a chain of trajectories on it and costs one evaluation.

    Parameters
    ----------
    surrogate : str or estimator
        ``"values"``, regression on the log densities evaluated; or an estimator of ``pymc_kernel.scores`` that
        matches scores, which learns from the particles alone.
    exploring_share : float
        Share of random-walk moves, in (0, 1].
    max_steps : int
        Leapfrog steps of a trajectory, at most. Steps cost microseconds and no evaluation.
    threshold : float
        Effective share of the particles after a temperature step, in (0, 1); larger means more stages.
    schedule : sequence of float, optional
        Fixed inverse temperatures instead, increasing to 1.
    min_moves, max_moves : int
        Fewest and most moves of every particle at a temperature, one evaluation each. By default at most three per
        dimension, or twenty if that is more.
    correlation : float
        The moves of a stage end when no coordinate has a larger correlation with its value at the start of the stage.
    importance : bool
        Whether importance sampling follows the last stage, see :func:`sample_smc`.
    executor : concurrent.futures.Executor, optional
        Processes that evaluate batches of particles, for expensive likelihoods (threads would take turns). Used with
        ``cores=1`` only: chains in separate processes evaluate there.
    kwargs
        From ``pm.sample_smc``.

    Notes
    -----
    With an estimated likelihood the estimate of every particle is kept, and the evidence stays unbiased except for the
    adaptation, whose bias was too small to measure (``benchmarks.evidence_bias``). Surrogates take tenths of a second
    per stage with 1,000 particles: for likelihoods that take microseconds use :class:`KASMC` or :class:`ASMC`. What
    :func:`sample_smc` says of narrow modes holds here, too.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     pm.Normal("y", x[0] ** 2 + x[1], 0.1, observed=1.0)
    ...     idata = pm.sample_smc(1000, kernel=pk.KernelHMCSMC, progressbar=False)  # doctest: +SKIP
    """

    def __init__(
        self, *, surrogate: Any = "values", exploring_share: float = 0.1, max_steps: int = 30, **kwargs: Any
    ) -> None:
        settings = {} if surrogate == "values" else {"surrogate": surrogate}
        proposal = Hamiltonian(exploring_share=exploring_share, max_steps=max_steps, **settings)
        super().__init__(proposal, **kwargs)


def sample_smc(draws: int = 2000, kernel: type = KernelHMCSMC, **kwargs: Any) -> xr.DataTree:
    """Return the result of ``pm.sample_smc`` with a tidy group of statistics that can be saved.

    Parameters
    ----------
    draws : int
        Particles.
    kernel : type
        One of ours: ``KernelHMCSMC``, ``KASMC``, ``ASMC``.
    kwargs
        For ``pm.sample_smc`` and the kernel.

    Returns
    -------
    DataTree
        As from ``pm.sample_smc``, with ``smc_stats`` in place of its ragged ``sample_stats``: each statistic has the
        dimensions ``chain`` and ``stage``, filled with NaN after a chain's last stage; ``log_evidence`` has the
        dimension ``chain``. For a :class:`KernelABC` block named ``y``, ``epsilon_y`` has the bandwidths at each stage:
        a Gaussian kernel to the power b has a bandwidth 1 / sqrt(b) times as large.

    Notes
    -----
    After the last stage as many draws as it had evaluations come from mixtures fitted to the particles. If they, with
    importance weights, are worth as many independent ones as there are particles (``importance_ess`` of that stage),
    they take their place, and the mean weight is the evidence.

    An interrupt ends it without a result, as in ``pm.sample_smc``: particles before the last stage are not posterior
    draws. It warns if summaries that :class:`SyntheticLikelihood` assumes normal are not, by up to 1,000 new estimates
    at the draws.

    No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is unlikely in five or
    more dimensions: the evidence then lacks the mode's mass, no check shows it, and runs that agree do not rule it out.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    ...     y = pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_smc(500, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> idata["smc_stats"]["log_evidence"].sizes["chain"]
    2
    """
    if not (isinstance(kernel, type) and issubclass(kernel, ParticleKernel)):
        raise TypeError(f"kernel must be one of pk.KernelHMCSMC, pk.KASMC, pk.ASMC, got {kernel!r}.")
    own = set().union(*(keywords_of(c.__init__) for c in kernel.__mro__ if c is not object))
    advice = "It takes the arguments of pm.sample_smc and those of its kernel, see help(pk.KernelHMCSMC)."
    known = (keywords_of(pm.sample_smc) | own) - _HANDED_OVER
    check_keywords("sample_smc()", kwargs, known, advice)
    if not kwargs.get("return_inferencedata", True):
        raise ValueError(
            f"sample_smc returns a DataTree: leave return_inferencedata out, or take pm.sample_smc(kernel=pk."
            f"{kernel.__name__}, return_inferencedata=False)."
        )
    idata = _tidied(pm.sample_smc(draws, kernel=kernel, **kwargs))
    model = pm.modelcontext(kwargs.get("model"))
    _warn(idata["posterior"].to_dataset()[[v.name for v in model.free_RVs]], idata["smc_stats"])
    posterior, rng = idata["posterior"].to_dataset(), np.random.default_rng(0)
    report_checks("sample_smc", idata["smc_stats"], lambda: normality_of_posterior(model, posterior, rng))
    return idata


def _tidied(idata):
    """Return a result of ``pm.sample_smc`` with a group ``smc_stats``, which can be saved.

    PyMC stores one list per chain, with one entry per stage, which neither netCDF nor zarr can save.
    """
    stats, chains = idata["sample_stats"], idata["posterior"]["chain"].values
    # PyMC packs one vector per chain into an object array, but the vector of a single chain into a plain one.
    columns = {name: stats[name].values.reshape(1, -1) if len(chains) == 1 else stats[name].values for name in stats}
    tables = {c: pd.DataFrame({name: of[i] for name, of in columns.items()}, dtype=float) for i, c in enumerate(chains)}
    tidy = pd.concat(tables, names=["chain", "stage"]).to_xarray().rename(beta="inverse_temperature")
    tidy["log_evidence"] = tidy["log_marginal_likelihood"].max("stage")  # NaN before the last stage
    tidy["num_stages"] = tidy["inverse_temperature"].count("stage")
    settings = {name: value for name, value in stats.attrs.items() if value is not None}
    for name in idata.children.get("observed_data", ()):
        if f"{name}_epsilon" in idata.children.get("constant_data", ()):
            final = idata["constant_data"][f"{name}_epsilon"].values
            final = final if final.ndim == 1 else np.sqrt(np.diag(final))
            widths = final / np.sqrt(tidy["inverse_temperature"].values[:, :, None])
            tidy[f"epsilon_{name}"] = (("chain", "stage", f"{name}_summary"), widths)
    tidy = tidy.drop_vars("log_marginal_likelihood").assign_attrs(settings)
    groups = {name: node.to_dataset() for name, node in idata.children.items() if name != "sample_stats"}
    return xr.DataTree.from_dict({**groups, "smc_stats": tidy})


def _warn(posterior, stats):
    rhat = float(az.rhat(posterior).max().to_array().max()) if posterior.sizes["chain"] > 1 else 1.0
    if rhat > _LARGEST_RHAT:
        correlation = float(stats["correlation"].max())
        report(
            f"Populations of particles do not agree (R-hat {rhat:.2f}; at one stage the correlation with positions at "
            f"its start was still {correlation:.2f}): raise max_moves, or take KernelHMCSMC or another "
            "parametrization.",
            stats,
        )
