"""Black boxes that the ``logp`` of a ``pm.CustomDist`` calls become calls in the model, where they are learned."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.logprob.abstract import _logprob
from pytensor.graph.basic import Variable
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.utils import safe_signature

from pymc_kernel.plugin.emulation.black_boxes import has_gradient
from pymc_kernel.plugin.emulation.model_graph import graph_of_model, model_of_graph


class _Hoisted(RandomVariable):
    """Custom distributions of known shape, whose log density takes outputs of black boxes as further parameters.

    Each is a class of its own, as PyMC's are: rewrites make operators anew from their class.
    """

    name = "CustomDist"
    _print_name = ("CustomDist", "\\operatorname{CustomDist}")
    inplace = False
    shape: tuple[int, ...]
    num_own: int
    """Number of parameters that are the user's, which come first."""
    log_density: Callable
    """Of the data and all parameters, tensors."""
    draw: Callable | None
    """The user's ``random``."""

    def _supp_shape_from_params(self, dist_params, param_shapes=None):
        return self.shape

    @classmethod
    def rng_fn(cls, rng, *args):
        """Draw by the user's function."""
        if cls.draw is None:
            raise NotImplementedError("this pm.CustomDist has no random=, which draws of the data need.")
        return cls.draw(*args[: cls.num_own], rng=rng, size=cls.shape)


@_logprob.register(_Hoisted)
def _log_density(op, values, rng, size, *params, **kwargs):
    return type(op).log_density(values[0], *params)


def with_hoisted(model: pm.Model) -> pm.Model:
    """Return the model, or a copy in which no ``logp`` of observed custom distributions calls a black box any more.

    What the black boxes return are further parameters of these distributions in the copy, computed in the model from
    parameters and data.
    """
    custom = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, CustomDistRV | CustomSymbolicDistRV)]
    if not any(_opened(rv, model.rvs_to_values[rv]).outputs for rv in custom):
        return model
    fgraph, memo = graph_of_model(model)
    point = model.rvs_to_values
    for rv in custom:
        inner, value = memo[rv].owner.inputs[:2]
        opened = _opened(inner, value)
        if opened.outputs:
            shape = point[rv].shape.eval()
            fgraph.replace(inner, _hoisted(inner, value, opened, tuple(int(n) for n in shape)), import_missing=True)
    return model_of_graph(fgraph, model)


class _Opened(NamedTuple):
    """The log density of a custom distribution as a graph of placeholders."""

    value: Variable
    params: list[Variable]
    """Placeholders of the parameters."""
    given: list[Variable]
    """The parameters of the model."""
    term: Variable
    outputs: list[Variable]
    """Of black boxes in the graph."""


def _opened(rv, value):
    node = rv.owner
    given = node.op.dist_params(node) if isinstance(node.op, RandomVariable) else node.inputs[1:]
    placeholders = {v: v.type() for v in given if isinstance(v, TensorVariable)}
    own_value = value.type()
    term = _logprob(node.op, [own_value], *[placeholders.get(v, v) for v in node.inputs])
    depends, outputs = set(placeholders.values()), []
    for inner in toposort([term]):
        if depends.intersection(inner.inputs):
            depends.update(inner.outputs)
            if not has_gradient(inner):
                outputs += inner.outputs
    return _Opened(own_value, list(placeholders.values()), list(placeholders), term, outputs)


def _hoisted(rv, value, opened, shape):
    """Return the random variable whose black boxes are called outside of its log density."""
    known = {opened.value: value, **dict(zip(opened.params, opened.given, strict=True))}
    learned = graph_replace(opened.outputs, known, strict=False)
    placeholders = [v.type() for v in opened.outputs]
    inside = graph_replace([opened.term], dict(zip(opened.outputs, placeholders, strict=True)), strict=False)

    def log_density(value, *params):
        given = dict(zip([opened.value, *opened.params, *placeholders], [value, *params], strict=True))
        return graph_replace(inside, given, strict=False)[0]

    params = [*opened.given, *learned]
    fields = {
        "signature": safe_signature([p.type.ndim for p in params], [len(shape)]), "dtype": rv.type.dtype,
        "shape": shape, "num_own": len(opened.params), "log_density": staticmethod(log_density),
        "draw": getattr(type(rv.owner.op), "_random_fn", None),
    }  # fmt: skip
    op = type("CustomDist", (_Hoisted,), fields)()
    return op.make_node(pytensor.shared(np.random.default_rng()), None, *params).outputs[1]
