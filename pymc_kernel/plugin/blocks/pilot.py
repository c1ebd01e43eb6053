"""The bandwidth of a block from pilot simulations, at positions on the unconstrained scale of its parameters."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pymc.vartypes import continuous_types
from pytensor.graph import ancestors

from pymc_kernel.likelihood_free import TooManyFailures, choose_bandwidth, explore, simulate_repeatedly
from pymc_kernel.plugin.arguments import check_whole
from pymc_kernel.plugin.model.interpreter import QUICK
from pymc_kernel.plugin.model.priors import prior_expression, with_finite_columns, without_draws
from pymc_kernel.plugin.model.unconstrained import split_positions
from pymc_kernel.plugin.warn import warn_user

_LEAST_PILOT = 200  # simulations; fewer do not locate a posterior
_WIDE = 0.75  # relative bandwidth above which posterior spreads are more than a quarter too wide
_HIDDEN = 3.0  # ratio above which the spread of the summaries has information that their mean has not
_OFFSET = 3.0  # standard deviations (root mean square) from which on the model does not produce the data
_LEAST_CENTERS = 5  # positions with replicates
_OF_REPLICATES = 0.4  # share of the pilot simulations that are replicates


def learned_bandwidth(function, params, shape, target, num_pilot, log_variance, random_seed):
    """Return the factor of a bandwidth learned near the posterior, and starting values of chains: name -> (n, ...).

    The ``function`` of a block simulates data sets of this ``shape``; ``target`` (q,) are the summaries of the data.
    """
    name, count = function.name, function.num_simulations
    if not log_variance > 0.0:
        raise ValueError(f"log_variance of {name!r} must be positive, got {log_variance!r}.")
    check_whole(least=_LEAST_PILOT, **{f"num_pilot of {name!r}": num_pilot})
    rng = np.random.default_rng(random_seed)
    parameters = _BlockParameters(name, params, num_pilot, rng)
    errors, summary = [], function.summary_of(shape)

    def simulate(positions):
        rows = np.full((len(positions), len(target)), np.nan)
        for row, position in zip(rows, positions, strict=True):
            values = parameters.at(position)
            once = simulate_repeatedly(lambda v=values: function.one_data_set(rng, v, shape), summary, 1)
            if once.summaries:
                row[:] = np.ravel(once.summaries[0])
            elif once.first_error is not None and not errors:
                errors.append(once.first_error)
        return rows

    num_replicates = min(max(100, 10 * count), int(_OF_REPLICATES * num_pilot) // _LEAST_CENTERS)
    try:
        pilot = explore(parameters.prior, simulate, target, num_pilot, num_replicates, rng)
    except TooManyFailures as error:
        first = f" The first error was {type(errors[0]).__name__}: {errors[0]}" if errors else ""
        advice = "repair the simulator (it is called as simulator(rng, *params, size)), or give epsilon"
        raise ValueError(f"of {name!r} {error}: {advice}.{first}") from (errors[0] if errors else error)
    choice = choose_bandwidth(pilot, target, count, log_variance)
    _warn_of_bandwidth(name, choice, count)
    return choice.factor, parameters.by_name(pilot.centers)


def _warn_of_bandwidth(name, choice, count):
    if choice.offset > _OFFSET:
        warn_user(
            f"the observed summaries of {name!r} are {choice.offset:.1f} standard deviations from everything that the "
            "pilot simulations reached: check the model, or its prior, or raise num_pilot."
        )
    if choice.relative > _WIDE:
        warn_user(
            f"the bandwidth of {name!r} is {choice.relative:.2g} times the spread of its summaries at the posterior, "
            f"which makes posterior spreads some {100 * (np.hypot(1.0, choice.relative) - 1.0):.0f} % too wide: "
            f"num_simulations={count} allow no less. About {choice.recommended} would allow one of half that spread, "
            "12 % too wide; fewer summaries help too."
        )
    if choice.hidden > _HIDDEN:
        warn_user(
            f"the parameters change the spread of the summaries of {name!r}, not their mean alone, and the kernel, "
            "wide where the mean does not move, hardly sees that: the posterior will be too wide. Add summaries that "
            "tell it, such as a log standard deviation or quantiles of the data."
        )


class _BlockParameters:
    """The inputs of a block's simulator, and the free variables of the model in context that they depend on.

    Positions (n, d) hold these variables on the unconstrained scale, one after the other; discrete ones as they are.
    ``prior`` are positions drawn from it, and discrete numbers stay in the range of these draws.
    """

    def __init__(self, name, params, num_draws, rng):
        model = pm.modelcontext(None)
        params = [pt.as_tensor_variable(p) for p in params]
        used = set(ancestors(params))
        improper = [rv.name for rv in without_draws(model) if rv in used]
        if improper:
            raise ValueError(f"{name!r} needs epsilon: a prior cannot be drawn from, that of {', '.join(improper)}.")
        outputs = model.replace_rvs_by_values(params)
        self._values = [model.rvs_to_values[rv] for rv in model.free_RVs if rv in used]
        self._function = pymc_compile(self._values, outputs, on_unused_input="ignore", mode=QUICK)
        expressions = zip(model.free_RVs, prior_expression(model), strict=True)
        wanted = [expression for rv, expression in expressions if rv in used]
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Numba will use object mode")
                drawn = pm.draw(wanted, draws=num_draws, random_seed=rng) if wanted else []
        except NotImplementedError as error:  # of a distribution inside of another one
            raise ValueError(f"{name!r} needs epsilon: a prior cannot be drawn from ({error}).") from error
        self._shapes = [values.shape[1:] for values in drawn]
        self._bounds = [(values.min(axis=0), values.max(axis=0)) for values in drawn]
        flat = [np.reshape(values, (num_draws, -1)).astype(float) for values in drawn]
        self.prior = with_finite_columns(np.concatenate([np.empty((num_draws, 0)), *flat], axis=1), rng)

    def at(self, position: np.ndarray) -> list[np.ndarray]:
        """Return the simulator's parameters at one position (d,)."""
        return self._function(*(values[0] for values in self.by_name(position[None]).values()))

    def by_name(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return value variable's name -> (n, ...) at positions (n, d)."""
        named, parts = {}, split_positions(positions, self._shapes)
        for value, values, bounds in zip(self._values, parts, self._bounds, strict=True):
            if value.dtype not in continuous_types:
                values = np.clip(np.rint(values), *bounds)
            named[value.name] = values.astype(value.dtype)
        return named
