"""Posteriors from few evaluations of a costly likelihood: the adapter between PyMC and ``rounds.active``."""

from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr
from arviz import from_dict
from pymc.backends.arviz import coords_and_dims_for_inferencedata
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pymc_kernel.likelihood_free import Status
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.findings import warn_of_findings
from pymc_kernel.plugin.model.evaluations import Evaluations
from pymc_kernel.plugin.model.fingerprint import array_fingerprint
from pymc_kernel.plugin.model.groups import constant_groups, observed_group, observed_values
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import ModelPrior, prior_density
from pymc_kernel.plugin.model.unconstrained import constrained_draws
from pymc_kernel.plugin.unknown_arguments import explain_arguments
from pymc_kernel.rounds import ActiveLearning, LogPosterior
from pymc_kernel.rounds.active import State

__all__ = ["sample_surrogate"]

_LARGE_DISTANCE = 0.4  # total variation between joint distributions, from which on a warning is due
_LARGE_MARGINAL_DISTANCE = 0.2  # the same between marginal distributions, mean over the parameters
_STAYS = 3  # batches in a row within the tolerance, after which it stops
_FEW_SUCCEED = 0.5  # share of evaluations with a density, below which a warning is due
_REMEMBERED = 0.5  # correlation of particles with where they were before their last moves


@explain_arguments
def sample_surrogate(
    draws: int = 1000,
    *,
    chains: int = 4,
    evaluations: int = 500,
    batch_size: int | None = None,
    tolerance: float = 0.05,
    start: np.ndarray | None = None,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    timeout: float | None = None,
    return_surrogate: bool = False,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    compile_kwargs: dict | None = None,
) -> xr.DataTree | tuple[xr.DataTree, LogPosterior]:
    """Draw from a posterior whose likelihood is so costly that a few hundred evaluations must do.

    Kernel regression on all values so far is a surrogate of the log likelihood; the prior is known. Each batch goes
    half to draws from the surrogate's posterior and half to where it is least certain. The result are draws from the
    last surrogate, with a statement of how far they are from the posterior. For likelihoods that take a second or
    more, in up to a dozen dimensions; with cheaper ones use :class:`KernelHMC`, which is exact.

    Parameters
    ----------
    draws, chains : int
        Draws from the surrogate, in ``chains`` chains for ArviZ's sake; they are independent particles and cost no
        evaluation.
    evaluations : int
        Of the likelihood, at most. About 50 (d + 2) for d parameters, three times as many where it is noisy.
    batch_size : int, optional
        Evaluations that are proposed together; by default one a parameter, at least four. Take twice the workers.
    tolerance : float
        It stops early once the distance has stayed below this for three batches. Zero: never.
    start : ndarray (n, d), optional
        First places on the unconstrained scale. By default the model's initial point and 2 d + 5 draws of the prior.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: as many worker processes. Or any executor, of threads or processes, Dask's
        ``client.get_executor()``, MPI's. The places of a batch go to whichever worker is free.
    store : str or path, optional
        Directory in which every evaluation is kept as it ends (extra ``store``); a run that was killed goes on with
        them, and a longer one extends it. Needs ``random_seed``.
    timeout : float, optional
        Seconds for one evaluation, which then counts as one without density.
    return_surrogate : bool
        Return the learned log posterior, too: a function of positions (n, d) on the unconstrained scale.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    compile_kwargs : dict, optional
        For the model's functions.

    Returns
    -------
    xarray.DataTree, or with ``return_surrogate`` a tuple of it and a function
        ``posterior``; ``sample_stats``; ``batch_stats``; ``evaluations`` (all places, on the model's scale and as
        ``position`` on the unconstrained one, with ``log_prior``, ``log_likelihood`` and ``status``);
        ``observed_data``, ``constant_data``. Statistics: see Notes.

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
        Where the marginal distance is above 0.2, the joint one above 0.4 or unknown, where the bulk of the posterior
        was still searched for, and where half of the evaluations failed.

    Notes
    -----
    ``distance`` is the total variation distance between the joint distributions of the draws and the posterior,
    estimated from the true and predicted values at the latest draws that were evaluated, before they were learned;
    ``distance_error`` is its standard error, ``effective_share`` that of importance weights. Distances of marginal
    distributions are smaller: ``marginal_distance``, mean over the parameters, is rather too large than too small by
    chance. Both know of the region that was seen. Once the bulk is found, a second search from other starting points
    makes every other batch, until it arrives there too or settles elsewhere; both can miss a mode that is far away.
    Another ``random_seed`` begins elsewhere; where the evidence of two runs differs, trust neither.

    ``log_evidence`` of each chain is the surrogate's. ``batch_stats``: number of ``evaluations`` so far, ``power`` of
    the posterior that was sampled, ``is_climbing``, ``best`` log density and ``error`` (nats) of predictions.

    Values that fail count as places without density. Estimated likelihoods (:func:`EstimatedLikelihood`) are learned
    with their noise, each estimate with a seed of its own: the same seed and batch size give the same evaluations, bit
    for bit, for any executor and any number of workers. Interrupted, it returns draws by the batches that are finished.

    A batch costs O(n r^2) for n values and r <= 1000 of them that carry the surrogate: at n = 500 in eight dimensions
    all batches together take some ten seconds. Memory O(n r).

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_surrogate(evaluations=60, random_seed=1, progressbar=False)
    >>> bool(idata["sample_stats"]["distance"] < 0.2)
    True
    """
    model = pm.modelcontext(model)
    check_whole(draws=draws, chains=chains, evaluations=evaluations, batch_size=batch_size)
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("store needs a whole number as random_seed: a run that goes on must propose the same places.")
    for name, value, least in (("tolerance", tolerance, 0.0), ("timeout", timeout, 1e-9)):
        if not ((name == "timeout" and value is None) or (np.isscalar(value) and least <= value < np.inf)):
            raise ValueError(f"{name} must be a finite number, not below zero, got {value!r}.")
    if not (
        executor is None or hasattr(executor, "submit") or (isinstance(executor, int | np.integer) and executor > 0)
    ):
        raise TypeError(
            "executor must be None, a number of processes, or have the methods of concurrent.futures.Executor "
            f"(for Dask: client.get_executor()); got {executor!r}."
        )  # fmt: skip
    entropy = int(np.random.default_rng(random_seed).integers(2**63))
    rng = np.random.default_rng(entropy)
    density = compile_particle_density(model, "sample_surrogate", compile_kwargs, vectorize=False)
    prior = _prior(model)
    start = _start(model, prior, start, rng)
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
    try:
        state = _run(config, rng, prior, start, evaluate, evaluations, tolerance, progressbar)
    finally:
        evaluate.close()
    _refuse_useless(state, evaluate.first_error)
    found = [config.sample(rng, state, draws) for _ in range(chains)]
    tree = _tree(model, config, state, found, (chains, draws), evaluate.status(len(state.positions)))
    _warn(state, tree["sample_stats"], evaluate.first_error)
    return (tree, state.learned) if return_surrogate else tree


class _JitteredStart:
    """A prior that has no draws: places around the model's initial point, as PyMC begins its chains."""

    def __init__(self, model):
        self._center = _initial_position(model)
        self.log_density = prior_density(model)

    def draw(self, rng, size):
        return self._center + rng.uniform(-1.0, 1.0, (size, self._center.size))


def _prior(model):
    try:
        return ModelPrior(model)
    except ValueError:  # pm.Flat and its like
        return _JitteredStart(model)


def _initial_position(model):
    point = model.initial_point(random_seed=0)
    return np.concatenate([np.ravel(point[v.name]).astype(float) for v in model.value_vars])


def _start(model, prior, start, rng):
    """Return the first places (n, d) to be evaluated."""
    initial = _initial_position(model)
    if start is None:
        return np.concatenate([initial[None], prior.draw(rng, 2 * initial.size + 5)])
    start = np.array(start, dtype=float)
    if start.ndim != 2 or start.shape[1] != initial.size or not np.isfinite(start).all():
        raise ValueError(
            f"start must be finite, of shape (n, {initial.size}): places by coordinates on the unconstrained scale; "
            f"got shape {start.shape}."
        )
    return start


def _run(
    config: ActiveLearning, rng, prior, start, evaluate: Callable, most: int, tolerance: float, progressbar: bool
) -> State:
    """Return the state after the last batch; interrupted, after the last that is whole."""
    state, within = config.init(prior, start), 0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, disable=not progressbar) as progress:
        task = progress.add_task("Searching", total=most)
        try:
            while True:
                number = len(state.positions)
                wanted = state.proposed[: most - number]
                values = evaluate(number, wanted, lambda: progress.advance(task))
                state = config.update(rng, state, values)
                distance = config.distance(state)
                known = not (state.is_climbing or np.isnan(distance.total_variation))
                progress.update(task, description=f"Distance {distance.total_variation:.2f}" if known else "Searching")
                within = within + 1 if known and distance.total_variation < tolerance else 0
                state = config.propose(rng, state)  # says whether the last surrogate still climbs, too
                if len(state.positions) >= most or within >= _STAYS:
                    return state
        except KeyboardInterrupt:
            if state.learned is None:
                raise
            return state


def _refuse_useless(state: State, first_error: str | None) -> None:
    if state.learned is None:
        said = f"the first error: {first_error}" if first_error else "the likelihood may be zero there"
        raise ValueError(
            f"only {int(np.isfinite(state.log_density).sum())} of {len(state.positions)} evaluations have a finite log "
            f"density, or all lie in one place, so nothing can be learned; {said}. Give start= near the data."
        )


def _tree(model, config, state, found, shape, status):
    coords, dims = coords_and_dims_for_inferencedata(model)
    positions = np.concatenate([part.positions[: shape[1]] for part in found])
    values = {name: v.reshape(*shape, *v.shape[1:]) for name, v in constrained_draws(model, positions).items()}
    distance = config.distance(state)
    stats = {
        "distance": distance.total_variation,
        "distance_error": distance.error,
        "marginal_distance": distance.marginal,
        statistics.EFFECTIVE_SHARE: distance.effective_share,
        "num_fresh_draws": distance.num_draws,
        "num_evaluations": len(state.positions),
        statistics.NUM_FAILED: int((~np.isfinite(state.log_likelihood)).sum()),
        "is_climbing": state.is_climbing,
        statistics.CORRELATION: max(part.correlation for part in found),
        statistics.LOG_EVIDENCE: ("chain", [part.log_evidence for part in found]),
    }
    batches = {
        name: ("batch", np.array([getattr(b, name) for b in state.batches]))
        for name in ("num_evaluations", "power", "is_climbing", "best", "error")
    }
    return xr.DataTree.from_dict(
        {
            "posterior": from_dict({"posterior": values}, coords=coords, dims=dims)["posterior"].to_dataset(),
            "sample_stats": xr.Dataset(stats, coords={"chain": np.arange(shape[0])}),
            "batch_stats": xr.Dataset(batches, coords={"batch": np.arange(len(state.batches))}),
            "evaluations": _evaluated(model, state, status, coords, dims),
            "observed_data": observed_group(observed_values(model, None), coords, dims),
            **constant_groups(model, coords, dims),
        }
    )


def _evaluated(model, state, status, coords, dims):
    """Return all places with their values."""
    values = {name: v[None] for name, v in constrained_draws(model, state.positions).items()}
    points = from_dict({"posterior": values}, coords=coords, dims=dims)["posterior"].to_dataset()
    points = points.isel(chain=0, drop=True).rename(draw="evaluation")
    more = {
        "position": (("evaluation", "coordinate"), state.positions),
        "log_prior": ("evaluation", state.log_prior),
        "log_likelihood": ("evaluation", state.log_likelihood),
        "status": ("evaluation", status),
    }
    dataset = points.assign(more)
    dataset["status"].attrs = {
        "flag_values": [int(s) for s in Status],
        "flag_meanings": " ".join(s.name.lower() for s in Status),
    }
    return dataset


def _warn(state: State, stats, first_error: str | None) -> None:
    """Warn once of all that speaks against the draws."""
    distance, marginal = float(stats["distance"]), float(stats["marginal_distance"])
    failed = int(stats[statistics.NUM_FAILED]) / len(state.positions)
    first = f" (the first error: {first_error})" if first_error else ""
    found = {
        "the bulk of the posterior was still searched for": bool(stats["is_climbing"]),
        "too few of its draws were evaluated to say how far it is from the posterior": bool(np.isnan(distance)),
        f"it is a total variation distance of {distance:.2f} from the posterior, {marginal:.2f} in its margins": (
            distance > _LARGE_DISTANCE or marginal > _LARGE_MARGINAL_DISTANCE
        ),
        f"{100 * failed:.0f} % of the evaluations have no density{first}": failed > _FEW_SUCCEED,
        "particles have not forgotten where they were, so weights of modes may be wrong": (
            float(stats[statistics.CORRELATION]) > _REMEMBERED
        ),
    }
    advice = "Take more evaluations, or start= near the posterior."
    warn_of_findings([words for words, holds in found.items() if holds], advice, stacklevel=4)
