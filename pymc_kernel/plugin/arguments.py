"""Arguments that many functions share, or pass on: their types, and checks before the work begins."""

import inspect
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from pytensor.graph.basic import Variable

__all__ = ["RandomSeed", "Variables", "check_keywords", "check_whole", "keywords_of"]

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


def check_whole(**numbers) -> None:
    """Raise where one of the named numbers is neither None nor a whole number of one or more."""
    for name, value in numbers.items():
        if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")
