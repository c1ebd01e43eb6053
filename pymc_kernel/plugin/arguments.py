"""Types of arguments that many functions share, and checks of arguments before the work begins."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature

import numpy as np
from pytensor.graph.basic import Variable

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


def explain_arguments[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that errors about unknown keywords or too many positional arguments say what to do."""
    name, known = function.__name__, signature(function).parameters
    by_place = [n for n, one in known.items() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in kwargs:
            if given not in known:
                alike = get_close_matches(given, known, n=1, cutoff=0.5)  # such as ``random_seed`` for ``seed``
                meant = f"; do you mean {alike[0]}=?" if alike else "."
                raise TypeError(f"{name} has no argument {given!r}{meant} It takes {', '.join(known)}.")
        if len(args) > len(by_place):
            raise TypeError(
                f"{name} takes {len(by_place)} arguments without a name ({', '.join(by_place)}), got {len(args)}: name "
                f"the others, as in {list(known)[len(by_place)]}={args[len(by_place)]!r}."
            )
        return function(*args, **kwargs)

    return checked
