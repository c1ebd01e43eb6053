"""Draws of a model's posterior with their scores, and what each coordinate is called."""

import math
from collections.abc import Callable

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import extract, rcParams
from pymc.backends.arviz import find_constants
from pytensor.graph.traversal import ancestors

from pymc_kernel.plugin.model.groups import is_part_of_data, observed_values
from pymc_kernel.plugin.model.scores import compile_scores
from pymc_kernel.plugin.model.unconstrained import value_draws
from pymc_kernel.plugin.reports.surrogate_scores import LearnedScores, learn_scores
from pymc_kernel.plugin.warn import warn_user

__all__ = [
    "ModelDraws",
    "as_chains_and_draws",
    "as_tree",
    "choose",
    "document_arguments",
    "largest_first",
    "list_sample_dims",
    "model_in_context",
    "read_draws",
]

_ARGUMENTS = """data : DataTree or convertible
        With the draws of all free variables of the model.
    model : pymc.Model, optional
        The model that was sampled; the one in context by default.
    var_names, filter_vars, group, coords, sample_dims
        As everywhere in ArviZ. Variables that are left out are averaged over: what is tested is then the joint
        distribution of the others.
    score : callable or "surrogate", optional
        From unconstrained draws of the continuous variables (n, d) to gradients of the log density there (n, d), where
        the model has none, or where a distribution other than the model's is to be tested. "surrogate" learns one from
        the log densities of the draws, for black boxes and estimated likelihoods: those in ``sample_stats``
        (``log_density`` of this package's steps, ``lp`` of NUTS), otherwise the model's at 1,000 draws at most; the
        result reports its error at held-out draws. Fewer draws cost fewer evaluations."""


class ModelDraws:
    """The draws of some of a model's variables with their scores, and what each coordinate is called."""

    def __init__(self, draws, scores, positions, dataset, conditional_on, weights=None, learned=None, every=1):
        self.draws = draws  # (chain, draw, d), unconstrained
        self.scores = scores  # (chain, draw, d)
        self.positions = positions  # {variable: DataArray of column numbers, or array where the shapes differ}
        self.dataset = dataset  # the chosen variables, deterministic ones included
        self.conditional_on = conditional_on  # names of discrete variables
        self.weights: np.ndarray | None = weights  # (chain, draw), of draws with the scores of a surrogate
        self.learned: LearnedScores | None = learned  # accuracy of that surrogate
        self.every: int = every  # one in ``every`` draws of the data is used

    def labeled(self, values: np.ndarray, last: str | None = None, combine: Callable = np.sum) -> xr.Dataset:
        """Return one number a column as a Dataset; ``combine`` makes one where a transform changes a variable's shape.

        ``values`` (d,), or (d, n) with ``last`` the name of its second dimension.
        """
        out, further = {}, [] if last is None else [last]
        for name, columns in self.positions.items():
            if isinstance(columns, xr.DataArray):
                out[name] = xr.DataArray(values[columns.values], columns.coords, [*columns.dims, *further])
            else:
                out[name] = xr.DataArray(combine(values[columns], axis=0), dims=further)
        return xr.Dataset(out)


def list_sample_dims(sample_dims) -> list[str]:
    """Return the sample dimensions, ArviZ's default for None."""
    sample_dims = rcParams["data.sample_dims"] if sample_dims is None else sample_dims
    return [sample_dims] if isinstance(sample_dims, str) else list(sample_dims)


def as_chains_and_draws(dataset, sample_dims):
    """Return the dataset with the dimensions chain and draw, whatever its sample dimensions are called."""
    if sample_dims == ["chain", "draw"]:
        return dataset
    if len(sample_dims) == 1:
        return dataset.rename({sample_dims[0]: "draw"}).expand_dims("chain")
    if len(sample_dims) == 2:
        return dataset.rename(dict(zip(sample_dims, ("chain", "draw"), strict=True)))
    raise ValueError(f"sample_dims must be one or two dimensions (chain, draw), got {sample_dims}.")


def as_tree(data, group="posterior") -> xr.DataTree:
    """Return draws as a DataTree with this group, or raise a ValueError that says what to give instead."""
    if isinstance(data, pm.variational.Approximation | pm.variational.Inference):
        raise TypeError(f"{type(data).__name__} is an approximation: give draws of it, as in pm.fit(...).sample(1000).")
    data = az.convert_to_datatree(data)
    if group not in data.children:
        names = ", ".join(data.children) or f"none, only {', '.join(map(str, data.data_vars)) or 'nothing'}"
        raise ValueError(
            f"data has no group {group!r}; its groups are: {names}. Give the whole DataTree that the sampler returned, "
            "not one of its groups."
        )
    return data


def model_in_context(model: pm.Model | None) -> pm.Model:
    """Return the model, or that in context, or raise a TypeError that says what to do."""
    model = pm.Model.get_context(error_if_none=False) if model is None else model
    if model is None:
        raise TypeError(
            "no model in context: give model=, the model that was sampled, or call this within `with model:`."
        )
    return model


def largest_first(dataset: xr.Dataset) -> xr.Dataset:
    """Return the variables with most dims first.

    ArviZ (1.3) stacks values by the order in which a Dataset's variables have their dims, and labels them by that of
    each variable: after a variable with dims (b,), one with dims (a, b) has the values of one element beside the name
    of another. Where two variables have the same dims in different orders, the later one is transposed.
    """
    names = sorted(dataset.data_vars, key=lambda name: -dataset[name].ndim)
    dims = list(dict.fromkeys(d for name in names for d in dataset[name].dims))
    own = {name: dataset[name].transpose(*(d for d in dims if d in dataset[name].dims)) for name in names}
    return xr.Dataset(coords={d: dataset[d] for d in dims if d in dataset.coords}).assign(own)


def choose(data, var_names, filter_vars, group, coords, sample_dims) -> xr.Dataset:
    """Return the chosen variables as ArviZ chooses them, with their sample dimensions."""
    chosen = extract(
        data,
        var_names=var_names,
        filter_vars=filter_vars,
        group=group,
        sample_dims=sample_dims,
        combined=False,
        keep_dataset=True,
    )
    return chosen.sel(coords or {})


def read_draws(
    data, var_names=None, filter_vars=None, group="posterior", coords=None, sample_dims=None, model=None, score=None
) -> ModelDraws:
    """Return draws and scores of the chosen variables; arguments as in :func:`ksd`."""
    model = model_in_context(model)
    sample_dims = list_sample_dims(sample_dims)
    data = as_tree(data, group)
    if not callable(score):  # which may be that of another distribution
        _warn_of_other_data(data, model)
    asked = choose(data, var_names, filter_vars, group, coords, sample_dims)
    posterior = as_chains_and_draws(data[group].to_dataset(), sample_dims)
    if isinstance(score, str) and score != "surrogate":
        raise ValueError(f'score must be a function or "surrogate", got {score!r}.')
    scores_of = compile_scores(model) if score is None else None
    values = value_draws(posterior, model)
    continuous = model.continuous_value_vars
    discrete = [model.values_to_rvs[v].name for v in model.value_vars if v not in set(continuous)]
    sizes = posterior.sizes["chain"], posterior.sizes["draw"]
    flat = np.concatenate([values[v].reshape(sizes[0] * sizes[1], -1) for v in continuous], axis=1)
    weights, learned, every = None, None, 1
    if isinstance(score, str):
        stats = data["sample_stats"].to_dataset() if group == "posterior" and "sample_stats" in data.children else None
        stats = None if stats is None or not set(sample_dims) <= set(stats.dims) else stats
        stats = None if stats is None else as_chains_and_draws(stats, sample_dims)
        every, found, learned = learn_scores(model, flat.reshape(*sizes, -1), stats)
        flat = flat.reshape(*sizes, -1)[:, ::every].reshape(-1, flat.shape[1])
        sizes = sizes[0], len(flat) // sizes[0]
        scores, weights = found.scores, found.weights.reshape(sizes)
    elif score is None:
        scores = scores_of([values[v] for v in model.value_vars])
    else:
        scores = np.asarray(score(flat), dtype=float)
        if scores.shape != flat.shape:
            raise ValueError(f"score must return an array of shape {flat.shape}, got {scores.shape}.")
    positions, start = {}, 0
    for value in continuous:
        rv = model.values_to_rvs[value]
        shape = values[value].shape[1:]
        columns = np.arange(start, start + math.prod(shape))
        start += columns.size
        if rv.name not in asked:
            continue
        one = posterior[rv.name].isel(chain=0, draw=0, drop=True)
        if one.shape == shape:
            one = one.copy(data=columns.reshape(shape))
            selected = {k: v for k, v in (coords or {}).items() if k in one.dims}
            positions[rv.name] = one.sel(selected)
        else:
            positions[rv.name] = columns
    if not positions:
        raise ValueError("none of the chosen variables is a continuous free variable of the model.")
    kept = np.concatenate([np.ravel(c) for c in positions.values()])
    numbers = dict(zip(kept.tolist(), range(kept.size), strict=True))
    positions = {
        name: c.copy(data=np.vectorize(numbers.get, otypes=[int])(c.values))
        if isinstance(c, xr.DataArray)
        else np.array([numbers[i] for i in c])
        for name, c in positions.items()
    }
    draws, scores = (a[:, kept].reshape(*sizes, -1) for a in (flat, scores))
    return ModelDraws(draws, scores, positions, asked, discrete, weights, learned, every)


def _warn_of_other_data(tree, model):
    """Warn where draws come with other data than the model has."""
    computed = [v.name for v in model.observed_RVs if model.rvs_to_values[v].owner is not None]
    random = [rv for rv in model.observed_RVs if is_part_of_data(model, rv)]
    groups = {"observed_data": observed_values(model, None, leave_out=random), "constant_data": _predictors(model)}
    other = [
        name
        for group, known in groups.items()
        for name, values in known.items()
        if group in tree.children
        and name in tree[group]
        and not _are_same(tree[group][name].values, np.asarray(values), name in computed)
    ]
    if other:
        warn_user(
            f"the draws were made with other data for {', '.join(other)} than the model has now: they are compared "
            "with the posterior given the model's data."
        )


def _predictors(model):
    """Return the data containers on which the density depends, name -> array."""
    terms = [*model.basic_RVs, *model.potentials, *model.rvs_to_values.values()]
    used = {variable.name for variable in ancestors(terms)}
    return {name: values for name, values in find_constants(model).items() if name in used}


def _are_same(one, other, is_computed=False):
    """Return whether two arrays hold the same data, one of them perhaps in single precision.

    What is computed from data, such as centered ones, may differ by the rounding of the computation.
    """
    floating = [x.dtype for x in (one, other) if x.dtype.kind == "f"]
    if one.shape != other.shape or not floating or not all(x.dtype.kind in "fiub" for x in (one, other)):
        return one.shape == other.shape and bool(np.all((one == other) | ((one != one) & (other != other))))
    coarse = min(floating, key=lambda dtype: dtype.itemsize)
    with np.errstate(over="ignore"):
        one, other = one.astype(coarse), other.astype(coarse)
    if is_computed:
        size = np.abs(other[np.isfinite(other)]).max(initial=0.0)
        return np.allclose(one, other, rtol=1e-5, atol=1e-5 * size, equal_nan=True)
    return np.allclose(one, other, rtol=4.0 * np.finfo(coarse).eps, atol=0.0, equal_nan=True)


def document_arguments[F: Callable](function: F) -> F:
    """Put the arguments that all diagnostics share into the docstring of one."""
    if function.__doc__ is not None:  # python -OO
        function.__doc__ = function.__doc__.replace("{arguments}", _ARGUMENTS)
    return function
