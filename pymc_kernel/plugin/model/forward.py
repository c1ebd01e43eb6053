"""Compiled forward draws of a model, in batches: of the prior, and of the data given parameters.

PyMC's own forward sampling runs in one process, draw by draw, and the first error of a simulator ends it. Here a batch
is one vectorized call wherever the model allows it; a simulator in Python is called draw by draw, each with its own
seed, so that the result of one does not depend on whether another failed.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.continuous import FlatRV, HalfFlatRV
from pymc.distributions.distribution import SymbolicRandomVariable
from pymc.distributions.multivariate import ICARRV
from pymc.pytensorf import compile as pymc_compile
from pytensor.graph import Constant, Variable, ancestors, graph_inputs, vectorize_graph
from pytensor.tensor import TensorType
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_kernel.plugin.model.interpreter import QUICK, compiling

_IMPROPER = FlatRV, HalfFlatRV, ICARRV
_FEWEST_AT_ONCE = 2  # draws in a batch, at least: for one alone, distributions drawn by SciPy return a mere number


class ForwardGraph(NamedTuple):
    """The variables of a model that forward draws need; without the data, so that little is sent to workers."""

    free: list[Variable]
    derived: list[Variable]  # deterministics that do not depend on the data
    observed: list[Variable]


def forward_graph(model: pm.Model) -> ForwardGraph:
    """Return the graph of a model's forward draws."""
    observed = list(model.observed_RVs)
    derived = [d for d in model.deterministics if not set(ancestors([d])) & set(observed)]
    return ForwardGraph(list(model.free_RVs), derived, observed)


def can_be_drawn(variable: Variable) -> bool:
    """Return whether a variable can be drawn: ``pm.Flat`` cannot, nor a ``CustomDist`` without ``random``."""
    if isinstance(variable.owner.op, _IMPROPER):
        return False
    function = getattr(type(variable.owner.op), "_random_fn", None)
    # PyMC puts this function where ``random`` is missing; nothing else marks such a variable.
    return "default_not_implemented" not in getattr(function, "__qualname__", "")


class ForwardSampler:
    """Draws of the prior, and of the data given parameters.

    Where ``is_vectorized`` is true all data of a batch come from one call; the model then has no Python simulator.
    """

    def __init__(self, graph: ForwardGraph, compile_kwargs: dict | None = None):
        # Compiles in milliseconds in every worker. The calls of a Python simulator outweigh the rest.
        self._kwargs = {"mode": QUICK, "on_unused_input": "ignore", "random_seed": False} | (compile_kwargs or {})
        self._one_prior = self._compile([], graph.free)
        self._one_derived = self._compile(graph.free, graph.derived)
        self._one_data = self._compile(graph.free, graph.observed)
        self._prior = self._vectorized_prior(graph.free)
        self._derived = self._vectorized(graph.free, graph.derived)
        self._data = self._vectorized(graph.free, graph.observed)
        self.is_vectorized = self._data is not None
        # In the order of the graph, which is the same in every process.
        self._prior_sources = generators_of(graph.free)
        self._data_sources = generators_of(graph.observed, graph.free)
        for variable in (*self._prior_sources, *self._data_sources):
            variable.set_value(np.random.Generator(np.random.PCG64(0)), borrow=True)

    def _compile(self, inputs, outputs):
        with compiling():
            function = pymc_compile(inputs, outputs, **self._kwargs)
        _own_constants(function)
        function.trust_input = True
        return function

    def _vectorized_prior(self, free):
        """Return a function of the number of draws, None where a variable of the model cannot be batched."""
        if not _are_plain(free):
            return None
        count = pt.lscalar("count")
        # Whatever depends on a batched variable is batched, too: one parameter of each root variable is enough.
        replace = {}
        for variable in ancestors(free):
            if _is_random(variable) and not any(_is_random(v) for v in ancestors(variable.owner.inputs)):
                parameter = variable.owner.op.dist_params(variable.owner)[0]
                replace[parameter] = pt.broadcast_to(parameter, (count, *parameter.shape))
        try:
            function = self._compile([count], vectorize_graph(free, replace))
            drawn, wanted = function(np.int64(2)), self._one_prior()
        except Exception:
            return None
        return function if all(d.shape == (2, *np.shape(w)) for d, w in zip(drawn, wanted, strict=True)) else None

    def _vectorized(self, free, outputs):
        """Return a function of batches of the free variables, None where there is none."""
        if not outputs or not _are_plain(outputs):
            return None
        many = {v: TensorType(v.dtype, (None, *v.type.shape))() for v in free}
        try:
            batched = vectorize_graph(outputs, many)
            function = self._compile(list(many.values()), batched)
        except Exception:
            return None
        return function if all(b.ndim > o.ndim for b, o in zip(batched, outputs, strict=True)) else None

    def prior(self, entropy: int, batch: int, size: int, batch_size: int) -> list[np.ndarray]:
        """Return draws of the free variables, each (size, ...).

        The first draws of a batch do not depend on ``size``, as long as that is at most ``batch_size``.
        """
        _install(self._prior_sources, _words(entropy, batch, len(self._prior_sources), False).tolist())
        if self._prior is not None:
            return [values[:size] for values in self._prior(np.int64(max(batch_size, _FEWEST_AT_ONCE)))]
        return _stacked([self._one_prior() for _ in range(size)])

    def derived(self, free: list[np.ndarray]) -> list[np.ndarray]:
        """Return the deterministics at batches of the free variables."""
        if self._derived is not None:
            return self._derived(*free)
        return _stacked([self._one_derived(*row) for row in zip(*free, strict=True)])

    def data(self, free: list[np.ndarray], entropy: int, batch: int) -> list[np.ndarray]:
        """Return the data of a whole batch; only where ``is_vectorized`` is true."""
        _install(self._data_sources, _words(entropy, batch, len(self._data_sources)).tolist())
        rows = len(free[0])
        if rows < _FEWEST_AT_ONCE:
            free = [np.repeat(v, _FEWEST_AT_ONCE, axis=0) for v in free]
        return [values[:rows] for values in self._data(*free)]

    def each_data(self, free: list[np.ndarray], entropy: int, batch: int) -> Iterator[Callable]:
        """Yield for each draw a function that simulates its data, with the same random numbers at every call."""
        rows, sources = len(free[0]), len(self._data_sources)
        words = _words(entropy, batch, rows * sources)
        for row, seeds in zip(zip(*free, strict=True), words.reshape(rows, sources, words.shape[1]), strict=True):
            yield partial(self._through_graph, row, seeds.tolist())

    def _through_graph(self, values, seeds):
        _install(self._data_sources, seeds)
        return self._one_data(*values)


def _is_random(variable):
    return variable.owner is not None and isinstance(variable.owner.op, RandomVariable | SymbolicRandomVariable)


def _are_plain(outputs):
    """Return whether all random variables are PyTensor's own, without a Python function of the user's."""
    operators = [v.owner.op for v in ancestors(outputs) if _is_random(v)]
    return all(isinstance(o, RandomVariable) and not (hasattr(o, "_random_fn") or hasattr(o, "fn")) for o in operators)


def generators_of(outputs: list[Variable], inputs: Sequence[Variable] = ()) -> list[Variable]:
    """Return the generators that ``outputs`` draw from, given ``inputs``."""
    return [v for v in graph_inputs(outputs, blockers=inputs) if isinstance(v.type, RandomGeneratorType)]


def _words(entropy, batch, count, is_of_data=True):
    """Return the states (count, 4) of generators for a batch: of its data, or of the prior."""
    sequence = np.random.SeedSequence(entropy, spawn_key=(batch, int(is_of_data)))
    return sequence.generate_state(4 * count, np.uint64).reshape(count, 4)


def _own_constants(function) -> None:
    """Give a compiled function copies of constants that are views of others.

    Views claim to be writable even where PyTensor made the others read-only; SciPy's samplers (HalfNormal) then fail.
    """
    for variable, storage in function.vm.storage_map.items():
        if isinstance(variable, Constant) and isinstance(storage[0], np.ndarray) and storage[0].base is not None:
            storage[0] = storage[0].copy()


def _install(sources, words):
    """Set the generators of shared variables, each to a state of PCG64 from four words of 64 bits."""
    for variable, (a, b, c, d) in zip(sources, words, strict=True):
        numbers = {"state": a << 64 | b, "inc": c << 64 | d | 1}  # the increment has to be odd
        state = {"bit_generator": "PCG64", "state": numbers, "has_uint32": 0, "uinteger": 0}
        variable.get_value(borrow=True).bit_generator.state = state


def _stacked(draws):
    return [np.stack(values) for values in zip(*draws, strict=True)]
