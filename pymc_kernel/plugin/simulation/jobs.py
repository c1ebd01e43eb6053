"""Batches of simulations of a model: what a worker receives and does, and the run over all batches."""

import hashlib
import threading
import uuid
from typing import NamedTuple

import cloudpickle
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymc_kernel.likelihood_free import (
    ArraySpec,
    Status,
    WorkersLost,
    raising_failures,
    run_batches,
    simulate_once,
)
from pymc_kernel.parallel import leave_one_thread
from pymc_kernel.plugin.model.forward import ForwardSampler
from pymc_kernel.plugin.model.pickling import pickled
from pymc_kernel.plugin.warn import warn_user

__all__ = ["STATUS", "Job", "Worker", "run"]

STATUS = "simulation_stats/status"
_LOCAL = threading.local()  # the sampler that this thread used last: compiled functions must not be shared
# PyTensor sets its mode, one for the process, while it compiles, and restores it: two threads that overlap would
# leave the quick mode of these functions behind for every model of the session.
_COMPILING = threading.Lock()


class Worker:
    """The model for workers: pickled once, compiled once in each thread that uses it."""

    def __init__(self, graph, compile_kwargs, executor):
        try:
            self.payload = pickled((graph, compile_kwargs))
            self.key = hashlib.sha256(self.payload).hexdigest()
        except Exception as error:
            if executor is not None:
                raise TypeError(
                    f"the model, with its simulators, cannot be sent to workers: {error}. Let the simulator open what "
                    "cannot be pickled when it is called, or use executor=None."
                ) from error
            self.key = uuid.uuid4().hex
            with _COMPILING:
                _LOCAL.key, _LOCAL.sampler = self.key, ForwardSampler(graph, compile_kwargs)

    def sampler(self) -> ForwardSampler:
        """Return the compiled model of this thread."""
        if getattr(_LOCAL, "key", None) != self.key:
            with _COMPILING:
                _LOCAL.sampler = ForwardSampler(*cloudpickle.loads(self.payload))
            _LOCAL.key = self.key
        return _LOCAL.sampler


class Job(NamedTuple):
    """What all batches have in common."""

    worker: Worker
    specs: dict[str, ArraySpec]
    batch_size: int
    entropy: int
    timeout: float | None
    retries: int


def simulate_batch(job, index, size, parameters):
    """Return the arrays of a batch and the text of its first error; runs in a worker."""
    sampler = job.worker.sampler()
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


def run(keeper, job, parameters, executor, retries, max_in_flight, progressbar):
    """Simulate the batches that are left; return the text of the first error that was seen."""
    left = [int(i) for i in keeper.left()]
    sizes = {i: keeper.rows(i).stop - keeper.rows(i).start for i in left}
    first_error = None

    def arguments(index):
        rows = keeper.rows(index)
        return job, index, sizes[index], None if parameters is None else [v[rows] for v in parameters]

    executor = int(executor) if isinstance(executor, np.integer) else executor
    batches = run_batches(
        simulate_batch,
        left,
        arguments,
        executor,
        retries=retries,
        max_in_flight=max_in_flight,
        prepare=leave_one_thread,
    )
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} draws/s, {task.fields[failed]} failed"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progressbar) as progress:
        shown = progress.add_task(
            "Simulating", total=keeper.draws, completed=keeper.draws - sum(sizes.values()), failed=0, rate=0.0
        )
        failed = simulated = 0
        try:
            for index, result, error in batches:
                if error is None:
                    arrays, message = result
                else:
                    arrays, message = {STATUS: np.full(sizes[index], Status.LOST)}, f"{type(error).__name__}: {error}"
                keeper.write(index, arrays, is_complete=error is None)
                first_error = first_error or message
                failed += int(np.count_nonzero(arrays[STATUS]))
                simulated += sizes[index]
                seconds = progress.tasks[0].elapsed or 1e-9
                progress.update(shown, advance=sizes[index], failed=failed, rate=simulated / seconds)
        except KeyboardInterrupt:
            warn_user("interrupted: what is finished is returned.")
        except WorkersLost as error:
            warn_user(f"{error} What is finished is returned.")
        finally:
            batches.close()
    return first_error
