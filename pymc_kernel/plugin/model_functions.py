"""Compiled functions of a ``pm.Model``: the only place that turns a model into something to call."""

import math
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import cloudpickle
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.initial_point import make_initial_point_expression
from pymc.logprob.basic import transformed_conditional_logp
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pymc.vartypes import continuous_types
from pytensor import function as pytensor_function
from pytensor.compile.mode import Mode
from pytensor.gradient import grad
from pytensor.graph.replace import clone_replace, vectorize_graph
from pytensor.graph.rewriting.db import RewriteDatabaseQuery
from pytensor.graph.traversal import ancestors
from pytensor.tensor import tensor
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.type import TensorType

from pymc_kernel.errors import NoGradientError, NoisyBlockError
from pymc_kernel.plugin.likelihoods import (
    accepted_shares,
    estimated_terms,
    failed_shares,
    install_noise,
    last_accepted_share,
    last_failed_share,
    reused_noise,
    starting_positions,
)

__all__ = [
    "ElementwiseTransform",
    "LogDensity",
    "ParticleDensity",
    "compile_log_density",
    "compile_particle_density",
    "compile_scores",
    "constrained_draws",
    "elementwise_transform",
    "prior_density",
    "prior_expression",
    "prior_positions",
    "split_positions",
    "unconstrained_draws",
    "value_draws",
    "with_finite_columns",
]

_QUICK = "FAST_COMPILE"
_STABLE = Mode(
    linker="py", optimizer=RewriteDatabaseQuery(include=["fast_run"], exclude=["fusion", "inplace", "BlasOpt"])
)
_DRAWS_AT_A_TIME = 512  # bounds the memory of a vectorised graph
_LARGEST_BATCH = 2**24  # numbers in the largest array that a batch of particles needs
_SHARES = 16  # blocks that an executor gets at once
_REMOTE = {}  # the function that a worker was last sent, by the hash of its pickle
_ONE_AT_A_TIME = threading.Lock()  # threads of one process share the function and the source of its noise
_GRADIENT_ERRORS = (NotImplementedError, TypeError, AttributeError, ValueError)  # what an Op without a gradient raises


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
    shares : dict
        Of simulations that a block's kernel accepted for the estimate at the current point: name -> share.
    failure_names : tuple of str
        Of the statistics in :meth:`failures`.
    error : ArithmeticError or None
        The last that a call raised; the density is zero there.
    starts : ndarray (n, d)
        Positions near the posterior, where a block made pilot simulations; NaN in the other coordinates.
    """

    def __init__(
        self, function, shared, estimated, keys, reuse=None, share_names=None, starts=None, failure_names=None
    ):
        self._function = function
        self.shared = shared
        self.estimated = estimated
        self._keys = keys
        self._reuse = reuse or {}
        self._rng = np.random.default_rng()
        self._kept = self._tried = None  # the seeds of the current point and of the last evaluation
        self._share_names = share_names or {}
        self.shares = dict.fromkeys(self._share_names.values(), np.nan)
        self.starts = starts
        self._failure_names = failure_names or {}
        self.failure_names = tuple(self._failure_names.values())
        self._rng_variables = [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]
        self.evaluations = 0
        self.error = None

    def __call__(self, position: np.ndarray) -> float:
        """Return the log density at ``position`` (d,), with the Jacobians of PyMC's transforms."""
        if self._keys:
            install_noise(self._keys, self._rng)
        if self._reuse:
            self._install_reused()
        self.evaluations += 1
        try:
            return float(self._function(position))
        except ArithmeticError as error:
            # A black box in pure Python overflows, or divides by what has underflowed to zero, where a proposal is far
            # out. That is no reason to end a chain; NumPy would have given an infinity or NaN.
            self.error = error
            return -math.inf

    def _install_reused(self):
        """Give the terms that asked for it seeds of which some are those of the current point.

        The seeds are part of the chain's state, each with a uniform law of its own. To keep one or to draw it anew,
        whatever the position, is a symmetric proposal, so the posterior of the position stays as it is.
        """
        self._tried = {}
        for key, (probability, count) in self._reuse.items():
            seeds = self._rng.integers(2**63, size=count)
            if self._kept is not None:
                seeds = np.where(self._rng.random(count) < probability, self._kept[key], seeds)
            self._tried[key] = seeds
            streams = [np.random.default_rng(s) for s in seeds]
            install_noise((key,), streams if count > 1 else streams[0])

    def estimates(self, position: np.ndarray, times: int) -> np.ndarray:
        """Return independent estimates at one position."""
        kept, self._kept = self._kept, None
        found = np.array([self(position) for _ in range(times)])
        self._kept = kept
        return found

    def settle(self, accepted: bool) -> None:
        """Take the noise of the last evaluation for that of the current point, where it was ``accepted``."""
        if accepted:
            self._kept = self._tried
            self.shares = {name: last_accepted_share(key) for key, name in self._share_names.items()}

    def failures(self) -> dict[str, float]:
        """Return the share of simulations, or of estimates, that failed in the last evaluation: name -> share."""
        return {name: last_failed_share(key) for key, name in self._failure_names.items()}

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``, independent of it and of each other."""
        self.noise = (None, {}, *rng.spawn(1 + len(self._rng_variables)))

    @property
    def noise(self) -> tuple:
        """What belongs to the current point, and the generators of the random terms: part of the state of a chain."""
        return (self._kept, self.shares, self._rng, *(v.get_value(borrow=True) for v in self._rng_variables))

    @noise.setter
    def noise(self, values: tuple) -> None:
        self._kept, self.shares, self._rng = values[:3]
        for variable, generator in zip(self._rng_variables, values[3:], strict=True):
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
    logp = model.logp()
    names, keys = estimated_terms(logp)
    discrete = [v.name for v in (model.value_vars if names else value_vars) if v.dtype not in continuous_types]
    if discrete and names:
        raise NoisyBlockError(
            f"The log density of this model is only estimated (by {', '.join(names)}), so all free variables must be "
            f"sampled in one block, and {', '.join(discrete)}, being discrete, cannot be in it. Sum them out, or let "
            "the estimate draw them: its average over draws from their prior is an unbiased estimate too."
        )
    if discrete:
        raise TypeError(
            f"{step_name} samples continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Name the continuous ones, as in "
            f"{step_name}([theta, sigma]); PyMC then finds a step for the rest."
        )
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
    starts = _starts(starting_positions(model), value_vars, initial_point)
    return LogDensity(
        function, shared, names, keys, reused_noise(logp), accepted_shares(model), starts, failed_shares(model)
    )


def _starts(known, value_vars, initial_point):
    """Return positions (n, d) of the block, NaN where nothing is ``known``; None where nothing is at all."""
    columns = [known.get(v.name) for v in value_vars]
    count = min((len(c) for c in columns if c is not None), default=0)
    if count == 0:
        return None
    sizes = [int(np.size(initial_point[v.name])) for v in value_vars]
    parts = [
        np.full((count, size), np.nan) if c is None else np.reshape(c[:count], (count, size))
        for c, size in zip(columns, sizes, strict=True)
    ]
    return np.concatenate(parts, axis=1)


class ParticleDensity:
    """Log prior and log likelihood of a model for many particles at once, with the noise that they may need.

    Attributes
    ----------
    is_vectorised : bool
        Whether one call of a compiled function serves all particles; otherwise they are looped over.
    estimated : list of str
        Names of the terms that are random.
    """

    def __init__(self, function, is_vectorised, batch, estimated, keys):
        self._function = function
        self.is_vectorised = is_vectorised
        self._batch = batch
        self.estimated = estimated
        self._keys = keys
        self.executor = None
        self.seed(np.random.default_rng())

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``."""
        self._noise = rng.spawn(1)[0]

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior (n,) and log likelihood (n,) at positions (n, d).

        NaN is returned as -inf, and so is the density of places that are not finite, which is not evaluated.
        """
        finite = np.isfinite(positions).all(axis=1)
        if finite.all():
            return self._at(positions)
        prior, likelihood = np.full((2, len(positions)), -np.inf)
        if finite.any():
            prior[finite], likelihood[finite] = self._at(positions[finite])
        return prior, likelihood

    def _at(self, positions):
        # The noise is spawned block by block, so blocks are the same with an executor and without.
        is_shared = self.executor is not None or bool(self.estimated)
        size = min(self._batch, -(-len(positions) // _SHARES)) if is_shared else self._batch
        blocks = [positions[a : a + size] for a in range(0, len(positions), size)]
        noises = self._noise.spawn(len(blocks)) if self.estimated else [None] * len(blocks)
        if self.executor is None:
            parts = [self._block(b, n) for b, n in zip(blocks, noises, strict=True)]
        else:
            tasks = [
                self.executor.submit(_remote_block, self._payload, self.is_vectorised, self._keys, b, n)
                for b, n in zip(blocks, noises, strict=True)
            ]
            parts = [t.result() for t in tasks]
        prior, likelihood = (np.concatenate(p) for p in zip(*parts, strict=True))
        prior[np.isnan(prior)] = -np.inf
        likelihood[np.isnan(likelihood)] = -np.inf
        return prior, likelihood

    def _block(self, positions, noise):
        return _evaluated_block(self._function, self.is_vectorised, self._keys, positions, noise)

    @cached_property
    def _payload(self):
        """The function as workers get it."""
        return cloudpickle.dumps(self._function)

    def __getstate__(self):
        state = {**self.__dict__, "executor": None}
        state.pop("_payload", None)
        return state


def _remote_block(payload, is_vectorised, keys, positions, noise):
    """Evaluate in a worker, which keeps the last function that it was sent."""
    known = hash(payload)
    with _ONE_AT_A_TIME:
        if known not in _REMOTE:
            _REMOTE.clear()
            _REMOTE[known] = cloudpickle.loads(payload)
        return _evaluated_block(_REMOTE[known], is_vectorised, keys, positions, noise)


def _evaluated_block(function, is_vectorised, keys, positions, noise):
    if noise is not None:
        install_noise(keys, noise)
        for variable in [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]:
            variable.set_value(noise.spawn(1)[0], borrow=True)
    if is_vectorised:
        prior, likelihood = function(np.ascontiguousarray(positions))
        n = len(positions)
        return np.array(np.broadcast_to(prior, n)), np.array(np.broadcast_to(likelihood, n))
    rows = np.array([function(x) for x in np.ascontiguousarray(positions)], dtype=float).reshape(len(positions), 2)
    return rows[:, 0].copy(), rows[:, 1].copy()


def compile_particle_density(model: pm.Model, kernel_name: str, compile_kwargs: dict | None = None) -> ParticleDensity:
    """Return the log prior and log likelihood of ``model`` for many particles, (n, d) on the unconstrained scale.

    One vectorised graph evaluates all particles in batches; models with an estimated term, or with an operator that
    cannot be vectorised, are looped over.

    Raises
    ------
    TypeError
        Where a variable is discrete.
    """
    discrete = [v.name for v in model.value_vars if v.dtype not in continuous_types]
    if discrete:
        raise TypeError(
            f"{kernel_name} moves continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Sum them out, make them part of an estimated "
            "likelihood, or use pm.sample_smc's own kernels."
        )
    outputs = [model.varlogp, model.datalogp]
    names, keys = estimated_terms(pt.stack(outputs))
    point = model.initial_point(random_seed=0)
    kwargs = {"on_unused_input": "ignore", **(compile_kwargs or {})}
    example = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars])
    if not names:
        try:
            with warnings.catch_warnings():
                # What PyTensor says of the speed of single operators does not matter to a user who gave none.
                warnings.simplefilter("ignore")
                function = _vectorised(model, outputs, point, kwargs)
                function(np.stack([example, example]))
                batch = _batch_size(outputs, point)
            return ParticleDensity(function, True, batch, names, keys)
        except Exception:  # an operator without a vectorised form may fail in many ways; the loop says what is wrong
            pass
    shared = make_shared_replacements(point, model.value_vars, model)
    joined, vector = join_nonshared_inputs(point=point, outputs=outputs, inputs=model.value_vars, shared_inputs=shared)
    with model:
        function = pymc_compile([vector], joined, **kwargs)
    function.trust_input = True
    return ParticleDensity(function, False, _DRAWS_AT_A_TIME, names, keys)


def _vectorised(model, outputs, point, kwargs):
    shapes = [np.shape(point[value.name]) for value in model.value_vars]
    # With all shapes known, none has to be asked for again: code that does takes seconds to compile.
    many = pt.tensor("particles", dtype="float64", shape=(None, sum(int(np.prod(shape)) for shape in shapes)))
    parts, start = {}, 0
    for value, shape in zip(model.value_vars, shapes, strict=True):
        stop = start + int(np.prod(shape))
        part = many[:, start:stop] if shape else many[:, start]
        if len(shape) > 1:
            part = part.reshape((many.shape[0], *shape))
        parts[value] = pt.specify_shape(part, (None, *shape)).astype(value.dtype)
        start = stop
    with model:
        function = pymc_compile([many], vectorize_graph(outputs, parts), **kwargs)
    function.trust_input = True
    return function


def _batch_size(outputs, point):
    """Return how many particles at a time keep the largest array of the graph within bounds.

    The sizes of all intermediate results for one particle are worked out once, where their shapes can be.
    """
    largest = max([1, *(int(np.size(v)) for v in point.values())])
    symbols = [
        v.shape.prod() for v in ancestors(outputs) if v.owner is not None and isinstance(v.type, TensorType) and v.ndim
    ]
    if symbols:
        inputs = [v for v in ancestors(outputs) if v.name in point and v.owner is None]
        values = [np.asarray(point[v.name], dtype=v.dtype) for v in inputs]
        function = pytensor_function(inputs, symbols, mode=_QUICK, on_unused_input="ignore")
        largest = max(largest, *(int(size) for size in function(*values)))
    return int(np.clip(_LARGEST_BATCH // largest, 16, 4096))


def prior_expression(model: pm.Model) -> list:
    """Return a draw of each value variable from the prior, as graphs; initial values of the model are not used."""
    return make_initial_point_expression(
        free_rvs=model.free_RVs,
        rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=dict.fromkeys(model.free_RVs),
        default_strategy="prior",
        return_transformed=True,
    )


def prior_positions(model: pm.Model, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return draws from the prior of the free variables on the unconstrained scale, (size, d).

    Raises
    ------
    ValueError
        Where a prior cannot be drawn from, as that of ``pm.Flat``.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The effect of Potentials")
            drawn = pm.draw(prior_expression(model), draws=size, random_seed=rng)
    except NotImplementedError as error:
        raise ValueError(f"the prior cannot be drawn from ({error}); give proper priors, or start=.") from error
    found = {model.rvs_to_values[rv]: values for rv, values in zip(model.free_RVs, drawn, strict=True)}
    positions = np.concatenate([np.reshape(found[v], (size, -1)) for v in model.value_vars], axis=1).astype(float)
    return with_finite_columns(positions, rng)


def prior_density(model: pm.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from positions (n, d) on the unconstrained scale to log densities (n,) of the prior.

    It is compiled once, at its first call. Observed variables and potentials are left out: it is the density that
    forward draws of the free variables have.
    """
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    try:
        # The observed variables need no density: simulators have none.
        terms = transformed_conditional_logp(
            tuple(free), rvs_to_values=free, rvs_to_transforms={rv: model.rvs_to_transforms[rv] for rv in free}
        )
    except NotImplementedError as error:
        raise ValueError(
            f"the prior has no density that PyMC can evaluate ({error}), which later rounds need: take rounds=1 with "
            "more simulations, or give it one."
        ) from error
    log_prior = pt.sum([term.sum() for term in terms])

    @cache
    def vectorised():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTensor says of the speed of single operators
            return _vectorised(model, [log_prior], model.initial_point(random_seed=0), {"on_unused_input": "ignore"})

    @cache
    def one_by_one():
        return model.compile_fn(log_prior, inputs=model.value_vars, on_unused_input="ignore")

    def densities(positions):
        try:
            blocks = [positions[a : a + _DRAWS_AT_A_TIME] for a in range(0, len(positions), _DRAWS_AT_A_TIME)]
            return np.concatenate([np.broadcast_to(vectorised()(block)[0], len(block)) for block in blocks])
        except Exception:  # an operator without a vectorised form may fail in many ways; the loop says what is wrong
            function = one_by_one()
            columns = {v.name: c for v, c in zip(model.value_vars, split_positions(model, positions), strict=True)}
            return np.array([float(function({n: c[i] for n, c in columns.items()})) for i in range(len(positions))])

    return densities


def with_finite_columns(positions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return positions (n, d) with coordinates that rounding has put at a bound drawn from the finite ones."""
    for column in positions.T:
        finite = np.isfinite(column)
        if not finite.any():
            raise ValueError("a prior gives no finite draw on the unconstrained scale; make it less extreme.")
        column[~finite] = rng.choice(column[finite], int((~finite).sum()))
    return positions


def split_positions(model: pm.Model, positions: np.ndarray) -> list[np.ndarray]:
    """Return one array (n, ...) for each value variable, of positions (n, d)."""
    point = model.initial_point(random_seed=0)
    shapes = [np.shape(point[v.name]) for v in model.value_vars]
    edges = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
    parts = np.split(positions, edges, axis=1)
    return [
        np.ascontiguousarray(p.reshape(len(positions), *s), dtype=v.dtype)
        for p, s, v in zip(parts, shapes, model.value_vars, strict=True)
    ]


def constrained_draws(model: pm.Model, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Return the free variables and deterministics at positions (n, d), as the user knows them: name -> (n, ...)."""
    names = {v.name for v in [*model.free_RVs, *model.deterministics]}
    outputs = [v for v in model.unobserved_value_vars if v.name in names]
    many = {v: _batched(v) for v in model.value_vars}
    with model:
        function = pymc_compile(
            list(many.values()), vectorize_graph(outputs, many), on_unused_input="ignore", mode=_QUICK
        )
    found = [[] for _ in outputs]
    for start in range(0, len(positions), _DRAWS_AT_A_TIME):
        batch = split_positions(model, positions[start : start + _DRAWS_AT_A_TIME])
        for values, variable, out in zip(found, outputs, function(*batch), strict=True):
            # A deterministic that does not depend on the draws has no dimension of draws.
            core = np.shape(out)[np.ndim(out) - variable.ndim :]
            values.append(np.broadcast_to(out, (len(batch[0]), *core)))
    return {v.name: np.concatenate(values) for v, values in zip(outputs, found, strict=True)}


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
    values = value_draws(posterior, model)
    flat = [values[v].reshape(-1, int(np.prod(values[v].shape[1:]))) for v in model.value_vars]
    return np.concatenate(flat, axis=1).reshape(posterior.sizes["chain"], posterior.sizes["draw"], -1)


def value_draws(posterior: xr.Dataset, model: pm.Model) -> dict:
    """Return for each value variable of the model its draws, (chain * draw, ...); errors as above."""
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
            moved.append(one[rv])
        else:
            parameters = clone_replace(list(rv.owner.inputs), replace=one)
            moved.append(transform.forward(one[rv], *parameters))
    many = {x: _batched(x) for x in one.values()}
    with model:
        function = pymc_compile(
            list(many.values()), vectorize_graph(moved, many), on_unused_input="ignore", mode=_QUICK
        )
    shapes = model.eval_rv_shapes()
    arrays = []
    for rv in one:
        draws = posterior[rv.name].transpose("chain", "draw", ...).values
        if draws.shape[2:] != tuple(shapes[rv.name]):
            said = tuple(int(s) for s in shapes[rv.name])
            raise ValueError(f"the draws of {rv.name} have shape {draws.shape[2:]}, the model says {said}.")
        arrays.append(np.ascontiguousarray(draws, dtype=rv.dtype).reshape(-1, *draws.shape[2:]))
    return dict(zip(model.value_vars, function(*arrays), strict=True))


def _batched(variable):
    return tensor(dtype=variable.dtype, shape=(None, *variable.type.shape))


class ElementwiseTransform(NamedTuple):
    """How a model moves each number of a variable by itself to the unconstrained scale, and back."""

    forward: Callable[[np.ndarray], np.ndarray]
    """From draws (n, ...) as the user knows them to the unconstrained scale."""
    backward: Callable[[np.ndarray], np.ndarray]
    """From the unconstrained scale (n, ...) back."""


def elementwise_transform(model: pm.Model, name: str) -> ElementwiseTransform | None:
    """Return the transform of a free variable; None where there is none that moves each number by itself.

    A simplex has none, nor has a variable whose bounds depend on other free variables.
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
        many = _batched(of)
        with model:
            function = pymc_compile([many], vectorize_graph(target, {of: many}), on_unused_input="ignore", mode=_QUICK)
        return lambda x: function(np.ascontiguousarray(x, of.dtype))

    return ElementwiseTransform(compiled(natural, moved), compiled(value, back))


def compile_scores(model: pm.Model):
    """Return a function from draws of all value variables, a list of (n, ...), to scores (n, d).

    The scores are those of the continuous value variables, one after the other; ``d`` counts these alone. One call
    evaluates 512 draws at a time in one vectorised graph.

    Raises
    ------
    NoGradientError
        Where a term has no gradient, or is only estimated.

    Notes
    -----
    Vectorised over draws, PyTensor's own interpreter is as fast as compiled code, which takes ten times longer to
    compile than all else here; so nothing is compiled. Its quick mode leaves the numerically stable forms of some
    functions out: should a score not be finite, all is evaluated again with them, some ten times slower.
    """
    variables = model.continuous_value_vars
    if not variables:
        raise NoGradientError("this model has no continuous variables, so it has no score.")
    logp = model.logp()
    estimated, _ = estimated_terms(logp)
    if estimated:
        raise NoGradientError(_no_gradient(estimated, "only estimated"))
    try:
        gradients = grad(logp, variables, disconnected_inputs="ignore")
    except _GRADIENT_ERRORS as error:
        raise NoGradientError(_no_gradient(_without_gradient(model, variables), "a black box")) from error
    many = {v: _batched(v) for v in model.value_vars}
    outputs = vectorize_graph(gradients, many)

    def compiled(mode):
        with model:
            return pymc_compile(list(many.values()), outputs, on_unused_input="ignore", mode=mode)

    quick = compiled(_QUICK)

    is_continuous = [v in set(variables) for v in model.value_vars]

    def evaluate(function, values):
        slopes = []
        for start in range(0, len(values[0]), _DRAWS_AT_A_TIME):
            batch = [np.ascontiguousarray(v[start : start + _DRAWS_AT_A_TIME]) for v in values]
            shapes = [v.shape for v, wanted in zip(batch, is_continuous, strict=True) if wanted]
            # A gradient that does not depend on the draws has no dimension of draws.
            found = [np.broadcast_to(f, shape) for f, shape in zip(function(*batch), shapes, strict=True)]
            slopes.append(np.concatenate([f.reshape(len(f), -1) for f in found], axis=1))
        return np.concatenate(slopes)

    def scores(values):
        found = evaluate(quick, values)
        return found if np.isfinite(found).all() else evaluate(compiled(_STABLE), values)

    return scores


def _without_gradient(model, variables):
    """Return the names of the model's terms that cannot be differentiated."""
    terms = zip([*model.basic_RVs, *model.potentials], model.logp(sum=False), strict=True)
    names = []
    for variable, term in terms:
        try:
            grad(term.sum(), variables, disconnected_inputs="ignore")
        except _GRADIENT_ERRORS:
            names.append(variable.name)
    return names


def _no_gradient(names, why):
    return (
        f"the log density of this model has no gradient: {', '.join(names) or 'a term'} is {why}. A Stein discrepancy "
        'needs scores. With score="surrogate" they are learned from the log densities of the draws; or give your own '
        "as score=, a function from unconstrained draws (n, d) to gradients of the log density (n, d), or compare with "
        "a run that you trust by pk.mmd_test(idata, trusted)."
    )
