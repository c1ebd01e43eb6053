"""Rejection ABC for PyMC models: the baseline that every other likelihood-free method has to beat."""

from concurrent.futures import Executor

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.likelihood_free import regression_adjusted, rejection
from pymc_kernel.plugin.pairs import Summary, check_whole, learnt_from, learnt_groups, warn_of_failed_pairs

__all__ = ["sample_abc"]


def sample_abc(
    simulations: xr.DataTree | None = None,
    draws: int | None = None,
    *,
    quantile: float = 0.01,
    adjust: bool = True,
    num_simulations: int = 10_000,
    summary: Summary | None = None,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed=None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from the posterior by rejection: keep the simulations whose summaries are nearest to those of the data.

    A baseline. :func:`sample_kbr` needs far fewer simulations; ``pm.sample_smc(kernel=pk.ASMC)`` on a model with
    :func:`KernelABC` and ``num_simulations=1`` is ABC-SMC, with the bandwidth epsilon / sqrt(temperature) as its
    schedule, chosen stage by stage.

    Parameters
    ----------
    simulations : xarray.DataTree, optional
        With the groups ``prior`` and ``prior_predictive``, as :func:`simulate` returns it; ``num_simulations`` are made
        by default.
    draws : int, optional
        As many as are accepted by default; otherwise resampled from these.
    quantile : float
        Share of the simulations that is accepted, in (0, 1].
    adjust : bool
        Move accepted parameters to where a local linear regression on the summaries has them at the data (Beaumont,
        Zhang and Balding 2002), on the unconstrained scale; nearer ones count for more.
    num_simulations : int
    summary : callable or dict, optional
        As in :func:`sample_kbr`. Summaries are divided by their spread over the simulations.
    executor, model, random_seed, progressbar
        As in :func:`sample_kbr`.

    Returns
    -------
    xarray.DataTree
        ``posterior`` (one chain), ``prior``, ``prior_predictive``, ``observed_data``, and ``sample_stats``: ``accept``
        (share), ``epsilon`` (largest accepted distance, in spreads), ``num_simulations``, ``num_accepted``,
        ``num_failed``.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 1)
    ...     y = pm.Normal("y", theta, 0.5, observed=1.0)
    ...     idata = pk.sample_abc(quantile=0.05, random_seed=1, progressbar=False)
    >>> bool(abs(float(idata["posterior"]["theta"].mean()) - 0.8) < 0.1)
    True
    """
    model = pm.modelcontext(model)
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile must be in (0, 1], got {quantile!r}.")
    check_whole(draws=draws, num_simulations=num_simulations)
    rng = np.random.default_rng(random_seed)
    latent, seen, observed, simulations = learnt_from(
        simulations, num_simulations, summary, model, "sample_abc", rng, executor, progressbar
    )
    is_whole = np.isfinite(seen).all(axis=1) & np.isfinite(latent).all(axis=1)
    total, failed = len(latent), int((~is_whole).sum())
    if total - failed < 2:
        raise ValueError(f"{failed} of {total} simulations failed: there is nothing to accept.")
    warn_of_failed_pairs(failed, total)
    latent, seen = latent[is_whole], seen[is_whole]
    _, spread = robust_scales(seen)
    found = rejection(seen / spread, observed / spread, quantile)
    accepted = latent[found.index]
    weights = found.weights if adjust else np.full(len(accepted), 1.0 / len(accepted))
    if adjust:
        accepted = regression_adjusted(accepted, seen[found.index] / spread, observed / spread, weights)
    if adjust or draws is not None:
        accepted = accepted[rng.choice(len(accepted), size=draws or len(accepted), p=weights)]
    groups = learnt_groups(model, accepted, (1, len(accepted)), simulations)
    groups["sample_stats"] = xr.Dataset(
        {
            "accept": len(found.index) / total,
            "epsilon": found.epsilon,
            "num_simulations": total,
            "num_accepted": len(found.index),
            "num_failed": failed,
        }
    )
    return xr.DataTree.from_dict(groups)
