"""Kernel Bayes' rule for PyMC models: posteriors from simulations of the model, without its likelihood."""

import warnings
from concurrent.futures import Executor
from functools import partial

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings import FittedRule, KernelBayesRule
from pymc_kernel.embeddings.kernel_mean import smoothed_draws
from pymc_kernel.likelihood_free.estimates import bootstrap_weights
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.plugin.simulation.pairs import Summary, learned_from, learned_groups, warn_of_failed_pairs
from pymc_kernel.plugin.simulation.trust import NUM_REPLICATES, judged, second_opinion

_MANY_NUMBERS = 20  # of raw data, above which a warning proposes to summarize them


def sample_kbr(
    draws: int = 1000,
    *,
    chains: int = NUM_REPLICATES,
    simulations: xr.DataTree | None = None,
    num_simulations: int = 5000,
    summary: Summary | None = None,
    estimator: KernelBayesRule | None = None,
    return_fitted: bool = False,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree | tuple[xr.DataTree, FittedRule]:
    """Draw from the posterior of a model by kernel Bayes' rule, using only simulations of prior and data.

    This is the published method, a kernel regression of the parameters on the data, kept as a reference and for
    existing simulations. :func:`sample_likelihood_free` is nearer to the posterior on every task where both were
    measured, with fewer simulations, and says more about its errors. The likelihood is never evaluated; observed
    variables may be any that PyMC can draw, ``pm.Simulator`` included.

    Parameters
    ----------
    draws, chains : int
        Draws of each chain are independent up to stratified resampling. Each chain comes from its own fit (see Notes):
        sixteen, because four tell little about how far fits differ.
    simulations : xarray.DataTree, optional
        With the groups ``prior`` and ``prior_predictive``, as :func:`simulate` and ``pm.sample_prior_predictive``
        return it. By default ``num_simulations`` are made.
    num_simulations : int
    summary : callable or dict, optional
        A function of the observed variable's array that returns a vector, as in :func:`KernelABC`; where the model has
        several observed variables, a dictionary from their names to such functions. A variable without one uses the
        summary of its block (:func:`KernelABC` and the like; ``sum_stat`` of ``pm.Simulator``), or else all its data,
        flattened, which suits up to some dozens of numbers.
    estimator : KernelBayesRule, optional
        With settings of your own.
    return_fitted : bool
        Also return the rule fitted to all simulations, which gives posteriors for other observations.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`. For long runs call :func:`simulate` with a store and limits, and
        pass its result as ``simulations``.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree, or with ``return_fitted`` a tuple of it and a FittedRule
        ``posterior``; ``kernel_weights``: simulated parameters on the unconstrained scale and the signed weights of
        their kernel mean; ``prior``, ``prior_predictive``, ``observed_data``; ``sample_stats``: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables or with one that cannot be simulated, and for simulations that do not
        belong to it.

    Notes
    -----
    Draws are the posterior mean by kernel regression plus residuals of the simulations, with the rule's weights at
    the data, cut at zero. Each is smoothed by a normal distribution of its own width, which leave-one-out likelihood
    chooses, keeping mean and covariance. The regression is fitted to all simulations, then to the half, quarter and so
    on nearest to the data by the previous fit, as long as three remain for each of the rule's features (900 by
    default). The fit that best predicts the 200 nearest simulations, each by all others, is kept. Draws are made on the
    unconstrained scale, so none leaves the prior's support.

    Each chain comes from a fit to simulations with random weights (a Bayesian bootstrap), one on average over sixteen
    fits. So means of chains differ by the error of learning: R-hat shows it, and ``learning_error`` measures it. The
    Monte Carlo errors of ``az.summary`` are smaller: they are of the mean of all chains, whose error of learning is
    about as large as chains lie apart. Effective sizes count draws, not simulations. ``chains=1`` has equal weights.

    Sample statistics: ``typicality``, the share of simulations in regions at least as sparse as that of the
    observation; ``num_effective``, the effective number of simulations behind the draws; ``learning_error``, the
    largest standard deviation of a posterior mean between sixteen fits to resampled simulations, in posterior standard
    deviations, and ``spread_learning_error``, the same for log spreads; by a likelihood learned from the same
    simulations, ``second_opinion_shift``, ``second_opinion_low`` and ``second_opinion_high``, its means, 5 % and 95 %
    quantiles minus those of the posterior, in standard deviations of the latter, ``second_opinion_spread``, the ratio
    of its standard deviations to the posterior's, and ``second_opinion_outside``, the share of the posterior where that
    likelihood is as low as for one in a hundred of its own draws (NaN where the prior has no density); ``num_failed``,
    simulations with NaN or infinite numbers; ``num_local``, simulations in the fit that is kept; its ``regularization``
    and ``rank``. One warning lists all reasons to distrust the posterior.

    **What it cannot detect.** A posterior can be right on average over similar data and still be too wide, or shifted,
    for these: no check by held-out simulations shows it. This is the usual error here, above all with many summaries,
    and the reason for the second opinion, which errs, too. The page on kernel Bayes' rule says how often each was
    right.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 1)
    ...     y = pm.Normal("y", theta, 0.5, observed=1.0)
    ...     idata = pk.sample_kbr(num_simulations=1000, random_seed=1, progressbar=False)
    >>> bool(abs(float(idata["posterior"]["theta"].mean()) - 0.8) < 0.1)
    True
    """
    model = pm.modelcontext(model)
    check_whole(draws=draws, chains=chains, num_simulations=num_simulations)
    rule = KernelBayesRule() if estimator is None else estimator
    if not isinstance(rule, KernelBayesRule):
        raise ValueError(f"sample_kbr needs estimator=KernelBayesRule(...), not fitted, got {rule!r}.")
    rng = np.random.default_rng(random_seed)
    latent, summaries, observed, simulations = learned_from(
        simulations, num_simulations, summary, model, "sample_kbr", rng, executor, progressbar
    )
    with warnings.catch_warnings():
        # Counted in the statistics, and reported once below.
        warnings.filterwarnings("ignore", message=r".* pairs have NaN")
        fitted = rule.fit(latent, summaries, rng=rng)
    near = fitted.near(observed, rng)
    (posterior,) = near.posteriors(observed)
    factors = bootstrap_weights(rng, max(chains, NUM_REPLICATES), len(near.latent))
    replicates = [near.refitted(row).posteriors(observed)[0] for row in factors]
    used = replicates[:chains] if chains > 1 else [posterior]
    positions = np.concatenate([smoothed_draws(one.points, one.weights, draws, rng) for one in used])
    groups = learned_groups(model, positions, (chains, draws), simulations)
    weights = fitted.condition(observed).weights
    groups["kernel_weights"] = xr.Dataset(
        {"weight": ("simulation", weights), "position": (("simulation", "unconstrained"), fitted.latent)}
    )
    opinion = second_opinion(posterior, latent, summaries, observed, partial(ModelPrior, model), rng)
    failed = fitted.num_dropped
    warn_of_failed_pairs(failed, failed + len(fitted.latent))
    is_long = summary is None and np.size(observed) > _MANY_NUMBERS
    shorter = f"a summary= of the {np.size(observed)} numbers that the data are, " if is_long else ""
    stats = judged(posterior, replicates, opinion, fitted.observed, observed, f"{shorter}more simulations", rng)
    of_fit = {
        "num_local": len(near.latent),
        "regularization": near.regularization,
        "rank": near.features.factor.features.shape[1],
    }
    groups["sample_stats"] = stats.assign({"num_failed": failed, **of_fit})
    tree = xr.DataTree.from_dict(groups)
    return (tree, fitted) if return_fitted else tree
