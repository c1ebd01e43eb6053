"""Rejection ABC for PyMC models: the baseline for all other likelihood-free methods."""

from concurrent.futures import Executor
from functools import partial

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings.kernel_mean import resample
from pymc_kernel.kernels.points import robust_scales
from pymc_kernel.likelihood_free import regression_adjusted, rejection
from pymc_kernel.likelihood_free.estimates import bootstrap_weights
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.plugin.simulation.pairs import Summary, learned_from, learned_groups, warn_of_failed_pairs
from pymc_kernel.plugin.simulation.trust import NUM_REPLICATES, Weighted, judged, second_opinion

_FEWEST_A_SLOPE = 10  # accepted simulations for each coefficient of the adjustment, at least


def sample_abc(
    draws: int | None = None,
    *,
    chains: int = NUM_REPLICATES,
    simulations: xr.DataTree | None = None,
    quantile: float = 0.03,
    adjust: bool = True,
    num_simulations: int = 10_000,
    summary: Summary | None = None,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from the posterior by rejection: keep the simulations whose summaries are nearest to those of the data.

    A baseline. :func:`sample_likelihood_free` needs far fewer simulations; ``pm.sample_smc(kernel=pk.ASMC)`` on a model
    with :func:`KernelABC` and ``num_simulations=1`` is ABC-SMC, with the bandwidth epsilon / sqrt(temperature) as its
    schedule, chosen stage by stage.

    Parameters
    ----------
    draws : int, optional
        In each chain; by default as many as are accepted. Accepted simulations are resampled by their weights.
    chains : int
        Each resamples the accepted simulations with random weights (a Bayesian bootstrap), as in :func:`sample_kbr`, so
        means of chains differ by the error due to their limited number. A single chain uses the original weights.
    quantile : float
        Share of the simulations to accept, in (0, 1], but at least ten for each coefficient of the adjustment.
    adjust : bool
        Move accepted parameters to the data by a local linear regression on the summaries (Beaumont, Zhang and Balding
        2002), on the unconstrained scale, with larger weights for nearer simulations.
    simulations : xarray.DataTree, optional
        With the groups ``prior`` and ``prior_predictive``, as :func:`simulate` returns it; ``num_simulations`` are made
        by default.
    num_simulations : int
    summary : callable or dict, optional
        As in :func:`sample_kbr`. Summaries are divided by their spread over the simulations.
    executor, model, random_seed, progressbar
        As in :func:`sample_kbr`.

    Returns
    -------
    xarray.DataTree
        ``posterior``, ``prior``, ``prior_predictive``, ``observed_data``, and ``sample_stats``: ``accept`` (share),
        ``epsilon`` (largest accepted distance, in spreads), ``num_simulations``, ``num_accepted``, ``num_failed``, and,
        as in :func:`sample_kbr`, ``typicality``, ``num_effective``, ``learning_error``, ``spread_learning_error``,
        and those of the second opinion, ``second_opinion_shift`` and so on.

    Notes
    -----
    One warning covers data outside of what was simulated, a small effective number of simulations, means that depend on
    which simulations were made, and a likelihood learned from them that disagrees or cannot tell.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 1)
    ...     y = pm.Normal("y", theta, 0.5, observed=1.0)
    ...     idata = pk.sample_abc(random_seed=1, progressbar=False)
    >>> bool(abs(float(idata["posterior"]["theta"].mean()) - 0.8) < 0.1)
    True
    """
    model = pm.modelcontext(model)
    if not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile must be in (0, 1], got {quantile!r}.")
    check_whole("draws", draws=draws, chains=chains, num_simulations=num_simulations)
    rng = np.random.default_rng(random_seed)
    latent, summaries, observed, simulations = learned_from(
        simulations, num_simulations, summary, model, "sample_abc", rng, executor, progressbar
    )
    all_pairs, is_whole = (latent, summaries), np.isfinite(summaries).all(axis=1) & np.isfinite(latent).all(axis=1)
    total, failed = len(latent), int((~is_whole).sum())
    if total - failed < 2:
        raise ValueError(f"{failed} of {total} simulations failed: there is nothing to accept.")
    warn_of_failed_pairs(failed, total)
    latent, summaries = latent[is_whole], summaries[is_whole]
    _, spread = robust_scales(summaries)
    count = max(quantile * len(latent), _FEWEST_A_SLOPE * (summaries.shape[1] + 1) if adjust else 0)
    scaled, target = summaries / spread, observed / spread
    accepted = rejection(scaled, target, min(count / len(latent), 1.0))
    weights = accepted.weights if adjust else np.full(len(accepted.index), 1.0 / len(accepted.index))

    def adjusted(factors):
        places, shares = latent[accepted.index], factors / factors.sum()
        moved = regression_adjusted(places, scaled[accepted.index], target, shares) if adjust else places
        return Weighted(moved, shares)

    posterior = adjusted(weights)
    factors = bootstrap_weights(rng, max(chains, NUM_REPLICATES), len(weights))
    replicates = [adjusted(weights * row) for row in factors]
    used, draws = replicates[:chains] if chains > 1 else [posterior], draws or len(weights)
    positions = np.concatenate([one.points[resample(one.weights, draws, rng)] for one in used])
    opinion = second_opinion(posterior, *all_pairs, observed, partial(ModelPrior, model), rng)
    groups = learned_groups(model, positions, (chains, draws), simulations)
    stats = judged(posterior, replicates, opinion, summaries, observed, "more simulations or better summaries", rng)
    counts = {"accept": len(weights) / total, "epsilon": accepted.epsilon, "num_simulations": total}
    groups["sample_stats"] = stats.assign(counts | {"num_accepted": len(weights), "num_failed": failed})
    return xr.DataTree.from_dict(groups)
