"""Kernel HMC with a surrogate that the chains of a run learn together: tuning here, sampling by ``pm.sample``."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection
from pymc.initial_point import make_initial_point_fns_per_chain
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.mcmc import kernel_hmc, pooled
from pymc_kernel.mcmc.unvisited import Places
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.provenance import provenance
from pymc_kernel.plugin.step_methods import KernelHMC

__all__ = ["sample_khmc"]

_START_TRIALS = 20


def sample_khmc(
    draws: int = 1000,
    *,
    tune: int = 1000,
    chains: int = 4,
    step: KernelHMC | None = None,
    random_seed=None,
    initvals: Mapping | Sequence[Mapping | None] | None = None,
    progressbar: bool = True,
    model: pm.Model | None = None,
    **kwargs,
):
    """Return draws by gradient-free HMC, with one surrogate that all chains learn together while they tune.

    Chains that start far apart see more of a hard posterior than one of them would, so each gets a better
    surrogate for the same number of evaluations. After tuning all that is shared is frozen, and the chains are
    independent and exact; R-hat and effective sizes mean what they always do.

    Parameters
    ----------
    draws, tune : int
        For each chain; one evaluation of the likelihood each, at most.
    chains : int
    step : KernelHMC, optional
        With settings of its own; afterwards it has the learnt surrogate, ``step.surrogate``.
    random_seed : None, int, sequence of int or numpy.random.Generator
        The same seed gives the same draws for any number of ``cores``.
    initvals : dict or list of dict, optional
        As in ``pm.sample``. Without, each chain starts at one of twenty draws from the prior, by their likelihood;
        where some are given, or the prior cannot be drawn from, what is not given starts at PyMC's initial point,
        jittered by at most one on the unconstrained scale.
    progressbar : bool
    model : pymc.Model, optional
        The model in context by default.
    kwargs
        To ``pm.sample``, which does the sampling: ``cores``, ``idata_kwargs``, ``compute_convergence_checks``, ...

    Returns
    -------
    DataTree
        As from ``pm.sample``; the tuning draws are not in it. The attributes of ``sample_stats`` hold what
        ``pk.provenance`` tells, and the name of the surrogate's estimator.

    Raises
    ------
    ValueError
        For a tuning phase that is too short to learn from, or a ``step`` that leaves variables out.
    NonFiniteStartError
        Where no start with a finite log density was found.

    Notes
    -----
    Tuning runs in this process, whatever ``cores`` is: for likelihoods that take long it may take longer than
    tuning apart, ``pm.sample(step=pk.KernelHMC())``.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pk.sample_khmc(progressbar=False)  # doctest: +SKIP
    """
    for name, value, least in (("draws", draws, 1), ("tune", tune, 50), ("chains", chains, 1)):
        if not (isinstance(value, int | np.integer) and value >= least):
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}.")
    model = pm.modelcontext(model)
    with model:
        if step is None:
            step = KernelHMC()
        elif not isinstance(step, KernelHMC):
            raise TypeError(f"step must be a pk.KernelHMC, got {type(step).__name__}.")
        left_out = [v.name for v in model.value_vars if v not in set(step.vars)]
        if left_out:
            raise ValueError(
                f"sample_khmc moves all free variables at once, and its step leaves out {left_out}. In a compound with "
                "other steps, as discrete variables need, take pm.sample(step=pk.KernelHMC())."
            )
        rng = np.random.default_rng(random_seed)
        seeds = [int(s) for s in rng.integers(2**30, size=chains)]
        positions = _starts(model, step, initvals, chains, tune, rng)
        step.learnt, positions = _tune_together(step, positions, tune, rng, progressbar)
        idata = pm.sample(
            draws,
            tune=0,
            chains=chains,
            step=step,
            initvals=_constrained(model, step, positions),
            random_seed=seeds,
            progressbar=progressbar,
            **kwargs,
        )
    for group in ("posterior", "sample_stats"):
        if group in getattr(idata, "children", {}):
            idata[group].attrs["tuning_steps"] = tune
    if "sample_stats" in getattr(idata, "children", {}):
        idata["sample_stats"].attrs |= provenance(idata) | {"surrogate": type(step.config.estimator).__name__}
    return idata


def _starts(model, step, initvals, chains, tune, rng) -> list[np.ndarray]:
    """Return a position (d,) for each chain at which the density is finite.

    Of the initial point and draws from the prior by their likelihood; where values are given, or the prior cannot be
    drawn from, PyMC's initial point jittered.
    """
    given = [initvals] * chains if initvals is None or isinstance(initvals, Mapping) else list(initvals)
    if len(given) != chains:
        raise ValueError(f"initvals has {len(given)} entries for {chains} chains.")
    positions, tried = [], []
    for overrides in given:
        position = None
        if not overrides and step.prior is not None:
            position, places = step.drawn_start(tune, rng)
            tried.append(places)
        if position is None or not math.isfinite(step.density(position)):
            position = _jittered(model, step, overrides or {}, rng)
        positions.append(position)
    step.tried = Places(*(np.concatenate(parts) for parts in zip(*tried, strict=True))) if tried else None
    return positions


def _jittered(model, step, overrides, rng) -> np.ndarray:
    free = {rv for rv in model.free_RVs if rv.name not in overrides}
    [start] = make_initial_point_fns_per_chain(model=model, overrides=overrides, jitter_rvs=free, chains=1)
    for _ in range(_START_TRIALS):
        position = _position(step, start(int(rng.integers(2**30))))
        if math.isfinite(step.density(position)):
            return position
    raise NonFiniteStartError(
        f"sample_khmc: the log density was not finite at {_START_TRIALS} jittered initial points. "
        "Give initvals at which the likelihood is not zero."
    )


def _position(step, point) -> np.ndarray:
    return DictToArrayBijection.map({name: point[name] for name in step.var_names}).data.astype(float)


def _tune_together(step, positions, tune, rng, progressbar):
    """Return what is learnt and where the chains have got to, arrays (d,)."""
    generators = rng.spawn(len(positions))
    noises, states = [], []
    for generator, position in zip(generators, positions, strict=True):
        step.density.seed(generator)
        states.append(kernel_hmc.init(position, _finite(step, position), step.config))
        noises.append(step.density.noise)
    plan = pooled.stretches(states[0].position.size, tune)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # How many threads BLAS has depends on the machine's load, and sums depend on it.
    with one_blas_thread, Progress(*columns, disable=not progressbar) as progress:
        task = progress.add_task("Tuning chains together", total=tune * len(states))
        for index, num_draws in enumerate(plan):
            for c, generator in enumerate(generators):
                step.density.noise = noises[c]
                states[c] = pooled.run(generator, states[c], step.density, step.config, num_draws)
                noises[c] = step.density.noise
                progress.advance(task, num_draws)
            if index < len(plan) - 1:
                states = pooled.fit_together(rng, states, step.config)
    return pooled.frozen(states, step.config), [s.position for s in states]


def _finite(step, position):
    """Return the log density, estimated again where it was not finite; the start was seen to have some."""
    for _ in range(_START_TRIALS):
        value = step.density(position)
        if math.isfinite(value):
            break
    return value


def _constrained(model, step, positions) -> list[dict]:
    """Return the values of the free variables, as the user knows them, at positions (d,)."""
    names = [rv.name for rv in model.free_RVs]
    outputs = [v for v in model.unobserved_value_vars if v.name in names]
    function = model.compile_fn(outputs, inputs=model.value_vars, on_unused_input="ignore")
    shape_of = DictToArrayBijection.map({name: model.initial_point()[name] for name in step.var_names})
    found = []
    for position in positions:
        point = DictToArrayBijection.rmap(shape_of._replace(data=position))
        found.append({v.name: value for v, value in zip(outputs, function(point), strict=True)})
    return found
