"""Pairs of parameters and data simulated from a model, for methods that never evaluate a likelihood."""

import warnings
from collections.abc import Callable, Mapping

import numpy as np
import pymc as pm
import pytensor
import xarray as xr
from pymc.distributions.simulator import SimulatorRV
from pytensor.graph.traversal import apply_ancestors

from pymc_kernel.plugin.model.estimated import block_of
from pymc_kernel.plugin.model.interpreter import UNOPTIMIZED
from pymc_kernel.plugin.model.unconstrained import (
    data_groups,
    draws_group,
    observed_values,
    rows_of,
    unconstrained_draws,
)
from pymc_kernel.plugin.simulation.simulate import check_model, simulate, warn_of_potentials
from pymc_kernel.plugin.warn import warn_user

Summary = Callable[[np.ndarray], np.ndarray] | Mapping[str, Callable[[np.ndarray], np.ndarray]]
"""Summaries of data sets: a function of the observed variable's array, or one for each observed variable by name."""


def learned_from(simulations, num_simulations, summary, model, who, rng, executor, progressbar) -> tuple:
    """Return what a method learns from, by stored or new simulations, and these, after checks that need none.

    That is parameters (n, d) on the unconstrained scale, summaries (n, q) of the data simulated from them, NaN where
    that failed, and summaries (q,) of the observed data.
    """
    if simulations is not None and not isinstance(simulations, xr.DataTree):
        raise TypeError(
            f"simulations must be the DataTree that pk.simulate or pm.sample_prior_predictive returns, got "
            f"{type(simulations).__name__}; without it {who} simulates num_simulations itself."
        )
    observed = observed_for(model, summary, who)
    if simulations is None:
        warn_of_potentials(model, "the posterior will be that of the model without them")
        simulations = simulated_by(model, rng, executor, progressbar, draws=num_simulations)
    return *simulated_pairs(simulations, model, summary), observed, simulations


def observed_for(model: pm.Model, summary: Summary | None, who: str) -> np.ndarray:
    """Check that the model can be simulated, and return the summaries (q,) of its data."""
    check_model(model)
    data = observed_values(model)
    empty = [name for name, values in data.items() if not np.size(values)]
    if empty:
        raise ValueError(f"{', '.join(empty)}: all data are missing (NaN or masked): {who} has nothing to learn from.")
    for rv in model.free_RVs:
        if any(isinstance(node.op, SimulatorRV) for node in apply_ancestors([rv])):
            raise ValueError(
                f"{rv.name}: missing data of a simulator cannot be imputed, since it has no density. Leave missing "
                "entries out of observed, and have the simulator return those that are there."
            )
    discrete = [rv.name for rv in model.free_RVs if np.issubdtype(rv.dtype, np.integer) or rv.dtype == "bool"]
    if discrete:
        raise ValueError(f"{', '.join(discrete)}: {who} draws continuous parameters only; let the simulator draw them.")
    functions = _summary_functions(model, summary)
    observed = _summaries({name: values[None] for name, values in data.items()}, functions)[0]
    if not np.isfinite(observed).all():
        raise ValueError("the observed data, or their summaries, have NaN or infinite entries.")
    return observed


def _summary_functions(model: pm.Model, summary: Summary | None) -> dict[str, Callable]:
    """Return name -> function for observed variables with a summary: the given one, or else that of their block."""
    names = [rv.name for rv in model.observed_RVs]
    if callable(summary):
        if len(names) > 1:
            raise ValueError(
                f"the model observes {', '.join(names)}, and one function cannot summarize them all: give a dictionary "
                f"from names to functions of that variable's array, as in summary={{{names[0]!r}: np.mean}}."
            )
        given = {names[0]: summary}
    elif summary is None or isinstance(summary, Mapping):
        given = dict(summary or {})
    else:
        raise TypeError(
            "summary must be a function of the observed array, or a dictionary from names of observed variables to "
            f"such functions, got {type(summary).__name__}."
        )
    unknown = [str(name) for name in given if name not in names]
    if unknown:
        raise ValueError(f"summary names {', '.join(unknown)}; the model observes {', '.join(names)}.")
    wrong = [name for name, function in given.items() if not callable(function)]
    if wrong:
        raise TypeError(f"summary of {', '.join(map(repr, wrong))} must be a function of that variable's array.")
    own = {rv.name: _own_summary(rv) for rv in model.observed_RVs if rv.name not in given}
    return {name: function for name, function in (own | given).items() if function is not None}


def _own_summary(rv) -> Callable | None:
    """Return the summary that an observed variable was made with: that of a block, or ``sum_stat`` of pm.Simulator."""
    if not isinstance(rv.owner.op, SimulatorRV):
        return getattr(getattr(block_of(rv), "fn", None), "summary", None)
    data = rv.type()
    summary = rv.owner.op.sum_stat(data)
    if summary is data:
        return None
    # The graph is not rewritten, so that rounding is that of the function itself.
    return pytensor.function([data], summary, mode=UNOPTIMIZED, allow_input_downcast=True)


def simulated_by(model: pm.Model, rng, executor, progressbar, **arguments) -> xr.DataTree:
    """Return simulations with further ``arguments`` of :func:`simulate`; callers warn of potentials and failures."""
    seed = int(rng.integers(2**31))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Potentials")
        arguments |= {"executor": executor, "max_failures": 1.0, "progressbar": progressbar}
        return simulate(model=model, random_seed=seed, **arguments)


def simulated_pairs(simulations: xr.DataTree, model: pm.Model, summary: Summary | None):
    """Return parameters (n, d) on the unconstrained scale and summaries (n, q) of the data simulated from them."""
    missing = [g for g in ("prior", "prior_predictive") if g not in simulations.children]
    if missing:
        raise ValueError(
            f"simulations has no group {', '.join(missing)}: give what pk.simulate or pm.sample_prior_predictive "
            "returns, or nothing."
        )
    parameters, predictive = simulations["prior"].to_dataset(), simulations["prior_predictive"].to_dataset()
    lacking = [rv.name for rv in model.observed_RVs if rv.name not in predictive]
    if lacking:
        raise ValueError(f"simulations have no {', '.join(lacking)}, which the model observes.")
    latent = unconstrained_draws(parameters, model)
    latent = latent.reshape(-1, latent.shape[-1])
    draws = {rv.name: rows_of(predictive[rv.name]) for rv in model.observed_RVs}
    return latent, _summaries(draws, _summary_functions(model, summary))


def _summaries(draws: dict[str, np.ndarray], functions: dict[str, Callable]) -> np.ndarray:
    """Return the summaries (n, q) of n data sets, name -> (n, ...); NaN for those of a simulation that failed."""
    flat = {name: np.reshape(values, (len(values), -1)).astype(float) for name, values in draws.items()}
    is_whole = np.all([np.isfinite(values).all(axis=1) for values in flat.values()], axis=0)
    for name, function in functions.items():
        found = [np.ravel(np.asarray(function(data), dtype=float)) for data in draws[name][is_whole]]
        if len({len(one) for one in found}) > 1:
            raise ValueError(f"the summary of {name!r} must return vectors of one length for all data sets.")
        flat[name] = np.full((len(is_whole), len(found[0]) if found else 1), np.nan)
        if found:
            flat[name][is_whole] = found
    return np.concatenate(list(flat.values()), axis=1)


def warn_of_failed_pairs(failed: int, total: int, consequence: str = "") -> None:
    """Warn of failed simulations, which are left out; ``consequence`` says what follows."""
    if failed:
        warn_user(
            f"{failed} of {total} simulations ({100 * failed / total:.0f} %) gave NaN or infinite numbers and are left "
            f"out.{consequence}"
        )


def learned_groups(model: pm.Model, positions, shape: tuple[int, int], simulations: xr.DataTree) -> dict:
    """Return the groups of a result: ``posterior`` from unconstrained positions (chains * draws, d), data and more."""
    return {
        "posterior": draws_group(model, positions.reshape(*shape, -1)),
        **{name: simulations[name].to_dataset() for name in ("prior", "prior_predictive")},
        **data_groups(model),
    }
