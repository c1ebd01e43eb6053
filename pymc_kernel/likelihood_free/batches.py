"""Batches of work over any executor: bounded memory, retries, workers that die. Imports the standard library only."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    ProcessPoolExecutor,
    wait,
)
from typing import NamedTuple

__all__ = ["Batch", "WorkersLost", "run_batches", "start_worker"]


class WorkersLost(RuntimeError):
    """An executor of the user's broke, and only its owner can make a new one."""


class Batch(NamedTuple):
    """The result of one batch."""

    index: int
    result: object
    """None where it failed every time."""
    error: BaseException | None


def run_batches(
    task: Callable,
    indices: Iterable[int],
    arguments: Callable[[int], tuple],
    executor: Executor | int | None = None,
    *,
    retries: int = 1,
    max_in_flight: int | None = None,
    prepare: Callable[[], None] | None = None,
) -> Iterator[Batch]:
    """Yield the batches ``task(*arguments(i))`` as they finish, in no fixed order.

    Parameters
    ----------
    task : callable
    indices : iterable of int
    arguments : callable
        Called for a batch when its turn comes, so that no more than ``max_in_flight`` arguments and results exist.
    executor : concurrent.futures.Executor, int or None
        None: in this process, one after the other. A number: as many worker processes, which are replaced when one
        dies.
    retries : int
        A batch that raises an error, or whose process dies, is tried as many times again.
    max_in_flight : int, optional
        Batches submitted and not yet yielded; by default twice the workers, and 64 where their number is unknown.
    prepare : callable, optional
        Called in each worker process when it starts.

    Raises
    ------
    WorkersLost
        Where an executor that was given breaks.

    Notes
    -----
    When a process dies all batches in flight are lost and each is suspect, so each then runs alone, until the one that
    kills its process is found. Interruption (closing the generator) cancels what has not begun and ends processes of
    its own.
    """
    if not (isinstance(retries, int) and retries >= 0):
        raise ValueError(f"retries must be a whole number >= 0, got {retries!r}.")
    if executor is None:
        return _here(task, indices, arguments, retries)
    if isinstance(executor, int):
        return _on_own_processes(task, indices, arguments, executor, retries, max_in_flight, prepare)
    window = max_in_flight or 2 * (getattr(executor, "_max_workers", None) or 32)
    return _over(_Pool(lambda: executor, is_own=False), task, indices, arguments, retries, window)


def _here(task, indices, arguments, retries):
    for index in indices:
        for tried in range(retries + 1):
            try:
                yield Batch(index, task(*arguments(index)), None)
                break
            except Exception as error:
                if tried == retries:
                    yield Batch(index, None, error)


def _on_own_processes(task, indices, arguments, processes, retries, window, prepare):
    pool = _Pool(lambda: ProcessPoolExecutor(processes, initializer=start_worker, initargs=(prepare,)), is_own=True)
    try:
        yield from _over(pool, task, indices, arguments, retries, window or 2 * processes)
    finally:
        pool.close()


def start_worker(prepare: Callable[[], object] | None) -> None:
    """Let this worker process leave interrupts to its parent and end with it; then prepare."""
    # The user's interrupt is for the parent, which ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    if prepare is not None:
        prepare()


def _follow_parent():
    """End this process with its parent: the standard pool's workers would wait for work for ever."""
    multiprocessing.parent_process().join()
    os._exit(1)


class _Pool:
    """An executor that may be made anew."""

    def __init__(self, make, is_own):
        self.make, self.is_own = make, is_own
        self.before = set(multiprocessing.active_children())
        self.executor = make()

    def renew(self):
        if not self.is_own:
            raise WorkersLost(
                "the executor broke: a worker died, or it was shut down. Run again with a new one, or give the number "
                "of processes (executor=2), which are replaced."
            )
        self.close()
        self.executor = self.make()

    def close(self):
        self.executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - self.before:
            child.terminate()


def _over(pool, task, indices, arguments, retries, window):
    fresh, suspects, attempts, running = deque(indices), deque(), Counter(), {}
    try:
        while fresh or suspects or running:
            is_broken = not _hand_out(pool.executor, running, fresh, suspects, window, task, arguments)
            finished = wait(running, return_when=FIRST_COMPLETED).done
            if is_broken or any(isinstance(_error(f), BrokenExecutor) for f in finished):
                is_broken, finished = True, wait(running).done
            lost = []
            for future in finished:
                index, error = running.pop(future), _error(future)
                if isinstance(error, BrokenExecutor):
                    lost.append((index, error))
                elif error is None:
                    yield Batch(index, future.result(), None)
                elif not isinstance(error, Exception):
                    raise error
                elif attempts[index] < retries:
                    attempts[index] += 1
                    fresh.appendleft(index)
                else:
                    yield Batch(index, None, error)
            if len(lost) == 1:  # it ran alone, so it is the one that kills
                index, error = lost.pop()
                attempts[index] += 1
                if attempts[index] > retries:
                    yield Batch(index, None, error)
                else:
                    suspects.append(index)
            suspects.extend(index for index, _ in lost)
            if is_broken:
                pool.renew()
    finally:
        for future in running:
            future.cancel()


def _hand_out(executor, running, fresh, suspects, window, task, arguments):
    """Submit what there is room for; return whether the executor took it."""
    queue, room = (suspects, 1) if suspects else (fresh, window)
    while queue and len(running) < room:
        index = queue.popleft()
        try:
            running[executor.submit(task, *arguments(index))] = index
        except RuntimeError:  # broken, or shut down
            queue.appendleft(index)
            return False
    return True


def _error(future):
    try:
        return future.exception()
    except CancelledError as error:
        return error
