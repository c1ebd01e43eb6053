"""A model as a graph that may be changed, and back."""

import pymc as pm
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph


def graph_of_model(model: pm.Model) -> tuple:
    """Return the graph of a model, and a dictionary from the model's variables to those of the graph."""
    initial = dict(model.rvs_to_initial_values)
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(initial))  # graphs know none
        return fgraph_from_model(model)
    finally:
        model.rvs_to_initial_values.update(initial)


def model_of_graph(fgraph, model: pm.Model) -> pm.Model:
    """Return the model of a changed graph of ``model``: variables in the same order, with the same initial values."""
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    # Not by named_vars: of a model that was itself made of a graph these have another order.
    known = [*model.free_RVs, *model.observed_RVs, *model.deterministics, *model.potentials]
    order = {v.name: i for i, v in enumerate(known)}
    for variables in (copy.free_RVs, copy.observed_RVs, copy.deterministics, copy.potentials):
        variables.sort(key=lambda v: order[v.name])  # so that positions mean the same in both
    for variable, value in model.rvs_to_initial_values.items():
        copy.set_initval(copy[variable.name], value)
    return copy


class HiddenInitialValues(dict):
    """Initial values of a model that PyMC may copy all the same.

    ``pm.compute_log_likelihood``, ``pm.do`` and ``Model.copy`` work on graphs, which know no initial values, and refuse
    a model with any among ``values()``. Whatever begins a chain asks by key.
    """

    def values(self) -> list[None]:
        """Return None for each variable."""
        return [None] * len(self)
