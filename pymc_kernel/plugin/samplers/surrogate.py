"""Posteriors from few evaluations of a costly likelihood: the adapter between PyMC and ``rounds.active``."""

from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, run_convergence_checks

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.likelihood_free import Status, WorkersLost
from pymc_kernel.likelihood_free.interrupts import interrupts_wait
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import is_missing_mass
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed, check_executor, check_timeout, check_whole, explain_arguments
from pymc_kernel.plugin.emulation.emulate import TOLERANCE, learn, part_of
from pymc_kernel.plugin.emulation.exact_step import TARGET_ACCEPT, EmulatedNUTS
from pymc_kernel.plugin.model.evaluations import Evaluations
from pymc_kernel.plugin.model.fingerprint import array_fingerprint
from pymc_kernel.plugin.model.groups import data_groups, draws_group, observed_values
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import STARTS_TRIED, ModelPrior, first_places, initial_position
from pymc_kernel.plugin.model.unconstrained import coordinate_names, value_shapes
from pymc_kernel.plugin.progress import STUCK_AFTER, progress_bar
from pymc_kernel.plugin.samplers.chain_warnings import ends_in_words
from pymc_kernel.plugin.samplers.given_surrogate import (
    FREE_VARIABLES,
    RADIUS,
    ExactDraws,
    GivenSurrogate,
    Trace,
    run_exact,
    transition_state,
)
from pymc_kernel.plugin.warn import counts_of, report_all, says_what_evidence_lacks, warn_of_failures, warn_user
from pymc_kernel.rounds import ActiveLearning, LogPosterior
from pymc_kernel.rounds.learned_posterior import SearchState

_STAYS = 3  # batches in a row within the tolerance, after which it stops
_FEW_SUCCEED = 0.5  # share of evaluations with a density, below which a warning is due
_REMEMBERED = 0.5  # correlation of particles with where they were before their last moves


@explain_arguments
@says_what_evidence_lacks
def sample_surrogate(
    draws: int = 1000,
    *,
    chains: int = 4,
    evaluations: int = 500,
    batch_size: int | None = None,
    tolerance: float = TOLERANCE,
    start: Any = None,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    timeout: float | None = None,
    exact: bool = False,
    return_fitted: bool = False,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    compile_kwargs: dict | None = None,
) -> xr.DataTree | tuple[xr.DataTree, LogPosterior]:
    """Draw from a posterior whose likelihood is so costly that a few hundred evaluations must do.

    Kernel regression on all values so far is a surrogate of the log likelihood; the prior is known. Each batch goes
    half to draws from the surrogate's posterior and half to where it is least certain. The result are draws from the
    last surrogate, with a statement of how far they are from the posterior; or, on request, of exact chains that move
    along the surrogate. For likelihoods that take a second or more, in up to a dozen dimensions; with cheaper ones use
    :class:`KernelHMC`.

    Parameters
    ----------
    draws, chains : int
        Draws from the surrogate, in ``chains`` chains for ArviZ's sake; they are independent particles and cost no
        evaluation. With ``exact`` they are Markov chains, and a draw costs one evaluation.
    evaluations : int
        Of the likelihood, at most, besides those of exact draws. About 50 (d + 2) for d parameters, three times as many
        where it is noisy.
    batch_size : int, optional
        Evaluations that are proposed together; by default one a parameter, at least four. Take twice the workers.
    tolerance : float
        It stops early once the distance has stayed below this for three batches, a second search, from other starts,
        has ended, and the density falls beyond the ends of the draws. Zero: never.
    start : mapping, sequence of mappings, DataTree or ndarray (n, d), optional
        First places: values by the names of variables, as in PyMC's ``initvals`` or from ``pm.find_MAP``, which others
        around it are added to; or draws of the model; or an array on the unconstrained scale. By default the model's
        initial point and 2 d + 5 draws of the prior; of a variable without draws, as ``pm.Flat``, PyMC's initial value,
        jittered.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: as many worker processes. Or any executor, of threads or processes, Dask's
        ``client.get_executor()``, MPI's. The places of a batch go to whichever worker is free.
    store : str or path, optional
        Directory in which every evaluation is kept as it ends (extra ``store``); a run that was killed goes on with
        them, and a longer one extends it; the best one is evaluated again, to see that the likelihood is the same.
        Needs ``random_seed``.
    timeout : float, optional
        Seconds for one evaluation, which then counts as one without density; the first one of each worker, which
        compiles, has two minutes more. In threads only a likelihood that comes back to Python can be ended.
    exact : bool
        Whether the draws are corrected: each chain moves along the surrogate, as :class:`KernelHMC` does, and its
        proposals are accepted by the likelihood itself. ``chains`` workers are busy then.
    return_fitted : bool
        Return the learned log posterior, too: a function of positions (n, d) on the unconstrained scale.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    compile_kwargs : dict, optional
        For the model's functions.

    Returns
    -------
    xarray.DataTree, or with ``return_fitted`` a tuple of it and a function
        ``posterior``; ``sample_stats``; ``batch_stats``; ``evaluations`` (all places, on the model's scale and as
        ``position`` on the unconstrained one, with ``log_prior``, ``log_likelihood`` and ``status``; attributes
        count them, with the first error and how often a worker process died); ``observed_data``, ``constant_data``.
        Statistics: see Notes. With ``exact`` the surrogate's own draws are in
        ``surrogate_posterior``.

    Raises
    ------
    TypeError
        For discrete variables.
    ValueError
        For settings out of range, fewer than 2 d + 6 evaluations, and where so few have a density that nothing can be
        learned; the text has the first error.

    Warns
    -----
    UserWarning
        Where the distance is above the tolerance (above 0.05, if that is smaller) by more than its error, or is
        unknown, where the bulk of the posterior was still searched for, where the density hardly falls beyond the ends
        of the draws, and where half of the evaluations failed.
        Exact draws have the checks of ``pm.sample`` and of :class:`KernelHMC`, and not those of the distances. Where an
        executor breaks; and where the run ended before the first exact draw, which leaves the draws of the surrogate.

    Notes
    -----
    ``distance`` is the total variation distance between the joint distributions of the draws and the posterior,
    estimated from the true and predicted values at the latest draws that were evaluated, before they were learned, and
    at least the mass of the returned draws that none of those stands for; ``distance_error`` is its standard error (of
    noisy values, how far it may be too large by chance), zero where that mass decides; ``effective_share`` that of
    importance weights. Distances of marginal distributions are smaller. It knows of the region that was seen. Once the
    bulk is found, a second search from other starting points makes every other batch, until it arrives there too or
    settles elsewhere; both can miss a mode that is far away. Another ``random_seed`` begins elsewhere; where the
    evidence of two runs differs, trust neither. Half of the particles begin at draws of the prior (not with
    ``pm.Flat``), so that the neck of a hierarchy has its share. On a long ridge a surrogate can end where it was
    learned. So with 60 evaluations a parameter or more (240 from four on) some of its last ones are draws that are
    shifted outward, beyond the ends of up to four coordinates: where the density hardly falls there, it goes on; at its
    last evaluation it warns.

    |unseen mode|

    ``log_evidence`` of each chain is the surrogate's; of estimated likelihoods with half the variance of the noise, by
    which the mean of logs of unbiased estimates is too low. ``batch_stats``: ``num_evaluations`` so far, ``power`` of
    the posterior that was sampled, ``is_climbing``, ``best`` log density and ``error`` (nats) of predictions.

    Values that fail count as places without density. Draws are no nearer to such a place than to one with a density, so
    that a posterior can end at a wall. Estimated likelihoods (:func:`EstimatedLikelihood`) are learned
    with their noise, each estimate with a seed of its own: the same seed and batch size give the same evaluations, bit
    for bit, for any executor and any number of workers. Interrupted, or with an executor that breaks, it returns draws
    by the batches that are finished.

    Exact draws: ``sample_stats`` has the statistics of :class:`KernelHMC` for each. With a distance of .05 nine of ten
    proposals along the surrogate are accepted, and draws are nearly independent; with a distance of .3 some half of
    them. An estimated likelihood is kept where it is accepted (pseudo-marginal), so that draws have the exact spread;
    noise of standard deviation 1 takes acceptance to a half, of 2 to a sixth. All chains are evaluated together, each
    time the slowest is waited for. From a stored result exact draws come later, too: ``pm.sample(tune=0,
    step=pk.KernelHMC(surrogate=idata))``.

    Where a black box is a part of the model only, whose outputs go into a likelihood that PyMC knows, and has at most
    half as many inputs as the model has parameters, that part is learned, as :func:`emulate` does, and the draws are
    those of PyMC's NUTS with its statistics; ``distance``, ``effective_share``, ``num_evaluations`` and ``num_failed``
    beside them. There is no evidence then, and ``evaluations`` has ``position`` and ``log_density``. With ``exact`` it
    is :class:`EmulatedNUTS`.

    A batch costs O(n r^2) for n values and r <= 1000 of them that carry the surrogate: at n = 500 in eight dimensions
    all batches together take 15 to 40 seconds. Memory O(n r).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     y = pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_surrogate(evaluations=60, random_seed=1, progressbar=False)
    >>> bool(idata["sample_stats"]["distance"] < 0.2)
    True
    """
    model = pm.modelcontext(model)
    check_whole("batch_size", draws=draws, chains=chains, evaluations=evaluations, batch_size=batch_size)
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("store needs a whole number as random_seed: a run that goes on must propose the same places.")
    if not (isinstance(tolerance, int | float | np.number) and 0.0 <= tolerance < np.inf):
        raise ValueError(f"tolerance must be a finite number, not below zero, got {tolerance!r}.")
    check_timeout(timeout)
    check_executor(executor)
    entropy = int(np.random.default_rng(random_seed).integers(2**63))
    if not return_fitted and (search := part_of(model, tolerance, np.random.default_rng([entropy, 1]))) is not None:
        settings = {"executor": executor, "store": store, "timeout": timeout, "random_seed": random_seed}
        first_error = learn(search, evaluations, batch_size, start, progressbar=progressbar, **settings)
        return _by_part(search, first_error, (chains, draws), exact, entropy, progressbar)
    rng = np.random.default_rng(entropy)
    density = compile_particle_density(model, "sample_surrogate", compile_kwargs, vectorize=False)
    prior = ModelPrior(model)
    is_from_prior = start is None
    start = first_places(model, prior, start, 2 * initial_position(model).size + 5, rng)
    fewest = max(len(start), 2 * start.shape[1] + 6)
    if evaluations < fewest:
        raise ValueError(
            f"evaluations must be at least {fewest}: the start and what a first surrogate needs; for a posterior of "
            f"{start.shape[1]} parameters take about {50 * (start.shape[1] + 2)}."
        )
    identity = {"seed": str(random_seed), "data": array_fingerprint(list(observed_values(model, None).values()))}
    path = None if store is None else Path(store)
    evaluate = Evaluations(density, evaluations, entropy, executor, path, timeout, identity, start.shape[1])
    config = ActiveLearning(batch_size, noisy=bool(density.estimated))
    with interrupts_wait, closing(evaluate):
        state = config.init(prior, start, is_from_prior)
        state, is_whole = _run(config, rng, state, evaluate, evaluations, tolerance, progressbar)
        evaluate.close()
        _refuse_useless(state, evaluate.first_error)
        found = [config.sample(rng, state, draws) for _ in range(chains)]
        status = evaluate.status(len(state.positions))
        drawn, trace, first_error, deaths = None, None, evaluate.first_error, evaluate.deaths
        if exact and is_whole:
            most = chains * (draws + STARTS_TRIED)
            own = None if path is None else path / f"exact_{len(status)}_{chains}"
            settings = executor, own, timeout, identity, start.shape[1]
            with closing(Evaluations(density, most, int(rng.integers(2**63)), *settings)) as evaluate_exactly:
                drawn, trace = _exact(rng, state, found, evaluate_exactly, (chains, draws), config.noisy, progressbar)
            first_error, deaths = first_error or evaluate_exactly.first_error, deaths + evaluate_exactly.deaths
            status = np.concatenate([status, evaluate_exactly.status(len(trace.evaluated()[0]))])
        if exact and drawn is None:
            warn_user(
                "the run ended before the first exact draw: the draws are the surrogate's, not exact ones. Once the "
                "cause is mended, pm.sample(tune=0, step=pk.KernelHMC(surrogate=idata)) makes exact ones."
                + (f" The first error of an evaluation: {first_error}" if first_error else "")
            )
        tree = _tree(model, config, state, found, (chains, draws), status, drawn, trace)
        counts = counts_of(status, first_error, deaths)
        tree["evaluations"].attrs |= counts
        warn_of_failures("evaluations", "they count as places without density", counts, most=1.0)
        _warn(model, state, tree, drawn, max(tolerance, TOLERANCE), first_error)
        if drawn is not None:
            log_warnings(run_convergence_checks(tree, model))
        return (tree, state.learned) if return_fitted else tree


def _by_part(search, first_error, shape, exact, entropy, progressbar) -> xr.DataTree:
    """Return draws by NUTS on a model whose black boxes have been learned, or exact ones along it."""
    emulated = search.result(first_error)
    if not exact:
        search.warn(first_error)
    seeds = [int(s) for s in np.random.default_rng([entropy, 2]).integers(2**30, size=shape[0])]
    with search.model if exact else emulated:
        moves = {"step": EmulatedNUTS(emulated)} if exact else {"target_accept": TARGET_ACCEPT}
        tree = pm.sample(shape[1], chains=shape[0], random_seed=seeds, progressbar=progressbar, **moves)
    known = emulated.emulation
    for name in ("distance", statistics.EFFECTIVE_SHARE, "num_evaluations", statistics.NUM_FAILED):
        tree["sample_stats"][name] = getattr(known, name)
    places = {
        "position": (("evaluation", "coordinate"), known.positions),
        "log_density": ("evaluation", known.log_density),
    }
    tree["evaluations"] = xr.DataTree(xr.Dataset(places, attrs={"first_error": str(first_error or "")}))
    return tree


def _run(
    config: ActiveLearning, rng, state: SearchState, evaluate: Callable, most: int, tolerance: float, progressbar: bool
) -> tuple[SearchState, bool]:
    """Return the state after the last batch, and whether it was not interrupted."""
    beyond = config.num_beyond_ends(state.positions.shape[1], most)
    limit, within = most - beyond, 0
    if not beyond:
        state = state._replace(open_ends=())  # too few evaluations to look beyond any
    with progress_bar("Searching", most, progressbar) as advance:
        try:
            while True:
                number = len(state.positions)
                wanted = state.proposed[: limit - number]
                values = evaluate(number, wanted, advance)
                state = config.update(rng, state, values)
                distance = config.distance(state)
                known = not (state.is_climbing or np.isnan(distance.total_variation))
                advance(0, f"Distance {distance.total_variation:.2f}" if known else "Searching")
                within = within + 1 if known and distance.total_variation < tolerance else 0
                state = config.propose(rng, state)  # says whether the last surrogate still climbs, too
                number = len(state.positions)
                if number == most:
                    return state, True
                if state.is_climbing and number >= limit:
                    limit = most  # a bulk that is not found has no ends
                    continue
                is_last = number >= most - beyond
                is_found = within >= _STAYS and config.has_searched_twice(state)
                if not is_last and not is_found:
                    continue
                last = config.sample(rng, state, 1, tries=1)
                if not is_last and config.unjudged_mass(state, last) > tolerance:
                    state, within = config.propose(rng, config.adopt(state, last)), 0
                    continue
                if beyond:
                    state = config.beyond_ends(rng, state, last, min(beyond, most - number))
                    state = config.update(rng, state, evaluate(number, state.proposed[: most - number], advance))
                if is_last or not state.open_ends:
                    return state, True
                state, within = config.propose(rng, state), 0
                limit = max(limit, min(len(state.positions) + len(state.proposed), most))
        except (KeyboardInterrupt, WorkersLost) as ended:
            if state.learned is None:
                raise
            if isinstance(ended, WorkersLost):
                warn_user(f"{ended} The draws are by the batches that are finished.")
            return state, False


def _exact(rng, state, found, evaluate, shape, noisy, progressbar) -> tuple[ExactDraws | None, Trace]:
    """Return exact draws of chains along the last surrogate, None where there are none, and what was evaluated."""
    own = np.concatenate([part.positions for part in found])
    learned = replace(state.learned, power=1.0, is_careful=True)
    config = kernel_hmc.Config(noisy=noisy)
    first = transition_state(GivenSurrogate(learned, own), config)
    trace = Trace(lambda number, places: evaluate(number, places, lambda: None), state.prior.log_density, own.shape[1])
    with progress_bar("Exact draws", shape[0] * shape[1], progressbar) as advance:
        try:
            return run_exact(rng, first, own, trace, shape, advance), trace
        except KeyboardInterrupt:
            return None, trace
        except (WorkersLost, NonFiniteStartError) as ended:
            warn_user(str(ended))
            return None, trace


def _tree(model, config, state, found, shape, status, drawn, trace) -> xr.DataTree:
    """Return all groups of a result: with exact draws, if there are any, and all that was evaluated for them."""
    surrogate_draws = draws_group(model, np.stack([part.positions[: shape[1]] for part in found]))
    positions, log_prior, log_likelihood = state.positions, state.log_prior, state.log_likelihood
    if trace is not None:
        known = positions, log_prior, log_likelihood
        positions, log_prior, log_likelihood = map(np.concatenate, zip(known, trace.evaluated(), strict=True))
    distance = config.distance(state, *found)
    stats = {
        "distance": distance.total_variation,
        "distance_error": distance.error,
        statistics.EFFECTIVE_SHARE: distance.effective_share,
        "num_fresh_draws": distance.num_draws,
        "num_evaluations": len(positions),
        statistics.NUM_FAILED: int((~np.isfinite(log_likelihood)).sum()),
        "is_climbing": state.is_climbing,
        statistics.CORRELATION: max(part.correlation for part in found),
        statistics.LOG_EVIDENCE: ("chain", [part.log_evidence + _noise_bias(config, state) for part in found]),
    }
    batches = {
        name: ("batch", np.array([getattr(b, name) for b in state.batches]))
        for name in ("num_evaluations", "power", "is_climbing", "best", "error")
    }
    stats = xr.Dataset(stats, coords={"chain": np.arange(shape[0])})
    if drawn is not None:
        each = {name: (("chain", "draw"), v) for name, v in drawn.statistics.items()}
        stats = stats.assign(each).assign_coords(draw=np.arange(drawn.positions.shape[1]))
    evaluated = _evaluated(model, (positions, log_prior, log_likelihood, status))
    evaluated.attrs |= {FREE_VARIABLES: [v.name for v in model.free_RVs], RADIUS: state.radius}
    return xr.DataTree.from_dict(
        {
            "posterior": surrogate_draws if drawn is None else draws_group(model, drawn.positions),
            "sample_stats": stats,
            **({} if drawn is None else {"surrogate_posterior": surrogate_draws}),
            "batch_stats": xr.Dataset(batches, coords={"batch": np.arange(len(state.batches))}),
            "evaluations": evaluated,
            **data_groups(model),
        }
    )


def _noise_bias(config, state):
    """Return how far the mean of logs of unbiased estimates lies below the log of their mean, were they log-normal."""
    noise = state.learned.unit * state.learned.fit.noise_sd if config.noisy else 0.0
    return 0.5 * float(noise) ** 2


def _evaluated(model, columns):
    """Return all places with their values."""
    positions, log_prior, log_likelihood, status = columns
    points = draws_group(model, positions[None]).isel(chain=0, drop=True).rename(draw="evaluation")
    more = {
        "position": (("evaluation", "coordinate"), positions),
        "log_prior": ("evaluation", log_prior),
        "log_likelihood": ("evaluation", log_likelihood),
        "status": ("evaluation", status),
    }
    dataset = points.assign(more)
    dataset["status"].attrs = {
        "flag_values": [int(s) for s in Status],
        "flag_meanings": " ".join(s.name.lower() for s in Status),
    }
    return dataset


def _refuse_useless(state: SearchState, first_error: str | None) -> None:
    if state.learned is None:
        said = f"the first error: {first_error}" if first_error else "the likelihood may be zero there"
        raise ValueError(
            f"only {int(np.isfinite(state.log_density).sum())} of {len(state.positions)} evaluations have a finite log "
            f"density, or all lie in one place, so nothing can be learned; {said}. Give start= near the data."
        )


def _warn(
    model: pm.Model,
    state: SearchState,
    tree: xr.DataTree,
    drawn: ExactDraws | None,
    near: float,
    first_error: str | None,
) -> None:
    """Warn once of all that speaks against the draws."""
    stats = tree["sample_stats"]
    failed = int(stats[statistics.NUM_FAILED]) / int(stats["num_evaluations"])
    first = f" (the first error: {first_error})" if first_error else ""
    found = {
        "the bulk of the posterior was still searched for": bool(stats["is_climbing"]),
        f"{100 * failed:.0f} % of the evaluations have no density{first}": failed > _FEW_SUCCEED,
    }
    if drawn is None:
        found |= _of_surrogate_draws(stats, near)
        found["whether the density goes on where the draws end was not looked at"] = (
            state.open_ends is None and not stats["is_climbing"]
        )
        if state.open_ends:
            names = coordinate_names(model.value_vars, value_shapes(model))
            found[ends_in_words(state.open_ends, names)] = True
    else:
        found |= {
            "a part of it is likely to be missing from the draws, where the surrogate is far too low": is_missing_mass(
                drawn.coverage
            ),
            f"a chain has rejected {STUCK_AFTER} proposals in a row, at an estimate that is too high or where the "
            "surrogate is far too low": int(drawn.statistics["stuck_for"].max()) >= STUCK_AFTER,
        }
    advice = "Take more evaluations, or start= near the posterior."
    report_all([words for words, holds in found.items() if holds], advice, stats)


def _of_surrogate_draws(stats, near):
    distance, error = float(stats["distance"]), float(stats["distance_error"])
    return {
        "too few of its draws were evaluated to say how far it is from the posterior": bool(np.isnan(distance)),
        f"it is a total variation distance of {distance:.2f} ± {error:.2f} from the posterior": distance - error > near,
        "particles have not forgotten where they were, so weights of modes may be wrong": (
            float(stats[statistics.CORRELATION]) > _REMEMBERED
        ),
    }
