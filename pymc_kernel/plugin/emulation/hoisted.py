"""Black boxes that the ``logp`` of a ``pm.CustomDist`` calls become calls in the model, where they are learned."""

import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.logprob.abstract import _logprob
from pytensor.graph.replace import graph_replace
from pytensor.graph.traversal import toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable

from pymc_kernel.plugin.emulation.black_boxes import has_gradient
from pymc_kernel.plugin.emulation.model_graph import graph_of_model, model_of_graph


def with_hoisted(model: pm.Model) -> pm.Model:
    """Return the model, or a copy in which no ``logp`` of observed custom distributions calls a black box any more.

    What the black boxes return are further parameters of these distributions in the copy, computed in the model from
    parameters and data.
    """
    custom = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, CustomDistRV | CustomSymbolicDistRV)]
    if not any(_opened(rv, model.rvs_to_values[rv])[0] for rv in custom):
        return model
    fgraph, memo = graph_of_model(model)
    for rv in custom:
        inner, value = memo[rv].owner.inputs[:2]
        opened = _opened(inner, value)
        if opened[0]:
            shape = tuple(int(n) for n in model.rvs_to_values[rv].shape.eval())
            fgraph.replace(inner, _hoisted(inner, *opened, shape), import_missing=True)
    return model_of_graph(fgraph, model)


def _opened(rv, value):
    """Return outputs of black boxes in the log density of a custom distribution, that, and what its placeholders are.

    The last is a dictionary from placeholders of the data and the parameters, in this order, to those of the model.
    """
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
    return outputs, term, {own_value: value, **{placeholder: v for v, placeholder in placeholders.items()}}


def _hoisted(rv, outputs, term, known, shape):
    """Return the random variable whose black boxes are called outside of its log density."""
    learned = graph_replace(outputs, known, strict=False)
    placeholders = [v.type() for v in outputs]
    inside = graph_replace([term], dict(zip(outputs, placeholders, strict=True)), strict=False)
    own = getattr(type(rv.owner.op), "_random_fn", None)
    _, *given = known.values()

    def log_density(value, *params):  # the last one says the shape
        replaced = dict(zip([*known, *placeholders], [value, *params[:-1]], strict=True))
        return graph_replace(inside, replaced, strict=False)[0]

    def draw(*params, rng, size):
        return own(*params[: len(given)], rng=rng, size=shape)

    params = [*given, *learned, pt.zeros(shape)]
    cores = [",".join(f"p{i}_{k}" for k in range(v.type.ndim)) for i, v in enumerate(params)]
    signature = f"{','.join(f'({core})' for core in cores)}->({cores[-1]})"
    settings = {"logp": log_density, "random": own and draw, "signature": signature, "dtype": rv.type.dtype}
    return pm.CustomDist.dist(*params, **settings)
