"""Posteriors from a likelihood that is learned in rounds of simulations of a PyMC model."""

from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from scipy.special import ndtri

from pymc_kernel.likelihood_free import LearnedLikelihood, WorkersLost
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.model.priors import ModelPrior, check_prior_draws
from pymc_kernel.plugin.model.unconstrained import coordinate_names, draws_group, value_shapes
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.reports.likelihood_checks import LARGE_SHARE
from pymc_kernel.plugin.simulation.pairs import (
    Summary,
    learned_groups,
    observed_for,
    simulated_by,
    simulated_pairs,
    warn_of_failed_pairs,
)
from pymc_kernel.plugin.simulation.simulate import warn_of_potentials
from pymc_kernel.plugin.simulation.trust import Weighted, differences, learning_errors
from pymc_kernel.plugin.warn import FALSE_ALARMS, report_all, warn_user
from pymc_kernel.rounds import CautiousRounds, Checks, Draws, LocalLikelihood, State, sample_particles
from pymc_kernel.rounds.cautious import NUM_PARTICLES

_COVERAGE = (0.9, 0.99)  # warn if the coverage of 95 % regions by held-out simulations is outside, by more than chance
_CHANCE = 3.0  # binomial standard errors that count as chance
_REMEMBERED = 0.5  # correlation of particles with their positions before the last moves, above which to warn


def sample_likelihood_free(
    draws: int = 1000,
    *,
    chains: int = 8,
    num_simulations: int = 1000,
    rounds: int | None = None,
    summary: Summary | None = None,
    estimator: LearnedLikelihood | None = None,
    return_fitted: bool = False,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree | tuple[xr.DataTree, LocalLikelihood]:
    """Draw from the posterior of a model that can only be simulated, by a likelihood learned from its simulations.

    Kernel regression learns the distribution of the summaries given the parameters: means, spreads and dependence as
    smooth functions of the parameters. Its density at the data is the likelihood; particles sample the posterior under
    the model's prior. For noisy simulators whose data pin the parameters down, it needs far fewer simulations than
    methods that learn the posterior (:func:`sample_kbr`).

    Parameters
    ----------
    draws, chains : int
        Draws (independent particles) of each chain, which has its own likelihood (see Notes). Eight chains show to
        within a quarter how far such likelihoods differ, four to within two fifths.
    num_simulations : int
        In all rounds together.
    rounds : int, optional
        Later rounds simulate where the learned likelihood, raised to a power that the simulations so far support, puts
        the posterior. By default up to five rounds, fewer once nothing changes any more.
    summary : callable or dict, optional
        A function of the observed variable's array that returns a vector, as in :func:`sample_kbr`. A few to some
        dozens of numbers, whose distribution at given parameters has one or a few modes.
    estimator : pymc_kernel.likelihood_free.LearnedLikelihood, optional
        With settings of your own.
    return_fitted : bool
        Also return the learned log likelihood of the data: a function of parameters (n, d) on the unconstrained scale.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`.
    store : str or path, optional
        Directory in which each round's simulations are saved, batch by batch (extra ``store``), so that a killed run
        can resume. Needs ``random_seed``.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree, or with ``return_fitted`` a tuple of it and a function
        ``posterior``; ``prior`` and ``prior_predictive``: all simulations, with a coordinate ``round``;
        ``round_stats``; ``sample_stats``; ``observed_data``, ``constant_data``. Statistics: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables, with discrete free ones, with a prior that has no density, and where too
        few simulations succeeded to learn from.

    Notes
    -----
    Statistics of a round: ``num_simulations``, ``num_failed``, ``num_near`` (simulations of all rounds that it learned
    from), ``power`` of the likelihood where it simulated, ``effective`` number of earlier simulations there, ``change``
    of the posterior (symmetric divergence, in nats), ``place`` (posterior predictive probability of summaries less
    likely than the data's), ``held_out_coverage`` (share of held-out simulations in the region that should hold 95 %),
    ``correlation`` of the particles before and after their last moves. ``sample_stats`` has those of the last round,
    and each chain's ``log_evidence`` under its likelihood.

    No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is unlikely in five or
    more dimensions: the evidence then lacks the mode's mass, no check shows it, and runs that agree do not rule it out.

    Each chain has its own likelihood, learned anew from all simulations with random weights (Bayesian bootstrap), one
    on average over the chains. So means of chains differ by the error of learning, and R-hat shows it. The Monte Carlo
    errors of ``az.summary`` are smaller: they are of the mean of all chains, whose error of learning is about as large
    as the chains lie apart. Effective sizes count draws, not simulations. ``chains=1`` uses the best likelihood.

    A likelihood does not depend on where simulations were made, so rounds need no correction. They are cautious: the
    effective number of earlier simulations where a round simulates is at least 5 d + 10, and 1.5 % of all. An interrupt
    returns the posterior from the simulations that are finished.

    If some simulations fail, the likelihood is multiplied by the learned probability of not failing, because the data
    were observed. If the data are whole numbers that many simulations share, the probability of exactly these data is
    learned likewise, as a correction of their density, if held-out simulations favor it. Summaries that are linear
    functions of earlier ones, such as copies, sums, or the last of several counts with a total, are left out.

    ``learning_error`` is the largest standard deviation between chains of posterior means (in posterior standard
    deviations), ``spread_learning_error`` that of logarithms of the spreads: the standard errors due to the limited
    number of simulations. Final checks leave out a fifth of the simulations at a time. ``held_out_shift`` and
    ``held_out_spread`` are simulation-based calibration on the 200 data sets whose posteriors overlap most with the
    observation's, an effective ``num_held_out`` of them: how many posterior standard deviations true parameters lie
    above the learned mean, and how many times as far they spread as posteriors say, each for the worst parameter.
    ``outside`` is the share of the posterior outside of where the last round simulated.

    One warning lists all reasons to distrust the posterior: ``place`` below .01, ``held_out_coverage`` far from 95 %, a
    ``learning_error`` above .32 (an R-hat of 1.05), ``outside`` above .1, ``power`` below one, ``correlation`` above
    .5; and posteriors of simulations like the data that are shifted, too narrow, too wide, or have the wrong share of
    true parameters beyond their 5 % and 95 % quantiles.

    Memory grows with the simulations; a fit costs O(n p^2) for p some hundred features, seconds at n = 10,000.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def simulator(rng, theta, size):
    ...     return rng.normal(theta, 0.5, size)
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 1)
    ...     y = pm.Simulator("y", simulator, theta, observed=[1.0])
    ...     idata = pk.sample_likelihood_free(num_simulations=300, random_seed=1, progressbar=False)
    >>> bool(abs(float(idata["posterior"]["theta"].mean()) - 0.8) < 0.1)
    True
    """
    model = pm.modelcontext(model)
    check_whole("rounds", draws=draws, chains=chains, num_simulations=num_simulations, rounds=rounds)
    if store is not None and random_seed is None:
        raise ValueError("store needs random_seed: a run that goes on must propose the same parameters again.")
    observed = observed_for(model, summary, "sample_likelihood_free")
    check_prior_draws(model, "Simulations begin at draws of the prior: give it a proper one.")
    warn_of_potentials(model, "the posterior will be that of the model without them")
    rng = np.random.default_rng(random_seed)
    config = CautiousRounds(num_simulations, rounds, LearnedLikelihood() if estimator is None else estimator)
    prior = ModelPrior(model)

    def simulated(parameters, number):
        """Return the simulations of a round, with their parameters and summaries."""
        kept = None if store is None else Path(store) / f"round_{number}"
        tree = simulated_by(model, rng, executor, progressbar, given=draws_group(model, parameters[None]), store=kept)
        return tree, *simulated_pairs(tree, model, summary)

    with interrupts_wait:
        state, simulations = _all_rounds(config, config.init(prior, observed), simulated, rng, progressbar)
        with progress_bar("Drawing from the posterior", None, progressbar):
            # One likelihood for each chain, which differ by the error of learning; or the best one.
            number = max(draws, NUM_PARTICLES)
            likelihoods = config.refits(rng, state, chains) if chains > 1 else [state.likelihood]
            posterior = [sample_particles(rng, state.prior, likelihood, number) for likelihood in likelihoods]
        positions = np.concatenate([chain.positions[:draws] for chain in posterior])
        groups = learned_groups(model, positions, (chains, draws), simulations)
        of_rounds = {name: ("round", [getattr(r, name) for r in state.rounds]) for name in state.rounds[0]._fields}
        groups["round_stats"] = xr.Dataset(of_rounds, {"round": np.arange(len(state.rounds))})
        groups["sample_stats"] = stats = xr.Dataset(_stats(state, posterior))
        _warn(state, stats, model)
        tree = xr.DataTree.from_dict(groups)
        return (tree, state.likelihood) if return_fitted else tree


def _all_rounds(config: CautiousRounds, state: State, simulated, rng, progressbar) -> tuple[State, xr.DataTree]:
    """Return the last state and all simulations; after an interrupt, those that are finished."""
    simulations, is_whole = [], True
    while is_whole and not state.is_finished:
        words = f"Round {len(simulations) + 1}: "
        try:
            with progress_bar(f"{words}where to simulate", None, progressbar):
                proposed, parameters = config.propose(rng, state)
            tree, latent, summaries = simulated(parameters, len(simulations))
            ended_by = tree["simulation_stats"].attrs["ended_by"]
            is_whole = not ended_by
            try:
                _refuse_useless(tree, summaries)
                with progress_bar(f"{words}learning from {len(latent)} simulations", None, progressbar):
                    state = config.update(rng, proposed, parameters if is_whole else latent, summaries)
            except ValueError as error:
                if ended_by == "interrupt":  # there are too few simulations
                    raise KeyboardInterrupt from error
                raise
            simulations.append(tree)
        except (KeyboardInterrupt, WorkersLost, _AllFailed) as ended:
            if not state.rounds:
                raise
            is_whole = False
            if not isinstance(ended, KeyboardInterrupt):
                warn_user(f"{ended} The posterior is by the rounds before.")
    return state, _joined(simulations)


class _AllFailed(ValueError):
    """All simulations of a round failed."""


def _refuse_useless(tree: xr.DataTree, summaries: np.ndarray) -> None:
    if not np.isfinite(summaries).all(axis=1).any():
        first = tree["simulation_stats"].attrs["first_error"]
        said = f"the first error: {first}" if first else "their data have NaN or infinite numbers"
        raise _AllFailed(f"all {len(summaries)} simulations failed; {said}. Try the simulator with pk.simulate(10).")


def _joined(simulations):
    """Return the simulations of all rounds, one after another, with a coordinate that says which."""
    sizes = [tree["prior"].sizes["draw"] for tree in simulations]
    coords = {"draw": np.arange(sum(sizes)), "round": ("draw", np.repeat(np.arange(len(sizes)), sizes))}
    groups = {}
    for name in ("prior", "prior_predictive"):
        groups[name] = xr.concat([tree[name].to_dataset() for tree in simulations], dim="draw").assign_coords(coords)
    return xr.DataTree.from_dict(groups)


def _stats(state: State, posterior: list[Draws]) -> dict:
    last, checks = state.rounds[-1], {}
    if state.checks is not None:
        calibration = state.checks.calibration
        furthest = np.argmax(np.abs(np.log(calibration.spread)))
        checks = {
            "num_held_out": calibration.num_cases,
            "held_out_shift": calibration.shift[np.argmax(np.abs(calibration.shift))],
            "held_out_spread": calibration.spread[furthest],
            "outside": state.checks.outside,
        }
    positions = [draws.positions for draws in posterior]
    return checks | {
        **learning_errors(Weighted(np.concatenate(positions)), map(Weighted, positions)),
        "num_simulations": len(state.parameters),
        "num_failed": sum(r.num_failed for r in state.rounds),
        "num_rounds": len(state.rounds),
        **{name: getattr(last, name) for name in ("place", "held_out_coverage", "power", "change")},
        "correlation": max(draws.correlation for draws in posterior),
        "log_evidence": ("chain", [draws.log_evidence for draws in posterior]),
    }


def _warn(state: State, stats: xr.Dataset, model: pm.Model) -> None:
    """Give one warning with all reasons to distrust the posterior."""
    last = state.rounds[-1]
    warn_of_failed_pairs(
        int(stats["num_failed"]),
        len(state.parameters),
        " Since the data were observed, their likelihood has the probability of not failing as a factor, which was "
        "learned from how many fail where.",
    )
    slack = _CHANCE * np.sqrt(0.95 * 0.05 / max(last.num_near // 5, 1))  # a fifth is held out
    coverage = last.held_out_coverage
    is_unlikely, is_stuck = last.place < FALSE_ALARMS, bool(stats["correlation"] > _REMEMBERED)
    is_off = not _COVERAGE[0] - slack < coverage < _COVERAGE[1] + slack
    found = {
        f"the data are in a place that posterior draws predict with probability {last.place:.3g}": is_unlikely,
        f"of held-out simulations, {100 * coverage:.0f} % lie in the regions that should hold 95 %": is_off,
        f"the last round simulated where the likelihood has the power {last.power:.2g} only": 0.0 < last.power < 1.0,
        "particles have not forgotten where they were, so weights of modes may be wrong": is_stuck,
    }
    advice = (
        "Take more simulations, or summaries that vary smoothly with the parameters. If the data are nothing like what "
        "the model simulates, check its prior."
    )
    apart = differences(float(stats["learning_error"]))
    words = [words for words, holds in (found | {apart: bool(apart)}).items() if holds]
    if state.checks is not None:
        variables = [model.values_to_rvs[value] for value in model.value_vars]
        words += _words_of(state.checks, coordinate_names(variables, value_shapes(model)))
    report_all(words, advice, stats)


def _words_of(checks: Checks, names: list[str]) -> list[str]:
    """Return the reasons to distrust a posterior that fits to parts of the simulations show."""
    found, calibration = [], checks.calibration
    if checks.outside > LARGE_SHARE:
        found.append(f"{100 * checks.outside:.0f} % of it lie where the last round did not simulate")
    chance = 0.125 * FALSE_ALARMS / len(names)  # two signs of the shift, the spread and both tails
    bound = -ndtri(chance)
    for name, shift, spread in zip(names, calibration.shift, calibration.spread, strict=True):
        if abs(shift) > bound * calibration.shift_error:
            found.append(
                f"of simulations that resemble the data, true values of {name} lie {abs(shift):.2f} posterior standard "
                f"deviations {'above' if shift > 0.0 else 'below'} the means that are learned for them"
            )
        if abs(np.log(spread)) > bound * calibration.log_spread_error:
            found.append(
                f"of simulations that resemble the data, posteriors of {name} are too "
                f"{'narrow' if spread > 1.0 else 'wide'}: true values spread {spread:.2f} times as far as they say"
            )
    # Quantiles show a missed edge, or long tails, that shift and spread do not.
    sides = zip(("below", "above"), ("5 %", "95 %"), calibration.tails, calibration.tail_chance, strict=True)
    for side, level, shares, chances in sides:
        for name, share, probability in zip(names, shares, chances, strict=True):
            if probability < chance:
                found.append(
                    f"of simulations that resemble the data, {100 * share:.1f} % of the true values of {name}, not 5 "
                    f"%, lie {side} the {level} quantile that is learned for them"
                )
    return found
