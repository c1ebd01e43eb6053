"""Ctrl-C in long calls. Imports the standard library only."""

import signal
import threading
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager

__all__ = ["interrupts_wait"]


class _InterruptsWait(ContextDecorator):
    """See :data:`interrupts_wait`."""

    def __init__(self):
        self._depth = 0
        self._is_asked = self._is_raised = self._is_open = False

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
        return False

    @contextmanager
    def not_here(self) -> Iterator[None]:
        """Let a part of the block be interrupted at once, also by what came before it."""
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


#: A context and a decorator for calls whose work must not be lost: an interrupt ends the user's own code and waiting
#: for workers (``with interrupts_wait.not_here():``) at once, and waits for such a part everywhere else, where results
#: are kept, learned from or returned. A second interrupt ends whatever is done. Nothing changes in threads other than
#: the main one, which Python does not interrupt.
interrupts_wait = _InterruptsWait()
