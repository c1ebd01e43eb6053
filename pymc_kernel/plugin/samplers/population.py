"""Population Monte Carlo of a ``pm.Model``: the adapter between PyMC and ``pymc_kernel.smc.population``."""

import numpy as np
import pandas as pd
import pymc as pm
import xarray as xr
from arviz_stats.base import array_stats

from pymc_kernel.kernels.points import as_points
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.arguments import RandomSeed, check_whole
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import ModelPrior, check_prior_draws, initial_position
from pymc_kernel.plugin.model.unconstrained import (
    coordinate_names,
    data_groups,
    draws_group,
    unconstrained_draws,
    value_shapes,
)
from pymc_kernel.plugin.progress import progress_bar
from pymc_kernel.plugin.reports.likelihood_checks import normality_of_posterior
from pymc_kernel.plugin.samplers.chain_warnings import open_end_warning
from pymc_kernel.plugin.warn import report, report_checks
from pymc_kernel.scores import Finite
from pymc_kernel.smc import population
from pymc_kernel.smc.weights import log_mean_exp, normalized, resample

_UNRELIABLE = 0.7  # Pareto k above which importance sampling is unreliable (Vehtari et al. 2024)


def sample_pmc(
    draws: int = 1000,
    *,
    iterations: int = 20,
    chains: int = 2,
    drift: str = "kernel",
    drift_size: float = 0.3,
    surrogate: Finite | None = None,
    weights: str = "mixture",
    start: np.ndarray | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
    model: pm.Model | None = None,
    compile_kwargs: dict | None = None,
) -> xr.DataTree:
    """Return posterior draws by population Monte Carlo, weighted and equally weighted, and the evidence.

    Each iteration draws around the particles of the last, with a drift along a score learned from all draws so far, and
    weights the new draws (kernel gradient importance sampling, KGRIS; Strathmann 2018, section 5.2.2). No chain has to
    mix, the model needs no gradient, and likelihoods may be noisy.

    Parameters
    ----------
    draws : int
        Particles per iteration, one evaluation of the likelihood each.
    iterations : int
    chains : int
        Independent repetitions, one after the other: the spread of their evidence shows its error.
    drift : {"kernel", "none"}
        "kernel": along the learned score. "none": no drift, which is adaptive population Monte Carlo.
    drift_size : float
        In (0, 1): at 1, the particles of a normal target would all drift to its mode.
    surrogate : pymc_kernel.scores.Finite, optional
        The estimator of the score; with 200 random features by default.
    weights : {"mixture", "own"}
        Weight a draw by the mixture over all particles, with less variance at O(draws^2 d) per iteration, or by its own
        particle alone.
    start : ndarray (draws, d), optional
        Particles on the unconstrained scale to begin around, with equal weights, instead of draws from the prior.
    random_seed : None, int, sequence of int or numpy.random.Generator
    progressbar : bool
    model : pymc.Model, optional
        The model in context by default.
    compile_kwargs : dict, optional

    Returns
    -------
    DataTree
        ``posterior``: ``draws`` equally weighted draws per chain, resampled. ``weighted_posterior``: all draws with
        ``log_weight``, normalized. ``pmc_stats``: effective share, evidence and drift of each iteration, and for each
        chain ``log_evidence``, ``ess`` and the Pareto shape ``pareto_k`` of the weights. ``observed_data`` and
        ``constant_data``.

    Raises
    ------
    TypeError
        For discrete variables.
    ValueError
        For settings out of range, or particles that all have likelihood zero.

    Notes
    -----
    It warns if the Pareto shape is above 0.7, so that weights and evidence cannot be trusted; if the density goes on
    beyond the ends of the draws (by some 500 evaluations more); and if summaries that :class:`SyntheticLikelihood`
    assumes normal are not (by up to 1,000 new estimates).

    The evidence comes from the last half of the iterations, whose proposals have been learned. An interrupt returns the
    iterations so far; with several chains, the finished ones, or all cut to the length of the last, whichever keeps
    more.

    No sampler finds a narrow mode on a broad hill unless a draw happens to land in it, which is unlikely in five or
    more dimensions: the evidence then lacks the mode's mass, no check shows it, and runs that agree do not rule it out.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=2)
    ...     pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_pmc(500, iterations=10, progressbar=False)  # doctest: +SKIP
    """
    check_whole(least=10, draws=draws)
    check_whole(least=2, iterations=iterations)
    check_whole(chains=chains)
    settings = {} if surrogate is None else {"surrogate": surrogate}
    config = population.Config(drift=drift, drift_size=drift_size, weights=weights, **settings)
    model = pm.modelcontext(model)
    density = compile_particle_density(model, "sample_pmc", compile_kwargs)
    results = []
    with one_blas_thread, progress_bar("Population Monte Carlo", chains * iterations, progressbar) as advance:
        for rng in np.random.default_rng(random_seed).spawn(chains):
            result = _one_chain(model, density, config, draws, iterations, start, rng, advance)
            if result[1]:
                results.append(result)
            if len(result[1]) < iterations:
                break
    if not results:
        raise KeyboardInterrupt
    # Keep the most draws in chains of one length, as PyMC does: drop an unfinished chain, or cut the others to it.
    if len(results) * len(results[-1][1]) < (len(results) - 1) * iterations:
        results.pop()
    tree = _tree(model, results, draws)
    posterior, rng = tree["posterior"].to_dataset(), results[-1][-1]
    report_checks(
        "sample_pmc",
        tree["pmc_stats"],
        lambda: _beyond_the_ends(model, density, posterior, rng),
        lambda: normality_of_posterior(model, posterior, rng),
    )
    return tree


def _beyond_the_ends(model, density, posterior, rng):
    """Return a warning about ends of the draws that are not ends of the density; or nothing."""
    draws = unconstrained_draws(posterior, model)
    if density.estimated or not np.isfinite(draws).all():  # rounding may have put a draw at a bound
        return ""
    levels = sum(density(np.concatenate(draws))).reshape(draws.shape[:2])
    names = coordinate_names(model.value_vars, value_shapes(model))
    return open_end_warning(draws, levels, lambda position: float(sum(density(position[None]))[0]), names, rng)


def _one_chain(model, density, config, draws, iterations, start, rng, advance):
    """Return the final state, the reports of the iterations, and the generator."""
    density.seed(rng)
    if start is None:
        check_prior_draws(model, "Give it a proper prior, or start=.")
        positions = ModelPrior(model).draw(rng, draws)
        _, log_weights = density(positions)
    else:
        positions = as_points(start, "start, on the unconstrained scale,", num_dims=initial_position(model).size)
        if len(positions) != draws:
            raise ValueError(f"start must have {draws} rows, one a particle, got {len(positions)}.")
        log_weights = np.zeros(draws)
    state = population.init(rng, positions, log_weights)
    history = []
    try:
        for _ in range(iterations):
            state, info = population.step(rng, state, lambda x: sum(density(x)), config)
            if not history:
                # The first particles are from no learned proposal, and particles of a given start have no true weights.
                state = population.forget(rng, state, draws)
            history.append(info)
            advance(words=f"ESS {100 * info.effective_share:.0f} %")
    except KeyboardInterrupt:
        pass
    return state, history, rng


def _tree(model, results, draws):
    """Return the groups of the result, from what :func:`_one_chain` returned for each chain."""
    done = min(len(history) for _, history, _ in results)
    last = slice(done // 2 * draws, done * draws)
    weighted = draws_group(model, np.stack([state.positions[last] for state, _, _ in results]))
    posterior, shares, per_chain = [], [], {"log_evidence": [], "ess": [], "pareto_k": []}
    for c, (state, _, rng) in enumerate(results):
        log_weights = state.log_weights[last]
        shares.append(normalized(log_weights))
        chosen = rng.permutation(resample(rng, shares[-1], draws))
        posterior.append(weighted.isel(chain=c, draw=chosen).assign_coords(draw=np.arange(draws)))
        per_chain["log_evidence"].append(log_mean_exp(log_weights))
        per_chain["ess"].append(1.0 / (shares[-1] ** 2).sum())
        try:
            shape = float(array_stats.psislw(-log_weights[log_weights > -np.inf])[1])
        except (ValueError, IndexError):  # too few weights, or all the same
            shape = np.nan
        per_chain["pareto_k"].append(np.inf if np.isnan(shape) else shape)
    with np.errstate(divide="ignore"):
        weighted["log_weight"] = (("chain", "draw"), np.log(shares))
    tables = {c: pd.DataFrame(history[:done]) for c, (_, history, _) in enumerate(results)}
    dataset = pd.concat(tables, names=["chain", "iteration"]).to_xarray()
    dataset = dataset.rename(log_evidence="log_evidence_of_iteration").assign_attrs(draws=draws)
    dataset = dataset.assign({name: ("chain", values) for name, values in per_chain.items()})
    largest = float(dataset["pareto_k"].max())
    if not largest <= _UNRELIABLE:
        report(
            f"The weights have a Pareto shape of {largest:.2f}, above {_UNRELIABLE}: a few draws carry them, and "
            "expectations and evidence are not to be trusted. Take more particles or iterations, or pk.sample_smc.",
            dataset,
        )
    groups = {"posterior": xr.concat(posterior, "chain"), "weighted_posterior": weighted, "pmc_stats": dataset}
    return xr.DataTree.from_dict({**groups, **data_groups(model)})
