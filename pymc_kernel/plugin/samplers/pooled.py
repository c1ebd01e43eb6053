"""Kernel HMC with a surrogate that the chains of a run learn together: tuning here, sampling by ``pm.sample``."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.blocking import DictToArrayBijection
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import KnownPlaces
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.arguments import RandomSeed, check_keywords, check_whole, keywords_of
from pymc_kernel.plugin.emulation.emulate import learn, part_of
from pymc_kernel.plugin.emulation.exact_step import EmulatedNUTS
from pymc_kernel.plugin.emulation.search import POOR
from pymc_kernel.plugin.model.estimated import normal_blocks
from pymc_kernel.plugin.model.priors import STARTS_TRIED, initial_position
from pymc_kernel.plugin.model.unconstrained import unconstrained_draws
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.reports.likelihood_checks import normality_of_draws, normality_of_posterior
from pymc_kernel.plugin.samplers.chain_warnings import missing_mass_warning, open_end_warning, raised_warning
from pymc_kernel.plugin.samplers.step_methods import DROPPED, KernelHMC
from pymc_kernel.plugin.samplers.surrogate import initvals_at
from pymc_kernel.plugin.warn import report, report_checks, warn_user

_ENOUGH = 0.2  # distance at which an emulated model is good enough: at least six of ten proposals are accepted
_STUCK = 0.1  # share of a chain without a move of one group, above which to warn: ten such stretches fill a chain
_NOISY = 1.7  # nats: above this a fixed computing budget is better spent on better estimates (Doucet et al. 2015)
_MODES_APART = "the posterior has modes apart, which chains do not go between: pk.sample_surrogate weighs them."


def sample_khmc(
    draws: int = 1000,
    *,
    tune: int | None = None,
    chains: int = 4,
    step: KernelHMC | Sequence | None = None,
    random_seed: RandomSeed = None,
    initvals: Mapping | Sequence[Mapping | None] | None = None,
    progressbar: bool = True,
    model: pm.Model | None = None,
    **kwargs: Any,
) -> xr.DataTree:
    """Return draws by gradient-free HMC, with one surrogate that all chains learn together while they tune.

    Chains that start far apart explore more of a hard posterior than a single one, so each gets a better surrogate for
    the same number of evaluations. After tuning everything shared is frozen, and the chains are independent and exact;
    R-hat and effective sample sizes have their usual meaning.

    Parameters
    ----------
    draws, tune : int
        For each chain; at most one evaluation of the likelihood each. By default 1,000 tuning draws in up to eight
        dimensions, and 200 + 100 d in more: burn-in alone may take half.
    chains : int
    step : KernelHMC or list of steps, optional
        A step with your settings, by default for all continuous variables; afterwards ``step.surrogate`` is the
        learned surrogate. As in ``pm.sample``, you may give other steps beside it, and PyMC finds steps for the
        remaining variables, such as discrete ones: the call is then ``pm.sample``, and each chain tunes by itself.
    random_seed : None, int, sequence of int or numpy.random.Generator
        The same seed gives the same draws for any number of ``cores``.
    initvals : dict or list of dict, optional
        As in ``pm.sample``. By default each chain starts at one of twenty draws from the prior, chosen by their
        likelihood. If values of some variables are given, or the prior cannot be drawn from, the other variables start
        at PyMC's initial point, jittered by at most one on the unconstrained scale.
    progressbar : bool
    model : pymc.Model, optional
        The model in context by default.
    kwargs
        For ``pm.sample``, which does the sampling: ``cores``, ``idata_kwargs``, ``compute_convergence_checks``, ...

    Returns
    -------
    DataTree
        As from ``pm.sample``, without the tuning draws. Attributes of ``posterior`` and ``sample_stats`` hold the cost
        of tuning: ``tuning_steps`` (for each chain), ``tuning_time`` in seconds, ``tuning_evaluations`` of the log
        density by all chains, and ``tuning_raised``, how many of these raised an error. Attributes of ``sample_stats``
        also hold ``check_evaluations``, made after the last draw, and the name of the surrogate's estimator.
        :func:`diagnose` says how often each kind of move was accepted.

    Raises
    ------
    ValueError, TypeError
        For settings of ``pm.sample`` that cannot be met, and for a ``step`` without exactly one :class:`KernelHMC`.
    NonFiniteStartError
        Where no start with a finite log density was found.

    Notes
    -----
    Black boxes whose outputs go into a likelihood that PyMC knows are learned as functions of their own inputs from
    some dozens of evaluations, as in :func:`emulate`. The chains then move by :class:`EmulatedNUTS`, for any number of
    parameters; ``tune`` draws follow the emulated model and cost no evaluation, and statistics are those of that step.
    This applies without ``step`` and ``initvals``, and if, after ``tune`` evaluations, the emulated model is within a
    distance of one half or moves group by group. No black box may have more than half as many inputs as the model has
    parameters.

    Estimated likelihoods, one for each group (:class:`EstimatedLikelihood`), are learned in the same way, from two
    estimates at each place, until the error is below a third of the noise. Chains then move group by group and keep the
    estimates of the others (:class:`EmulatedNUTS`).

    Otherwise the whole log density is learned. This suits a dozen parameters, or more if the posterior is nearly
    Gaussian and tuning is long; it does not suit many groups of parameters with scales of their own.

    At the end some 500 evaluations look beyond the ends of the draws: chains on a long ridge may agree with each other
    and miss what lies beyond. One warning for all chains reports this, modes that the search for starts saw and no
    chain, missing parts that the weights of the draws show, summaries less normal than :class:`SyntheticLikelihood`
    assumes (by 1,000 new estimates), and model calls that raised an error, which count as a density of zero.

    Tuning runs in this process, whatever ``cores`` is. If an evaluation takes a second or more, use
    ``pk.sample_surrogate(exact=True)``: it learns from fewer evaluations, on any executor, and its draws are exact,
    too. An interrupt during sampling returns the draws so far, as in ``pm.sample``; during tuning there are none yet.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pk.sample_khmc(progressbar=False)  # doctest: +SKIP
    """
    check_whole(draws=draws, chains=chains)
    check_whole("tune", least=50, tune=tune)
    model = pm.modelcontext(model)
    rng, began, spent = np.random.default_rng(random_seed), time.perf_counter(), 0
    settings = {"chains": chains, "progressbar": progressbar, **kwargs}
    if step is None and initvals is None:
        _check_for_sample(kwargs, model)
        if (search := part_of(model, _ENOUGH, rng)) is not None:
            # At most as many evaluations as a chain would take to tune.
            learn(search, kernel_hmc.TUNE if tune is None else tune, progressbar=progressbar)
            # Groups move one at a time, so the distance of the joint distribution need not be small.
            is_useful = search.is_confirmed and (search.best.distance < POOR or len(search.estimated) > 1)
            if (search.has_ended or is_useful) and not search.best_is_by_particles:
                return _along_emulated(model, search.result(), draws, tune, rng, began, settings)
            if search.is_divided or search.best_is_by_particles:
                # The chains below may all be in one mode of the posterior.
                warn_user(search.problem() or _MODES_APART)
            spent = len(search.record)
    with model:
        given, step = _pooled_step(model, step, kwargs.get("compile_kwargs"))
        tune = kernel_hmc.enough_tuning(len(step.coordinates)) if tune is None else tune
        settings["random_seed"] = [int(s) for s in rng.integers(2**30, size=chains)]
        if step.shared:
            return pm.sample(draws, tune=tune, step=given, initvals=initvals, **settings)
        _check_for_sample(kwargs, model)
        before, raised = step.density.calls, step.density.num_raised
        step.is_judged_alone = not kwargs.get("return_inferencedata", True)
        if step.density.estimated:
            step.density.seed(rng)  # the noise of the estimates by which starts are chosen
        starts = _starts(model, step, initvals, chains, tune, rng)
        step.learned, ends = _tune_together(step, starts, tune, rng, progressbar)
        if kernel_hmc.is_dropped(step.learned):
            warn_user(f"sample_khmc: {DROPPED}")
        took = {"tuning_steps": int(tune), "tuning_time": time.perf_counter() - began}
        took["tuning_evaluations"] = spent + step.density.calls - before
        took["tuning_raised"] = step.density.num_raised - raised
        idata = pm.sample(draws, tune=0, step=step, initvals=initvals_at(model, ends), **settings)
    groups = getattr(idata, "children", {})
    for name in {"posterior", "sample_stats"} & set(groups):
        groups[name].attrs |= took
    if "sample_stats" in groups:
        groups["sample_stats"].attrs["surrogate"] = type(step.config.surrogate).__name__
        before = step.density.calls
        _say(model, step, idata, rng)
        groups["sample_stats"].attrs["check_evaluations"] = step.density.calls - before
    return idata


def _along_emulated(model, emulated, draws, tune, rng, began, settings) -> xr.DataTree:
    """Return exact draws by proposals along the emulated model, whose black boxes have been learned."""
    seeds = [int(s) for s in rng.integers(2**30, size=settings["chains"])]
    tune = kernel_hmc.TUNE if tune is None else tune
    with model:
        step = EmulatedNUTS(emulated)
        idata = pm.sample(draws, tune=tune, step=step, random_seed=seeds, **settings)
    emulation, groups = emulated.emulation, getattr(idata, "children", {})
    if "posterior" in groups:
        posterior = idata["posterior"].to_dataset()
        stats = groups.get("sample_stats", idata)
        report_checks("sample_khmc", stats, lambda: normality_of_posterior(model, posterior, rng))
    if "stuck" in groups.get("sample_stats", ()):
        report_stuck_groups(groups["sample_stats"], emulation.noise_sd)
    for name in {"posterior", "sample_stats"} & set(groups):
        groups[name].attrs |= {"tuning_steps": tune, "tuning_time": time.perf_counter() - began}
        groups[name].attrs |= {"tuning_evaluations": emulation.num_evaluations, "tuning_raised": emulation.num_failed}
        groups[name].attrs["distance"] = emulation.distance
    return idata


def report_stuck_groups(stats, noise_sd) -> None:
    """Warn if one group did not move for a large part of a chain; ``noise_sd`` is by the names of likelihoods."""
    longest, draws = int(stats["stuck"].max()), stats["stuck"].shape[1]
    if longest <= max(_STUCK * draws, 10):
        return
    noisy = ", ".join(f"{name} {sd:.2g}" for name, sd in noise_sd.items() if sd > _NOISY)
    where = f"log estimates have standard deviations of {noisy}" if noisy else "in some places their noise is larger"
    report(
        f"sample_khmc: parameters of one estimated likelihood did not move for {longest} of {draws} draws, as an "
        f"estimate was far too large by chance ({where}). Make the estimates less noisy: more draws or particles in "
        "each, or a better importance density.",
        stats,
    )


def _say(model, step, idata, rng):
    """Give one warning for all chains together."""
    stats = idata["sample_stats"]
    weights, raised = stats["log_weight"].values, stats["raised"].values
    checks = [
        lambda: raised_warning(int(raised.sum()), weights.size, step.density.error),
        lambda: missing_mass_warning(weights.ravel()),
    ]
    posterior = idata["posterior"].to_dataset() if "posterior" in idata.children else xr.Dataset()
    if {rv.name for rv in model.free_RVs} <= set(posterior.data_vars):
        draws, levels = unconstrained_draws(posterior, model), stats["lp"].values
        if np.isfinite(draws).all():  # rounding may have put a draw at a bound
            if not step.density.estimated:  # else log densities do not depend on the position alone
                checks.append(lambda: open_end_warning(draws, levels, step.density, step.coordinates, rng))
            checks.append(lambda: step.missed_point(step.tried, step.learned, np.concatenate(draws), levels.ravel()))
            if normal_blocks(model):
                checks.append(lambda: normality_of_draws(step.density, np.concatenate(draws), step.coordinates, rng))
    report_checks("sample_khmc", stats, *checks)


def _check_for_sample(kwargs, model):
    """Raise, before the work of tuning, for arguments that ``pm.sample`` would refuse or ignore after it."""
    advice = (
        "It also takes the arguments of pm.sample, and settings of the steps that PyMC chooses for the other "
        "variables, by the names of these steps, as in metropolis={...}."
    )
    check_keywords("sample_khmc()", kwargs, keywords_of(pm.sample) - {"kwargs"}, advice)
    sampler = kwargs.get("nuts_sampler")
    if sampler not in (None, "pymc"):
        raise ValueError(
            f"nuts_sampler={sampler!r} is for NUTS, and sample_khmc moves by kernel HMC: leave it out; for a model "
            f"with a gradient, take pm.sample(nuts_sampler={sampler!r})."
        )
    if not kwargs.get("discard_tuned_samples", True):
        raise ValueError(
            "sample_khmc keeps no tuning draws: leave discard_tuned_samples out, or take "
            "pm.sample(step=pk.KernelHMC(), discard_tuned_samples=False), whose chains tune separately."
        )
    known = [v.name for v in model.unobserved_RVs]
    missing = [name for name in kwargs.get("var_names") or () if name not in known]
    if missing:
        raise ValueError(f"var_names has {', '.join(map(repr, missing))}; the model has {', '.join(known)}.")


def _pooled_step(model, step, compile_kwargs) -> tuple[list, KernelHMC]:
    """Return all given steps, and the one kernel HMC among them."""
    given = [KernelHMC(model=model, compile_kwargs=compile_kwargs)] if step is None else step
    given = list(given) if isinstance(given, Sequence) else [given]
    wrong = [s for s in given if not isinstance(s, BlockedStep | CompoundStep)]
    if wrong:
        raise TypeError(
            f"step must be a pk.KernelHMC, or a list of steps with one among them, got {wrong[0]!r}; steps are made by "
            "calling their class, as in step=pk.KernelHMC()."
        )
    given = [one for s in given for one in flatten_steps(s)]
    pooled = [s for s in given if isinstance(s, KernelHMC)]
    if len(pooled) != 1:
        names = ", ".join(type(s).__name__ for s in given)
        raise TypeError(
            f"sample_khmc needs exactly one pk.KernelHMC among its steps, got {names or 'none'}. Other steps are for "
            "other variables, as in step=[pk.KernelHMC([theta]), pm.Metropolis([k])]; without kernel HMC take "
            "pm.sample(step=...)."
        )
    return given, pooled[0]


def _starts(model, step, initvals, chains, tune, rng) -> list[np.ndarray]:
    """Return a position (d,) for each chain at which the density is finite.

    It is that of a block's pilot simulation; or the initial point or a prior draw, chosen by likelihood; or PyMC's
    initial point, jittered, if values are given or the prior cannot be drawn from.
    """
    given = [initvals] * chains if initvals is None or isinstance(initvals, Mapping) else list(initvals)
    if len(given) != chains:
        raise ValueError(f"initvals has {len(given)} entries for {chains} chains.")
    # PyMC compiles a function for the initial point, so ask for it once, and only if it is needed.
    default = None if step.density.starts is None else initial_position(model)
    positions, tried = [], []
    for overrides in given:
        position = None
        if not overrides and default is not None:
            position = step.pilot_start(default, rng)
        elif not overrides and step.prior is not None:
            position, places = step.drawn_start(tune, rng)
            tried.append(places)
        if position is None or not math.isfinite(step.first_estimate(position)):
            position = _jittered(model, step, overrides or {}, rng)
        positions.append(position)
    step.tried = KnownPlaces(*(np.concatenate(parts) for parts in zip(*tried, strict=True))) if tried else None
    return positions


def _jittered(model, step, overrides, rng) -> np.ndarray:
    free = {rv for rv in model.free_RVs if rv.name not in overrides}
    [start] = make_initial_point_fns_per_chain(model=model, overrides=overrides, jitter_rvs=free, chains=1)
    for _ in range(STARTS_TRIED):
        point = start(int(rng.integers(2**30)))
        position = DictToArrayBijection.map({name: point[name] for name in step.var_names}).data.astype(float)
        if math.isfinite(step.density(position)):
            return position
    raise NonFiniteStartError(
        f"sample_khmc: the log density was not finite at {STARTS_TRIED} jittered initial points. "
        "Give initvals at which the likelihood is not zero."
    )


def _tune_together(step, starts, tune, rng, progressbar):
    """Return the learned state, and the positions of the chains after tuning."""
    rngs, states, noises = rng.spawn(len(starts)), [], []
    for own, position in zip(rngs, starts, strict=True):
        step.density.seed(own)
        states.append(kernel_hmc.init(position, step.first_estimate(position), step.config))
        step.density.settle(True)
        noises.append(step.density.noise)
    plan = kernel_hmc.stretches(states[0].position.size, tune)
    # The number of BLAS threads would depend on the machine's load, and rounding depends on that number.
    with one_blas_thread, progress_bar("Tuning chains together", tune * len(states), progressbar) as advance:
        for index, num_draws in enumerate(plan):
            for c, own in enumerate(rngs):
                step.density.noise = noises[c]
                states[c] = kernel_hmc.run(own, states[c], step.density, step.config, num_draws, step.density.settle)
                noises[c] = step.density.noise
                advance(num_draws)
            if index < len(plan) - 1:
                states = kernel_hmc.fit_together(rng, states, step.config)
    return kernel_hmc.frozen(states, step.config), np.array([state.position for state in states])
