"""Error messages for arguments that a function does not have."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature

__all__ = ["explain_arguments"]

_ALIKE = 0.5  # of difflib's ratio: ``seed`` is like ``random_seed``


def explain_arguments[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Make errors for unknown keywords, or too many positional arguments, say what to do; for long keyword lists."""
    name, known = function.__name__, signature(function).parameters
    by_place = [n for n, one in known.items() if one.kind is Parameter.POSITIONAL_OR_KEYWORD]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in kwargs:
            if given not in known:
                alike = get_close_matches(given, known, n=1, cutoff=_ALIKE)
                meant = f"; do you mean {alike[0]}=?" if alike else "."
                raise TypeError(f"{name} has no argument {given!r}{meant} It takes {', '.join(known)}.")
        if len(args) > len(by_place):
            raise TypeError(
                f"{name} takes {len(by_place)} arguments without a name ({', '.join(by_place)}), got {len(args)}: name "
                f"the others, as in {list(known)[len(by_place)]}={args[len(by_place)]!r}."
            )
        return function(*args, **kwargs)

    return checked
