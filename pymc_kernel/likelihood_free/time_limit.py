"""A limit on the time of one call, in any thread of this process. Imports the standard library only."""

import ctypes
import signal
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext

__all__ = ["TimedOut", "time_limit"]


class TimedOut(BaseException):
    """A call ran longer than its limit. No ``Exception``, so that a simulator's own handlers let it pass."""


def time_limit(seconds: float | None) -> AbstractContextManager[None]:
    """Raise :class:`TimedOut` inside of the ``with`` block once it has run for ``seconds``; None for no limit.

    In the main thread a signal does it, which also ends a sleep or a wait; in other threads, and on Windows, an
    exception that comes at the next step of Python code. Compiled code that never returns to Python cannot be stopped:
    let such a simulator run its own process, with its own limit.
    """
    if seconds is None:
        return nullcontext()
    if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
        return _alarm(seconds)
    return _watchdog(seconds)


@contextmanager
def _alarm(seconds):
    def ring(number, frame):
        raise TimedOut

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _watchdog(seconds):
    thread = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    is_over = False

    def bark():
        with lock:
            if not is_over:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimedOut))

    timer = threading.Timer(seconds, bark)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        with lock:
            is_over = True
            # An exception that was set but not yet raised would be raised in the caller's code.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, None)
