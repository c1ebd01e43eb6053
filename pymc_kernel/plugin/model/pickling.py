"""Models and compiled functions as bytes for workers that share nothing with this process."""

import io

import cloudpickle
from pytensor.compile.ops import FromFunctionOp

__all__ = ["pickled"]


class _ByValue(cloudpickle.Pickler):
    """Pickles operators made by ``wrap_py`` with their functions.

    PyTensor names the place where they were written, and a worker does not have the user's script or notebook.
    """

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
