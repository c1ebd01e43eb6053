"""Rejection ABC for PyMC models: the baseline for all other likelihood-free methods."""

import warnings
from concurrent.futures import Executor
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.draws import resample
from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.embeddings.local import NUM_REPLICATES, representative
from pymc_kernel.embeddings.local_check import local_errors, misfit, moves_from
from pymc_kernel.likelihood_free.held_out import Answer, HeldOutAnswers, Plan, answer, held_out_answers, preferred
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.simulation.pairs import Summary, learned_from, learned_groups, warn_of_failed_pairs
from pymc_kernel.plugin.simulation.trust import findings
from pymc_kernel.plugin.typicality import typicality
from pymc_kernel.plugin.unknown_arguments import explain_arguments
from pymc_kernel.plugin.warn import warn_of_findings

__all__ = ["sample_abc"]

_FIRST_QUANTILE = 0.01  # of the simulations is accepted, unless a larger share is clearly better,
_FEWEST, _FEWEST_A_SUMMARY = 50, 4  # but at least so many simulations, and so many for each slope
_MULTIPLES = (1.0, 3.0, 10.0)  # multiples of the smallest acceptance that are compared
_NUM_CASES = 150  # held-out simulations near the observation, that decide and check
_MOST_LEARNED, _RANK = 2000, 200  # simulations and features of the kernel regression that is compared with
_SMALL_GAIN = 0.1  # of the squared error: a smaller gain of that regression needs no warning
_SMALL_CHANGE = 0.3  # posterior standard deviations that the mean may change with the accepted share
_AS_FAR_AS_ALL = 0.7  # of the median distance; of evenly spread summaries it is that far in eleven dimensions
_HARDLY_NEAR = 0.4  # of the median distance: above it an error of held-out cases counts even if it is not significant
_CLEAR_DIFFERENCE = 3.0  # standard errors by which a gain or a change must exceed zero
_ADVICE = (
    "Take more simulations or better summaries, or sample_kbr; if the model simulates nothing like the data, "
    "check its prior."
)


@explain_arguments
def sample_abc(
    simulations: xr.DataTree | None = None,
    draws: int | None = None,
    *,
    chains: int = 4,
    quantile: float | None = None,
    adjust: bool = True,
    num_simulations: int = 10_000,
    summary: Summary | None = None,
    executor: Executor | int | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
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
        In each chain; as many as are accepted by default. Accepted simulations are resampled by their weights.
    chains : int
        Each from accepted simulations with random weights (a Bayesian bootstrap), as in :func:`sample_kbr`, so that
        R-hat and the Monte Carlo errors of ``az.summary`` reflect their number. A single chain has their own weights.
    quantile : float, optional
        Share of the simulations that is accepted, in (0, 1]. By default a hundredth, but at least fifty simulations and
        four for each summary; or three or ten times as many, where that predicts held-out simulations near the data
        better.
    adjust : bool
        Move accepted parameters to the data by a local linear regression on the summaries (Beaumont, Zhang and Balding
        2002), on the unconstrained scale, with larger weights for nearer simulations. Their spread is adjusted, too
        (Blum and Francois 2010), unless held-out simulations are predicted better without.
    num_simulations : int
    summary : callable or dict, optional
        As in :func:`sample_kbr`. Summaries are divided by their spread over the simulations.
    executor, model, random_seed, progressbar
        As in :func:`sample_kbr`.

    Returns
    -------
    xarray.DataTree
        ``posterior``, ``prior``, ``prior_predictive``, ``observed_data``, and ``sample_stats``: ``accept`` (share),
        ``epsilon`` (largest accepted distance, in spreads), ``nearest_distance`` (how far the nearest hundredth
        reaches, in units of the median distance), ``num_simulations``, ``num_accepted``, ``num_failed``, and, as in
        :func:`sample_kbr`, ``typicality``, ``num_effective``, ``learning_error``, ``spread_learning_error``,
        ``acceptance_shift`` (how far means move where three times as many are accepted, in posterior standard
        deviations), ``held_out_shift``, ``held_out_spread``, ``num_held_out``.

    Notes
    -----
    The 150 simulations nearest to the data are treated as data in turn, each held out of its own posterior. They decide
    the accepted share and the adjustment, by the continuous ranked probability score, and give the error to be expected
    at the data. A kernel regression finds whether the summaries have more information than their distances use. One
    warning lists all that speaks against the posterior.

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
    if quantile is not None and not 0.0 < quantile <= 1.0:
        raise ValueError(f"quantile must be in (0, 1], got {quantile!r}.")
    check_whole("draws", draws=draws, chains=chains, num_simulations=num_simulations)
    rng = np.random.default_rng(random_seed)
    latent, summaries, observed, simulations = learned_from(
        simulations, num_simulations, summary, model, "sample_abc", rng, executor, progressbar
    )
    is_whole = np.isfinite(summaries).all(axis=1) & np.isfinite(latent).all(axis=1)
    total, failed = len(latent), int((~is_whole).sum())
    if total - failed < 2:
        raise ValueError(f"{failed} of {total} simulations failed: there is nothing to accept.")
    warn_of_failed_pairs(failed, total)
    latent, summaries = latent[is_whole], summaries[is_whole]
    _, spread = robust_scales(summaries)
    scaled, place = summaries / spread, observed / spread
    answer = _best_answer(
        latent, scaled, place, _plans(quantile, adjust, *scaled.shape), max(NUM_REPLICATES, chains), rng
    )
    stats = _stats(latent, summaries, observed, answer, rng)
    groups = learned_groups(model, *_draws(answer, chains, draws, rng), simulations)
    groups["sample_stats"] = xr.Dataset(
        {
            "accept": len(answer.posterior.index) / total,
            "num_simulations": total,
            statistics.NUM_FAILED: failed,
            **stats,
        }
    )
    return xr.DataTree.from_dict(groups)


class _CheckedAnswer(NamedTuple):
    """A posterior, with a bootstrap and the posteriors of held-out simulations near the data."""

    posterior: Answer
    plan: Plan
    replicates: list[Answer]  # from simulations with random weights
    moments: np.ndarray  # (2, replicates, d): means and log standard deviations
    cases: np.ndarray  # (m,), indices of the held-out simulations
    held_out: HeldOutAnswers
    moves: np.ndarray  # (m, k), differences of the held-out simulations from the observation

    @property
    def learning_error(self) -> np.ndarray:
        """Standard deviations (d,) of the means between replicates, in posterior standard deviations."""
        return self.moments[0].std(axis=0, ddof=1) / np.exp(_moments(self.posterior)[1])


def _best_answer(latent, scaled, place, plans, num_replicates, rng):
    """Return the posterior by the plan that predicts held-out simulations near the data best."""
    cases = answer(latent, scaled, place, Plan(min(1.0, _NUM_CASES / len(latent)), "none")).index
    checked = held_out_answers(latent, scaled, cases, plans)
    number = preferred([c.scores for c in checked])
    plan, held_out = plans[number], checked[number]
    posterior = answer(latent, scaled, place, plan)
    weights = (rng.standard_exponential(len(latent)) for _ in range(num_replicates))
    replicates = [answer(latent, scaled, place, plan, one) for one in weights]
    moments = np.swapaxes([_moments(one) for one in replicates], 0, 1)
    moves = _moves(latent, scaled, place, cases)
    return _CheckedAnswer(posterior, plan, replicates, moments, cases, held_out, moves)


def _draws(answer, chains, draws, rng):
    """Return draws (chains * draws, d), of one replicate for each chain if there are several, and their shape."""
    used = [answer.posterior]
    if chains > 1:
        used = [answer.replicates[i] for i in representative(np.concatenate(answer.moments, axis=1), chains, rng)]
    count = draws or len(answer.posterior.index)
    return np.concatenate([one.points[resample(one.weights, count, rng)] for one in used]), (chains, count)


def _stats(latent, summaries, observed, answer, rng):
    """Return the statistics of a posterior; warn of all that speaks against it."""
    _, spread = robust_scales(summaries)
    scaled, place, error = summaries / spread, observed / spread, answer.learning_error
    off = local_errors(answer.held_out.ranks, answer.moves, np.full(len(answer.cases), 1 / len(answer.cases)))
    typical = float(typicality(summaries, observed[None], rng)[0])
    effective = 1.0 / (answer.posterior.weights**2).sum()
    unused = _unused_information(latent, summaries, answer.cases, answer.held_out, rng)
    change = _change_with_distance(latent, scaled, place, answer.plan, answer.posterior)
    is_sensitive = (change > np.maximum(_SMALL_CHANGE, _CLEAR_DIFFERENCE * error)).any()
    reach = _nearest_distance(scaled, place)
    expected = misfit(off)
    others = [
        f"by held-out simulations near the observation, {expected}" if expected else "",
        f"its mean moves by {change.max():.2f} posterior standard deviations where three times as many are accepted"
        if is_sensitive
        else "",
        unused,
        *_distance_warnings(reach, 0.0 if expected else float(np.abs(off.shift).max())),
    ]
    warn_of_findings(findings(typical, effective, float(error.max()), others), _ADVICE)
    return {
        "epsilon": answer.posterior.epsilon,
        "nearest_distance": reach,
        "num_accepted": len(answer.posterior.index),
        statistics.TYPICALITY: typical,
        statistics.NUM_EFFECTIVE: effective,
        statistics.LEARNING_ERROR: float(error.max()),
        statistics.SPREAD_LEARNING_ERROR: float(answer.moments[1].std(axis=0, ddof=1).max()),
        "acceptance_shift": float(change.max()),
        statistics.HELD_OUT_SHIFT: ("unconstrained", off.shift),
        statistics.HELD_OUT_SPREAD: ("unconstrained", off.spread),
        statistics.NUM_HELD_OUT: len(answer.cases),
    }


def _distance_warnings(reach, shift):
    """Return warnings about the distance of the nearest simulations, given the expected error ``shift``."""
    problems = []
    if reach > _HARDLY_NEAR and shift > _SMALL_CHANGE:
        problems.append(
            f"by held-out simulations a mean is {shift:.2f} posterior standard deviations off, and the nearest "
            f"hundredth of the simulations reaches {reach:.2f} times as far as half of them"
        )
    if reach > _AS_FAR_AS_ALL:
        problems.append(
            f"the nearest hundredth of the simulations reaches {reach:.2f} times as far as half of them: with so many "
            "summaries nearness means little"
        )
    return problems


def _plans(quantile, adjust, num_simulations, width):
    """Return plans of acceptance and adjustment; the first is taken unless another one is clearly better."""
    if quantile is None:
        fewest = max(_FIRST_QUANTILE * num_simulations, _FEWEST_A_SUMMARY * (width + 1) if adjust else 0, _FEWEST)
        quantiles = sorted({min(1.0, times * fewest / num_simulations) for times in _MULTIPLES})
    else:
        quantiles = [quantile]
    return [Plan(q, adjustment) for q in quantiles for adjustment in (("scaled", "linear") if adjust else ("none",))]


def _moments(posterior):
    """Return mean (d,) and log standard deviations (d,)."""
    mean = posterior.weights @ posterior.points
    variance = posterior.weights @ (posterior.points - mean) ** 2
    return mean, 0.5 * np.log(np.maximum(variance, np.finfo(float).tiny))


def _change_with_distance(latent, scaled, place, plan, posterior):
    """Return how far means (d,) move where three times as many are accepted, in posterior standard deviations."""
    mean, log_spread = _moments(posterior)
    wider = answer(latent, scaled, place, plan._replace(quantile=min(1.0, 3.0 * plan.quantile)))
    return np.abs(_moments(wider)[0] - mean) / np.exp(log_spread)


def _nearest_distance(scaled, place):
    """Return how far the nearest hundredth of all simulations reaches, in units of the median distance."""
    near, middle = np.quantile(np.sqrt(((scaled - place) ** 2).sum(axis=1)), [_FIRST_QUANTILE, 0.5])
    return float(near / middle) if middle > 0.0 else 0.0


def _moves(latent, scaled, place, cases):
    """Return how far cases (m,) are from the observation, in what the parameters are regressed on: (m, d) at most."""
    moves = moves_from(place, scaled[cases])
    if moves.shape[1] <= latent.shape[1]:
        return moves
    slopes = np.linalg.lstsq(moves - moves.mean(axis=0), latent[cases] - latent[cases].mean(axis=0), rcond=1e-6)[0]
    return moves @ slopes


def _unused_information(latent, summaries, cases, held_out, rng):
    """Return in words by how much a kernel regression predicts the parameters of cases better; empty if not clearly."""
    others = rng.permutation(np.setdiff1d(np.arange(len(latent)), cases))[: _MOST_LEARNED - len(cases)]
    used = np.concatenate([cases, others])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        rule = KernelBayesRule(num_basis=_RANK).fit(latent[used], summaries[used], rng=rng)
    residuals = rule.regression.fit.residuals()[: len(cases)]
    gain = held_out.errors**2 - residuals**2
    clear = gain.mean(axis=0) > _CLEAR_DIFFERENCE * gain.std(axis=0) / np.sqrt(len(cases))
    share = gain.mean(axis=0) / np.maximum((held_out.errors**2).mean(axis=0), np.finfo(float).tiny)
    if not (clear & (share > _SMALL_GAIN)).any():
        return ""
    return (
        f"kernel regression predicts a parameter with {100 * share[clear].max():.0f} % less squared error: the data "
        "say more than distances between them show"
    )
