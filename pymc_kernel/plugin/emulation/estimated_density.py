"""A log density in which estimates are given as numbers, and the estimates, one at a time."""

import itertools

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import join_nonshared_inputs
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import ancestors

from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp, drawing_noise, estimated_terms
from pymc_kernel.plugin.model.interpreter import STABLE


class EstimatedDensity:
    """A log density, of which estimates are given as numbers.

    Parameters
    ----------
    model : pymc.Model
        Of which each estimated term is a call with one number as output.
    """

    def __init__(self, model: pm.Model):
        logp, point = model.logp(), model.initial_point(random_seed=0)
        nodes = {v.owner: None for v in ancestors([logp]) if v.owner is not None}
        self._nodes = [n for n in nodes if isinstance(n.op, EstimatedLogLikelihoodOp)]
        self._nodes.sort(key=lambda n: n.op.term_name)
        names, keys = estimated_terms(logp)
        if len(keys) != len(self._nodes) or {n.op.term_name for n in self._nodes} != set(names):
            raise ValueError(
                f"the estimates of this model ({', '.join(names)}) do not each stand for themselves in its log density."
            )
        placeholders = [n.outputs[0].type() for n in self._nodes]
        given = dict(zip([n.outputs[0] for n in self._nodes], placeholders, strict=True))
        [with_given] = graph_replace([logp], given, strict=True)
        inputs = [v for n in self._nodes for v in n.inputs]
        self._edges = np.cumsum([len(n.inputs) for n in self._nodes])[:-1]
        outputs, vector = join_nonshared_inputs(
            point=point, outputs=[with_given, *inputs], inputs=list(model.value_vars), shared_inputs={}
        )
        settings = {"mode": STABLE, "on_unused_input": "ignore"}
        with model:
            self._density = pymc_compile([vector, *placeholders], outputs[0], **settings)
            self._inputs = pymc_compile([vector], outputs[1:], **settings)

    @property
    def num_calls(self) -> int:
        """Number of estimated terms."""
        return len(self._nodes)

    def __call__(self, position: np.ndarray, estimates: list) -> float:
        """Return the log density at a position (d,) with these estimates."""
        return float(self._density(position, *estimates))

    def inputs(self, position: np.ndarray) -> list[list[np.ndarray]]:
        """Return what each estimate depends on at a position (d,)."""
        flat = [np.asarray(v) for v in self._inputs(position)]
        edges = [0, *self._edges, len(flat)]
        return [flat[a:b] for a, b in itertools.pairwise(edges)]

    def estimate(self, call: int, inputs: list[np.ndarray], seed: int) -> np.ndarray:
        """Return the estimate of a call at these inputs with these random numbers; that of one which raises is zero."""
        node, storage = self._nodes[call], [[None]]
        streams = [np.random.default_rng([seed, i]) for i in range(node.op.num_streams)]
        try:
            with drawing_noise({node.op.key: streams if len(streams) > 1 else streams[0]}):
                node.op.perform(node, [np.array(v) for v in inputs], storage)
        except Exception:
            return np.asarray(-np.inf)
        return np.asarray(storage[0][0])
