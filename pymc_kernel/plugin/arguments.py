"""Types of arguments that many functions share, and checks of arguments before the work begins."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from inspect import signature

import numpy as np
from pytensor.graph import Variable

from pymc_kernel.kernels.points import check_between as check_between
from pymc_kernel.kernels.points import check_whole as check_whole

type RandomSeed = int | Sequence[int] | np.ndarray | np.random.Generator | None
"""Anything that ``numpy.random.default_rng`` accepts."""

type Variables = Variable | Sequence[Variable] | None
"""Random or value variables of a model; None for all that the step can sample."""


def keywords_of(function: Callable) -> set[str]:
    """Return the names of the parameters of a function."""
    return set(signature(function).parameters)


def check_keywords(who: str, given: Iterable[str], known: set[str], advice: str) -> None:
    """Raise ``TypeError`` for names in ``given`` that are not in ``known``; the message ends with ``advice``."""
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"{who} got an unexpected keyword argument {', '.join(map(repr, unknown))}. {advice}")


def check_executor(executor: Executor | int | None) -> None:
    """Raise ``TypeError`` unless this is an executor, a number of processes or None."""
    is_number = isinstance(executor, int | np.integer) and not isinstance(executor, bool) and executor >= 1
    if not (executor is None or is_number or hasattr(executor, "submit")):
        raise TypeError(
            "executor must be None, a number of processes, or have the methods of concurrent.futures.Executor "
            f"(for Dask: client.get_executor()); got {executor!r}."
        )
