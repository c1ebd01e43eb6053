"""Objects that take long to compile, for workers: sent as bytes, made once in each thread that uses them."""

import hashlib
import io
import threading
from collections.abc import Callable
from weakref import WeakValueDictionary

import cloudpickle
from pytensor.compile.ops import FromFunctionOp

from pymc_kernel.plugin.model.interpreter import compiling

_HERE = WeakValueDictionary()  # by key, what this process has made or was sent
_LAST = []  # the one that a worker was sent last, kept alive for the next task


class Remote:
    """An object for each thread that asks for it, since compiled functions keep memory that threads cannot share.

    ``make`` returns it. It lives as long as this ``Remote`` does; in a worker process, until that is sent another one.
    If other threads or processes ask for it, ``make`` is sent with all that it refers to; ``TypeError`` where that
    cannot be pickled.
    """

    def __init__(self, make: Callable, is_sent: bool):
        self._make, self._payload, self._maker = make, None, threading.get_ident()
        self._own = threading.local()
        if is_sent:
            try:
                self._payload = pickled(make)
            except Exception as error:
                raise TypeError(
                    f"the model cannot be sent to workers: {error}. Let its simulator or likelihood open what cannot "
                    "be pickled when it is called, or use executor=None."
                ) from error
            self._key = hashlib.sha256(self._payload).digest()
            _HERE[self._key] = self

    def here(self):
        """Return the object of this thread."""
        if not hasattr(self._own, "made"):
            with compiling():
                # The thread that made this has the parts; so does a process that is forked from it.
                is_maker = self._payload is None or self._maker == threading.get_ident()
                self._own.made = (self._make if is_maker else cloudpickle.loads(self._payload))()
        return self._own.made

    def __reduce__(self):
        return _received, (self._payload, self._key)


def _received(payload, key):
    """Return the ``Remote`` of this process that stands for the sender's."""
    there = _HERE.get(key)
    if there is None:
        there = Remote.__new__(Remote)
        there._payload, there._key, there._maker, there._own = payload, key, None, threading.local()
        _HERE[key] = there
        _LAST[:] = [there]
    return there


class _ByValue(cloudpickle.Pickler):
    """Pickles operators made by ``wrap_py`` with their functions: PyTensor does by names that workers may lack."""

    def reducer_override(self, obj):
        if type(obj) is FromFunctionOp:
            own = vars(obj)
            given = own["_FromFunctionOp__fn"], obj.itypes, obj.otypes, own["_FromFunctionOp__infer_shape"]
            return FromFunctionOp, given
        return super().reducer_override(obj)


def pickled(what) -> bytes:
    """Return bytes from which ``cloudpickle.loads`` makes the same object anywhere."""
    buffer = io.BytesIO()
    _ByValue(buffer).dump(what)
    return buffer.getvalue()
