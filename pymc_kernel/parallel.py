"""Row blocks of a long computation on all cores, by threads. Imports the standard library and NumPy only.

Numba's own threading layers are avoided on purpose: the OpenMP one ends a process that was forked after
its first use, and forking is how PyMC starts chains on Linux. Compiled functions that release the
interpreter's lock (``nogil=True``) run in plain threads just as fast.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

__all__ = ["num_threads", "over_row_blocks"]


def num_threads() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def over_row_blocks(
    function: Callable[[int, int], None], num_rows: int, work_per_row: float, min_work: float = 2e5
) -> None:
    """Call ``function(start, stop)`` so that the blocks cover ``range(num_rows)`` once.

    Parameters
    ----------
    function
        Fills its own rows of an output; must release the interpreter's lock to gain from threads.
    num_rows
        Rows in all.
    work_per_row
        Rough number of inner operations a row; below ``min_work`` in all, everything runs in this thread.
    min_work
        Work below which starting threads costs more than it saves.
    """
    threads = min(num_threads(), num_rows)
    if threads <= 1 or num_rows * work_per_row < min_work:
        function(0, num_rows)
        return
    # Four blocks a thread even out rows of unequal cost without making the blocks small.
    num_blocks = min(num_rows, 4 * threads)
    edges = [num_rows * b // num_blocks for b in range(num_blocks + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(function, a, b) for a, b in pairwise(edges)]:
            future.result()
