"""Compilation of a model's functions: reproducible between processes, and by NumPy for many draws at once.

Functions of many draws are called too seldom to pay for a compiler of machine code. PyTensor's interpreter calls a
Python function for each number of an array where it knows no NumPy function for an operation: a prior with an interval
took a hundred times as long as it does with the NumPy functions below.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pytensor import config
from pytensor.compile.mode import Mode, get_mode
from pytensor.graph import RewriteDatabaseQuery, Variable, node_rewriter, vectorize_graph
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.link.vm import VMLinker
from pytensor.scalar.basic import Clip, Second
from pytensor.scalar.math import Log1mexp, Softplus, TriGamma
from pytensor.tensor import tensor
from pytensor.tensor.elemwise import Elemwise
from scipy.special import zeta

DRAWS_AT_A_TIME = 512  # bounds the memory of a vectorized graph

# PyTensor changes flags of the whole process while it compiles, and restores them: two threads that overlap would leave
# the quick mode of these functions behind for every model of the session.
_COMPILING = threading.RLock()


@contextmanager
def compiling() -> Iterator[None]:
    """Let only this thread compile, and keep Numba from reordering sums.

    By default PyTensor lets Numba reorder sums, in another way where parts come from Numba's cache. Then one seed gives
    other draws in the next process, and a run that resumes from a store asks for other places. Without reordering, a
    gradient with many sums takes up to 1.8 times as long, others as long as before.
    """
    with _COMPILING, config.change_flags(numba__fastmath=False):
        yield


def softplus(x):
    """Return log(1 + exp(x))."""
    return np.logaddexp(np.zeros((), np.result_type(x, np.float32)), x)


def log1mexp(x):
    """Return log(1 - exp(x)) of x < 0, by the form that loses no digits."""
    return np.where(x < -np.log(2.0), np.log1p(-np.exp(x)), np.log(-np.expm1(x)))


def trigamma(x):
    """Return the second derivative of the log gamma function."""
    return zeta(2.0, x)


def clip(x, low, high):
    """Return x within bounds; NaN stays NaN."""
    return np.where(x < low, low, np.where(x > high, high, x))


def second(x, filling):
    """Return an array of the shape of both, filled by the second one."""
    return np.broadcast_to(filling, np.broadcast_shapes(np.shape(x), np.shape(filling)))


_BY_NUMPY = {Softplus: "softplus", Log1mexp: "log1mexp", TriGamma: "trigamma", Clip: "clip", Second: "second"}


@node_rewriter([Elemwise])
def _with_numpy(fgraph, node):
    """Return an elementwise operation with its NumPy function, None where it stays as it is."""
    name = _BY_NUMPY.get(type(node.op.scalar_op))
    if name is None or node.op.nfunc_spec is not None:
        return None
    spec = f"{__name__}.{name}", len(node.inputs), 1
    return Elemwise(node.op.scalar_op, node.op.inplace_pattern, nfunc_spec=spec).make_node(*node.inputs).outputs


def by_numpy(mode: Mode) -> Mode:
    """Return a mode of the interpreter that takes NumPy functions where PyTensor knows none."""
    return mode.register((dfs_rewriter(_with_numpy, ignore_newtrees=True), 1000.0))  # after all of PyTensor's


#: For graphs that are called a few times.
QUICK = by_numpy(get_mode("FAST_COMPILE"))
#: The same with the numerically stable forms of functions, which the quick mode leaves out.
STABLE = by_numpy(Mode("py", RewriteDatabaseQuery(include=["fast_run"], exclude=["fusion", "inplace", "BlasOpt"])))
#: For graphs that are called some hundred times: rewriting them would take longer, and machine code longer still.
UNOPTIMIZED = Mode(linker=VMLinker(use_cloop=False, c_thunks=False), optimizer=None)


def of_vector(
    model: pm.Model, value_vars: Sequence[Variable], point: dict, outputs: Sequence[Variable], compile_kwargs: dict
) -> tuple[Callable, dict]:
    """Return a compiled function from a vector of some value variables, and shared stand-ins of the others.

    Shapes and stand-ins are taken from the point, which has values of all. The function returns a list.
    """
    shared = make_shared_replacements(point, value_vars, model)
    joined, vector = join_nonshared_inputs(point=point, outputs=outputs, inputs=list(value_vars), shared_inputs=shared)
    with model, compiling():
        function = pymc_compile([vector], joined, **compile_kwargs)
    function.trust_input = True
    return function, shared


def of_position(model: pm.Model, point: dict, outputs: Sequence[Variable]) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return an interpreted function from a position (d,) to outputs whose cost is that of black boxes."""
    return of_vector(model, model.value_vars, point, outputs, {"mode": STABLE, "on_unused_input": "ignore"})[0]


def over_draws(
    model: pm.Model, outputs: Sequence[Variable], inputs=None, shapes=None, at_a_time=DRAWS_AT_A_TIME, **kwargs: Any
) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Return a function from draws of the inputs, a list of (n, ...), to those of the outputs, in one vectorized graph.

    The inputs are the model's value variables by default. If their shapes are given, the graph need not compute them:
    code that does takes seconds to compile. ``kwargs`` are for the compiled function.
    """
    inputs = list(model.value_vars if inputs is None else inputs)
    shapes = [v.type.shape for v in inputs] if shapes is None else shapes
    many = {v: tensor(dtype=v.dtype, shape=(None, *s)) for v, s in zip(inputs, shapes, strict=True)}
    settings = {"on_unused_input": "ignore", "mode": QUICK} | kwargs
    with model, compiling():
        function = pymc_compile(list(many.values()), vectorize_graph(list(outputs), many), **settings)
    function.trust_input = True
    dtypes, num_axes = [v.dtype for v in inputs], [v.ndim for v in outputs]

    def evaluate(draws):
        parts = []
        for start in range(0, len(draws[0]), at_a_time):
            rows = slice(start, start + at_a_time)
            batch = [np.ascontiguousarray(d[rows], dtype=dtype) for d, dtype in zip(draws, dtypes, strict=True)]
            # An output that does not depend on the draws has no dimension of draws.
            cores = [(o, np.shape(o)[np.ndim(o) - k :]) for o, k in zip(function(*batch), num_axes, strict=True)]
            parts.append([np.broadcast_to(o, (len(batch[0]), *core)) for o, core in cores])
        return [np.concatenate(part) for part in zip(*parts, strict=True)]

    return evaluate
