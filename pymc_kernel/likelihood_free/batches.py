"""Tasks on any executor, with bounded memory, retries, and replacement of workers that die."""

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
    Future,
    ProcessPoolExecutor,
    wait,
)
from numbers import Integral
from typing import NamedTuple

from pymc_kernel.kernels.points import check_whole
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.parallel import leave_one_thread


class WorkersLost(RuntimeError):
    """The user's executor broke, and only the user can make a new one."""


class Batch(NamedTuple):
    """The result of one batch."""

    index: int
    result: object  #: None where it failed every time
    error: BaseException | None


class Workers:
    """Runs tasks in this process or on an executor, in any number of calls of :meth:`run`; use it in a ``with`` block.

    Parameters
    ----------
    executor : concurrent.futures.Executor, int or None
        None: this process. A number: as many worker processes of one thread each, which are replaced when one dies.
        They are started by the first task.

    Attributes
    ----------
    deaths : int
        How often a worker process died, and all were replaced.
    """

    def __init__(self, executor: Executor | int | None = None):
        self._num_own = int(executor) if isinstance(executor, Integral) else 0
        self._executor = _Here() if executor is None else None if self._num_own else executor
        self.deaths = 0

    def run(
        self, task: Callable, indices: Iterable[int], arguments: Callable[[int], tuple], retries: int = 1,
        max_in_flight: int | None = None,
    ) -> Iterator[Batch]:  # fmt: skip
        """Yield the batches ``task(*arguments(i))`` as they finish, in no fixed order.

        ``arguments`` is called for a batch when its turn comes, so that no more than ``max_in_flight`` arguments and
        results exist: of batches submitted and not yet yielded, by default twice the workers, and 64 where their number
        is unknown. A batch that raises an error, or whose process dies, is tried as many as ``retries`` times again.
        Raises ``WorkersLost`` where an executor that was given breaks.

        When a process dies all batches in flight are lost and each is suspect, so each then runs alone, until the one
        that kills its process is found. Closing the generator cancels what has not begun.
        """
        check_whole(least=0, retries=retries)
        room = max_in_flight or 2 * (self._num_own or getattr(self._executor, "_max_workers", None) or 32)
        room = 1 if isinstance(self._executor, _Here) else room
        fresh, suspects, attempts, running = deque(indices), deque(), Counter(), {}
        try:
            while fresh or suspects or running:
                is_broken = not self._hand_out(running, fresh, suspects, room, task, arguments)
                finished = _wait(running, FIRST_COMPLETED)
                if is_broken or any(isinstance(_error(f), BrokenExecutor) for f in finished):
                    is_broken, finished = True, _wait(running)
                num_lost = sum(isinstance(_error(f), BrokenExecutor) for f in finished)
                for future in finished:
                    index, error = running.pop(future), _error(future)
                    is_lost = isinstance(error, BrokenExecutor)
                    if error is None:
                        yield Batch(index, future.result(), None)
                    elif not isinstance(error, Exception):
                        raise error
                    elif is_lost and num_lost > 1:
                        suspects.append(index)
                    elif attempts[index] == retries:
                        yield Batch(index, None, error)
                    else:
                        attempts[index] += 1
                        if is_lost:  # it ran alone, so it is the one that kills
                            suspects.append(index)
                        else:
                            fresh.appendleft(index)
                if is_broken:
                    self._replace()
        finally:
            for future in running:
                future.cancel()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self) -> None:
        """End the processes that were started here; an executor that was given is left as it is."""
        if self._num_own and self._executor is not None:
            # As ``terminate_workers`` of Python 3.14. Other processes that were started here go on.
            processes = list((self._executor._processes or {}).values())
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._executor = None
            for process in processes:
                process.terminate()

    def _hand_out(self, running, fresh, suspects, room, task, arguments):
        """Submit as many tasks as there is room for; return whether the executor accepted them."""
        if self._executor is None:
            self._executor = ProcessPoolExecutor(self._num_own, initializer=_start_worker)
        queue, room = (suspects, 1) if suspects else (fresh, room)
        while queue and len(running) < room:
            given = arguments(queue[0])
            try:
                running[self._executor.submit(task, *given)] = queue[0]
            except RuntimeError:  # broken, or shut down
                return False
            queue.popleft()
        return True

    def _replace(self):
        if not self._num_own:
            raise WorkersLost(
                "the executor broke: a worker died, or it was shut down. Run again with a new one, or give the number "
                "of processes (executor=2), which are replaced."
            )
        self.deaths += 1
        self.close()


class _Here:
    """Runs each task in this process as soon as it is submitted; ``submit`` raises an interrupt at once."""

    def submit(self, task, *arguments):
        """Return a future that has its result."""
        future = Future()
        try:
            with interrupts_wait.not_here():
                future.set_result(task(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


def _start_worker():
    """Let this worker process leave interrupts to its parent, end with it, and work in one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, daemon=True).start()
    leave_one_thread()


def _follow_parent():
    """End this process with its parent: the workers of a standard pool would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _wait(running, *until):
    with interrupts_wait.not_here():
        return wait(running, None, *until).done


def _error(future):
    try:
        return future.exception()
    except CancelledError as error:
        return error
