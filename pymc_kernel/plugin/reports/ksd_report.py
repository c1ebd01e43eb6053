"""The result of a Stein test of draws, with the names of parameters, and advice in words."""

from dataclasses import dataclass

import numpy as np
import xarray as xr
from arviz_base import dataset_to_dataframe
from scipy.stats import gaussian_kde

from pymc_kernel import stein
from pymc_kernel.plugin.reports.model_draws import largest_first
from pymc_kernel.plugin.reports.panels import scalars
from pymc_kernel.plugin.reports.surrogate_scores import ADVICE, LearnedScores

_NAMED = 5  # parameters that a sentence names
_FEW_DRAWS = 200  # left after thinning: with fewer only a gross misfit is detected
_VALLEY = 0.2  # modes are separated where a density estimate is below this share of the lower peak beside it
_SMALL_MODE = 0.02  # share of the draws; smaller modes do not count


@dataclass(frozen=True)
class KSDReport:
    """A test of draws against a model: ``print`` it.

    The p-values are corrected for all tests: if the draws are right, the chance that any is below 5 %, ``p_value``
    included, is 5 %. A variable whose transform changes its shape (a simplex, a covariance) has one number for all of
    it; its p-value is the smallest among its coordinates.
    """

    test: stein.KSDTest  #: on arrays: ``ksd``, ``normal_ksd``, ``p_value``, ``null``, ``thin`` and more
    shares: xr.Dataset  #: of each parameter, in the squared discrepancy
    p_values: xr.Dataset  #: of each parameter's own test; NaN where the draws cannot be judged
    margins: xr.Dataset  #: statistics of these tests
    null: xr.Dataset  #: these with random signs, with the dimension ``replicate``
    conditional_on: tuple[str, ...]  #: discrete variables, whose distribution is not tested
    learned: LearnedScores | None = None  #: accuracy of a surrogate's scores: ``num_values``, ``score_error`` and more
    unjudged: str = ""  #: why the draws cannot be judged by that surrogate; empty where they can

    @property
    def p_value(self) -> float:
        """The p-value of the joint test and each parameter's together; NaN if the draws cannot be judged."""
        return np.nan if self.unjudged else self.test.p_value

    def verdict(self, level: float = 0.05) -> str:
        """Return "misfit", "no misfit detected" or "cannot be judged"."""
        if self.unjudged:
            return "cannot be judged"
        return "misfit" if self.p_value < level else "no misfit detected"

    @property
    def ksd(self) -> float:
        """The discrepancy of all parameters together, to be compared with ``test.normal_ksd``."""
        return self.test.ksd

    def table(self):
        """Return shares and p-values as a data frame, a row each parameter, the largest share first."""
        stacked = xr.concat([self.shares, self.p_values], dim=xr.DataArray(["ksd_share", "ksd_p"], dims="summary"))
        frame = dataset_to_dataframe(largest_first(stacked), sample_dims=["summary"]).T
        return frame.sort_values("ksd_share", ascending=False, kind="stable")

    def __str__(self):
        test = self.test
        low, high = test.null_quantiles
        judged = f"p-value {test.p_value:.3g}, corrected for all tests"
        lines = [
            "Kernel Stein discrepancy of the draws from the model",
            f"  ksd {test.ksd:.3g}; as many independent normal draws have {test.normal_ksd:.3g}, these with random "
            f"signs {low:.3g} to {high:.3g} (90 %)",
            f"  {f'cannot be judged: {self.unjudged}' if self.unjudged else judged}",
            f"  {test.num_draws} different draws left after thinning, one in {test.thin} of each chain; signs flip "
            f"with probability {test.flip_probability:g}",
        ]
        if self.learned is not None:
            lines.append(f"  {self.learned}")
        if self.conditional_on:
            names = ", ".join(self.conditional_on)
            lines.append(f"  given the discrete variables {names}, whose distribution is not tested")
        return "\n".join([*lines, "", self.table().to_string(float_format="{:.3f}".format)])


def misfit_advice(part, diagnostics: dict) -> str:
    """Return advice for the first likely cause of a misfit, given the draws and the results of ``az.diagnose``."""
    divergent = diagnostics.get("divergent", {}).get("n_divergent", 0)
    if divergent:
        return (
            f"Of the transitions {divergent} diverged: the sampler may have left out a part of the posterior, which "
            "longer chains leave out, too. Raise target_accept, or reparametrize the model; then check anew."
        )
    if part.draws.shape[0] == 1:
        return (
            "One chain has no R-hat: run several; if these are draws of an approximation, as from pm.fit, sample the "
            "model instead."
        )
    if diagnostics.get("rhat", {}).get("bad_params"):
        return "R-hat is high, too: the chains do not agree, so take longer ones before you look for another cause."
    return (
        "R-hat is fine, so unless chance made the p-value so small, the chains agree on another distribution than the "
        "model's: see whether these draws are of this model with these data, then sample anew with more tuning."
    )


def in_words(report, modes: list[str], level: float, num_in_all: int, advice: str) -> list[str]:
    """Return lines on the result of a test; there were ``num_in_all`` draws before thinning.

    ``modes`` are parameters whose draws fall into separated modes, ``advice`` is what to do about a misfit.
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
    """Return a sentence on the parameters whose own tests fail, or else on the largest shares of the discrepancy."""
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
    flags = part.labeled(np.array([_has_valley(column) for column in flat.T]), combine=np.any)
    return [label for label, (name, place) in scalars(flags).items() if flags[name].sel(place).any()]


def _has_valley(draws):
    if np.ptp(draws) == 0.0:
        return False
    draws = draws[:: -(-len(draws) // 2000)]
    # Half the bandwidth of Silverman's rule for normal distributions, which smooths valleys away.
    density = gaussian_kde(draws, lambda kde: kde.silverman_factor() / 2.0)
    grid = np.linspace(*np.quantile(draws, [0.001, 0.999]), 200)
    height = density(grid)
    from_left, from_right = np.maximum.accumulate(height), np.maximum.accumulate(height[::-1])[::-1]
    valleys = grid[height < _VALLEY * np.minimum(from_left, from_right)]
    below = (draws[:, None] < valleys).mean(axis=0)
    return bool((np.minimum(below, 1.0 - below) > _SMALL_MODE).any())
