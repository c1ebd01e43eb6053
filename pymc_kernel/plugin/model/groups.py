"""Groups of a DataTree that hold the data of a model, as PyMC's samplers write them."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import from_dict
from pymc.backends.arviz import find_constants
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable

__all__ = ["constant_groups", "is_part_of_data", "observed_group", "observed_values"]


def constant_groups(model: pm.Model, coords: dict, dims: dict) -> dict[str, xr.Dataset]:
    """Return the group ``constant_data``, as PyMC's samplers write it, by its name; nothing without ``pm.Data``."""
    constants = find_constants(model)
    if not constants:
        return {}
    tree = from_dict({"constant_data": constants}, coords=coords, dims=dims, sample_dims=[])
    return {"constant_data": tree["constant_data"].to_dataset()}


def observed_group(data: dict[str, np.ndarray], coords: dict, dims: dict) -> xr.Dataset:
    """Return the group ``observed_data``."""
    tree = from_dict({"observed_data": data}, coords=coords, dims=dims, sample_dims=[])
    return tree["observed_data"].to_dataset()


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
