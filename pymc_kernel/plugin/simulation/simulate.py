"""Simulations of a model at scale: in batches, on any executor, into a store from which a killed run resumes."""

from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from pymc.backends.arviz import coords_and_dims_for_inferencedata

from pymc_kernel.likelihood_free import ArraySpec, Status, Workers, WorkersLost, open_store, simulate_once
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.arguments import RandomSeed, check_between, check_executor, check_whole
from pymc_kernel.plugin.model.fingerprint import array_fingerprint, model_fingerprint
from pymc_kernel.plugin.model.forward import ForwardSampler, can_be_drawn, forward_graph
from pymc_kernel.plugin.model.priors import check_prior_draws
from pymc_kernel.plugin.model.remote import Remote
from pymc_kernel.plugin.model.unconstrained import data_groups, is_part_of_data, observed_values, rows_of
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.warn import STATUS_FLAGS, counts_of, warn_of_failures, warn_user

_STATUS = "simulation_stats/status"


def simulate(
    draws: int | None = None,
    *,
    given: xr.Dataset | xr.DataTree | None = None,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    batch_size: int | None = None,
    timeout: float | None = None,
    retries: int = 1,
    max_failures: float = 0.1,
    max_in_flight: int | None = None,
    compile_kwargs: dict | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw parameters from the prior and data from the simulator: in parallel, resumable, reproducible.

    Parameters
    ----------
    draws : int, optional
        1000 by default; with ``given``, as many as there are.
    given : xarray.Dataset or DataTree, optional
        Parameters to simulate at instead of draws of the prior, with the dimensions ``chain`` and ``draw``:
        ``idata["posterior"]``, say. Their chains are concatenated.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: that many worker processes, replaced when they die. Or any executor, of threads
        or processes, Dask's ``client.get_executor()``, MPI's.
    store : str or path, optional
        Directory of a zarr store (extra ``store``). Each batch is kept there as it finishes. An existing store is
        resumed, and extended if more draws are asked for than it holds.
    batch_size : int, optional
        Draws for each task and chunk of the store; by default a hundredth of the draws, 1000 at most. A batch should
        last a second or more. The draws depend on it as well as on the seed.
    timeout : float, optional
        Seconds for one draw. A simulator in compiled code that never returns to Python cannot be stopped.
    retries : int
        How often to retry a draw that timed out, or a batch whose worker failed.
    max_failures : float
        Share of failed draws above which a warning is given.
    max_in_flight : int, optional
        Batches submitted at a time: twice the workers by default. With a store, this bounds the memory.
    compile_kwargs : dict, optional
        For the model's functions. By default they run in Python, which compiles at once and suits a simulator that is
        a Python function; ``{"mode": "NUMBA"}`` for much arithmetic in the model itself.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
        By default that of the store, if it exists.
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        ``prior`` (free variables, and deterministics that do not depend on data), ``prior_predictive`` (as floats; NaN
        where a simulation failed), ``observed_data``, and ``simulation_stats`` with a ``status`` for each draw: 0
        succeeded, 1 raised an error, 2 not finite, 3 timed out, 4 lost with its worker. Attributes hold the counts, the
        first error, how often a worker process died, and what ended the run early, if anything did (``ended_by``:
        "interrupt" or "executor"). With a store, arrays are read from it when they are used. :func:`sample_kbr` takes
        the result.

    Notes
    -----
    Each batch, and each draw in a batch, has its own seed: results are bit for bit the same for any executor, any order
    and any number of restarts. An interrupt returns the finished batches.

    The store recognizes a model by its graph, its constants and the code of its simulators, not by what a simulator
    reads from files or other modules; with another model, seed or batch size it is a ``ValueError`` that says what
    differs. Failed draws stay failed; lost batches are tried again by the next run.

    Workers are sent the model's graph once a batch, and compile it once.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def simulator(rng, rate, size):
    ...     return rng.exponential(1.0 / rate, size)
    >>> with pm.Model():
    ...     rate = pm.LogNormal("rate", 0, 1)
    ...     y = pm.Simulator("y", simulator, rate, observed=np.ones(20))
    ...     sims = pk.simulate(200, random_seed=1, progressbar=False)
    >>> sims["prior_predictive"]["y"].shape
    (1, 200, 20)
    """
    model = pm.modelcontext(model)
    _check(model, draws, executor, batch_size, timeout, retries, max_failures, max_in_flight)
    warn_of_potentials(model, "the simulations are those of the model without them")
    graph = forward_graph(model)
    if given is None:
        check_prior_draws(model, "Give it a proper one, or simulate at parameters of your own (pk.simulate(given=)).")
        parameters, draws = None, 1000 if draws is None else int(draws)
    else:
        parameters = _given_values(given, graph)
        there = len(parameters[0])
        if draws not in (None, there):
            raise ValueError(f"given has {there} draws, so draws must be that or left out, got {draws}.")
        draws = there
    sampler = Remote(partial(ForwardSampler, graph, compile_kwargs), is_sent=executor is not None)
    coords, dims = coords_and_dims_for_inferencedata(model)
    specs = _specs(model, graph, sampler.here(), parameters, dims)
    identity = {"seed": None if random_seed is None else str(_entropy(random_seed))} | model_fingerprint(graph)
    identity["parameters"] = "prior" if parameters is None else array_fingerprint(parameters)
    keeper, made = open_store(store, specs, coords, draws, batch_size, identity, {"seed": str(_entropy(None))})
    task = partial(simulate_batch, sampler, specs, keeper.batch_size, int(made["seed"]), timeout, retries)
    with interrupts_wait:
        ran = _run(keeper, task, parameters, executor, retries, max_in_flight, progressbar)
        return _tree(keeper, store, specs, coords, model, max_failures, ran)


def _check(model, draws, executor, batch_size, timeout, retries, max_failures, max_in_flight):
    sizes = {"draws": draws, "batch_size": batch_size, "max_in_flight": max_in_flight}
    check_whole(*sizes, **sizes)
    check_whole(least=0, retries=retries)
    check_between("timeout", high=np.inf, timeout=timeout)
    if not 0.0 <= max_failures <= 1.0:
        raise ValueError(f"max_failures is a share and must be in [0, 1], got {max_failures!r}.")
    check_executor(executor)
    check_model(model)
    for rv in model.observed_RVs:
        if not can_be_drawn(rv):
            raise ValueError(
                f"{rv.name!r} cannot be simulated, only its likelihood is known or estimated. Write it as "
                "pm.Simulator, pm.CustomDist(random=...) or pk.KernelABC; or use pm.sample(step=pk.KernelHMC())."
            )


def check_model(model: pm.Model) -> None:
    """Raise ``ValueError`` if nothing is observed or free, or if the data are a minibatch."""
    if not model.observed_RVs:
        raise ValueError("the model has no observed variable: give the data to one with observed=.")
    if not model.free_RVs:
        raise ValueError("the model has no free variable: there is nothing to infer; pm.draw draws its data.")
    for rv in model.observed_RVs:
        if is_part_of_data(model, rv):
            raise ValueError(
                f"{rv.name!r} has a total_size, or is a pm.Minibatch: the likelihood of a part of the data is "
                "scaled to all of them, which simulations cannot imitate. Observe all the data, without total_size."
            )


def warn_of_potentials(model: pm.Model, consequence: str) -> None:
    """Warn where a model has potentials, which forward draws leave out."""
    if model.potentials:
        names = ", ".join(p.name for p in model.potentials)
        warn_user(f"Potentials ({names}) cannot be simulated: {consequence}.")


def _given_values(given, graph):
    """Return the free variables' values (n, ...) in the graph's order."""
    given = given.to_dataset() if isinstance(given, xr.DataTree) else given
    if not isinstance(given, xr.Dataset) or not {"chain", "draw"} <= set(given.dims):
        raise TypeError('given must be a dataset with the dimensions chain and draw, such as idata["posterior"].')
    missing = [v.name for v in graph.free if v.name not in given]
    if missing:
        raise ValueError(f"given has no {', '.join(missing)}, which the model needs.")
    values = []
    for variable in graph.free:
        rows = rows_of(given[variable.name])
        if rows.ndim - 1 != variable.ndim:
            raise ValueError(f"{variable.name!r} has {variable.ndim} dimensions in the model, not {rows.ndim - 1}.")
        values.append(np.ascontiguousarray(rows, dtype=variable.dtype))
    return values


def _entropy(random_seed):
    if isinstance(random_seed, int | np.integer) and random_seed >= 0:
        return int(random_seed)
    return int(np.random.default_rng(random_seed).integers(2**63))


def _specs(model, graph, sampler, parameters, dims):
    """Return a specification of each array, with shapes from one draw of the prior, which costs no simulation."""
    one = sampler.prior(0, 0, 1, 1) if parameters is None else [values[:1] for values in parameters]
    specs = {}
    for variable, values in zip([*graph.free, *graph.derived], [*one, *sampler.derived(one)], strict=True):
        fill = np.nan if values.dtype.kind == "f" else np.zeros((), values.dtype).item()
        specs[f"prior/{variable.name}"] = _spec(variable.name, values.shape[1:], str(values.dtype), dims, fill)
    for name, data in observed_values(model).items():
        specs[f"prior_predictive/{name}"] = _spec(name, data.shape, "float64", dims, np.nan)
    specs[_STATUS] = ArraySpec((), "int8", (), int(Status.NOT_RUN))
    return specs


def _spec(name, shape, dtype, dims, fill):
    known = dims.get(name) or [None] * len(shape)
    return ArraySpec(shape, dtype, tuple(d or f"{name}_dim_{i}" for i, d in enumerate(known)), fill)


def _tree(keeper, store, specs, coords, model, max_failures, ran):
    if store is None:
        groups = _groups(keeper, specs, coords)
    else:
        names = sorted({name.partition("/")[0] for name in specs})
        groups = {g: xr.open_zarr(store, group=g, consolidated=False, chunks=None, zarr_format=3) for g in names}
    status = groups["simulation_stats"]["status"].values[0]
    is_run = status != Status.NOT_RUN
    if not is_run.all():
        groups = {name: group.isel(draw=np.flatnonzero(is_run)) for name, group in groups.items()}
    first_error, ended_by, deaths = ran
    counts = counts_of(status, first_error, deaths)
    groups["simulation_stats"]["status"].attrs |= STATUS_FLAGS
    groups["simulation_stats"].attrs |= counts | {"ended_by": ended_by}
    warn_of_failures("simulations", "their data are NaN", counts, max_failures)
    return xr.DataTree.from_dict(groups | data_groups(model))


def _groups(keeper, specs, coords):
    groups, index = {}, {"chain": np.arange(1), "draw": np.arange(keeper.draws)}
    for name, spec in specs.items():
        group, _, variable = name.partition("/")
        labels = index | {d: v for d, v in coords.items() if d in spec.dims}
        array = xr.DataArray(keeper.arrays[name], labels, ("chain", "draw", *spec.dims))
        groups.setdefault(group, xr.Dataset())[variable] = array
    return groups


def simulate_batch(sampler: Remote, specs, batch_size, entropy, timeout, retries, index, size, parameters):
    """Return the arrays of a batch and the text of its first error; runs in a worker."""
    sampler = sampler.here()
    free = sampler.prior(entropy, index, size, batch_size) if parameters is None else parameters
    of_prior, of_data = ([n for n in specs if n.startswith(f"{g}/")] for g in ("prior", "prior_predictive"))
    arrays = dict(zip(of_prior, [*free, *sampler.derived(free)], strict=True))
    if sampler.is_vectorized:
        try:
            data = sampler.data(free, entropy, index)
        except Exception:
            pass  # the loop below finds the draws that fail
        else:
            is_finite = [np.isfinite(values).reshape(size, -1).all(axis=1) for values in data]
            status = np.where(np.all(is_finite, axis=0), Status.SUCCEEDED, Status.NOT_FINITE)
            return arrays | dict(zip(of_data, data, strict=True)) | {_STATUS: status}, None
    kept = {name: np.full((size, *specs[name].shape), np.nan) for name in of_data}
    status, first_error = np.empty(size, dtype=np.int8), None
    for row, simulate_data in enumerate(sampler.each_data(free, entropy, index)):
        status[row], data, error = simulate_once(simulate_data, timeout, retries)
        for name, values in zip(kept, data or (), strict=bool(data)):
            kept[name][row] = values
        if error is not None and first_error is None:
            first_error = f"{type(error).__name__}: {error}"
    return arrays | kept | {_STATUS: status}, first_error


def _run(keeper, task, parameters, executor, retries, max_in_flight, progressbar) -> tuple[str | None, str, int]:
    """Simulate the batches that are left; return the first error, what ended the run early, and deaths of workers.

    If no batch is finished, what ended it is raised.
    """
    left = [int(i) for i in keeper.left()]
    sizes = {i: keeper.rows(i).stop - keeper.rows(i).start for i in left}
    first_error, ended_by = None, ""

    def arguments(index):
        rows = keeper.rows(index)
        return index, sizes[index], None if parameters is None else [v[rows] for v in parameters]

    with progress_bar("Simulating", keeper.draws, progressbar) as advance, Workers(executor) as workers:
        advance(keeper.draws - sum(sizes.values()))
        failed = 0
        try:
            for index, result, error in workers.run(task, left, arguments, retries, max_in_flight):
                if error is None:
                    arrays, message = result
                else:
                    arrays, message = {_STATUS: np.full(sizes[index], Status.LOST)}, f"{type(error).__name__}: {error}"
                keeper.write(index, arrays, is_complete=error is None)
                first_error = first_error or message
                failed += int(np.count_nonzero(arrays[_STATUS]))
                advance(sizes[index], f"Simulating, {failed} failed" if failed else None)
        except (KeyboardInterrupt, WorkersLost) as ended:
            if len(keeper.left()) == len(keeper.is_done[:]):
                raise
            ended_by = "interrupt" if isinstance(ended, KeyboardInterrupt) else "executor"
            warn_user(f"{ended if ended_by == 'executor' else 'interrupted:'} what is finished is returned.")
    return first_error, ended_by, workers.deaths
