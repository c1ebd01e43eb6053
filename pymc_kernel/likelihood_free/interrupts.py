"""Ctrl-C in long calls, and a limit on the time of one call, in any thread."""

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager


class _InterruptsWait(ContextDecorator):
    """See :data:`interrupts_wait`."""

    def __init__(self):
        self._depth = 0

    def __enter__(self):
        handler = signal.getsignal(signal.SIGINT)
        if _is_main_thread() and (self._depth or callable(handler)):
            self._depth += 1
            if self._depth == 1:
                self._handler = handler
                self._is_asked = self._is_raised = self._is_open = False
                signal.signal(signal.SIGINT, self._ring)
        return self

    def __exit__(self, *exception):
        if _is_main_thread() and self._depth:
            self._depth -= 1
            if self._depth == 0:
                signal.signal(signal.SIGINT, self._handler)

    @contextmanager
    def not_here(self) -> Iterator[None]:
        """Let interrupts end this part of the block at once, including one that came before it."""
        if not (_is_main_thread() and self._depth):
            yield
            return
        self._is_open = True
        try:
            if self._is_asked and not self._is_raised:
                self._raise(None)
            yield
        finally:
            self._is_open = False

    def _ring(self, number, frame):
        is_second, self._is_asked = self._is_asked, True
        if self._is_open or is_second:
            self._raise(frame)

    def _raise(self, frame):
        self._is_raised = True
        self._handler(signal.SIGINT, frame)


def _is_main_thread():
    return threading.current_thread() is threading.main_thread()


#: A context manager and decorator for calls whose work must not be lost. An interrupt ends the user's own code, and
#: waiting for workers (``with interrupts_wait.not_here():``), at once. While results are kept, learned from or
#: returned, it is held back until the next such part. A second interrupt takes effect at once anywhere. Only the main
#: thread is affected: Python interrupts no other.
interrupts_wait = _InterruptsWait()


class TimedOut(BaseException):
    """A call ran longer than its limit. Not an ``Exception``, so that a simulator's own handlers do not catch it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise :class:`TimedOut` inside of the ``with`` block once it has run for ``seconds``; None for no limit.

    In the main thread a signal raises it, which also ends a sleep or a wait; in other threads, and on Windows, it is
    raised at the next step of Python code. Python drops what is raised while an object is deleted, and a bare
    ``except`` may catch it: it is raised again after each further ``seconds``, at most once a second. Compiled code
    that never returns to Python cannot be stopped: let such a simulator run its own process, with its own limit. The
    caller's own timer keeps running.
    """
    if seconds is None:
        yield
        return
    thread = threading.current_thread()
    by_signal = thread is threading.main_thread() and hasattr(signal, "pthread_kill")
    lock, over = threading.Lock(), threading.Event()
    is_due = False

    def keep_time():
        nonlocal is_due
        wait = seconds
        while not over.wait(wait):
            with lock:
                if over.is_set():
                    return
                is_due = True
                if by_signal:
                    signal.pthread_kill(thread.ident, signal.SIGALRM)
                else:
                    _set_exception(thread, ctypes.py_object(TimedOut))
            wait = max(seconds, 1.0)

    def ring(number, frame):
        if is_due and not over.is_set():
            raise TimedOut
        if not is_due and callable(before):  # the caller's own alarm
            before(number, frame)

    # A thread keeps the time, not the process's one timer, which may be the caller's.
    keeper = threading.Thread(target=keep_time, daemon=True)
    before = signal.signal(signal.SIGALRM, ring) if by_signal else None
    try:
        try:
            keeper.start()
            yield
        finally:
            over.set()
    finally:
        with lock:  # no ring is on its way
            over.set()  # the line above may have been interrupted
        if by_signal:
            signal.signal(signal.SIGALRM, before)  # a signal that has come is handled before
        else:
            # An exception that was set but not yet raised would be raised in the caller's code.
            _set_exception(thread, None)


def _set_exception(thread, exception):
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), exception)
