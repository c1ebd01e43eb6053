"""Compiled functions whose machine code is kept between runs, until a source of the package changes.

Numba keeps machine code by the file of the function alone. A compiled function holds the code of all that it calls,
also from other files: after an update it would go on computing what they were before.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile


def _hash_of_sources() -> str:
    """Return a hash of all Python files but the plugin's, which compiles nothing; the version is in one of them."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder)
        if name.parts[0] != "plugin":
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# Made once, before any compiled function is loaded: files that change later do not stand for the code of this process.
_SOURCES = _hash_of_sources()


class _Cache(FunctionCache):
    """Numba's cache of a function, in Numba's folders, that is overwritten once the sources have changed.

    Its files have no line numbers in their names, so that a function that has moved finds and replaces its own.
    """

    def __init__(self, function):
        super().__init__(function)
        name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, _SOURCES)
        # The version is read first. The rest names types of old sources, which need not be there any more.
        self._cache_file._version = f"{numba.__version__} {_SOURCES}"


def compiled(function: Callable | None = None, *, fastmath: bool | set[str] = False) -> Callable:
    """Compile a function with Numba and keep its machine code; where no folder can be written to, for this process.

    It leaves the interpreter's lock, and divides by zero as NumPy does. ``fastmath`` is always named: Numba would take
    over that of whichever caller is compiled first.
    """
    if function is None:
        return lambda function: compiled(function, fastmath=fastmath)
    dispatcher = numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)
    try:
        dispatcher._cache = _Cache(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    return dispatcher
