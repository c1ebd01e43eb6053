"""The last results of operators without gradient, for steps that ask again at the same inputs.

If another step moves the inputs of a black box, NUTS still evaluates the box with the model at every leapfrog step,
though its inputs stand still. PyTensor compiles each step by itself, so the results are kept in the operator: a rewrite
puts :class:`Remembered` in the place of the operators that were named to :func:`remember`, in every function that is
compiled from then on.
"""

from collections import Counter
from weakref import WeakKeyDictionary

import numpy as np
from pytensor.compile.mode import optdb
from pytensor.compile.ops import FromFunctionOp
from pytensor.graph import Apply, Op, Variable, graph_rewriter
from pytensor.graph.traversal import apply_ancestors

from pymc_kernel.plugin.model.estimated import ObjectModeOp


class Remembered(ObjectModeOp):
    """An operator that keeps its last results, and counts the calls of the original, which is deterministic.

    It stands at ``num_nodes`` places of the model, each with inputs of its own.
    """

    def __init__(self, original: Op, num_nodes: int):
        self.original, self.num_nodes = original, num_nodes
        self.calls = 0
        self._results = {}  # the oldest first

    def make_node(self, *inputs):
        """Return the node of the original with this operator in its place."""
        node = self.original.make_node(*inputs)
        return Apply(self, node.inputs, [output.type() for output in node.outputs])

    def perform(self, node, inputs, outputs):
        """Return the results kept, or call the original."""
        key = tuple(np.asarray(value).tobytes() for value in inputs)
        results = self._results.pop(key, None)
        if results is None:
            self.calls += 1
            self.original.perform(node, inputs, outputs)
            results = [np.array(storage[0]) for storage in outputs]
        self._results[key] = results
        if len(self._results) > 2 * self.num_nodes:  # at the current point and at a proposal
            del self._results[next(iter(self._results))]
        for storage, result in zip(outputs, results, strict=True):
            storage[0] = result.copy()


_KNOWN: WeakKeyDictionary[Op, Remembered] = WeakKeyDictionary()


def remember(graph: Variable) -> None:
    """Let the operators without gradient in a graph keep their results, in functions that are compiled from now on."""
    counts = Counter(node.op for node in apply_ancestors([graph]) if _is_black_box(node.op))
    for op, num_nodes in counts.items():
        known = _KNOWN.setdefault(op, Remembered(op, num_nodes))
        known.num_nodes = max(known.num_nodes, num_nodes)


def _is_black_box(op):
    """Return whether an operator is a user's, without gradient, and neither writes to its inputs nor returns them."""
    if op.destroy_map or op.view_map:
        return False
    if isinstance(op, FromFunctionOp):
        return True
    is_of_ours = type(op).__module__.split(".")[0] in ("pytensor", "pymc", "pymc_kernel", "pymc_extras")
    return not is_of_ours and has_no_pull_back(op)


def has_no_pull_back(op: Op) -> bool:
    """Return whether an operator defines none of the methods by which PyTensor differentiates."""
    methods = [name for name in ("pullback", "L_op", "grad") if hasattr(Op, name)]
    return all(getattr(type(op), name) is getattr(Op, name) for name in methods)


def remembered_in(function) -> list[Remembered]:
    """Return the operators of a compiled function that keep their results."""
    return list({node.op: None for node in function.maker.fgraph.toposort() if isinstance(node.op, Remembered)})


@graph_rewriter
def _remembering(fgraph):
    """Replace the operators that were named to :func:`remember`; graphs without such stay as they are."""
    for node in list(fgraph.toposort()) if _KNOWN else ():
        if (known := _KNOWN.get(node.op)) is not None:
            replacements = zip(node.outputs, known.make_node(*node.inputs).outputs, strict=True)
            fgraph.replace_all(list(replacements), reason="remembered")


optdb.register("remember_black_boxes", _remembering, "fast_run", "fast_compile", position=0.1)
