"""Warnings about chains that are stuck on an estimate, miss a part of the posterior, or meet errors of the model."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_kernel.mcmc.chain_checks import coverage_of, is_missing_mass, open_ends
from pymc_kernel.mcmc.metropolis import LogDensity

_NOISE_REPLICATES = 20  # new estimates that measure the noise where a chain is stuck
_NAMED = 4  # coordinates of a position that a message shows
# Share of draws whose proposals raised an error, above which to warn. Proposals fall into a region about as often as
# draws should, and a mass of a thousandth changes a 5 % tail by no more than the Monte Carlo error of 40,000 draws.
_FEW_RAISED = 1e-3
# On a funnel and a Student t, four times as many draws changed the errors of 5 % tails from .017 and .014 to .010 and
# .005; four times as many tuning draws changed them to .020 and .013.
_ADVICE = "Proposals seldom get there: take more draws (longer tuning seldom helps), or reparametrize."


def missed_point_warning(place: np.ndarray | None, coordinates: Sequence[str]) -> str:
    """Return a warning about a point (d,), as likely as the draws of the chain, which never came near; or nothing."""
    if place is None:
        return ""
    shown = [f"{name} = {x:.3g}" for name, x in zip(coordinates[:_NAMED], place, strict=False)]
    return (
        f"a chain never came near {', '.join(shown)}{', ...' if place.size > _NAMED else ''} (on the unconstrained "
        "scale), which the search for a start found to be as likely as where the chain has been: the chain is too "
        "short, or its draws miss a mode of the posterior. Take more draws, or pk.sample_smc, which weighs modes."
    )


def noise_report(density, state) -> str:
    """Return a report on the noise, from new estimates of the density where a chain is stuck."""
    estimates = density.estimates(state.position, _NOISE_REPLICATES)
    finite = estimates[np.isfinite(estimates)]
    zeros = estimates.size - finite.size
    text = f"The likelihood ({', '.join(density.estimated)}) is estimated, and where the chain is "
    are_zero = f"{zeros} of {estimates.size} new estimates are zero"
    if finite.size < 2:
        return text + f"{are_zero}: use many more replicates per estimate."
    variance, excess = float(finite.var(ddof=1)), state.log_density - finite.mean()
    text += f"the log estimate has a variance of {variance:.2g}{f', and {are_zero}' if zeros else ''}"
    text += f"; the chain holds an estimate that differs from their mean by {excess:+.2g}. "
    if variance > 1.0 or excess > 2.0 * math.sqrt(variance):
        times = max(2, math.ceil(variance))
        return text + f"About {times} times as many replicates per estimate would keep chains from getting stuck."
    return text + "That is little noise: tune longer, or reparametrize."


def raised_warning(num_raised: int, num_draws: int, error: Exception | None) -> str:
    """Return a warning about a model that raised errors at more than a few proposals after tuning; or nothing."""
    if num_raised <= _FEW_RAISED * num_draws:
        return ""
    first = "" if error is None else f", the first with {type(error).__name__}: {error}"
    return (
        f"the model raised an error in {num_raised} calls during {num_draws} draws{first}. The density counts as zero "
        "there: the draws are right if that is so, and lack a part of the posterior if not."
    )


def missing_mass_warning(log_weights: np.ndarray) -> str:
    """Return a warning that a part of the posterior is likely to be missing; or nothing.

    The log weights (n,) are log density minus surrogate at draws that share one surrogate; NaN where not known.
    """
    coverage = coverage_of(log_weights)
    if not is_missing_mass(coverage):
        return ""
    times = math.exp(min(coverage.excess, 20.0))
    return (
        f"{100.0 * coverage.missing:.2g} % of the posterior are likely to be missing from the draws: the ratio of the "
        f"density to the surrogate is up to {times:.2g} times its median, with a heavy tail. {_ADVICE}"
    )


def open_end_warning(
    draws: np.ndarray, levels: np.ndarray, density: LogDensity, coordinates: Sequence[str], rng: np.random.Generator
) -> str:
    """Return a warning about ends of the draws (chain, draw, d) beyond which the posterior goes on, or nothing.

    The draws are finite; ``levels`` (chain, draw) are their exact log densities, by ``density`` of one position (d,).
    """
    found = open_ends(rng, draws, levels, density)
    if not found:
        return ""
    worst = sorted(found, key=lambda e: -e.missing)[:_NAMED]
    ends = ", ".join(f"{coordinates[e.coordinate]} = {e.end:.3g} ({100.0 * e.missing:.2g} %)" for e in worst)
    return (
        f"the draws end where the posterior goes on, at {ends} on the unconstrained scale: the chains lack what is "
        "beyond, in brackets how much, even where they agree. Reparametrize, so that the ridge that they follow "
        "becomes straight and short."
    )
