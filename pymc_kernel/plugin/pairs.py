"""Pairs of parameters and data, simulated from a model: what methods learn from that never evaluate a likelihood."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from arviz import from_dict
from pymc.backends.arviz import coords_and_dims_for_inferencedata

from pymc_kernel.plugin.model_functions import constrained_draws, unconstrained_draws
from pymc_kernel.plugin.simulate import observed_group, observed_values, simulate, warn_of_potentials

__all__ = [
    "Pairs",
    "check_whole",
    "learnt_from",
    "learnt_groups",
    "simulated_again",
    "simulated_pairs",
    "warn_of_failed_pairs",
]


def check_whole(**numbers) -> None:
    """Raise where one of the named numbers is neither None nor a whole number of one or more."""
    for name, value in numbers.items():
        if value is not None and not (isinstance(value, int | np.integer) and value >= 1):
            raise ValueError(f"{name} must be a whole number >= 1, got {value!r}.")


class Pairs(NamedTuple):
    """What a method learns from, and what it is asked about."""

    latent: np.ndarray
    """Parameters (n, d) on the unconstrained scale."""
    seen: np.ndarray
    """Summaries (n, q) of the data simulated from them; NaN where that failed."""
    observed: np.ndarray
    """Summaries (q,) of the data."""
    simulations: xr.DataTree


def learnt_from(simulations, num_simulations, summary, model, who, rng, executor, progressbar) -> Pairs:
    """Return the pairs of stored simulations, or of new ones, after all checks that need none."""
    _check_model(model, who)
    observed = _observed_summaries(model, summary)
    if simulations is None:
        warn_of_potentials(model, "the posterior will be that of the model without them", stacklevel=3)
        simulations = _simulated(num_simulations, None, model, rng, executor, progressbar)
    return Pairs(*simulated_pairs(simulations, model, summary), observed, simulations)


def _check_model(model: pm.Model, who: str) -> None:
    """Raise an error for a model that cannot be learnt from pairs."""
    if not model.observed_RVs:
        raise ValueError("the model has no observed variable: give the data to one with observed=.")
    if not model.free_RVs:
        raise ValueError("the model has no free variable: there is nothing to infer.")
    discrete = [rv.name for rv in model.free_RVs if np.issubdtype(rv.dtype, np.integer) or rv.dtype == "bool"]
    if discrete:
        raise ValueError(f"{', '.join(discrete)}: {who} draws continuous parameters only; let the simulator draw them.")


def _observed_summaries(model, summary):
    observed = _summaries({name: values[None] for name, values in observed_values(model).items()}, summary)[0]
    if not np.isfinite(observed).all():
        raise ValueError("the observed data, or their summaries, have NaN or infinite entries.")
    return observed


def simulated_again(positions: np.ndarray, model: pm.Model, rng, executor, progressbar) -> xr.DataTree:
    """Simulate data at unconstrained ``positions`` (n, d)."""
    names = {rv.name for rv in model.free_RVs}
    values = {name: v[None] for name, v in constrained_draws(model, positions).items() if name in names}
    return _simulated(None, from_dict({"posterior": values})["posterior"], model, rng, executor, progressbar)


def _simulated(draws, given, model, rng, executor, progressbar):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Potentials")  # said by the caller
        return simulate(
            draws,
            given=given,
            executor=executor,
            max_failures=1.0,  # the caller counts the failures and says it once
            model=model,
            random_seed=int(rng.integers(2**31)),
            progressbar=progressbar,
        )


def simulated_pairs(simulations: xr.DataTree, model: pm.Model, summary: Callable | None):
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
    draws = {}
    for rv in model.observed_RVs:
        values = predictive[rv.name].transpose("chain", "draw", ...).values
        draws[rv.name] = values.reshape(-1, *values.shape[2:])
    return latent, _summaries(draws, summary)


def _summaries(draws: dict[str, np.ndarray], summary) -> np.ndarray:
    """Return the summaries (n, q) of n data sets, name -> (n, ...); NaN for those of a simulation that failed."""
    flat = np.concatenate([np.reshape(v, (len(v), -1)) for v in draws.values()], axis=1).astype(float)
    if summary is None:
        return flat
    found = {}
    for i in np.flatnonzero(np.isfinite(flat).all(axis=1)):
        found[i] = np.ravel(np.asarray(summary({k: v[i] for k, v in draws.items()}), dtype=float))
    if len({row.size for row in found.values()}) > 1:
        raise ValueError("summary must return vectors of one length for all data sets.")
    rows = np.full((len(flat), next(iter(found.values())).size if found else 1), np.nan)
    for i, row in found.items():
        rows[i] = row
    return rows


def warn_of_failed_pairs(failed: int, total: int, stacklevel: int = 2) -> None:
    """Warn of simulations that are left out."""
    if failed:
        warnings.warn(
            f"{failed} of {total} simulations ({100 * failed / total:.0f} %) gave NaN or infinite numbers and are left "
            "out.",
            stacklevel=stacklevel + 1,
        )


def learnt_groups(
    model: pm.Model, positions: np.ndarray, shape: tuple[int, int], simulations: xr.DataTree
) -> dict[str, xr.Dataset]:
    """Return the groups ``posterior``, from unconstrained positions (chains * draws, d), data and simulations."""
    coords, dims = coords_and_dims_for_inferencedata(model)
    values = {name: v.reshape(*shape, *v.shape[1:]) for name, v in constrained_draws(model, positions).items()}
    return {
        "posterior": from_dict({"posterior": values}, coords=coords, dims=dims)["posterior"].to_dataset(),
        "prior": simulations["prior"].to_dataset(),
        "prior_predictive": simulations["prior_predictive"].to_dataset(),
        "observed_data": observed_group(observed_values(model), coords, dims),
    }
