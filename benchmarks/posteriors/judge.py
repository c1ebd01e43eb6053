"""The judge of a sampler's answer: right, said or silent. On arrays, of any sampler.

Right: each mean, standard deviation and 5 % and 95 % quantile lies within four Monte Carlo errors of the truth, or
within a tenth of a standard deviation; the second alone where R-hat is above 1.05, since no Monte Carlo error is known
of chains that have not met. Said: not right, and the sampler said so by itself: R-hat above 1.05, a warning
(of a Pareto shape, say). Silent: not right, without a word.
"""

from typing import NamedTuple

import numpy as np
from arviz_stats.base import array_stats

from benchmarks.posteriors.exact import PROBABILITIES

LARGEST_RHAT = 1.05
_ERRORS = 4.0  # Monte Carlo errors that an estimate may be off
_NEAR = 0.1  # standard deviations that are near enough whatever the Monte Carlo error
STATISTICS = ("mean", "sd", "5 %", "median", "95 %")
NORMAL_SPAN = 3.289707  # standard deviations between the 5 % and 95 % quantiles of a normal distribution


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


def truth_of(exact, has_moments=True):
    """Return entry -> mean, standard deviation (NaN where it has none) and quantiles, of exact draws, name -> (n, ...).

    Entries are those of :func:`split_names`.
    """
    truth = {}
    for name, draws in exact.items():
        for entry, values in split_names(name, draws[None]).items():
            moments = (values.mean(), values.std()) if has_moments else (np.nan, np.nan)
            truth[entry] = np.array([*moments, *np.quantile(values, PROBABILITIES)])
    return truth


def largest_rhat(draws):
    """Return the largest rank-normalized split R-hat; ``draws`` name -> (chain, draw). Infinite for chains that stand.

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


class Summary(NamedTuple):
    """What is compared of one quantity; arrays (5,): mean, standard deviation, 5, 50 and 95 % quantiles."""

    estimates: np.ndarray
    off: np.ndarray
    """How far off; a quantile, in the share of draws below the true one."""
    errors: np.ndarray
    """Monte Carlo errors of ``off``."""


def summarized(draws, truth, chains_are=""):
    """Return what is compared of each quantity, name -> :class:`Summary`.

    Parameters
    ----------
    draws : dict
        Name -> (chain, draw), with all names of the truth.
    truth : dict
        Name -> mean, standard deviation and 5, 50 and 95 % quantiles (5,).
    chains_are : str
        What the spread between chains says of the error, where that is larger. "populations": particles of one run
        share their fate in ways that their order does not show; the mean over chains is better than each by the root of
        their number. "replicates": they are fits to resampled simulations, which lie around the fit to all of them as
        that lies around the truth (the bootstrap's principle), so their mean is no better.

    Notes
    -----
    Errors of quantiles are those of the share of draws below the true one, sqrt(p (1 - p) / ESS). ArviZ's errors in the
    units of the quantity are spacings of order statistics, which chains that repeat their states make too small.
    """
    return {name: _summary(np.asarray(draws[name], dtype=float), exact, chains_are) for name, exact in truth.items()}


def _summary(values, exact, chains_are):
    estimates = np.array([values.mean(), values.std(ddof=1), *np.quantile(values, PROBABILITIES)])
    below = np.stack([values <= q for q in exact[2:]]).astype(float)
    wanted = np.array([*exact[:2], *PROBABILITIES])
    distinct = np.unique(values).size  # resampled draws are worth no more than this, in whatever order they come
    with np.errstate(all="ignore"):
        bulk = array_stats.ess(values, chain_axis=0, draw_axis=1, method="bulk")
        repeated = np.sqrt(max(1.0, bulk / distinct))
        errors = [repeated * array_stats.mcse(values, chain_axis=0, draw_axis=1, method=m) for m in ("mean", "sd")]
        for p, share in zip(PROBABILITIES, below, strict=True):
            # Where no draw is below, or all are, the share has no effective size of its own.
            varies = share.min() < share.max()
            ess = array_stats.ess(share, chain_axis=0, draw_axis=1, method="mean") if varies else bulk
            errors.append(np.sqrt(p * (1 - p) / min(ess, distinct)))
    off = np.array([*estimates[:2], *below.mean(axis=(1, 2))]) - wanted
    errors = np.nan_to_num(np.array(errors, dtype=float), nan=0.0)
    if chains_are and len(values) > 1:
        apart = np.stack([values.mean(axis=1), values.std(axis=1, ddof=1), *below.mean(axis=2)])
        of_mean = 1.0 / len(values) + (chains_are == "replicates")
        errors = np.fmax(errors, np.sqrt(of_mean) * apart.std(axis=1, ddof=1))
    return Summary(estimates, off, errors)


def compared(exact) -> tuple[float, tuple[int, ...]]:
    """Return the standard deviation of a quantity, and which of its :data:`STATISTICS` are compared.

    Without moments (NaN), that of a normal distribution with its quantiles, and the median in place of the moments.
    """
    if np.isnan(exact[0]):
        return (exact[4] - exact[2]) / NORMAL_SPAN, (2, 3, 4)
    return exact[1], (0, 1, 2, 4)


def judge(summary, truth, rhat, said=(), num_reference_draws=np.inf, near=_NEAR):
    """Return the verdict on a run.

    Parameters
    ----------
    summary : dict
        From :func:`summarized`.
    truth : dict
        As there; mean and standard deviation are NaN where they do not exist, and then the median is compared in their
        place.
    rhat : float
        From :func:`largest_rhat`.
    said : sequence of str
        What the sampler said by itself. R-hat is added here.
    num_reference_draws : float
        Independent draws that the truth was computed from: its own error counts too.
    near : float
        Standard deviations that are near enough whatever the Monte Carlo error.
    """
    worst, excess, error = "", -1.0, 0.0
    for name, exact in truth.items():
        estimates, off, errors = (np.asarray(a, dtype=float) for a in summary[name])
        spread, which = compared(exact)
        errors = np.hypot(errors, _reference_errors(spread, num_reference_draws))
        for k in which:
            is_known = errors[k] > 0.0 and rhat <= LARGEST_RHAT
            by_error = abs(off[k]) / (_ERRORS * errors[k]) if is_known else np.inf
            by_spread = abs(estimates[k] - exact[k]) / (near * spread)
            ratio = min(by_error, by_spread) if np.isfinite(by_spread) else np.inf
            if ratio > excess:
                worst, excess, error = f"{STATISTICS[k]} of {name}", ratio, abs(estimates[k] - exact[k]) / spread
    said = (*([f"R-hat {rhat:.2f}"] if rhat > LARGEST_RHAT else []), *said)
    outcome = "right" if excess <= 1.0 else "said" if said else "silent"
    return Verdict(outcome, worst, float(excess), float(error), said)


def _reference_errors(spread, num_draws):
    """Return the standard errors of what is compared, of independent draws of a normal distribution, (5,)."""
    shares = [np.sqrt(p * (1 - p)) for p in PROBABILITIES]
    return np.array([spread, spread * np.sqrt(0.5), *shares]) / np.sqrt(num_draws)
