"""Draws of a model's posterior with their scores, and what each coordinate is called."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import arviz as az
import numpy as np
import pymc as pm
import xarray as xr
from arviz_base import extract, rcParams
from pymc.backends.arviz import find_constants
from pytensor.graph import ancestors

from pymc_kernel.plugin.model.log_density import compile_scores
from pymc_kernel.plugin.model.unconstrained import is_part_of_data, observed_values, value_draws
from pymc_kernel.plugin.reports.surrogate_scores import LearnedScores, learn_scores
from pymc_kernel.plugin.warn import warn_user


@dataclass
class Selection:
    """The draws and the model that a report is on: the arguments that all reports share, and the text on them.

    Parameters
    ----------
    data : DataTree or convertible
        With the draws of all free variables of the model; an array is (chain, draw, d).
    model : pymc.Model, optional
        The model that was sampled; the one in context by default. Draws of other tools need none, if ``score`` is
        given: the chosen variables are then taken as they are, so choose parameters, on a scale without bounds.
    var_names, filter_vars, group, coords, sample_dims
        As everywhere in ArviZ. Variables that are left out are averaged over: what is tested is then the joint
        distribution of the others.
    score : callable or "surrogate", optional
        From unconstrained draws of the continuous variables (n, d) to gradients of the log density there (n, d), where
        the model has none, or where a distribution other than the model's is to be tested; without a model from draws
        of the chosen variables, in their order. "surrogate" learns one from the log densities of the draws, for black
        boxes and estimated likelihoods: those in ``sample_stats`` (``lp``; ``log_density`` of :class:`EmulatedNUTS`),
        otherwise the model's at 1,000 draws at most; the result reports its error at held-out draws. Fewer draws cost
        fewer evaluations.
    """

    data: Any
    var_names: str | Sequence[str] | None = None
    filter_vars: str | None = None
    group: str = "posterior"
    coords: dict[str, Any] | None = None
    sample_dims: str | Sequence[str] | None = None
    model: pm.Model | None = None
    score: Callable[[np.ndarray], np.ndarray] | str | None = None

    def __post_init__(self):
        if isinstance(self.data, pm.variational.Approximation | pm.variational.Inference):
            kind = type(self.data).__name__
            raise TypeError(f"{kind} is an approximation: give draws of it, as in pm.fit(...).sample(1000).")
        if isinstance(self.data, np.ndarray) and self.data.ndim == 2 and len(self.data) > self.data.shape[1]:
            raise ValueError(
                f"an array of draws is (chain, draw, d), got {self.data.shape}: for one chain give draws[None]."
            )
        self.data = az.convert_to_datatree(self.data)
        if self.group not in self.data.children:
            names = ", ".join(self.data.children)
            names = names or f"none, only {', '.join(map(str, self.data.data_vars)) or 'nothing'}"
            raise ValueError(
                f"data has no group {self.group!r}; its groups are: {names}. Give the whole DataTree that the sampler "
                "returned, not one of its groups."
            )
        dims = rcParams["data.sample_dims"] if self.sample_dims is None else self.sample_dims
        self.sample_dims = [dims] if isinstance(dims, str) else list(dims)
        self.model = pm.Model.get_context(error_if_none=False) if self.model is None else self.model

    @property
    def arguments(self) -> dict:
        """The arguments that ArviZ takes, too."""
        return {name: getattr(self, name) for name in ("var_names", "filter_vars", "group", "coords", "sample_dims")}

    def need_model(self) -> pm.Model | None:
        """Return the model, or None if only a score is given; raise ``TypeError`` if there is neither."""
        if self.model is None and self.score is None:
            raise TypeError(
                "no model in context: give model=, the model that was sampled, or call this within `with model:`. For "
                "draws of other tools give score=, a function from draws of the chosen variables (n, d) to the "
                'gradients of their log density (n, d), or "surrogate" with the log densities in sample_stats, as lp.'
            )
        return self.model

    @property
    def chosen(self) -> xr.Dataset:
        """The chosen variables as ArviZ chooses them, with their sample dimensions."""
        others = {name: value for name, value in self.arguments.items() if name != "coords"}
        return extract(self.data, **others, combined=False, keep_dataset=True).sel(self.coords or {})

    def as_chains(self, dataset: xr.Dataset) -> xr.Dataset:
        """Return a dataset with the dimensions chain and draw, whatever its sample dimensions are called."""
        dims = self.sample_dims
        if len(dims) not in (1, 2):
            raise ValueError(f"sample_dims must be one or two dimensions (chain, draw), got {dims}.")
        named = dataset.rename(dict(zip(dims, ("chain", "draw")[-len(dims) :], strict=True)))
        return named if len(dims) == 2 else named.expand_dims("chain")

    def entries(self, variable: xr.DataArray, start: int = 0) -> xr.DataArray:
        """Return the indices of the chosen entries of a variable (chain, draw, ...), counted from ``start``."""
        numbers = numbered(variable, start)
        return numbers.sel({dim: chosen for dim, chosen in (self.coords or {}).items() if dim in numbers.dims})

    @property
    def draws(self) -> xr.Dataset:
        """All variables, with the dimensions chain and draw."""
        return self.as_chains(self.data[self.group].to_dataset())

    @property
    def stats(self) -> xr.Dataset | None:
        """``sample_stats`` of the posterior's draws, with the dimensions chain and draw; None without any."""
        if self.group != "posterior" or "sample_stats" not in self.data.children:
            return None
        stats = self.data["sample_stats"].to_dataset()
        return self.as_chains(stats) if set(self.sample_dims) <= set(stats.dims) else None


class Selected(TypedDict, total=False):
    """Keyword arguments that choose the draws and the model of a report."""

    var_names: str | Sequence[str] | None
    filter_vars: str | None
    group: str
    coords: dict[str, Any] | None
    sample_dims: str | Sequence[str] | None
    model: pm.Model | None


class Scored(Selected, total=False):
    """The same, and the source of the scores."""

    score: Callable[[np.ndarray], np.ndarray] | str | None


@dataclass
class ModelDraws:
    """The draws of some of a model's variables with their scores, and what each coordinate is called."""

    draws: np.ndarray  # (chain, draw, d), unconstrained
    scores: np.ndarray  # (chain, draw, d)
    positions: dict[str, Any]  # DataArray of column numbers, or array where the shapes differ, by variable
    dataset: xr.Dataset  # the chosen variables, deterministic ones included
    conditional_on: list[str]  # names of discrete variables
    weights: np.ndarray | None  # (chain, draw), of draws with the scores of a surrogate
    learned: LearnedScores | None  # by that surrogate, with its accuracy
    every: int  # one in ``every`` draws of the data is used

    def labeled(self, values: np.ndarray, last: str | None = None, combine: Callable = np.sum) -> xr.Dataset:
        """Return values of the columns as a Dataset; ``combine`` merges them where a transform changes the shape.

        ``values`` are (d,), or (d, n) with ``last`` as the name of the second dimension.
        """
        out, further = {}, [] if last is None else [last]
        for name, columns in self.positions.items():
            if isinstance(columns, xr.DataArray):
                out[name] = xr.DataArray(values[columns.values], columns.coords, [*columns.dims, *further])
            else:
                out[name] = xr.DataArray(combine(values[columns], axis=0), dims=further)
        return xr.Dataset(out)


def largest_first(dataset: xr.Dataset) -> xr.Dataset:
    """Return the variables with most dims first, and with dims in one order.

    ArviZ (1.3) stacks values in the order of the Dataset's dims, and labels them in the order of each variable's: after
    a variable with dims (b,), values of one with dims (a, b) stand beside wrong names.
    """
    names = sorted(dataset.data_vars, key=lambda name: -dataset[name].ndim)
    dims = list(dict.fromkeys(d for name in names for d in dataset[name].dims))
    own = {name: dataset[name].transpose(*(d for d in dims if d in dataset[name].dims)) for name in names}
    return xr.Dataset(coords={d: dataset[d] for d in dims if d in dataset.coords}).assign(own)


def read_draws(selected: Selection) -> ModelDraws:
    """Return draws and scores of the chosen variables."""
    score = selected.score
    if isinstance(score, str) and score != "surrogate":
        raise ValueError(f'score must be a function or "surrogate", got {score!r}.')
    model, asked = selected.need_model(), selected.chosen
    if model is None:
        return _read_as_they_are(selected, asked)
    posterior = selected.draws
    if not callable(score):  # a given score may be that of another distribution
        _warn_of_other_data(selected.data, model)
    scores_of = compile_scores(model) if score is None else None
    values = value_draws(posterior, model)
    continuous = model.continuous_value_vars
    discrete = [model.values_to_rvs[v].name for v in model.value_vars if v not in set(continuous)]
    sizes = posterior.sizes["chain"], posterior.sizes["draw"]
    whole = np.concatenate([values[v].reshape(*sizes, -1) for v in continuous], axis=2)
    score = (lambda _: scores_of([values[v] for v in model.value_vars])) if score is None else score
    draws, scores, *of_surrogate = _scored(selected, whole, score)
    # ``own`` are the columns of the chosen entries, ``numbers`` their places among all chosen columns.
    stop, positions, kept = 0, {}, []
    for value in continuous:
        name, shape = model.values_to_rvs[value].name, values[value].shape[1:]
        start, stop = stop, stop + math.prod(shape)
        if name not in asked:
            continue
        is_alike = posterior[name].isel(chain=0, draw=0).shape == shape
        own = selected.entries(posterior[name], start) if is_alike else np.arange(start, stop)
        numbers = len(kept) + np.arange(own.size).reshape(own.shape)
        positions[name] = own.copy(data=numbers) if is_alike else numbers
        kept += np.ravel(own).tolist()
    if not positions:
        raise ValueError("none of the chosen variables is a continuous free variable of the model.")
    draws, scores = (np.take(a, kept, axis=2) for a in (draws, scores))
    return ModelDraws(draws, scores, positions, asked, discrete, *of_surrogate)


def _read_as_they_are(selected, asked):
    """Return draws and scores of the chosen variables as they are, without a model."""
    dataset = selected.as_chains(asked)
    names = [name for name, one in dataset.data_vars.items() if one.dtype.kind == "f"]
    others = [name for name in dataset.data_vars if name not in names]
    if not names:
        raise ValueError(f"none of the chosen variables ({', '.join(others)}) has floating-point numbers.")
    draws, positions = stacked(dataset, names)
    wrong = int((~np.isfinite(draws)).any(axis=2).sum())
    if wrong:
        raise ValueError(f"{wrong} of {draws[..., 0].size} draws hold NaN or infinite numbers: leave them out.")
    draws, scores, *of_surrogate = _scored(selected, draws, selected.score)
    return ModelDraws(draws, scores, positions, asked, others, *of_surrogate)


def numbered(variable: xr.DataArray, start: int = 0) -> xr.DataArray:
    """Return the indices of the entries of a variable (chain, draw, ...), counted from ``start``."""
    like = variable.isel(chain=0, draw=0, drop=True)
    return like.copy(data=start + np.arange(like.size).reshape(like.shape))


def stacked(dataset: xr.Dataset, names: Sequence[str]) -> tuple[np.ndarray, dict[str, xr.DataArray]]:
    """Return these variables side by side, (chain, draw, d), and the column indices of each by its name."""
    sizes = dataset.sizes["chain"], dataset.sizes["draw"]
    columns = [dataset[name].transpose("chain", "draw", ...).values.reshape(*sizes, -1) for name in names]
    edges = np.cumsum([0, *(c.shape[2] for c in columns)])
    positions = {name: numbered(dataset[name], start) for name, start in zip(names, edges, strict=False)}
    return np.concatenate(columns, axis=2).astype(float), positions


def _scored(selected, draws, score):
    """Return draws (chain, draw, d), thinned for a surrogate; scores, weights, accuracy, thinning interval."""
    if isinstance(score, str):
        every, learned = learn_scores(selected.model, draws, selected.stats)
        draws = draws[:, ::every]
        return draws, learned.scores.reshape(draws.shape), learned.weights.reshape(draws.shape[:2]), learned, every
    flat = draws.reshape(-1, draws.shape[2])
    scores = np.asarray(score(flat), dtype=float)
    if scores.shape != flat.shape:
        raise ValueError(f"score must return an array of shape {flat.shape}, got {scores.shape}.")
    return draws, scores.reshape(draws.shape), None, None, 1


def _warn_of_other_data(tree, model):
    """Warn if the draws were made with other data than the model has now."""
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
    """Return whether two arrays hold the same data, perhaps in single precision, or rounded where ``is_computed``."""
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
    """Put the text of :class:`Selection` on the arguments that all diagnostics share into the docstring of one."""
    arguments = (Selection.__doc__ or "").partition("----------")[2].strip()  # none with python -OO
    function.__doc__ = (function.__doc__ or "").replace("{arguments}", arguments)
    return function
