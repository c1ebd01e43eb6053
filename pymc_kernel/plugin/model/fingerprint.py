"""Short texts that identify what a model's forward draws depend on, the same in every process, unlike pickles.

The graph is hashed as text, numbers by their bytes, and functions by their code.
"""

import functools
import hashlib
import re
import types
from collections.abc import Iterator

import numpy as np
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph import Constant, graph_inputs
from pytensor.graph.traversal import apply_ancestors
from pytensor.printing import debugprint
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_kernel.plugin.model.forward import ForwardGraph


def model_fingerprint(graph: ForwardGraph) -> dict[str, str]:
    """Return texts for the parts of a model that its forward draws depend on.

    Of the data only the shapes count. Constants, ``pm.Data`` and the code of simulators count, with what they refer to
    in their closures and in their own module; attributes that begin with an underscore do not.
    """
    outputs = [*graph.free, *graph.derived, *graph.observed]
    text = re.sub("0x[0-9A-Fa-f]+", "", debugprint(outputs, file="str", print_type=True))
    numbers, functions = hashlib.sha256(), hashlib.sha256()
    for variable in graph_inputs(outputs):
        if isinstance(variable, Constant):
            numbers.update(_digest(variable.data, {}))
        elif isinstance(variable, SharedVariable) and not isinstance(variable.type, RandomGeneratorType):
            numbers.update(_digest(variable.get_value(borrow=True), {}))
    for node in apply_ancestors(outputs):
        for name, value in sorted({**vars(type(node.op)), **vars(node.op)}.items()):
            if "random_fn" in name or name == "fn":  # of CustomDist and of Simulator
                functions.update(_digest(value, {}))
    return {
        "variables": ", ".join(f"{v.name} {v.type.shape}" for v in outputs),
        "graph": _short(hashlib.sha256(text.encode()).digest()),
        "constants": _short(numbers.digest()),
        "simulators": _short(functions.digest()),
    }


def array_fingerprint(arrays: list[np.ndarray]) -> str:
    """Return a text for the numbers and shapes of arrays."""
    return _short(_digest(arrays, {}))


def _short(digest):
    return digest.hex()[:16]  # 64 bits tell models apart, and are read at a glance


def _digest(value, known):
    """Return the hash of a value by its content, not by its address.

    ``known`` holds each object beside its hash: while it is held, no other object gets its address.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        header = f"{value.dtype}{value.shape}".encode()
        return hashlib.sha256(header + np.ascontiguousarray(value).tobytes()).digest()
    if isinstance(value, str | bytes | bool | int | float | complex | None | slice):
        return hashlib.sha256(repr(value).encode()).digest()
    if id(value) not in known:
        known[id(value)] = value, b"an object that contains itself"
        # The hashes of the parts have one length: [1, 23] and [12, 3] differ.
        content = type(value).__qualname__.encode() + b"".join(_digest(part, known) for part in _parts(value))
        known[id(value)] = value, hashlib.sha256(content).digest()
    return known[id(value)][1]


def _parts(value):
    if isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif isinstance(value, types.CodeType):
        # Without its name and line numbers: a function that was moved in its file is still the same.
        yield from (value.co_code, value.co_consts, value.co_names, value.co_varnames)
    elif isinstance(value, dict):
        for key, item in sorted(value.items(), key=lambda pair: str(pair[0])):
            yield from (str(key), item)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from sorted(value, key=str) if isinstance(value, set | frozenset) else value
    elif isinstance(value, type | types.ModuleType | types.BuiltinFunctionType):
        yield f"{getattr(value, '__module__', '')}.{value.__name__}"
    elif hasattr(value, "py_func") or hasattr(value, "__wrapped__"):  # by Numba; functools.cache, static methods
        yield getattr(value, "py_func", None) or value.__wrapped__
    elif _has_own_pickle(value):
        yield from (tuple(p) if isinstance(p, Iterator) else p for p in value.__reduce_ex__(4))
    else:
        yield {k: v for k, v in getattr(value, "__dict__", {}).items() if not k.startswith("_")}
        yield [m for c in type(value).__mro__ for m in vars(c).values() if isinstance(m, types.FunctionType)]


def _has_own_pickle(value):
    """Return whether the class of an object defines its own pickling, as tables, dates and queues do."""
    kind = type(value)
    is_plain = hasattr(value, "__dict__") and kind.__reduce__ is object.__reduce__
    if is_plain and kind.__reduce_ex__ is object.__reduce_ex__ and kind.__getstate__ is object.__getstate__:
        return False
    try:
        return isinstance(value.__reduce_ex__(4), tuple)
    except Exception:  # locks and open files have no content that a simulation could depend on
        return False


def _function_parts(function):
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        yield cell.cell_contents
    for name in _names(function.__code__):
        known = function.__globals__.get(name)
        is_own = getattr(known, "__module__", None) == function.__module__
        if is_own or isinstance(known, np.ndarray | str | bool | int | float | tuple | list | dict):
            yield from (name, known)


def _names(code):
    """Return the names that code refers to, nested functions included."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return sorted(set(code.co_names).union(*inner))
