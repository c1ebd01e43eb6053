"""Black boxes of a model: operators without gradient in its log density whose inputs depend on free variables."""

from typing import NamedTuple

import pymc as pm
from pymc.logprob.abstract import MeasurableOp
from pytensor.graph import Apply, Constant, Op, Variable
from pytensor.graph.traversal import toposort
from pytensor.tensor.blockwise import Blockwise

from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp
from pymc_kernel.plugin.model.remembered import has_no_pull_back


class BlackBox(NamedTuple):
    """A call of an operator without gradient in the graph of a model."""

    node: Apply
    inputs: list[Variable]  # those that depend on free variables of the model

    @property
    def op(self) -> Op:
        """The operator; if it was vectorized, the inner operator."""
        return getattr(self.node.op, "core_op", self.node.op)

    @property
    def name(self) -> str:
        """Name of the operator; for an estimated likelihood, the name of its observed variable."""
        if isinstance(self.op, EstimatedLogLikelihoodOp):
            return self.op.term_name
        function = getattr(self.op, "_FromFunctionOp__fn", None)
        return type(self.op).__name__ if function is None else function.__name__

    def is_like(self, other: "BlackBox") -> bool:
        """Return whether both call one function: the same operator with the same fixed inputs."""
        if self.node.op != other.node.op or len(self.node.inputs) != len(other.node.inputs):
            return False
        free, free_other = set(self.inputs), set(other.inputs)
        return all(
            a.type == b.type
            if a in free and b in free_other
            else a not in free and (a is b or (isinstance(a, Constant) and a.equals(b)))
            for a, b in zip(self.node.inputs, other.node.inputs, strict=True)
        )


def find_black_boxes(model: pm.Model) -> list[BlackBox]:
    """Return the calls without gradient that the log density depends on, each after those that feed it."""
    outputs = [*model.basic_RVs, *model.potentials]
    found, depends = [], set(model.free_RVs)
    for node in toposort(outputs):
        inputs = [v for v in node.inputs if v in depends]
        depends.update(node.outputs if inputs else ())
        if inputs and not isinstance(node.op, MeasurableOp) and not has_gradient(node):
            found.append(BlackBox(node, inputs))
    return found


def has_gradient(node) -> bool:
    """Return whether a node has a pull-back that does not raise ``NotImplementedError``."""
    op = node.op
    core = op.core_op if isinstance(op, Blockwise) else op
    if has_no_pull_back(core):
        return False
    inner = getattr(core, "fgraph", None)  # of a loop, or of an operator that was made from a graph
    if inner is not None:
        return all(has_gradient(n) for n in inner.apply_nodes)
    try:
        op.pullback(node.inputs, node.outputs, [v.type() for v in node.outputs])
    except NotImplementedError:
        return False
    except Exception:  # it may fail on these made-up cotangents, but it exists
        return True
    return True
