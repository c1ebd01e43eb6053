"""Batches of simulations of a model: what a worker receives and does, and the run over all batches."""

from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free import (
    ArraySpec,
    Status,
    Workers,
    WorkersLost,
    raising_failures,
    simulate_once,
)
from pymc_kernel.parallel import leave_one_thread
from pymc_kernel.plugin.model.remote import Remote
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.warn import warn_user

__all__ = ["STATUS", "Job", "Run", "run"]

STATUS = "simulation_stats/status"


class Job(NamedTuple):
    """What all batches have in common."""

    sampler: Remote
    """Of a :class:`ForwardSampler`."""
    specs: dict[str, ArraySpec]
    batch_size: int
    entropy: int
    timeout: float | None
    retries: int


def simulate_batch(job, index, size, parameters):
    """Return the arrays of a batch and the text of its first error; runs in a worker."""
    sampler = job.sampler.here()
    free = sampler.prior(job.entropy, index, size, job.batch_size) if parameters is None else parameters
    of_prior, of_data = ([n for n in job.specs if n.startswith(f"{g}/")] for g in ("prior", "prior_predictive"))
    arrays = dict(zip(of_prior, [*free, *sampler.derived(free)], strict=True))
    if sampler.is_vectorized:
        try:
            data = sampler.data(free, job.entropy, index)
        except Exception:
            pass  # below, draw by draw, it is found which draws fail
        else:
            is_finite = [np.isfinite(values).reshape(size, -1).all(axis=1) for values in data]
            status = np.where(np.all(is_finite, axis=0), Status.SUCCEEDED, Status.NOT_FINITE)
            return arrays | dict(zip(of_data, data, strict=True)) | {STATUS: status}, None
    kept = {name: np.full((size, *job.specs[name].shape), np.nan) for name in of_data}
    status, first_error = np.empty(size, dtype=np.int8), None
    with raising_failures():
        for row, simulate_data in enumerate(sampler.each_data(free, job.entropy, index)):
            status[row], data, error = simulate_once(simulate_data, job.timeout, job.retries)
            for name, values in zip(kept, data or (), strict=bool(data)):
                kept[name][row] = values
            if error is not None and first_error is None:
                first_error = f"{type(error).__name__}: {error}"
    return arrays | kept | {STATUS: status}, first_error


class Run(NamedTuple):
    """What is to be said of a run over batches."""

    first_error: str | None
    ended_by: str
    """Nothing; an "interrupt"; or an "executor" that broke."""
    deaths: int
    """Of worker processes."""


def run(keeper, job, parameters, executor, retries, max_in_flight, progressbar) -> Run:
    """Simulate the batches that are left.

    Raises
    ------
    KeyboardInterrupt, WorkersLost
        Where no batch is finished; otherwise a warning says it.
    """
    left = [int(i) for i in keeper.left()]
    sizes = {i: keeper.rows(i).stop - keeper.rows(i).start for i in left}
    first_error, ended_by = None, ""

    def arguments(index):
        rows = keeper.rows(index)
        return job, index, sizes[index], None if parameters is None else [v[rows] for v in parameters]

    with (
        progress_bar("Simulating", keeper.draws, progressbar) as advance,
        Workers(executor, leave_one_thread) as workers,
    ):
        advance(keeper.draws - sum(sizes.values()))
        failed = 0
        try:
            for index, result, error in workers.run(simulate_batch, left, arguments, retries, max_in_flight):
                if error is None:
                    arrays, message = result
                else:
                    arrays, message = {STATUS: np.full(sizes[index], Status.LOST)}, f"{type(error).__name__}: {error}"
                keeper.write(index, arrays, is_complete=error is None)
                first_error = first_error or message
                failed += int(np.count_nonzero(arrays[STATUS]))
                advance(sizes[index], f"Simulating, {failed} failed" if failed else None)
        except (KeyboardInterrupt, WorkersLost) as ended:
            if len(keeper.left()) == len(keeper.is_done[:]):
                raise
            ended_by = "interrupt" if isinstance(ended, KeyboardInterrupt) else "executor"
            warn_user(f"{ended if ended_by == 'executor' else 'interrupted:'} what is finished is returned.")
    return Run(first_error, ended_by, workers.deaths)
