"""Arguments that are handed on: checked before the work begins, not by whom they are handed to after it."""

import inspect
from collections.abc import Callable, Iterable

__all__ = ["check_keywords", "keywords_of"]


def keywords_of(function: Callable) -> set[str]:
    """Return the names of the parameters of a function."""
    return set(inspect.signature(function).parameters)


def check_keywords(who: str, given: Iterable[str], known: set[str], advice: str) -> None:
    """Raise ``TypeError`` where a name that is ``given`` is not ``known``.

    Parameters
    ----------
    who : str
        The function that was called, for the message.
    given : iterable of str
    known : set of str
    advice : str
        What to do; a full sentence.
    """
    unknown = sorted(set(given) - known)
    if unknown:
        raise TypeError(f"{who}() got an unexpected keyword argument {', '.join(map(repr, unknown))}. {advice}")
