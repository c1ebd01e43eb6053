"""What to say of a chain of an estimated likelihood that is stuck, and of one that has missed a mode."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_kernel.mcmc import unvisited

__all__ = ["missed_place", "noise_report"]

_NOISE_REPLICATES = 20  # estimates that show the noise where a chain is stuck
_NAMED = 4  # coordinates of a place that a message shows


def missed_place(known: unvisited.Places, visited: Sequence, variables: Sequence) -> str:
    """Return what to say of a place that is as likely as where the chain has been, and that it never came near.

    Parameters
    ----------
    known
        Places where the density was evaluated to find a start.
    visited
        Positions (d,) and log densities of some draws.
    variables
        Value variables of the positions.
    """
    draws, log_densities = (np.array(a) for a in zip(*visited, strict=True))
    place = unvisited.missed(known, draws, log_densities)
    if place is None:
        return ""
    return (
        f"a chain never came near {_named(variables, place)} (on the unconstrained scale), which the search for a "
        "start found to be as likely as where the chain has been: it is too short, or the posterior has a mode that it "
        "does not show. Take more draws, or pk.sample_smc, which weighs modes."
    )


def _named(variables, position):
    """Return a position (d,) with the names of its variables, the first few of its coordinates."""
    if len(variables) > _NAMED or any(v.type.ndim for v in variables):
        shown = ", ".join(f"{x:.3g}" for x in position[:_NAMED])
        return f"({shown}{', ...' if position.size > _NAMED else ''})"
    return ", ".join(f"{v.name} = {x:.3g}" for v, x in zip(variables, position, strict=True))


def noise_report(density, state) -> str:
    """Return what new estimates of the density, at the state of a chain that is stuck, say of the noise."""
    estimates = density.estimates(state.position, _NOISE_REPLICATES)
    finite = estimates[np.isfinite(estimates)]
    zeros = estimates.size - finite.size
    text = f"The likelihood ({', '.join(density.estimated)}) is estimated, and where the chain is "
    if finite.size < 2:
        return text + f"{zeros} of {estimates.size} new estimates are zero: use many more replicates per estimate."
    variance = float(finite.var(ddof=1))
    text += f"the log estimate has a variance of {variance:.2g}"
    text += f", and {zeros} of {estimates.size} new estimates are zero" if zeros else ""
    text += f"; it holds on to an estimate {state.log_density - finite.mean():+.2g} from their mean. "
    if variance > 1.0 or state.log_density - finite.mean() > 2.0 * math.sqrt(variance):
        times = max(2, math.ceil(variance))
        return text + f"About {times} times as many replicates per estimate would keep chains from getting stuck."
    return text + "That is little noise: tune longer, or reparametrize."
