"""The log likelihood of a model as one black box of all parameters, where no part of it can be learned by itself."""

from functools import cached_property
from threading import Lock

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.util import treelist
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable

from pymc_kernel.plugin.emulation.black_boxes import has_gradient
from pymc_kernel.plugin.emulation.model_graph import graph_of_model, hidden_initial_values, model_of_graph
from pymc_kernel.plugin.model.groups import observed_values

_NAME = "log_likelihood"
_COMPILING = Lock()  # PyTensor changes flags while it compiles; threads would leave each other's behind


class LogLikelihoodOp(Op):
    """The log likelihood of a model, a number, by the values of its free variables on the unconstrained scale.

    Compiled by PyMC where it is first called, so that it may be sent to other processes.

    Parameters
    ----------
    model : pymc.Model
    compile_kwargs : dict
        For the compiled function.
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
        with _COMPILING:  # at the first call
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

    It is a black box of the free variables on the unconstrained scale. Deterministic variables stay, but for those
    that call other black boxes, and the data are numbers in them.
    """
    if not [*model.observed_RVs, *model.potentials]:
        raise ValueError("this model has no observed variable and no potential, so there is no likelihood to learn.")
    whole, values = with_prior_alone(model)
    with whole:
        pm.Potential(_free_name(_NAME, model), LogLikelihoodOp(model, compile_kwargs or {})(*values))
    return whole


def with_prior_alone(model: pm.Model) -> tuple[pm.Model, list[TensorVariable]]:
    """Return a model with the same prior and no likelihood, and its free variables on the unconstrained scale."""
    # What else depends on the data has them as numbers: an observed variable without observations would be random.
    with hidden_initial_values(model):
        given = pm.do(model, observed_values(model, None))
    alone = model_of_graph(graph_of_model(given)[0], model)
    gone = [*alone.observed_RVs, *alone.potentials, *filter(_calls_a_black_box, alone.deterministics)]
    for variable in gone:
        del alone.named_vars[variable.name]
        alone.named_vars_to_dims.pop(variable.name, None)
    for kind in ("observed_RVs", "potentials", "deterministics"):
        setattr(alone, kind, treelist([v for v in getattr(alone, kind) if v not in gone]))
    values = []
    for variable in alone.free_RVs:
        transform = alone.rvs_to_transforms[variable]
        values.append(variable if transform is None else transform.forward(variable, *variable.owner.inputs))
    return alone, values


def _calls_a_black_box(variable):
    return any(v.owner is not None and not has_gradient(v.owner) for v in ancestors([variable]))


def _free_name(name, model):
    while name in model.named_vars:
        name = f"{name}_"
    return name
