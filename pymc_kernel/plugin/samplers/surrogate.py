"""Posteriors from few evaluations of a costly likelihood: the costly part is learned, and PyMC's NUTS samples."""

from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import xarray as xr
from pymc.stats.convergence import log_warnings, run_convergence_checks

from pymc_kernel.mcmc.kernel_hmc import TUNE
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.emulation.emulate import TOLERANCE, check_search, learn, search_of
from pymc_kernel.plugin.emulation.exact_step import TARGET_ACCEPT, EmulatedNUTS
from pymc_kernel.plugin.model.unconstrained import constrained_draws, data_groups, draws_group
from pymc_kernel.plugin.warn import STATUS_FLAGS, report

_RESERVED = {"evaluation", "coordinate", "position", "log_density", "status"}


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
) -> xr.DataTree | tuple[xr.DataTree, pm.Model]:
    """Draw from a posterior whose likelihood is so costly that only a few hundred evaluations are affordable.

    Only the costly part is learned: black boxes as functions of their own inputs, as in :func:`emulate`; if a model has
    none, its log likelihood as a function of all parameters, at most fifteen. Rounds of PyMC's NUTS on the emulated
    model decide where to evaluate next. The result is NUTS draws with an estimate of their distance from the posterior,
    or exact draws on request. For likelihoods that take a second or more; for cheaper ones use :func:`sample_khmc`.

    Parameters
    ----------
    draws, chains : int
        Draws by NUTS, or by particles (see Notes), cost no evaluation. With ``exact`` each draw costs one.
    evaluations : int
        Largest number of evaluations of the model, besides those of exact draws. If all of the likelihood is learned,
        take about 50 (d + 2) for d parameters, or three times as many if it is noisy.
    batch_size : int, optional
        Evaluations that are proposed together, besides those that explore; see :func:`emulate`.
    tolerance : float
        Stop early once the distance is known to be below this. Zero: never.
    start : mapping, sequence of mappings, DataTree or ndarray (n, d), optional
        First places, as in :func:`emulate`.
    executor : concurrent.futures.Executor or int, optional
        None: in this process. A number: that many worker processes. Or any executor, of threads or processes, Dask's
        ``client.get_executor()``, MPI's. The places of a batch go to whichever worker is free.
    store : str or path, optional
        Directory in which each evaluation is saved as it finishes (extra ``store``): a killed run resumes from it, and
        a longer run with as many first places extends it. The best place is evaluated again to check that the
        likelihood is the same. Needs ``random_seed``.
    timeout : float, optional
        Seconds for one evaluation, which then counts as one without density; the first one of each worker, which
        compiles, has two minutes more. In threads only a likelihood that returns to Python can be stopped.
    exact : bool
        Whether to correct the draws: NUTS on the emulated model proposes, and the true model accepts or rejects.
    return_fitted : bool
        Also return the emulated model: that of :func:`emulate`, or one with a potential in place of the data.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool
    compile_kwargs : dict, optional
        For the function of a log likelihood that is learned as a whole.

    Returns
    -------
    xarray.DataTree, or with ``return_fitted`` a tuple of it and a pymc.Model
        ``posterior`` and ``sample_stats`` as from ``pm.sample``, without deterministic variables that call a black box
        if all of the likelihood is learned, and without statistics of NUTS if particles draw (see Notes);
        ``evaluations`` (free variables, ``position`` on the unconstrained scale, ``log_density``, ``status``;
        attributes hold counts, the first error and how often a worker process died); ``round_stats``;
        ``observed_data``, ``constant_data``.

    Raises
    ------
    TypeError
        For discrete variables.
    ValueError
        For settings out of range; where a log likelihood that is learned as a whole has more than fifteen parameters;
        and where too few evaluations have a density to learn from; the message has the first error.

    Notes
    -----
    It warns as :func:`emulate` and ``pm.sample`` do.

    Besides the statistics of NUTS, ``sample_stats`` has ``distance``, the total variation distance between the joint
    distributions of the draws and the posterior, and ``effective_share``, that of importance weights, both as in
    :class:`Emulation`; ``num_evaluations`` and ``num_failed``. Distances of marginal distributions are smaller. Neither
    statistic covers more than the region that was evaluated, so both can miss a distant mode; another ``random_seed``
    begins elsewhere. ``round_stats`` has the same after each round.

    If NUTS chains stay in separate modes, tempered particles, which weigh modes, draw instead: an independent
    population for each chain. Exact draws still come from NUTS.

    Evaluations that fail count as places without density. No draw is nearer to such a place than to one with a density,
    so a posterior can have an edge. Estimated likelihoods (:func:`EstimatedLikelihood`) are learned with their noise,
    from two estimates at each place. The same seed and batch size give the same evaluations, bit for bit, for any
    executor and any number of workers. If it is interrupted, or the executor breaks, it returns draws from the finished
    rounds.

    Exact draws are those of :class:`EmulatedNUTS`. A store can give them later, too: call it with the same arguments
    and ``exact=True``. At first, three to six more evaluations in this process show the structure of the model.

    The statistics do not include the evidence: if the emulated posterior is close, use :func:`sample_smc` on the
    emulated model.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    ...     y = pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_surrogate(evaluations=100, random_seed=1, progressbar=False)
    >>> bool(idata["sample_stats"]["distance"] < 0.1)
    True
    """
    model = pm.modelcontext(model)
    check_whole(draws=draws, chains=chains)
    check_search(evaluations, batch_size, tolerance, executor, store, timeout, random_seed)
    if taken := _RESERVED & {*model.dim_lengths, *model.named_vars}:
        raise ValueError(f"the group evaluations has names of its own: rename {', '.join(sorted(taken))} in the model.")
    entropy = int(np.random.default_rng(random_seed).integers(2**63))
    search, is_whole = search_of(model, tolerance, np.random.default_rng([entropy, 1]), compile_kwargs)
    settings = {"executor": executor, "store": store, "timeout": timeout, "random_seed": random_seed, "data_of": model}
    counts, status = learn(search, evaluations, batch_size, start, progressbar=progressbar, **settings)
    emulated = search.result()
    seeds = [int(s) for s in np.random.default_rng([entropy, 2]).integers(2**30, size=chains)]
    if search.best_is_by_particles and not exact:
        tree = _weighed(search, emulated, chains, draws)
    else:
        with search.model if exact else emulated:
            step = EmulatedNUTS(emulated) if exact else search.chains.nuts(emulated, TARGET_ACCEPT)
            starts = None if exact else starts_of(emulated, chains, np.random.default_rng([entropy, 3]))
            settings = {"tune": TUNE, "chains": chains, "random_seed": seeds, "progressbar": progressbar}
            tree = pm.sample(draws, step=step, initvals=starts, **settings)
    _add_groups(tree, model, emulated, counts, status)
    if is_whole:
        for name, group in data_groups(model).items():
            tree[name] = xr.DataTree(group)
    if not exact and (problem := search.problem()):
        report(problem, tree["sample_stats"])
    return (tree, emulated) if return_fitted else tree


def _weighed(search, emulated, chains, draws) -> xr.DataTree:
    """Return draws of the emulated model by particles, a population for each chain."""
    positions, _ = search.particles.draw(chains, draws)
    lp = np.apply_along_axis(search.chains.log_density, 2, positions)
    groups = {"posterior": draws_group(emulated, positions), **data_groups(emulated)}
    groups["sample_stats"] = xr.Dataset({"lp": (("chain", "draw"), lp)})
    tree = xr.DataTree.from_dict(groups)
    log_warnings(run_convergence_checks(tree, emulated))
    return tree


def starts_of(emulated: pm.Model, chains: int, rng: np.random.Generator) -> list[dict]:
    """Return a start for each chain: a draw of the emulated posterior, as elsewhere nothing may have been learned."""
    known = emulated.emulation.draws
    return initvals_at(emulated, known[rng.choice(len(known), chains, replace=len(known) < chains)])


def initvals_at(model: pm.Model, positions: np.ndarray) -> list[dict]:
    """Return the values of the free variables at positions (n, d), as ``pm.sample(initvals=)`` takes them."""
    # On the constrained scale: PyMC takes no unconstrained value where a bound is a random variable.
    values = constrained_draws(model, positions, [v.name for v in model.free_RVs])
    return [{name: drawn[i] for name, drawn in values.items()} for i in range(len(positions))]


def _add_groups(tree, model, emulated, counts, status):
    """Add the statistics and evaluations of the search to the draws."""
    known = emulated.emulation
    for name in ("distance", "effective_share", "num_evaluations", "num_failed"):
        tree["sample_stats"][name] = getattr(known, name)
    free = [v.name for v in model.free_RVs]
    points = draws_group(model, known.positions[None], free).isel(chain=0, drop=True).rename(draw="evaluation")
    more = {
        "position": (("evaluation", "coordinate"), known.positions),
        "log_density": ("evaluation", known.log_density),
        "status": ("evaluation", status, STATUS_FLAGS),
    }
    tree["evaluations"] = xr.DataTree(points.assign(more).assign_attrs(counts))
    rounds = xr.Dataset.from_dataframe(known.rounds.rename_axis("round"))
    tree["round_stats"] = xr.DataTree(rounds.drop_vars("round"))
