"""A bounded record of the positions a chain has visited. Imports NumPy only."""

from typing import NamedTuple

import numpy as np

__all__ = ["History", "append", "empty_history", "recent"]


class History(NamedTuple):
    """Every ``stride``-th position since the start, at most ``capacity`` of them.

    The buffer is shared by successive states and only ever written behind ``count``, so an older state
    still reads what it held; a deep copy separates two continuations.
    """

    buffer: np.ndarray  # (capacity, d)
    count: int
    stride: int
    skipped: int  # positions since the last one kept


def empty_history(capacity: int, num_dims: int) -> History:
    """Return an empty record; memory is capacity x d numbers, however many positions follow."""
    return History(np.empty((capacity, num_dims)), 0, 1, 0)


def append(history: History, position: np.ndarray) -> History:
    """Return the record with one more position; when it is full, every second one is dropped."""
    buffer, count, stride, skipped = history
    if skipped + 1 < stride:
        return History(buffer, count, stride, skipped + 1)
    if count == buffer.shape[0]:
        thinned = np.empty_like(buffer)
        kept = buffer[1::2]
        thinned[: kept.shape[0]] = kept
        buffer, count, stride = thinned, kept.shape[0], 2 * stride
        if skipped + 1 < stride:
            return History(buffer, count, stride, skipped + 1)
    buffer[count] = position
    return History(buffer, count + 1, stride, 0)


def recent(history: History, fraction: float) -> np.ndarray:
    """Return a view of the latest ``fraction`` of the record, shape (n, d)."""
    start = history.count - int(np.ceil(fraction * history.count))
    return history.buffer[start : history.count]
