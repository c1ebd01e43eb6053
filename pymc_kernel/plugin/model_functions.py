"""Compiled functions of a ``pm.Model``: the only place that turns a model into something to call."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pymc.vartypes import continuous_types
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.tensor import concatenate, tensor
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_kernel.errors import NoisyBlockError
from pymc_kernel.plugin.likelihoods import estimated_terms, install_noise

__all__ = ["LogDensity", "compile_log_density", "unconstrained_draws"]


class LogDensity:
    """The log density of a model as a function of one vector, with the noise it may need.

    Attributes
    ----------
    shared : dict
        The variables outside of the block and their shared stand-ins.
    estimated : list of str
        Names of the terms that are random; empty for an exact density.
    evaluations : int
        Number of calls so far.
    """

    def __init__(self, function, shared, estimated, keys):
        self._function = function
        self.shared = shared
        self.estimated = estimated
        self._keys = keys
        self._rng = np.random.default_rng()
        self._rng_variables = [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]
        self.evaluations = 0

    def __call__(self, position: np.ndarray) -> float:
        """Return the log density at ``position`` (d,), with the Jacobians of PyMC's transforms."""
        if self._keys:
            install_noise(self._keys, self._rng)
        self.evaluations += 1
        return float(self._function(position))

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``, independent of it and of each other."""
        self.noise = tuple(rng.spawn(1 + len(self._rng_variables)))

    @property
    def noise(self) -> tuple[np.random.Generator, ...]:
        """The generators that the random terms draw from: part of the state of a chain."""
        return (self._rng, *(v.get_value(borrow=True) for v in self._rng_variables))

    @noise.setter
    def noise(self, generators: tuple[np.random.Generator, ...]) -> None:
        self._rng = generators[0]
        for variable, generator in zip(self._rng_variables, generators[1:], strict=True):
            variable.set_value(generator, borrow=True)


def compile_log_density(
    model: pm.Model, value_vars: Sequence, initial_point: dict, step_name: str, compile_kwargs: dict | None = None
) -> LogDensity:
    """Return the log density of ``model`` in the given value variables, the others held in shared stand-ins.

    Parameters
    ----------
    model, value_vars, initial_point
        As PyMC hands them to a step.
    step_name : str
        For error messages.
    compile_kwargs : dict, optional
        For ``pymc.pytensorf.compile``.

    Raises
    ------
    TypeError
        Where a variable is discrete.
    NoisyBlockError
        Where the density is only estimated and the variables are not all free variables of the model.
    """
    discrete = [v.name for v in value_vars if v.dtype not in continuous_types]
    if discrete:
        raise TypeError(
            f"{step_name} samples continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Name the continuous ones, as in "
            f"{step_name}([theta, sigma]); PyMC then finds a step for the rest."
        )
    logp = model.logp()
    names, keys = estimated_terms(logp)
    others = [v.name for v in model.value_vars if v not in set(value_vars)]
    if names and others:
        raise NoisyBlockError(
            f"The log density of this model is only estimated (by {', '.join(names)}), so all free variables must "
            f"be sampled in one block, but {step_name} was not given: {', '.join(others)}. An estimate that was "
            "accepted cannot be kept while another step moves these, and drawing it anew would change the "
            f"posterior. Use pm.sample(step=pk.{step_name}()) for all of them, or make discrete ones part of the "
            "estimate."
        )
    shared = make_shared_replacements(initial_point, value_vars, model)
    [joined], vector = join_nonshared_inputs(
        point=initial_point, outputs=[logp], inputs=list(value_vars), shared_inputs=shared
    )
    with model:
        function = pymc_compile([vector], joined, **(compile_kwargs or {}))
    function.trust_input = True
    return LogDensity(function, shared, names, keys)


def unconstrained_draws(posterior: xr.Dataset, model: pm.Model | None = None) -> np.ndarray:
    """Return posterior draws on the unconstrained scale, where surrogates and scores live, (chain, draw, d).

    The coordinates are those of the model's value variables, one after the other, each in C order.

    Parameters
    ----------
    posterior : xarray.Dataset
        With the dimensions ``chain`` and ``draw`` and all free variables of the model.
    model : pymc.Model, optional
        The model in context by default.

    Raises
    ------
    ValueError
        Where a free variable is missing from the draws, or has another shape than the model says.
    """
    model = pm.modelcontext(model)
    missing = [rv.name for rv in model.free_RVs if rv.name not in posterior]
    if missing:
        raise ValueError(
            f"the draws have no {', '.join(missing)}, which the model does: give the DataTree that was sampled from "
            "this very model, with all of its free variables."
        )
    one = {rv: rv.type() for rv in model.free_RVs}
    moved = []
    for value in model.value_vars:
        rv = model.values_to_rvs[value]
        transform = model.rvs_to_transforms[rv]
        if transform is None:
            moved.append(one[rv].ravel())
        else:
            parameters = clone_replace(list(rv.owner.inputs), replace=one)
            moved.append(transform.forward(one[rv], *parameters).ravel())
    many = {x: tensor(dtype=x.dtype, shape=(None, *x.type.shape)) for x in one.values()}
    with model:
        function = pymc_compile(list(many.values()), vectorize_graph(concatenate(moved), many))
    shapes = model.eval_rv_shapes()
    sizes = posterior.sizes["chain"], posterior.sizes["draw"]
    arrays = []
    for rv in one:
        draws = posterior[rv.name].transpose("chain", "draw", ...).values
        if draws.shape[2:] != tuple(shapes[rv.name]):
            said = tuple(int(s) for s in shapes[rv.name])
            raise ValueError(f"the draws of {rv.name} have shape {draws.shape[2:]}, the model says {said}.")
        arrays.append(np.ascontiguousarray(draws, dtype=rv.dtype).reshape(-1, *draws.shape[2:]))
    return function(*arrays).reshape(*sizes, -1)
