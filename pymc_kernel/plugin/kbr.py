"""Kernel Bayes' rule for PyMC models: posteriors from simulations of the model, without its likelihood."""

import warnings
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np
import pymc as pm
import xarray as xr
from scipy.spatial import KDTree

from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.pairs import (
    check_whole,
    learnt_from,
    learnt_groups,
    simulated_again,
    simulated_pairs,
    warn_of_failed_pairs,
)

__all__ = ["sample_kbr"]

_METHODS = {"auto": "auto", "iw": "importance", "importance": "importance", "conditional": "conditional"}
_OUTSIDE = 0.01  # of the simulations lie in emptier places than an observation that is still inside
_TYPICAL_POINTS, _NEIGHBOURS, _FAR = 2000, 10, 10.0
_SCALES = (0.5, 1.0, 2.0)  # of the median distance
_FEW = 30  # simulations with weight, below which a warning is due


def sample_kbr(
    simulations: xr.DataTree | None = None,
    draws: int = 1000,
    *,
    chains: int = 4,
    num_simulations: int = 5000,
    rounds: int = 1,
    summary: Callable[[dict[str, np.ndarray]], np.ndarray] | None = None,
    method: str = "auto",
    rule: KernelBayesRule | None = None,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed=None,
    progressbar: bool = True,
) -> xr.DataTree:
    """Draw from the posterior of a model by kernel Bayes' rule, from simulations of prior and data alone.

    The likelihood is never evaluated: the model, or ``simulations``, is asked for draws of the parameters and of the
    observed variables, and the posterior for the data is learnt from them. Observed variables may be any that PyMC can
    draw, ``pm.Simulator`` included.

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
        After the first, parameters are simulated from the current posterior, and the ratio of prior to what was
        simulated corrects for it (sequential kernel Bayes' rule). Pays where the posterior is much narrower than the
        prior.
    summary : callable, optional
        Observed variables of one data set, name -> array, to a vector of summaries. By default all data, flattened:
        good for up to some dozens of numbers.
    method : {"auto", "importance", "conditional"}
        "iw" stands for "importance". "auto" is the first where simulated parameters are not from the prior alone.
    rule : KernelBayesRule, optional
        With settings of your own; it is fitted here, and can be asked for other observations afterwards.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`, whose store and limits long runs want: hand over what it returns.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree
        ``posterior``; ``kernel_weights``: simulated parameters on the unconstrained scale and the signed weights of
        their kernel mean; ``prior``, ``prior_predictive``, ``observed_data``; ``sample_stats``: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables or with one that cannot be simulated, and for simulations that do not
        belong to it.

    Notes
    -----
    Sample statistics: ``typicality``, the share of simulations that lie in places at least as empty as the
    observation's; ``num_effective``, the effective number of simulations that the draws come from; ``num_failed``,
    simulations with NaN or infinite numbers; ``regularization``, ``share`` (of the simulations in a neighbourhood, 1
    for all), ``rank``.

    Draws are the posterior mean by kernel regression plus smoothed residuals of simulations, from everywhere or from
    nearby, where each may be moved to the data along its own branch of the posterior: the log score of leave-one-out
    predictions decides. They live on the unconstrained scale, so no draw leaves the prior's support.
    ``rule.calibration()`` says for the price of five fits whether such posteriors cover.

    A warning is given where the observation lies outside of what was simulated: then the posterior is extrapolated.

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
    if method not in _METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, _METHODS))}, got {method!r}.")
    check_whole(draws=draws, chains=chains, num_simulations=num_simulations, rounds=rounds)
    _check_rule(rule, method, rounds)
    rng = np.random.default_rng(random_seed)
    latent, seen, observed, simulations = learnt_from(
        simulations, num_simulations, summary, model, "sample_kbr", rng, executor, progressbar
    )
    # The prior of parameters for which the simulator succeeds, as the pairs are.
    prior = latent[np.isfinite(seen).all(axis=1)]
    fitted = _fitted(rule, method, latent, seen, None if rounds == 1 else prior, rng)
    for _ in range(1, rounds):
        proposed = fitted.sample(observed[None], num_simulations, rng)[0]
        again = simulated_again(proposed, model, rng, executor, progressbar)
        new_latent, new_seen = simulated_pairs(again, model, summary)
        latent, seen = np.concatenate([latent, new_latent]), np.concatenate([seen, new_seen])
        fitted = _fitted(rule, method, latent, seen, prior, rng)
    positions = fitted.sample(observed[None], draws * chains, rng)[0]
    groups = learnt_groups(model, positions, (chains, draws), simulations)
    groups["kernel_weights"] = _kernel_weights(fitted, observed)
    groups["sample_stats"] = _stats(fitted, observed, rng)
    return xr.DataTree.from_dict(groups)


def _check_rule(rule, method, rounds):
    if rule is not None and method != "auto":
        raise ValueError("give method= or rule=, not both: a rule has its own method.")
    chosen = _METHODS[method] if rule is None else rule.method
    if chosen in ("original", "threshold") or (rule is not None and rule.normalize != "prior"):
        raise ValueError('sample_kbr needs a rule of method "importance" or "conditional" with normalize="prior".')
    if chosen == "conditional" and rounds > 1:
        raise ValueError(
            'with rounds > 1 the simulated parameters are no draws of the prior: use method="importance" (or "auto").'
        )


def _fitted(rule, method, latent, seen, prior, rng):
    chosen = _METHODS[method]
    if rule is None:
        if chosen == "auto":
            chosen = "conditional" if prior is None else "importance"
        rule = KernelBayesRule(chosen, scales=_SCALES, random_state=rng)
    with warnings.catch_warnings():
        # Counted in the statistics, and said once below.
        warnings.filterwarnings("ignore", message=r".* pairs have NaN")
        return rule.fit(latent, seen, prior if rule.method != "conditional" else None)


def _kernel_weights(fitted, observed):
    weights = fitted.condition(observed).weights
    own, rest = weights[: len(fitted.latent_)].copy(), weights[len(fitted.latent_) :]
    own[: len(rest)] += rest  # the prior's draws are the parameters of the first round
    return xr.Dataset({"weight": ("simulation", own), "position": (("simulation", "unconstrained"), fitted.latent_)})


def _stats(fitted, observed, rng):
    typical = _typicality(fitted.observed_, observed, rng)
    near = fitted.predictive.effective_number(fitted.mean(observed), observed[None])
    failed = fitted.num_dropped_
    warn_of_failed_pairs(failed, failed + len(fitted.latent_), stacklevel=3)
    if typical < _OUTSIDE:
        warnings.warn(
            f"only {100 * typical:.1f} % of the simulations lie in places as empty as that of the observation: it is "
            "at the edge of what the model simulates, or outside: the posterior is extrapolated. Check the prior.",
            stacklevel=3,
        )
    if near < _FEW:
        warnings.warn(
            f"the draws come from an effective number of {near:.0f} simulations: take more of them, or rounds=2.",
            stacklevel=3,
        )
    return xr.Dataset(
        {
            "typicality": typical,
            "num_effective": near,
            "num_failed": failed,
            "regularization": fitted.regularization_,
            "share": fitted.predictive.share,
            "rank": fitted.rank_,
        }
    )


@one_blas_thread
def _typicality(seen, observed, rng):
    """Return the share of simulations whose tenth neighbour is at least as far off as the observation's.

    Distances are taken after whitening, so that a combination of summaries that never occurs counts as far.
    """
    some = seen[rng.choice(len(seen), size=min(_TYPICAL_POINTS, len(seen)), replace=False)]
    middle, spread = robust_scales(some)
    near = np.clip((some - middle) / spread, -_FAR, _FAR)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(near.T)))
    root = vectors / np.sqrt(np.maximum(values, max(1e-8 * values[-1], 1e-12)))
    tree = KDTree(near @ root)
    count = min(_NEIGHBOURS, len(some) - 1)
    # A simulation is its own nearest neighbour, which the observation has not.
    others = tree.query(near @ root, k=count + 1)[0][:, -1]
    place = np.clip((observed - middle) / spread, -10.0 * _FAR, 10.0 * _FAR) @ root
    return float((others >= tree.query(place, k=[count])[0][0]).mean())
