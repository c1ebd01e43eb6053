"""Compiled draws of a model forwards: of the prior, and of the data given parameters, one at a time.

PyMC's own forward sampling runs in one process, and the first error of a simulator ends it. Here each draw has seeds
of its own, so that what comes of it does not depend on the others, on who computes it, or when.
"""

from typing import NamedTuple

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as pymc_compile
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Variable
from pytensor.graph.traversal import ancestors, graph_inputs
from pytensor.tensor.random.type import RandomGeneratorType

__all__ = ["ForwardGraph", "ForwardSampler", "can_be_drawn", "forward_graph"]

# Compiles in milliseconds in every worker. The calls of a Python simulator outweigh the rest.
_QUICK = Mode(linker="py", optimizer="fast_compile")
_WORDS = 4  # of 64 bits for the state of a generator


class ForwardGraph(NamedTuple):
    """The variables of a model that forward draws need; without the data, so that little is sent to workers."""

    free: list[Variable]
    derived: list[Variable]
    """Deterministics that do not depend on the data."""
    observed: list[Variable]


def forward_graph(model: pm.Model) -> ForwardGraph:
    """Return the graph of a model's forward draws."""
    observed = list(model.observed_RVs)
    derived = [d for d in model.deterministics if not set(ancestors([d])) & set(observed)]
    return ForwardGraph(list(model.free_RVs), derived, observed)


def can_be_drawn(variable: Variable) -> bool:
    """Return whether a variable can be drawn, without drawing it: a ``CustomDist`` may have no ``random``."""
    function = getattr(type(variable.owner.op), "_random_fn", None)
    # What PyMC puts in place of a function that is missing; there is no other mark of it.
    return "default_not_implemented" not in getattr(function, "__qualname__", "")


class ForwardSampler:
    """Draws of the prior, and of the data given parameters.

    Parameters
    ----------
    graph : ForwardGraph
    compile_kwargs : dict, optional
        For ``pymc.pytensorf.compile``.
    """

    def __init__(self, graph: ForwardGraph, compile_kwargs: dict | None = None):
        kwargs = {"mode": _QUICK, "on_unused_input": "ignore", "random_seed": False} | (compile_kwargs or {})
        self._prior = pymc_compile([], graph.free, **kwargs)
        self._derived = pymc_compile(graph.free, graph.derived, **kwargs) if graph.derived else None
        self._data = pymc_compile(graph.free, graph.observed, **kwargs)
        # In the order of the graph, which is the same in every process.
        self._sources = [
            v for v in graph_inputs([*graph.free, *graph.observed]) if isinstance(v.type, RandomGeneratorType)
        ]
        self._generators = [np.random.Generator(np.random.PCG64(0)) for _ in self._sources]

    def seeds(self, entropy: int, batch: int, size: int) -> np.ndarray:
        """Return the states of all generators for the draws of a batch, (size, generators, words)."""
        sequence = np.random.SeedSequence(entropy, spawn_key=(batch,))
        words = sequence.generate_state(size * len(self._sources) * _WORDS, np.uint64)
        return words.reshape(size, len(self._sources), _WORDS)

    def install(self, seeds: np.ndarray) -> None:
        """Set the generators to the states (generators, words) of one draw."""
        for variable, generator, words in zip(self._sources, self._generators, seeds, strict=True):
            a, b, c, d = (int(w) for w in words)
            generator.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": a << 64 | b, "inc": c << 64 | d | 1},  # the increment has to be odd
                "has_uint32": 0,
                "uinteger": 0,
            }
            variable.set_value(generator, borrow=True)

    def prior(self) -> list[np.ndarray]:
        """Return one draw of the free variables."""
        return self._prior()

    def derived(self, free: list[np.ndarray]) -> list[np.ndarray]:
        """Return the deterministics at ``free``."""
        return [] if self._derived is None else self._derived(*free)

    def data(self, free: list[np.ndarray]) -> list[np.ndarray]:
        """Return one draw of the observed variables at ``free``; errors of a simulator are raised."""
        return self._data(*free)
