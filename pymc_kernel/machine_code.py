"""Compiled functions whose machine code is kept between runs, until a source of the package changes.

Numba's cache checks the function's own file alone. But a compiled function contains the code of everything that it
calls, also from other files: after an update of these it would still run their old code.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile


def _hash_of_sources() -> str:
    """Return a hash of all Python files except the plugin's, which compile nothing; it covers the version."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        name = file.relative_to(folder)
        if name.parts[0] != "plugin":
            digest.update(f"{name}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# Computed once, before any compiled function is loaded: later changes of the files are not in this process's code.
_SOURCES = _hash_of_sources()


class _Cache(FunctionCache):
    """Numba's cache of a function, in Numba's folders, that is overwritten once the sources have changed.

    File names contain no line number, so a function that has moved within its file overwrites its own entry.
    """

    def __init__(self, function):
        super().__init__(function)
        name = f"{function.__module__}.{function.__qualname__}.{sys.implementation.cache_tag}"
        self._cache_file = IndexDataCacheFile(self._cache_path, name, _SOURCES)
        # Numba reads the version first. The rest of an old index may name types that the sources no longer have.
        self._cache_file._version = f"{numba.__version__} {_SOURCES}"


def compiled(function: Callable | None = None, *, fastmath: bool | set[str] = False) -> Callable:
    """Compile a function with Numba and cache its machine code on disk, or in memory if no folder is writable.

    It releases the interpreter's lock, and divides by zero as NumPy does. ``fastmath`` is always passed: otherwise
    Numba would use the setting of whichever caller is compiled first.
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
