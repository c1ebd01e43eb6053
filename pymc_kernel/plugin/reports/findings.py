"""What a check of draws found, in words, with one sentence of advice for each finding."""

import numpy as np
import xarray as xr
from scipy.stats import gaussian_kde

from pymc_kernel.plugin.reports.surrogate_scores import ADVICE

__all__ = ["in_words", "misfit_advice", "separated"]

_NAMED = 5  # parameters
_FEW_DRAWS = 200  # left after thinning: with fewer only a gross misfit is detected
_VALLEY = 0.2  # ratio of a density estimate to the lower peak beside it: where it is lower, modes are separated
_SMALL_MODE = 0.02  # share of the draws
_ONE_CHAIN = (
    "One chain has no R-hat: run several; if these are draws of an approximation, as from pm.fit, sample the model "
    "instead."
)
_RHAT = "R-hat is high, too: the chains do not agree, so take longer ones before you look for another cause."
_TOGETHER = (
    "R-hat is fine, so the chains agree on another distribution than the model's: see whether these draws are of this "
    "model with these data, then sample anew with more tuning."
)


def misfit_advice(part, diagnostics: dict) -> str:
    """Return what to do about a misfit, by the draws and what ``az.diagnose`` found: the first cause comes first."""
    divergent = diagnostics.get("divergent", {}).get("n_divergent", 0)
    if divergent:
        return (
            f"Of the transitions {divergent} diverged: the sampler may have left out a part of the posterior, which "
            "longer chains leave out, too. Raise target_accept, or reparametrize the model; then check anew."
        )
    if part.draws.shape[0] == 1:
        return _ONE_CHAIN
    return _RHAT if diagnostics.get("rhat", {}).get("bad_params") else _TOGETHER


def in_words(report, modes: list[str], level: float, num_in_all: int, advice: str) -> list[str]:
    """Return lines on the draws.

    Parameters
    ----------
    report : KSDReport
    modes : list of str
        Parameters whose draws fall into separated modes.
    level : float
    num_in_all : int
        Draws before thinning.
    advice : str
        What to do about a misfit.
    """
    test = report.test
    left = f"{test.num_draws} of {num_in_all} draws left after thinning"
    size = f"p = {report.p_value:.3g}; ksd {test.ksd:.3g}, as many independent normal draws have {test.normal_ksd:.3g}"
    if report.unjudged:
        lines = [f"The draws cannot be judged by the surrogate ({left}): {report.unjudged}. {ADVICE}"]
    elif report.p_value < level:
        lines = [f"The draws do not fit the model's scores ({left}; {size}).", _culprits(report, level), advice]
    else:
        lines = [
            f"Scores: no misfit detected ({left}; {size}).",
            "Scores do not reveal a mode without any draw: start chains far apart.",
        ]
    if test.num_draws < _FEW_DRAWS and not report.unjudged:
        lines.append(f"So few draws ({test.num_draws}) show a gross misfit only: take longer chains.")
    if report.learned is not None:
        lines.append(f"By {report.learned}.")
    if modes:
        lines.append(
            f"The draws of {', '.join(modes)} fall into separated modes. Scores do not depend on how much weight each "
            "mode has, so this test cannot see a wrong one: compare chains from many starts, or several runs of "
            "pk.sample_smc."
        )
    if report.conditional_on:
        lines.append(
            f"The distribution of the discrete variables {', '.join(report.conditional_on)} is not tested: compare "
            "how often chains take each value."
        )
    return lines


def _culprits(report, level):
    """Return a sentence on the parameters that fail by themselves, or else on where the discrepancy is."""
    table = report.table()
    failed = table[table["ksd_p"] < level].sort_values("ksd_p", kind="stable")
    if not failed.empty:
        named = ", ".join(f"{name} (p = {p:.2g})" for name, p in failed["ksd_p"][:_NAMED].items())
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        return f"Parameters that do not fit by themselves: {named}{more}; p-values are corrected for all tests."
    half = table.index[: int((table["ksd_share"].cumsum() < 0.5).sum()) + 1]
    where = f"half of the discrepancy is in {', '.join(half)}" if len(half) <= _NAMED else "it is spread over many"
    return f"Each parameter fits by itself, so look at how they depend on each other: {where}."


def separated(part) -> list[str]:
    """Return the names of parameters whose density estimate has a deep valley between two peaks."""
    flat = part.draws.reshape(-1, part.draws.shape[-1])
    flags = np.array([_has_valley(column) for column in flat.T])
    names = []
    for name, columns in part.positions.items():
        labeled = flags[columns.values if isinstance(columns, xr.DataArray) else columns]
        if labeled.ndim == 0 or not isinstance(columns, xr.DataArray):
            names += [name] if labeled.any() else []
        else:
            labels = [columns.coords[d].values if d in columns.coords else range(n) for d, n in columns.sizes.items()]
            for index in np.argwhere(labeled):
                places = (str(label[i]) for label, i in zip(labels, index, strict=True))
                names.append(f"{name}[{', '.join(places)}]")
    return names


def _has_valley(draws):
    if np.ptp(draws) == 0.0:
        return False
    draws = draws[:: -(-len(draws) // 2000)]
    # Twice as narrow as the rule for normal distributions, which smooths valleys away.
    density = gaussian_kde(draws, lambda kde: kde.silverman_factor() / 2.0)
    grid = np.linspace(*np.quantile(draws, [0.001, 0.999]), 200)
    height = density(grid)
    from_left, from_right = np.maximum.accumulate(height), np.maximum.accumulate(height[::-1])[::-1]
    valleys = np.flatnonzero(height < _VALLEY * np.minimum(from_left, from_right))
    shares = [(draws < grid[i]).mean() for i in valleys]
    return any(_SMALL_MODE < share < 1.0 - _SMALL_MODE for share in shares)
