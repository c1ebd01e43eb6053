"""The judge of a sampler's answer: right, said or silent. On arrays, of any sampler.

Right: each mean, standard deviation and 5 % and 95 % quantile lies within four Monte Carlo errors of the truth, or
within a tenth of a standard deviation. Said: not right, and the sampler said so by itself: R-hat above 1.05, a warning
(of a Pareto shape, say). Silent: not right, without a word.
"""

from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats

__all__ = ["LARGEST_RHAT", "Verdict", "judge", "largest_rhat", "split_names", "summarised"]

LARGEST_RHAT = 1.05
_ERRORS = 4.0  # Monte Carlo errors that an estimate may be off
_NEAR = 0.1  # standard deviations that are near enough whatever the Monte Carlo error
_STATISTICS = ("mean", "sd", "5 %", "median", "95 %")
_NORMAL_SPAN = 3.289707  # standard deviations between the 5 % and 95 % quantiles of a normal distribution


class Verdict(NamedTuple):
    """What comes out for one posterior and one run."""

    outcome: str
    """"right", "said" or "silent"."""
    worst: str
    """The statistic that is furthest off, in multiples of what is allowed."""
    excess: float
    """How far off that is, in multiples of what is allowed: above one is wrong."""
    error: float
    """How far off that is, in standard deviations."""
    said: tuple[str, ...]


def split_names(name, draws):
    """Return the entries of a variable's draws (chain, draw, ...) as ``name[1]`` -> (chain, draw); scalars as they are.

    Entries are numbered from one, a matrix's as ``name[1,1]``.
    """
    if draws.ndim == 2:
        return {name: draws}
    places = np.ndindex(draws.shape[2:])
    return {f"{name}[{','.join(str(i + 1) for i in place)}]": draws[(..., *place)] for place in places}


def largest_rhat(draws):
    """Return the largest rank-normalised split R-hat; ``draws`` name -> (chain, draw). Infinite for chains that stand.

    With one chain it compares its halves.
    """
    found = [_rhat(np.asarray(values, dtype=float)) for values in draws.values()]
    return max(found)


def _rhat(values):
    if values.min() == values.max():
        return np.inf
    if len(values) == 1:
        half = values.shape[1] // 2
        values = np.stack([values[0, :half], values[0, half : 2 * half]])
    with np.errstate(all="ignore"):
        rhat = float(array_stats.rhat(values, chain_axis=0, draw_axis=1))
    return np.inf if np.isnan(rhat) else rhat


def _estimates(values):
    """Return mean, standard deviation and three quantiles of draws (chain, draw), shape (5,)."""
    return np.array([values.mean(), values.std(ddof=1), *np.quantile(values, (0.05, 0.5, 0.95))])


def _errors(values, use_chains):
    """Return the Monte Carlo errors of the five, (5,).

    With ``use_chains`` the spread between independent chains counts where it is larger: particles of one run share
    their fate in ways that their order does not show.
    """
    with np.errstate(all="ignore"):
        errors = np.array(
            [
                *(array_stats.mcse(values, chain_axis=0, draw_axis=1, method=m) for m in ("mean", "sd")),
                *(
                    array_stats.mcse(values, chain_axis=0, draw_axis=1, method="quantile", prob=p)
                    for p in (0.05, 0.5, 0.95)
                ),
            ],
            dtype=float,
        )
    if use_chains and len(values) > 1:
        apart = np.array([_estimates(chain[None]) for chain in values])
        errors = np.fmax(errors, apart.std(axis=0, ddof=1) / np.sqrt(len(values)))
    return np.nan_to_num(errors, nan=0.0)


def summarised(draws, use_chains=False):
    """Return for each quantity its estimates and their Monte Carlo errors, name -> (2, 5).

    Parameters
    ----------
    draws : dict
        Name -> (chain, draw).
    use_chains : bool
        Whether the spread between chains is an error too: for particles, whose order in a chain says nothing.
    """
    arrays = {name: np.asarray(values, dtype=float) for name, values in draws.items()}
    return {name: np.stack([_estimates(v), _errors(v, use_chains)]) for name, v in arrays.items()}


def judge(summary, truth, rhat, said=(), num_reference_draws=np.inf):
    """Return the verdict on a run.

    Parameters
    ----------
    summary : dict
        From :func:`summarised`, with all names of the truth.
    truth : dict
        Name -> mean, standard deviation and 5, 50 and 95 % quantiles; the first two are NaN where they do not exist,
        and then the median is compared in their place.
    rhat : float
        From :func:`largest_rhat`.
    said : sequence of str
        What the sampler said by itself. R-hat is added here.
    num_reference_draws : float
        Independent draws that the truth was computed from: its own error counts too.
    """
    worst, excess, error = "", -1.0, 0.0
    for name, exact in truth.items():
        estimates, errors = summary[name]
        has_moments = not np.isnan(exact[0])
        spread = exact[1] if has_moments else (exact[4] - exact[2]) / _NORMAL_SPAN
        errors = np.hypot(errors, _reference_errors(spread, num_reference_draws))
        off = np.abs(estimates - exact)
        for k in (0, 1, 2, 4) if has_moments else (2, 3, 4):
            ratio = off[k] / max(_ERRORS * errors[k], _NEAR * spread)
            if not ratio <= excess:  # NaN is as wrong as can be
                worst, excess, error = f"{_STATISTICS[k]} of {name}", ratio, off[k] / spread
    said = (*([f"R-hat {rhat:.2f}"] if rhat > LARGEST_RHAT else []), *said)
    outcome = "right" if excess <= 1.0 else "said" if said else "silent"
    return Verdict(outcome, worst, float(excess), float(error), said)


def _reference_errors(spread, num_draws):
    """Return the standard errors of the five from independent draws of a normal distribution, (5,)."""
    return spread * np.array([1.0, np.sqrt(0.5), 2.113, 1.253, 2.113]) / np.sqrt(num_draws)
