"""The result of ``sample_surrogate`` as groups of a DataTree."""

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.likelihood_free import Status
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.model.groups import data_groups, draws_group
from pymc_kernel.plugin.samplers.exact import ExactDraws, Trace
from pymc_kernel.plugin.samplers.given_surrogate import FREE_VARIABLES, RADIUS
from pymc_kernel.rounds import ActiveLearning
from pymc_kernel.rounds.particles import Draws
from pymc_kernel.rounds.search_state import State

__all__ = ["tree_of"]


def tree_of(
    model: pm.Model,
    config: ActiveLearning,
    state: State,
    found: list[Draws],
    shape: tuple[int, int],
    status: np.ndarray,
    drawn: ExactDraws | None,
    trace: Trace | None,
) -> xr.DataTree:
    """Return all groups of a result.

    Parameters
    ----------
    state : State
        After the last batch.
    found : list of Draws
        Of the surrogate, for each chain.
    shape : tuple
        Number of chains, and draws of each.
    status : ndarray (n,)
        Of each evaluation, those of exact draws included.
    drawn : ExactDraws, optional
    trace : Trace, optional
        What was evaluated for exact draws, also where none was made.
    """
    surrogate_draws = draws_group(model, np.stack([part.positions[: shape[1]] for part in found]))
    positions, log_prior, log_likelihood = state.positions, state.log_prior, state.log_likelihood
    if trace is not None:
        known = positions, log_prior, log_likelihood
        positions, log_prior, log_likelihood = map(np.concatenate, zip(known, trace.evaluated(), strict=True))
    distance = config.distance(state, *found)
    stats = {
        "distance": distance.total_variation,
        "distance_error": distance.error,
        "marginal_distance": distance.marginal,
        statistics.EFFECTIVE_SHARE: distance.effective_share,
        "num_fresh_draws": distance.num_draws,
        "num_evaluations": len(positions),
        statistics.NUM_FAILED: int((~np.isfinite(log_likelihood)).sum()),
        "is_climbing": state.is_climbing,
        statistics.CORRELATION: max(part.correlation for part in found),
        statistics.LOG_EVIDENCE: ("chain", [part.log_evidence + _noise_bias(config, state) for part in found]),
    }
    batches = {
        name: ("batch", np.array([getattr(b, name) for b in state.batches]))
        for name in ("num_evaluations", "power", "is_climbing", "best", "error")
    }
    stats = xr.Dataset(stats, coords={"chain": np.arange(shape[0])})
    if drawn is not None:
        each = {name: (("chain", "draw"), v) for name, v in drawn.statistics.items()}
        stats = stats.assign(each).assign_coords(draw=np.arange(drawn.positions.shape[1]))
    evaluated = _evaluated(model, (positions, log_prior, log_likelihood, status))
    evaluated.attrs |= {FREE_VARIABLES: [v.name for v in model.free_RVs], RADIUS: state.radius}
    return xr.DataTree.from_dict(
        {
            "posterior": surrogate_draws if drawn is None else draws_group(model, drawn.positions),
            "sample_stats": stats,
            **({} if drawn is None else {"surrogate_posterior": surrogate_draws}),
            "batch_stats": xr.Dataset(batches, coords={"batch": np.arange(len(state.batches))}),
            "evaluations": evaluated,
            **data_groups(model),
        }
    )


def _noise_bias(config, state):
    """Return how far the mean of logs of unbiased estimates lies below the log of their mean, were they log-normal."""
    noise = state.learned.unit * state.learned.fit.noise_sd if config.noisy else 0.0
    return 0.5 * float(noise) ** 2


def _evaluated(model, columns):
    """Return all places with their values."""
    positions, log_prior, log_likelihood, status = columns
    points = draws_group(model, positions[None]).isel(chain=0, drop=True).rename(draw="evaluation")
    more = {
        "position": (("evaluation", "coordinate"), positions),
        "log_prior": ("evaluation", log_prior),
        "log_likelihood": ("evaluation", log_likelihood),
        "status": ("evaluation", status),
    }
    dataset = points.assign(more)
    dataset["status"].attrs = {
        "flag_values": [int(s) for s in Status],
        "flag_meanings": " ".join(s.name.lower() for s in Status),
    }
    return dataset
