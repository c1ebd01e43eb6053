"""Turn a model into a graph that can be changed, and back.

Black boxes that the ``logp`` of a ``pm.CustomDist`` calls become calls in the model, where they are learned. Where no
part can be learned by itself, the log likelihood becomes one black box of all parameters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.custom import CustomDistRV, CustomSymbolicDistRV
from pymc.logprob.abstract import _logprob
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph
from pymc.pytensorf import compile as pymc_compile
from pymc.util import treelist
from pytensor.graph import Apply, Op, graph_replace
from pytensor.graph.traversal import apply_ancestors, toposort
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable

from pymc_kernel.plugin.emulation.black_boxes import has_gradient
from pymc_kernel.plugin.model.interpreter import compiling
from pymc_kernel.plugin.model.unconstrained import observed_values


class _HiddenInitialValues(dict):
    """Initial values that do not keep a model from becoming a graph, as any among ``values()`` do in PyMC.

    Code that begins a chain looks them up by key.
    """

    def values(self) -> list[None]:
        """Return None for each variable."""
        return [None] * len(self)


class _Silent(list):
    """Potentials about which PyMC's forward samplers do not warn: posterior draws have taken them into account."""

    def __bool__(self) -> bool:
        return False


def with_silent_potential(model: pm.Model, name: str, value) -> None:
    """Add a potential to a model; where there is no other, PyMC's forward samplers do not warn about it."""
    is_only = not model.potentials
    with model:
        pm.Potential(name, value)
    if is_only:
        model.potentials = _Silent(model.potentials)


@contextmanager
def hidden_initial_values(model: pm.Model) -> Iterator[None]:
    """Let a model become a graph, though it has initial values."""
    initial = model.rvs_to_initial_values
    try:
        model.rvs_to_initial_values = _HiddenInitialValues(initial)
        yield
    finally:
        model.rvs_to_initial_values = initial


def graph_of_model(model: pm.Model) -> tuple:
    """Return the graph of a model, and a dictionary from the model's variables to those of the graph."""
    with hidden_initial_values(model):
        return fgraph_from_model(model)


def model_of_graph(fgraph, model: pm.Model) -> pm.Model:
    """Return the model of a changed graph of ``model``: variables in the same order, with the same initial values."""
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    # Not by named_vars, whose order differs in a model that was itself made from a graph.
    known = [*model.free_RVs, *model.observed_RVs, *model.deterministics, *model.potentials]
    order = {v.name: i for i, v in enumerate(known)}
    for variables in (copy.free_RVs, copy.observed_RVs, copy.deterministics, copy.potentials):
        variables.sort(key=lambda v: order[v.name])  # so that positions mean the same in both
    copy.rvs_to_initial_values = _HiddenInitialValues(copy.rvs_to_initial_values)
    for variable, value in model.rvs_to_initial_values.items():
        copy.set_initval(copy[variable.name], value)
    return copy


def with_hoisted(model: pm.Model) -> pm.Model:
    """Return the model, or a copy in which no ``logp`` of observed custom distributions calls a black box any more.

    In the copy, outputs of the black boxes are further parameters of these distributions.
    """
    custom = [rv for rv in model.observed_RVs if isinstance(rv.owner.op, CustomDistRV | CustomSymbolicDistRV)]
    custom = [rv for rv in custom if _opened(rv, model.rvs_to_values[rv])[0]]
    if not custom:
        return model
    fgraph, memo = graph_of_model(model)
    for rv in custom:
        inner, value = memo[rv].owner.inputs[:2]
        shape = tuple(int(n) for n in model.rvs_to_values[rv].shape.eval())
        fgraph.replace(inner, _hoisted(inner, *_opened(inner, value), shape), import_missing=True)
    return model_of_graph(fgraph, model)


def _opened(rv, value):
    """Return outputs of black boxes in the log density of a custom distribution, this density, and its placeholders.

    The last is a dictionary from placeholders of the data and the parameters, in this order, to the originals.
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
    return outputs, term, {own_value: value} | {placeholder: v for v, placeholder in placeholders.items()}


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


class LogLikelihoodOp(Op):
    """The log likelihood of a model, a number, as a function of its free variables on the unconstrained scale.

    PyMC compiles it in each process at its first call there, so that it can be sent to other processes.
    """

    __props__ = ()

    def __init__(self, model: pm.Model, compile_kwargs: dict):
        self._model, self._compile_kwargs = model, compile_kwargs
        self.is_compiled = False

    def __getstate__(self):
        """Return all but the compiled function."""
        return {"_model": self._model, "_compile_kwargs": self._compile_kwargs, "is_compiled": False}

    def make_node(self, *values):
        """Return the application."""
        return Apply(self, [pt.as_tensor_variable(v) for v in values], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        """Evaluate it; NaN counts as a likelihood of zero, as in PyMC."""
        with compiling():  # at the first call
            function = self._function
        found = float(function(*inputs))
        self.is_compiled = True
        output_storage[0][0] = np.asarray(-np.inf if np.isnan(found) else found)

    @cached_property
    def _function(self):
        model = self._model
        total = model.logp(vars=[*model.observed_RVs, *model.potentials])
        settings = {"on_unused_input": "ignore"} | self._compile_kwargs
        with model:
            return pymc_compile(model.value_vars, total.astype("float64"), **settings)


def with_whole_likelihood(model: pm.Model, compile_kwargs: dict | None = None) -> pm.Model:
    """Return a model with the same prior, and one potential in place of observed variables and potentials.

    The potential is a black box of the free variables on the unconstrained scale. Deterministic variables stay, except
    those that call black boxes; data in them become numbers.
    """
    if not [*model.observed_RVs, *model.potentials]:
        raise ValueError("this model has no observed variable and no potential, so there is no likelihood to learn.")
    whole, values = with_prior_alone(model)
    name = "log_likelihood"
    while name in model.named_vars:
        name = f"{name}_"
    with whole:
        pm.Potential(name, LogLikelihoodOp(model, compile_kwargs or {})(*values))
    return whole


def with_prior_alone(model: pm.Model) -> tuple[pm.Model, list[TensorVariable]]:
    """Return a model with the same prior and no likelihood, and its free variables on the unconstrained scale."""
    # Other variables that use the data get numbers: an observed variable without observations would be random.
    with hidden_initial_values(model):
        given = pm.do(model, observed_values(model, None))
    alone = model_of_graph(graph_of_model(given)[0], model)
    unknown = [v for v in alone.deterministics if not all(map(has_gradient, apply_ancestors([v])))]
    gone = [*alone.observed_RVs, *alone.potentials, *unknown]
    for variable in gone:
        del alone.named_vars[variable.name]
        alone.named_vars_to_dims.pop(variable.name, None)
    for kind in ("observed_RVs", "potentials", "deterministics"):
        setattr(alone, kind, treelist([v for v in getattr(alone, kind) if v not in gone]))
    transforms = [(variable, alone.rvs_to_transforms[variable]) for variable in alone.free_RVs]
    return alone, [v if transform is None else transform.forward(v, *v.owner.inputs) for v, transform in transforms]
