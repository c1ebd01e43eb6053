"""Repeated calls of simulators that may fail."""

from collections.abc import Callable
from contextvars import ContextVar
from enum import IntEnum, auto
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.interrupts import TimedOut, time_limit

_RAISING = ContextVar("raising", default=False)


class Status(IntEnum):
    """The outcome of one simulation."""

    NOT_RUN = -1
    SUCCEEDED = auto()
    RAISED = auto()  #: the simulator raised an error
    NOT_FINITE = auto()  #: it gave NaN or infinite numbers
    TIMED_OUT = auto()
    LOST = auto()  #: its batch failed, or the process that ran it died


class Simulations(NamedTuple):
    """The results of several calls of a simulator."""

    summaries: list[np.ndarray]  #: of the calls that succeeded
    failed: int  #: calls that raised an error, or gave NaN or infinite numbers
    first_error: Exception | None


def simulate_repeatedly(
    simulate: Callable[[], np.ndarray], summary: Callable | None, times: int, together: bool = False
) -> Simulations:
    """Call ``simulate()`` ``times`` times and return the ``summary`` of each; failures are counted, not raised.

    ``KeyboardInterrupt`` and the like are raised, and so are errors of ``summary`` on finite data: those are mistakes.
    With ``together``, one call returns all data sets (times, ...): an error fails all of them, NaN only the data sets
    that they are in. Raises ``ValueError`` with ``together``, if the call returned another number of data sets.
    """
    errors = []

    def results():
        for _ in range(1 if together else times):
            try:
                yield np.asarray(simulate(), dtype=float)
            except Exception as error:
                errors.append(error)

    data_sets = results()
    if together:
        data_sets = next(data_sets, np.empty((0,)))
        if not errors and (data_sets.ndim == 0 or len(data_sets) != times):
            raise ValueError(f"a vectorized result's first dimension must be size[0], {times}, not {data_sets.shape}.")
    summaries = []
    for data in data_sets:
        values = data if summary is None or not np.isfinite(data).all() else np.asarray(summary(data), dtype=float)
        if np.isfinite(values).all():
            summaries.append(values)
    return Simulations(summaries, times - len(summaries), errors[0] if errors else None)


def simulate_once(
    simulate: Callable[[], list[np.ndarray]], timeout: float | None = None, retries: int = 0
) -> tuple[Status, list[np.ndarray] | None, Exception | None]:
    """Return the status of one simulation, its arrays where there are any, and the error where it raised one.

    After a time-out, by ``timeout`` in seconds, it is called again, at most ``retries`` times; see
    :func:`~pymc_kernel.likelihood_free.interrupts.time_limit`.
    """
    token = _RAISING.set(True)  # else predictive draws turn errors of a block's simulator into NaN
    try:
        for _ in range(retries + 1):
            try:
                with time_limit(timeout):
                    arrays = simulate()
            except TimedOut:
                continue
            except Exception as error:
                return Status.RAISED, None, error
            is_finite = all(np.isfinite(values).all() for values in arrays)
            return (Status.SUCCEEDED if is_finite else Status.NOT_FINITE), arrays, None
        return Status.TIMED_OUT, None, None
    finally:
        _RAISING.reset(token)


def failures_are_raised() -> bool:
    """Return whether the caller wants to see the errors of a simulator."""
    return _RAISING.get()
