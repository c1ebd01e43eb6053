"""Whether the summaries of synthetic likelihoods are normal where a posterior is, in words."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.likelihood_free.normality import normality_errors
from pymc_kernel.plugin.model.estimated import normal_blocks
from pymc_kernel.plugin.model.log_density import LogDensity, compile_log_density
from pymc_kernel.plugin.model.unconstrained import coordinate_names, unconstrained_draws

_KINDS = ("mean", "spread", "5 % quantile", "95 % quantile")
_LEAST_ERROR = 0.2  # posterior standard deviations of a mean or quantile, or part of a spread: less needs no warning
_STANDARD_ERRORS = 2.0  # by which an error differs from none
_NUM_SIMULATED = 1000  # draws at which estimates are made again: a 5 % quantile is known to .1 by these


def normality_of_posterior(model: pm.Model, posterior: xr.Dataset, rng: np.random.Generator) -> str:
    """Return a warning as below, of draws (chain, draw) of all free variables; or nothing."""
    if not normal_blocks(model) or not {rv.name for rv in model.free_RVs} <= set(posterior):
        return ""
    point = model.initial_point(random_seed=0)
    density = compile_log_density(model, model.value_vars, point, "this check")
    density.seed(rng)
    draws = unconstrained_draws(posterior, model)
    names = coordinate_names(model.value_vars, [np.shape(point[v.name]) for v in model.value_vars])
    return normality_of_draws(density, draws.reshape(-1, draws.shape[-1]), names, rng)


def normality_of_draws(density: LogDensity, draws: np.ndarray, names: Sequence[str], rng: np.random.Generator) -> str:
    """Return a warning as below, by new estimates of the density at some draws (n, d); or nothing."""
    simulated = []
    for position in rng.permutation(draws)[:_NUM_SIMULATED]:
        if np.isfinite(density(position)):
            density.settle(True)
            simulated.append((position, density.simulated))
    return normality_warning(simulated, names)


def normality_warning(simulated: Sequence, entries: Sequence[str]) -> str:
    """Return a warning about posteriors that summaries which are not normal have made wrong; or nothing.

    Parameters
    ----------
    simulated
        Positions (d,) of draws, and by the name of a block the summaries behind its estimate and those of the data.
    entries
        Names of the coordinates of a position.
    """
    if not simulated:
        return ""
    positions, by_block = zip(*simulated, strict=True)
    said = []
    for block, (_, observed) in by_block[0].items():
        errors = normality_errors(np.array(positions), [summaries[block][0] for summaries in by_block], observed)
        wrong = [] if errors is None else _words(errors, entries)
        if wrong:
            said.append(
                f"the summaries of {block!r} are taken for normal, and where the posterior is they are not: by the "
                f"simulations behind the draws (unconstrained scale), {'; '.join(wrong)}. Transform the summaries, or "
                "take pk.KernelABC or pk.sample_likelihood_free."
            )
    return " ".join(said)


def _words(errors, entries):
    """Return what is wrong for certain."""
    words = []
    for kind, moved, standard_errors in zip(_KINDS, errors.moved, errors.errors, strict=True):
        for name, by, error in zip(entries, moved, standard_errors, strict=True):
            if abs(by) <= max(_LEAST_ERROR, _STANDARD_ERRORS * error):
                continue
            if kind == "spread":
                words.append(f"the true spread of {name} is {np.exp(by):.2f} times the draws'")
            else:
                side = "below" if by > 0.0 else "above"
                words.append(f"the {kind} of {name} is {abs(by):.2f} posterior standard deviations {side} the true one")
    return words
