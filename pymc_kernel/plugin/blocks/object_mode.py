"""Operators that call Python, under PyTensor's Numba backend."""

import warnings
from functools import cache

__all__ = ["allow_object_mode"]


@cache
def allow_object_mode(operator: type) -> None:
    """Let PyTensor's Numba backend call an operator of this class in object mode without its advice against it.

    Object mode is what a Python function needs. Called when the first operator is made or unpickled: the backend takes
    half a second to import.
    """
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

    @numba_funcify.register(operator)
    def in_object_mode(op, node, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            return generate_fallback_impl(op, node, **kwargs)
