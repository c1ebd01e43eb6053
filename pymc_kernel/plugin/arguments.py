"""Arguments that many functions share, or pass on: their types, and checks before the work begins."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

import numpy as np
from pytensor.graph.basic import Variable

__all__ = ["RandomSeed", "Variables", "check_executor", "check_keywords", "check_timeout", "check_whole", "keywords_of"]

type RandomSeed = int | Sequence[int] | np.ndarray | np.random.Generator | None
"""Whatever ``numpy.random.default_rng`` makes a generator from."""

type Variables = Variable | Sequence[Variable] | None
"""Random or value variables of a model; None for all that the step can sample."""


def keywords_of(function: Callable) -> set[str]:
    """Return the names of the parameters of a function."""
    return set(inspect.signature(function).parameters)


def check_keywords(who: str, given: Iterable[str], known: set[str], advice: str) -> None:
    """Raise ``TypeError`` where a name that is ``given`` is not ``known``.

    Parameters
    ----------
    who : str
        The function that was called, or the block that was made, for the message.
    given : iterable of str
    known : set of str
    advice : str
        What to do; a full sentence.
    """
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"{who} got an unexpected keyword argument {', '.join(map(repr, unknown))}. {advice}")


def check_timeout(timeout: float | None) -> None:
    """Raise where a time limit is neither None nor a positive number of seconds."""
    is_number = isinstance(timeout, int | float | np.number) and not isinstance(timeout, bool)
    if timeout is not None and not (is_number and 0.0 < timeout < np.inf):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}.")


def check_executor(executor: Executor | int | None) -> None:
    """Raise where this is no executor, nor a number of processes, nor None."""
    is_number = isinstance(executor, int | np.integer) and not isinstance(executor, bool) and executor >= 1
    if not (executor is None or is_number or hasattr(executor, "submit")):
        raise TypeError(
            "executor must be None, a number of processes, or have the methods of concurrent.futures.Executor "
            f"(for Dask: client.get_executor()); got {executor!r}."
        )


def check_whole(*optional: str, **numbers) -> None:
    """Raise where one of the named numbers is not a whole number of one or more; None is one for ``optional`` names."""
    for name, value in numbers.items():
        if not (value is None and name in optional) and not (isinstance(value, int | np.integer) and value >= 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")
