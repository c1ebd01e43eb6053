"""Surrogates that ``sample_surrogate`` has learned, as what kernel HMC moves along: rebuilt from a stored result."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.mcmc.kernel_hmc import Config, State, with_given
from pymc_kernel.mcmc.surrogate_fit import emulated
from pymc_kernel.plugin.model.priors import ModelPrior, initial_position
from pymc_kernel.plugin.model.unconstrained import unconstrained_draws
from pymc_kernel.rounds import ActiveLearning, LogPosterior

__all__ = ["FREE_VARIABLES", "RADIUS", "GivenSurrogate", "check_same_model", "given_surrogate", "transition_state"]

FREE_VARIABLES, RADIUS = "free_variables", "region_radius"  # attributes of the group ``evaluations``
_NUM_DRAWS = 2000  # from a learned log posterior that comes without draws
_SEED = 0  # of a rebuilt surrogate, which is the same for all chains and processes


class GivenSurrogate(NamedTuple):
    """A learned log posterior, and draws from it."""

    learned: LogPosterior
    draws: np.ndarray
    """(n, d), on the unconstrained scale."""


def given_surrogate(source: xr.DataTree | LogPosterior, model: pm.Model, noisy: bool) -> GivenSurrogate:
    """Return the surrogate of a result of ``sample_surrogate``, learned once more from its evaluations.

    Parameters
    ----------
    source
        The DataTree, or the learned log posterior itself.
    model : pymc.Model
        With the same variables. Where its prior or its data have changed the surrogate is worse, and nothing else.
    noisy : bool
        Whether its likelihood is estimated.

    Raises
    ------
    ValueError
        For a result of a model with other variables or shapes, and for one that has learned nothing.
    """
    rng = np.random.default_rng(_SEED)
    if isinstance(source, LogPosterior):
        num_dims, wanted = source.region.points.shape[1], initial_position(model).size
        if num_dims != wanted:
            raise ValueError(
                f"the surrogate has {num_dims} parameters on the unconstrained scale, and the model {wanted}: "
                "give that of the same model."
            )
        learned = replace(source, power=1.0, is_careful=True)
        return GivenSurrogate(learned, learned.draw(rng, _NUM_DRAWS))
    check_same_model(source, model)
    evaluated = source["evaluations"]
    config = ActiveLearning(noisy=noisy)
    state = config.init(ModelPrior(model), evaluated["position"].values)
    state = state._replace(radius=float(evaluated.attrs[RADIUS]))
    state = config.update(rng, state, evaluated["log_likelihood"].values)
    if state.learned is None:
        raise ValueError(
            f"{int(np.isfinite(state.log_density).sum())} of the {len(state.positions)} evaluations have a finite log "
            "density under this model, too few to learn from: give the result of the same model."
        )
    draws = unconstrained_draws(source["posterior"].to_dataset(), model)
    return GivenSurrogate(replace(state.learned, power=1.0, is_careful=True), draws.reshape(-1, draws.shape[-1]))


def transition_state(given: GivenSurrogate, config: Config) -> State:
    """Return the state of kernel HMC along the surrogate, at one of its draws; nothing is evaluated."""
    fit = emulated(np.random.default_rng(_SEED), given.learned, given.draws, config.max_steps)
    return with_given(given.draws[0], 0.0, fit, config)


def check_same_model(source: xr.DataTree, model: pm.Model) -> None:
    """Raise where a result of ``sample_surrogate`` is not of a model with these variables."""
    if not {"evaluations", "posterior"} <= set(source.children) or RADIUS not in source["evaluations"].attrs:
        raise ValueError(
            f"surrogate= takes a result of pk.sample_surrogate, and this has the groups {', '.join(source.children)}."
        )
    known, wanted = source["evaluations"].attrs[FREE_VARIABLES], [v.name for v in model.free_RVs]
    known = [known] if isinstance(known, str) else list(known)  # netCDF makes a text of a list with one
    if set(known) != set(wanted):
        raise ValueError(
            f"the surrogate was learned for a model with the variables {', '.join(known)}, and this one has "
            f"{', '.join(wanted)}: give that of the same model."
        )
    stored = source["evaluations"]
    for rv, lengths in model.eval_rv_shapes().items():
        shape = tuple(int(n) for n in lengths)
        if rv in known and stored[rv].shape[1:] != shape:
            raise ValueError(
                f"the surrogate was learned for {rv} of shape {stored[rv].shape[1:]}, and the model has {shape}."
            )
