"""Kernel Bayes' rule for PyMC models: posteriors from simulations of the model, without its likelihood."""

import warnings
from concurrent.futures import Executor

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings import FittedRule, KernelBayesRule
from pymc_kernel.embeddings.local import NUM_REPLICATES, miscalibration, moments_of, posterior_near, representative
from pymc_kernel.embeddings.local_check import misfit
from pymc_kernel.embeddings.proposals import Proposal, prior_ratio
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.model.priors import prior_density
from pymc_kernel.plugin.simulation.pairs import (
    Summary,
    learned_from,
    learned_groups,
    simulated_again,
    simulated_from_prior,
    simulated_pairs,
    warn_of_failed_pairs,
)
from pymc_kernel.plugin.simulation.trust import findings
from pymc_kernel.plugin.typicality import typicality
from pymc_kernel.plugin.unknown_arguments import explain_arguments
from pymc_kernel.plugin.warn import warn_of_findings
from pymc_kernel.plugin.weights import reported_shape

__all__ = ["sample_kbr"]

_SCALES = (0.5, 1.0, 2.0)  # of the median distance
_LARGE_GAIN = 0.05  # nats by the last doubling of the simulations; a mean off by a third of a spread costs as much
_CLEAR_DIFFERENCE = 2.5  # standard errors by which this gain must exceed zero
_MANY_NUMBERS = 20  # of raw data, from which on a warning proposes to summarize them
_CHECKED = 0.95  # probability of the intervals whose coverage is a statistic


@explain_arguments
def sample_kbr(
    simulations: xr.DataTree | None = None,
    draws: int = 1000,
    *,
    chains: int = 4,
    num_simulations: int = 5000,
    rounds: int = 1,
    summary: Summary | None = None,
    rule: KernelBayesRule | None = None,
    return_rule: bool = False,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree | tuple[xr.DataTree, FittedRule]:
    """Draw from the posterior of a model by kernel Bayes' rule, using only simulations of prior and data.

    The likelihood is never evaluated: the posterior for the data is learned from draws of the parameters and of the
    observed variables, from the model or in ``simulations``. Observed variables may be any that PyMC can draw,
    ``pm.Simulator`` included.

    Parameters
    ----------
    simulations : xarray.DataTree, optional
        With the groups ``prior`` and ``prior_predictive``, as :func:`simulate` and ``pm.sample_prior_predictive``
        return it. By default ``num_simulations`` are made.
    draws, chains : int
        Draws, in ``chains`` chains for ArviZ's sake; they are independent up to stratified resampling.
    num_simulations : int
        For each round.
    rounds : int
        After the first, parameters are simulated around the current posterior, and the ratio of the densities of
        the prior and of what was simulated corrects for it (sequential kernel Bayes' rule). Pays where the posterior
        is much narrower than the prior. Needs a prior whose density PyMC can evaluate.
    summary : callable or dict, optional
        A function of the observed variable's array that returns a vector, as in :func:`KernelABC`; where the model has
        several observed variables, a dictionary from their names to such functions. A variable without one keeps the
        summary of its block (:func:`KernelABC` and the like; ``sum_stat`` of ``pm.Simulator``), or else all its data,
        flattened, which suits up to some dozens of numbers.
    rule : KernelBayesRule, optional
        With settings of your own.
    return_rule : bool
        Return the rule fitted to all simulations, too, which has posteriors for other observations.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`. For long runs call :func:`simulate` with a store and limits, and
        pass its result as ``simulations``.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree, or with ``return_rule`` a tuple of it and a FittedRule
        ``posterior``; ``kernel_weights``: simulated parameters on the unconstrained scale and the signed weights of
        their kernel mean; ``prior``, ``prior_predictive``, ``observed_data``; ``sample_stats``: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables or with one that cannot be simulated, and for simulations that do not
        belong to it.

    Notes
    -----
    Sample statistics: ``typicality``, the share of simulations in regions at least as sparse as that of the
    observation; ``num_effective``, the effective number of simulations that the draws come from; ``learning_error``,
    the largest standard deviation of a posterior mean between fits to resampled simulations, in posterior standard
    deviations, and ``spread_learning_error`` that of the spreads, in parts of them; ``held_out_shift`` and
    ``held_out_spread``, the expected error of means at the observation in posterior standard deviations, and the true
    spread over that of the posterior, by a regression of the normal scores of held-out simulations on their position;
    ``doubling_gain`` and its error, what the last doubling of the simulations added to the mean log density of held-out
    parameters: large where more simulations would help; ``held_out_coverage``, the share of held-out simulations near
    the observation whose parameters lie in their 95 % intervals, and their effective number ``num_held_out``;
    ``num_failed``, simulations with NaN or infinite numbers; ``num_local``, simulations in the final fit;
    ``ratio_effective`` and ``ratio_pareto_k``, effective share and Pareto shape of the ratio of prior to simulated
    parameters; ``regularization``, ``share`` (of the simulations in a neighborhood, 1 for all), ``rank``.

    Draws are the posterior mean by kernel regression plus smoothed residuals, of all simulations or of those near the
    observation, each of which may be moved to the data along its own branch of the posterior. Regressions are fitted to
    all simulations and to ever fewer of them around the observation. The log score of held-out simulations near the
    observation decides between these variants; the same simulations check the posterior. Draws are made on the
    unconstrained scale, so none leaves the prior's support.

    Each chain comes from a fit to simulations with random weights (a Bayesian bootstrap); of sixteen such fits the
    chains use those that vary as all sixteen do. So R-hat and the Monte Carlo errors of ``az.summary`` include the
    error of learning; effective sample sizes count draws, not simulations. With ``chains=1`` the fit has equal weights.

    Later rounds simulate from the posterior so far, and from a wider normal distribution around it. The ratio of the
    prior's density to that of the proposals of all rounds is known, and never larger than the number of rounds. Where
    residuals of all simulations predict best, as in a linear model with normal noise, simulations near the observation
    gain nothing: then the next round simulates from the prior again.

    One warning lists all that speaks against the posterior: an observation outside the simulated range, few simulations
    behind the draws, a large error of learning, held-out simulations near the observation that are predicted wrongly,
    or much better with twice the simulations.

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
    check_whole(draws=draws, chains=chains, num_simulations=num_simulations, rounds=rounds)
    rule = KernelBayesRule(scales=_SCALES) if rule is None else _checked_rule(rule)
    rng = np.random.default_rng(random_seed)
    latent, summaries, observed, simulations = learned_from(
        simulations, num_simulations, summary, model, "sample_kbr", rng, executor, progressbar
    )
    numbers, proposals, weights = [len(latent)], [], None
    # Compiled before later rounds are simulated, so that a prior without a density raises here.
    log_prior_of = prior_density(model) if rounds > 1 else None
    log_prior = None if log_prior_of is None else log_prior_of(latent)
    fitted = _fitted(rule, latent, summaries, None, rng)
    near = posterior_near(fitted, observed, rng)
    for _ in range(1, rounds):
        if near.is_global:
            numbers[0] += num_simulations
            again = simulated_from_prior(num_simulations, model, rng, executor, progressbar)
        else:
            proposals.append(Proposal.around(near.mixture()))
            numbers.append(num_simulations)
            proposed = proposals[-1].sample(num_simulations, rng)
            again = simulated_again(proposed, model, rng, executor, progressbar)
        new_latent, new_seen = simulated_pairs(again, model, summary)
        latent, summaries = np.concatenate([latent, new_latent]), np.concatenate([summaries, new_seen])
        log_prior = np.concatenate([log_prior, log_prior_of(new_latent)])
        weights = prior_ratio(latent, log_prior, proposals, numbers)
        fitted = _fitted(rule, latent, summaries, weights, rng)
        near = posterior_near(fitted, observed, rng)
    replicates = near.replicates(rng, max(chains, NUM_REPLICATES))
    groups = learned_groups(model, _draws(near, replicates, chains, draws, rng), (chains, draws), simulations)
    groups["kernel_weights"] = _kernel_weights(fitted, observed)
    groups["sample_stats"] = _stats(near, replicates, fitted, observed, rounds, summary is None, rng)
    tree = xr.DataTree.from_dict(groups)
    return (tree, fitted) if return_rule else tree


def _checked_rule(rule):
    if not isinstance(rule, KernelBayesRule) or rule.normalize != "prior":
        raise ValueError(
            f'sample_kbr needs rule=KernelBayesRule(...), not fitted, with normalize="prior", got {rule!r}.'
        )
    return rule


def _fitted(rule, latent, summaries, weights, rng):
    with warnings.catch_warnings():
        # Counted in the statistics, and reported once below.
        warnings.filterwarnings("ignore", message=r".* pairs have NaN")
        return rule.fit(latent, summaries, weights=weights, rng=rng)


def _draws(near, replicates, chains, draws, rng):
    """Return draws (chains * draws, d), each chain from its own fit, so that R-hat includes the error of learning."""
    if chains == 1:
        return near.mixture().sample(draws, rng)
    chosen = representative(np.concatenate(moments_of(replicates), axis=1), chains, rng)
    return np.concatenate([replicates[i].sample(draws, rng) for i in chosen])


def _kernel_weights(fitted, observed):
    weights = fitted.condition(observed).weights
    return xr.Dataset({"weight": ("simulation", weights), "position": (("simulation", "unconstrained"), fitted.latent)})


def _stats(near, replicates, fitted, observed, rounds, is_raw, rng):
    typical = float(typicality(fitted.observed, observed[None], rng)[0])
    best, (error, spread_error) = near.best, near.learning_error(replicates)
    check = best.check()
    off, (gain, gain_error) = check.local_errors(), check.doubling_gain()
    effective = best.effective_number()
    coverage = check.held_out.coverage(_CHECKED)
    failed = fitted.pairs.num_dropped
    warn_of_failed_pairs(failed, failed + len(fitted.latent))
    problems = findings(typical, effective, error.max(), _held_out_findings(check, off, gain, gain_error))
    is_long = is_raw and np.size(observed) > _MANY_NUMBERS
    shorter = f"a summary= of the {np.size(observed)} numbers that the data are, " if is_long else ""
    advice = (
        f"Take {shorter}more simulations, or rounds={rounds + 1}; if the model simulates nothing like the data, check "
        "its prior."
    )
    warn_of_findings(problems, advice)
    share = fitted.weighting.ratio / fitted.weighting.ratio.sum()
    return xr.Dataset(
        {
            statistics.TYPICALITY: typical,
            statistics.NUM_EFFECTIVE: effective,
            statistics.LEARNING_ERROR: float(error.max()),
            statistics.SPREAD_LEARNING_ERROR: float(spread_error.max()),
            statistics.HELD_OUT_SHIFT: ("unconstrained", off.shift),
            statistics.HELD_OUT_SPREAD: ("unconstrained", off.spread),
            "doubling_gain": gain,
            "doubling_gain_error": gain_error,
            "held_out_coverage": ("unconstrained", coverage),
            statistics.NUM_HELD_OUT: check.held_out.effective_number,
            statistics.NUM_FAILED: failed,
            "num_local": len(best.rule.latent),
            "ratio_effective": float(1.0 / (len(share) * (share**2).sum())),
            "ratio_pareto_k": _ratio_shape(share) if rounds > 1 else np.nan,
            "regularization": best.rule.regularization,
            "share": best.settings.share,
            "rank": best.rule.features.factor.rank,
        }
    )


def _held_out_findings(check, off, gain, gain_error):
    """Return the problems that held-out simulations near the observation show, in words."""
    wrong, expected = miscalibration(check.held_out), misfit(off)
    learning = gain > _LARGE_GAIN and gain > _CLEAR_DIFFERENCE * gain_error
    return [
        f"of held-out simulations near the observation, {wrong}" if wrong else "",
        f"by held-out simulations near the observation, {expected}" if expected else "",
        f"twice the simulations still added {gain:.2f} to the log density of held-out parameters" if learning else "",
    ]


def _ratio_shape(share):
    """Return the Pareto shape of the ratio's tail; 0 where a hundredth of the ratios are at their bound: no tail."""
    if (share > 0.99 * share.max()).mean() > 0.01:
        return 0.0
    return reported_shape(np.log(np.maximum(share, np.finfo(float).tiny)))
