"""How many threads work: row blocks of a long computation on all cores, linear algebra on one.

Numba's own threading layers are avoided on purpose: the OpenMP one ends a process that was forked after
its first use, and forking is how PyMC starts chains on Linux. Compiled functions that release the
interpreter's lock (``nogil=True``) run in plain threads just as fast.

BLAS is held to one thread wherever this package does linear algebra: for matrices of a few hundred rows threads cost
more than they save, and their number changes the last bit of sums, after which chains with the same seed diverge.
"""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ContextDecorator
from functools import cache
from itertools import pairwise

from threadpoolctl import ThreadpoolController, threadpool_limits

_MIN_WORK = 2e5  # inner operations, below which starting threads costs more than it saves


@cache
def _blas_libraries() -> tuple[list, list]:
    """Return NumPy's and SciPy's BLAS: those with one thread count per process, and those with one per thread.

    The search takes a millisecond, setting their threads some microseconds.
    """
    import scipy.linalg  # noqa: F401 (it has its own BLAS, which is found only once loaded)

    libraries = ThreadpoolController().select(user_api="blas").lib_controllers
    own = [library for library in libraries if getattr(library, "threading_layer", None) == "openmp"]
    return [library for library in libraries if library not in own], own


class _OneBlasThread(ContextDecorator):
    """See :data:`one_blas_thread`.

    Most libraries have one number of threads for the whole process: the first thread to enter sets it, and the last one
    to leave restores it. Where OpenBLAS is built on OpenMP every thread has its own number.
    """

    def __init__(self):
        self._begin()

    def leave(self):
        """Restore the thread counts in a child process that was forked inside of such a block, and leave the block."""
        _set_num_threads(self._before + getattr(self._here, "before", []))
        self._begin()

    def _begin(self):
        self._lock = threading.Lock()
        self._num_inside = 0
        self._before: list[tuple] = []  # of the process
        self._here = threading.local()

    def __enter__(self):
        depth = getattr(self._here, "depth", 0)
        if depth == 0:
            shared, own = _blas_libraries()
            with self._lock:
                if self._num_inside == 0:
                    self._before = _limit(shared)
                self._num_inside += 1
            self._here.before = _limit(own)
        self._here.depth = depth + 1
        return self

    def __exit__(self, *exception):
        self._here.depth -= 1
        if self._here.depth == 0:
            _set_num_threads(self._here.__dict__.pop("before"))
            with self._lock:
                self._num_inside -= 1
                if self._num_inside == 0:
                    before, self._before = self._before, []
                    _set_num_threads(before)
        return False


def _limit(libraries):
    """Set libraries to one thread; return those that had more, with their former numbers."""
    before = [(library, library.num_threads) for library in libraries if library.num_threads != 1]
    _set_num_threads([(library, 1) for library, _ in before])
    return before


def _set_num_threads(counts):
    for library, count in counts:
        # In threadpoolctl only the thread that first set the number can change it; calls by others fail silently.
        clear = getattr(library, "clear_controlling_thread", lambda force: None)
        clear(force=True)
        library.set_num_threads(count)
        clear(force=True)


#: A context, ``with one_blas_thread:``, and a decorator, ``@one_blas_thread``: BLAS works with one thread inside, and
#: with as many as before outside, errors or not. It may be nested, and used in several threads. Entering takes some
#: twenty microseconds, less than one if nested.
one_blas_thread = _OneBlasThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_blas_thread.leave)


def leave_one_thread() -> None:
    """Limit BLAS and OpenMP to one thread for the rest of this process, which is one of several workers."""
    threadpool_limits(1)


def num_threads() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_row_blocks(
    function: Callable[[int, int], None], num_rows: int, work_per_row: float, most_rows: int | None = None
) -> None:
    """Call ``function(start, stop)`` so that the blocks cover ``range(num_rows)`` once.

    It fills its own rows of an output, and must release the interpreter's lock to gain from threads. With fewer than
    200,000 inner operations in all, roughly, everything runs in this thread. No block has more than ``most_rows``.
    """
    threads = min(num_threads(), num_rows)
    is_alone = threads <= 1 or num_rows * work_per_row < _MIN_WORK
    # Four blocks a thread even out rows of unequal cost without making the blocks small.
    num_blocks = 1 if is_alone else min(num_rows, 4 * threads)
    if most_rows is not None:
        num_blocks = max(num_blocks, -(-num_rows // most_rows))
    edges = [num_rows * b // num_blocks for b in range(num_blocks + 1)]
    if is_alone:
        for start, stop in pairwise(edges):
            function(start, stop)
        return
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(one_blas_thread(function), a, b) for a, b in pairwise(edges)]:
            future.result()
