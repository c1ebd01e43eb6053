"""A model as a graph that may be changed, and back."""

from collections.abc import Iterator
from contextlib import contextmanager

import pymc as pm
from pymc.model.fgraph import fgraph_from_model, model_from_fgraph


class _HiddenInitialValues(dict):
    """Initial values of a model that may become a graph all the same.

    Graphs know no initial values, and PyMC refuses a model with any among ``values()``: so do ``Model.copy``, ``pm.do``
    and ``pm.compute_log_likelihood``. Whatever begins a chain asks by key.
    """

    def values(self) -> list[None]:
        """Return None for each variable."""
        return [None] * len(self)


class _Silent(list):
    """Potentials of which the forward samplers of PyMC do not warn.

    They warn of any that draws of the prior leave out. Draws of the posterior have none left out.
    """

    def __bool__(self) -> bool:
        return False


def with_silent_potential(model: pm.Model, name: str, value) -> None:
    """Add a potential to a model; where there is no other, PyMC's forward samplers do not warn of it."""
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
    """Return the model of a changed graph of ``model``: variables in the same order, with the same initial values.

    Unlike other models with initial values, it may be copied and conditioned.
    """
    copy = model_from_fgraph(fgraph, mutate_fgraph=True)
    # Not by named_vars: of a model that was itself made of a graph these have another order.
    known = [*model.free_RVs, *model.observed_RVs, *model.deterministics, *model.potentials]
    order = {v.name: i for i, v in enumerate(known)}
    for variables in (copy.free_RVs, copy.observed_RVs, copy.deterministics, copy.potentials):
        variables.sort(key=lambda v: order[v.name])  # so that positions mean the same in both
    copy.rvs_to_initial_values = _HiddenInitialValues(copy.rvs_to_initial_values)
    for variable, value in model.rvs_to_initial_values.items():
        copy.set_initval(copy[variable.name], value)
    return copy
