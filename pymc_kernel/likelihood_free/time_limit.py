"""A limit on the time of one call, in any thread of this process. Imports the standard library only."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["TimedOut", "time_limit"]


class TimedOut(BaseException):
    """A call ran longer than its limit. No ``Exception``, so that a simulator's own handlers let it pass."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimedOut` inside of the ``with`` block once it has run for ``seconds``; None for no limit.

    In the main thread a signal does it, which also ends a sleep or a wait; in other threads, and on Windows, an
    exception that comes at the next step of Python code. Compiled code that never returns to Python cannot be stopped:
    let such a simulator run its own process, with its own limit. A timer of the caller's goes on.
    """
    if seconds is None:
        yield
        return
    thread = threading.current_thread()
    by_signal = thread is threading.main_thread() and hasattr(signal, "pthread_kill")
    lock = threading.Lock()
    is_due = is_over = False

    def strike():
        nonlocal is_due
        with lock:
            if is_over:
                return
            is_due = True
            if by_signal:
                signal.pthread_kill(thread.ident, signal.SIGALRM)
            else:
                _set_exception(thread, ctypes.py_object(TimedOut))

    def ring(number, frame):
        if is_due and not is_over:
            raise TimedOut
        if not is_due and callable(before):  # the caller's own alarm
            before(number, frame)

    # A thread keeps the time, not the process's one timer, which may be the caller's.
    timer = threading.Timer(seconds, strike)
    timer.daemon = True
    before = signal.signal(signal.SIGALRM, ring) if by_signal else None
    try:
        timer.start()
        yield
    finally:
        try:
            timer.cancel()
            with lock:
                is_over = True
        finally:
            if by_signal:
                signal.signal(signal.SIGALRM, before)  # a signal that has come is handled before
            else:
                # An exception that was set but not yet raised would be raised in the caller's code.
                _set_exception(thread, None)


def _set_exception(thread, exception):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)
