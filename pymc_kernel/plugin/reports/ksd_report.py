"""The result of a Stein test of draws, with the names of their parameters."""

from dataclasses import dataclass

import numpy as np
import xarray as xr
from arviz_base import dataset_to_dataframe

from pymc_kernel import stein
from pymc_kernel.plugin.reports.model_draws import largest_first
from pymc_kernel.plugin.reports.surrogate_scores import LearnedScores

__all__ = ["KSDReport"]


@dataclass(frozen=True)
class KSDReport:
    """A test of draws against a model: ``print`` it.

    Attributes
    ----------
    test : pymc_kernel.stein.KSDTest
        The result on arrays: ``ksd``, ``normal_ksd``, ``p_value``, ``null``, ``thin``, ``flip_probability`` and more.
    shares, p_values : xarray.Dataset
        Of each parameter: its part of the squared discrepancy, and the p-value of its own test, corrected for all
        tests: if the draws are right, the chance that any is below 5 %, ``p_value`` included, is 5 %. A variable whose
        transform changes its shape (a simplex, a covariance) has one number for all of it; its p-value is the smallest
        of its coordinates'.
    margins, null : xarray.Dataset
        Statistics of each parameter's own test, and those with random signs, with the dimension ``replicate``.
    conditional_on : tuple of str
        Discrete variables, whose distribution is not tested.
    learned : LearnedScores or None
        Accuracy of the scores, where they are a surrogate's: ``num_values``, ``log_density_error``, ``score_error`` and
        more.
    unjudged : str
        Why the draws cannot be judged by that surrogate; empty where they can. The p-values are NaN then.
    """

    test: stein.KSDTest
    shares: xr.Dataset
    p_values: xr.Dataset
    margins: xr.Dataset
    null: xr.Dataset
    conditional_on: tuple[str, ...]
    learned: LearnedScores | None = None
    unjudged: str = ""

    @property
    def p_value(self) -> float:
        """Of all tests together, the joint one and each parameter's; NaN where the draws cannot be judged."""
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
        lines = [
            "Kernel Stein discrepancy of the draws from the model",
            f"  ksd {test.ksd:.3g}; as many independent normal draws have {test.normal_ksd:.3g}, these with random "
            f"signs {low:.3g} to {high:.3g} (90 %)",
            f"  cannot be judged: {self.unjudged}"
            if self.unjudged
            else f"  p-value {test.p_value:.3g}, corrected for all tests",
            f"  {test.num_draws} different draws left after thinning, one in {test.thin} of each chain; signs flip "
            f"with probability {test.flip_probability:g}",
        ]
        if self.learned is not None:
            lines.append(f"  {self.learned}")
        if self.conditional_on:
            names = ", ".join(self.conditional_on)
            lines.append(f"  given the discrete variables {names}, whose distribution is not tested")
        table = self.table()
        return "\n".join([*lines, "", table.to_string(float_format=lambda x: f"{x:.3f}")])
