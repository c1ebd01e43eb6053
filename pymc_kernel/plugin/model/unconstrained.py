"""Draws of a model mapped to the unconstrained scale, and back; groups of draws and data, as PyMC writes them."""

import itertools
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import from_dict
from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants
from pymc.variational.minibatch_rv import MinibatchRandomVariable
from pytensor.graph import Variable, ancestors, clone_replace
from pytensor.tensor import TensorVariable
from pytensor.tensor.random.op import RandomVariable

from pymc_kernel.plugin.model.interpreter import DRAWS_AT_A_TIME, of_vector, over_draws


def value_shapes(model: pm.Model) -> list[tuple[int, ...]]:
    """Return the shape of each value variable; it takes a fifth of a second."""
    point = model.initial_point(random_seed=0)
    return [np.shape(point[v.name]) for v in model.value_vars]


def split_positions(positions: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return one array (n, ...) for each value variable, of positions (n, d); ``shapes`` as of :func:`value_shapes`."""
    edges = itertools.pairwise(itertools.accumulate(map(math.prod, shapes), initial=0))
    return [positions[:, a:b].reshape(len(positions), *s) for (a, b), s in zip(edges, shapes, strict=True)]


def over_positions(
    model: pm.Model, outputs: Sequence[Variable], kwargs: dict, at_once: bool = True, at_a_time: int = DRAWS_AT_A_TIME
) -> tuple[Callable[[np.ndarray], list[np.ndarray]], bool]:
    """Return a function from positions (n, d) to numbers, a list of (n,), and whether it takes all of them at once.

    They are looped over where an operator cannot be vectorized, or if ``at_once`` is False. ``kwargs`` are for the
    compiled function.
    """
    point = model.initial_point(random_seed=0)
    if at_once:
        shapes = [np.shape(point[v.name]) for v in model.value_vars]
        one = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars])
        try:
            with warnings.catch_warnings():
                # PyTensor's warnings on the speed of single operators do not matter to a user who chose none.
                warnings.simplefilter("ignore")
                of_draws = over_draws(model, outputs, None, shapes, at_a_time, **{"mode": None} | kwargs)
                of_draws(split_positions(np.stack([one, one]), shapes))
            return lambda positions: of_draws(split_positions(positions, shapes)), True
        except Exception:  # an operator without a vectorized form may fail in many ways; the loop says what is wrong
            pass
    function, _ = of_vector(model, model.value_vars, point, outputs, {"on_unused_input": "ignore"} | kwargs)
    return lambda positions: list(np.array([function(x) for x in positions], dtype=float).T), False


def constrained_draws(model: pm.Model, positions: np.ndarray, names: Sequence[str] | None = None) -> dict:
    """Return variables, by default all free and deterministic ones, at positions (n, d): name -> (n, ...)."""
    names = {v.name for v in [*model.free_RVs, *model.deterministics]} if names is None else set(names)
    outputs = [v for v in model.unobserved_value_vars if v.name in names]
    values = over_draws(model, outputs)(split_positions(positions, value_shapes(model)))
    return {v.name: drawn for v, drawn in zip(outputs, values, strict=True)}


def unconstrained_draws(data: xr.DataTree | xr.Dataset, model: pm.Model | None = None) -> np.ndarray:
    """Return posterior draws on the unconstrained scale, where surrogates and scores live, (chain, draw, d).

    The coordinates are those of the model's value variables, one after the other, each in C order.

    Parameters
    ----------
    data : DataTree or Dataset
        With the group ``posterior``, or that group: dimensions ``chain`` and ``draw``, all free variables of the model.
        It is a ``ValueError`` if one is missing, or has another shape in the model.
    model : pymc.Model, optional
        The model in context by default.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     rate = pm.LogNormal("rate")
    >>> data = az.from_dict({"posterior": {"rate": np.ones((2, 3))}})
    >>> pk.unconstrained_draws(data, model)[0].ravel()  # logarithms of the rate
    array([0., 0., 0.])
    """
    model = pm.modelcontext(model)
    if isinstance(data, xr.DataTree):
        data = data.children.get("posterior", data).to_dataset()
    sizes = data.sizes["chain"], data.sizes["draw"]
    return np.concatenate([v.reshape(*sizes, -1) for v in value_draws(data, model).values()], axis=2)


def value_draws(posterior: xr.Dataset, model: pm.Model) -> dict:
    """Return for each value variable of the model its draws, (chain * draw, ...); errors as above."""
    posterior = _with_offsets(posterior, model)
    missing = [rv.name for rv in model.free_RVs if rv.name not in posterior]
    if missing:
        raise ValueError(
            f"the draws have no {', '.join(missing)}, which the model does: give the DataTree that was sampled from "
            "this very model, with all of its free variables."
        )
    one = {rv: rv.type() for rv in model.free_RVs}
    moved = []
    for rv in one:  # in the order of the value variables
        moved.append(one[rv])
        if (transform := model.rvs_to_transforms[rv]) is not None:
            moved[-1] = transform.forward(one[rv], *clone_replace(list(rv.owner.inputs), replace=one))
    shapes = model.eval_rv_shapes()
    arrays = []
    for rv in one:
        draws = rows_of(posterior[rv.name])
        if draws.shape[1:] != tuple(shapes[rv.name]):
            expected = tuple(int(s) for s in shapes[rv.name])
            raise ValueError(f"the draws of {rv.name} have shape {draws.shape[1:]}, but the model has {expected}.")
        arrays.append(np.ascontiguousarray(draws, dtype=rv.dtype))
    return dict(zip(model.value_vars, over_draws(model, moved, one.values())(arrays), strict=True))


def rows_of(variable: xr.DataArray) -> np.ndarray:
    """Return the draws of a variable, (chain * draw, ...)."""
    draws = variable.transpose("chain", "draw", ...).values
    return draws.reshape(-1, *draws.shape[2:])


def _with_offsets(posterior, model):
    """Return draws with free variables that were left out, as Bambi's offsets, if a deterministic one tells them."""
    for rv, effect in itertools.product(model.free_RVs, model.deterministics):
        is_asked = rv.name not in posterior and effect.name in posterior
        if is_asked and (offsets := _told_by(effect, rv, posterior, model)) is not None:
            like = posterior[effect.name].transpose("chain", "draw", ...)
            posterior = posterior.assign({rv.name: like.copy(data=offsets.reshape(like.shape))})
    return posterior


def _told_by(effect, rv, posterior, model):
    """Return the draws (n, ...) of a free variable, solved for from an effect; None where that is impossible.

    It is possible where each number of the effect is linear in one number of the variable, as three values of it show.
    """
    behind = set(ancestors([effect]))
    others = [v for v in model.free_RVs if v in behind and v is not rv]
    if rv not in behind or any(v.name not in posterior for v in others):
        return None
    values = rows_of(posterior[effect.name])
    if values.shape[1:] != tuple(model.eval_rv_shapes()[rv.name]):
        return None
    known = [rows_of(posterior[v.name]).astype(v.dtype) for v in others]
    one = {v: v.type() for v in (rv, *others)}
    evaluate = over_draws(model, clone_replace([effect], replace=one), one.values())
    tried = np.zeros(values.shape), np.ones(values.shape), np.random.default_rng(0).normal(size=values.shape)
    at_zero, at_one, at_random = (evaluate([t, *known])[0] for t in tried)
    slope = at_one - at_zero
    is_straight = np.all(slope != 0.0) and np.allclose(at_random, at_zero + slope * tried[2], rtol=1e-9, atol=1e-300)
    return (values - at_zero) / slope if is_straight else None


def elementwise_transform(model: pm.Model, name: str) -> tuple[Callable, Callable] | None:
    """Return functions of draws (n, ...) of a free variable: to the unconstrained scale, and back.

    None where there is no transform, or none that moves each number by itself: that of a simplex does not, nor that of
    a variable whose bounds depend on other free variables.
    """
    rv = next((v for v in model.free_RVs if v.name == name), None)
    transform = None if rv is None else model.rvs_to_transforms[rv]
    if transform is None:
        return None
    natural, value = rv.type(), model.rvs_to_values[rv]
    parameters = list(rv.owner.inputs)
    moved, back = transform.forward(natural, *parameters), transform.backward(value, *parameters)
    jacobian = transform.log_jac_det(value, *parameters)  # one number for each where each moves by itself
    if any(v.ndim != rv.ndim for v in (value, jacobian)) or set(model.free_RVs) & set(ancestors([moved, back])):
        return None

    def compiled(of, target):
        function = over_draws(model, [target], [of])
        return lambda x: function([x])[0]

    return compiled(natural, moved), compiled(value, back)


def coordinate_names(variables: Sequence, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    """Return a name for each coordinate of a position, such as ``x[0, 1]``."""
    names = []
    for variable, shape in zip(variables, shapes, strict=True):
        indices = [f"[{', '.join(map(str, index))}]" if index else "" for index in np.ndindex(*shape)]
        names += [f"{variable.name}{index}" for index in indices]
    return names


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
    """Return whether an observed variable is a minibatch: a random part of its data, or a likelihood scaled to more."""
    drawn = [v for v in ancestors([model.rvs_to_values[rv]]) if v.owner and isinstance(v.owner.op, RandomVariable)]
    return bool(drawn) or isinstance(rv.owner.op, MinibatchRandomVariable)


def observed_values(model: pm.Model, dtype: type | None = float, leave_out: Sequence = ()) -> dict[str, np.ndarray]:
    """Return the data of a model, name -> array."""
    data = {rv.name: model.rvs_to_values[rv] for rv in model.observed_RVs if rv not in leave_out}
    return {name: np.asarray(v.data if hasattr(v, "data") else v.eval(), dtype=dtype) for name, v in data.items()}
