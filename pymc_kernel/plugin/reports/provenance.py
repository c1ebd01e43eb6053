"""How draws were made: a summary of a run's statistics, as numbers and names that can be saved with it."""

from typing import Any

import arviz as az
import numpy as np

from pymc_kernel.mcmc.kernel_hmc import TRAJECTORIES

__all__ = ["provenance"]

_FAILED = "failed_share_"
_CONSTANTS = ("_epsilon", "_num_simulations")


def provenance(data: Any) -> dict[str, Any]:
    """Return how the draws of a run by the steps of this package were made.

    ``idata["sample_stats"].attrs |= pk.provenance(idata)`` saves it with the draws; ``sample_khmc`` does so by itself.

    Parameters
    ----------
    data : DataTree or convertible
        From ``pm.sample`` with a step of this package, or from ``sample_khmc``.

    Returns
    -------
    dict
        ``evaluations``, the total number of evaluations of the log density; ``moved``, the share of proposals that were
        accepted; ``move_names``, ``move_shares`` and ``move_moved``, the share of each kind of move and how many of
        these were accepted; ``surrogate_share``, the share of moves along a surrogate, and ``surrogate_error``
        (``surrogate_quality`` at the end of chains, the median); with an estimated likelihood ``log_estimate_variance``
        at the posterior, and, where they exist, ``failed_share_<name>``, ``num_simulations_<name>`` and
        ``epsilon_<name>``.

    Raises
    ------
    ValueError
        Where the draws do not come from a step of this package.
    """
    data = az.convert_to_datatree(data)
    stats = data["sample_stats"] if "sample_stats" in data.children else {}
    if "moved" not in stats or "evaluations" not in stats:
        raise ValueError(
            "these draws have no statistics of a step of this package: provenance is for pm.sample with pk.KernelHMC, "
            "pk.KAMH or pk.AdaptiveMetropolis, and for pk.sample_khmc."
        )
    moved = stats["moved"].values
    facts = {"evaluations": int(stats["evaluations"].sum()), "moved": float(moved.mean()), "surrogate_share": 0.0}
    if "move" in stats:
        kinds = stats["move"].values
        names, counts = np.unique(kinds, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        facts["move_names"] = [str(names[i]) for i in order]
        facts["move_shares"] = [float(counts[i] / kinds.size) for i in order]
        facts["move_moved"] = [float(moved[kinds == names[i]].mean()) for i in order]
        facts["surrogate_share"] = float((kinds == TRAJECTORIES).mean())
        facts["surrogate_error"] = float(np.median(stats["surrogate_quality"].values[..., -1]))
    for name in stats.data_vars:
        if name.startswith(_FAILED) or name == "log_estimate_variance":
            values = stats[name].values
            known = values[~np.isnan(values)]
            facts[name] = float(known.mean()) if known.size else np.nan
    if "constant_data" in data.children:
        blocks = [name.removeprefix(_FAILED) for name in stats.data_vars if name.startswith(_FAILED)]
        for block in blocks:
            for ending in _CONSTANTS:
                if f"{block}{ending}" in data["constant_data"]:
                    value = data["constant_data"][f"{block}{ending}"].values
                    facts[f"{ending[1:]}_{block}"] = value.item() if value.size == 1 else _spreads(value)
    return facts


def _spreads(epsilon):
    """Return bandwidths, one for each summary; of a covariance matrix its standard deviations."""
    return (epsilon if epsilon.ndim == 1 else np.sqrt(np.diag(epsilon))).tolist()
