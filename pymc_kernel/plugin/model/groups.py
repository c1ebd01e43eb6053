"""Groups of a DataTree that hold the data of a model, as PyMC's samplers write them."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import from_dict
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable

from pymc_kernel.plugin.model.unconstrained import constrained_draws


def data_groups(model: pm.Model) -> dict[str, xr.Dataset]:
    """Return the groups ``observed_data`` and ``constant_data``, as PyMC's samplers write them, where there are any."""
    coords, dims = coords_and_dims_for_inferencedata(model)
    groups = {"observed_data": observed_values(model, None), "constant_data": find_constants(model)}
    tree = from_dict({k: v for k, v in groups.items() if v}, coords=coords, dims=dims, sample_dims=[])
    return {name: node.to_dataset() for name, node in tree.children.items()}


def draws_group(model: pm.Model, positions: np.ndarray, names: Sequence[str] | None = None) -> xr.Dataset:
    """Return the group ``posterior`` for draws (chain, draw, d) on the unconstrained scale; variables of some names."""
    coords, dims = coords_and_dims_for_inferencedata(model)
    values = constrained_draws(model, positions.reshape(-1, positions.shape[-1]), names)
    values = {name: v.reshape(*positions.shape[:2], *v.shape[1:]) for name, v in values.items()}
    return from_dict({"posterior": values}, coords=coords, dims=dims)["posterior"].to_dataset()


def is_part_of_data(model: pm.Model, rv: TensorVariable) -> bool:
    """Return whether an observed variable has a random part of its data, or a likelihood that is scaled to more."""
    drawn = [v for v in ancestors([model.rvs_to_values[rv]]) if v.owner and isinstance(v.owner.op, RandomVariable)]
    return bool(drawn) or isinstance(rv.owner.op, MinibatchRandomVariable)


def observed_values(
    model: pm.Model, dtype: type | None = float, leave_out: Sequence[TensorVariable] = ()
) -> dict[str, np.ndarray]:
    """Return the data of a model, name -> array."""
    data = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs if rv not in leave_out}
    return {name: np.asarray(v.data if hasattr(v, "data") else v.eval(), dtype=dtype) for name, v in data.items()}
