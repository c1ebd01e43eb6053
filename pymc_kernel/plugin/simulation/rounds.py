"""Posteriors of PyMC models from simulations in rounds: their likelihood is learned, and sampled from."""

from concurrent.futures import Executor
from pathlib import Path

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.likelihood_free.learned_likelihood import FittedLikelihood, LearnedLikelihood
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.model.forward import ForwardGraph, ForwardSampler
from pymc_kernel.plugin.model.priors import prior_density, prior_expression, with_finite_columns
from pymc_kernel.plugin.simulation.pairs import (
    Summary,
    check_whole,
    learnable,
    learnt_groups,
    simulated_again,
    simulated_pairs,
    warn_of_failed_pairs,
)
from pymc_kernel.plugin.simulation.trust import warn_of_findings
from pymc_kernel.plugin.unknown_arguments import explain_arguments
from pymc_kernel.rounds import CautiousRounds, ParticleSampler, Posterior, Round

__all__ = ["sample_likelihood_free"]

_FEWEST_PARTICLES = 2000
_OUTSIDE = 0.01  # of what the learned simulator makes of posterior draws is less likely than an observation inside
_UNSETTLED = 2.0  # nats of symmetric divergence: means that moved by 1.4 standard deviations
_COVERED = 0.95  # should be
_CLEARLY = 3.0  # standard errors of a coverage


class ModelPrior:
    """The prior of a model on the unconstrained scale, each of its functions compiled once.

    Raises
    ------
    ValueError
        Where it cannot be drawn from, as that of ``pm.Flat``, or has no density.
    """

    def __init__(self, model: pm.Model):
        self._model = model
        try:
            self._sampler = ForwardSampler(ForwardGraph(prior_expression(model), [], []))
        except (NotImplementedError, IndexError) as error:  # pm.Flat has no parameters to repeat
            raise ValueError(f"the prior cannot be drawn from ({error}); give proper priors.") from error
        self._density = prior_density(model)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return draws (size, d)."""
        drawn = self._sampler.prior(int(rng.integers(2**63)), 0, size, size)
        found = {self._model.rvs_to_values[rv]: v for rv, v in zip(self._model.free_RVs, drawn, strict=True)}
        columns = [np.reshape(found[v], (size, -1)) for v in self._model.value_vars]
        return with_finite_columns(np.concatenate(columns, axis=1).astype(float), rng)

    def log_density(self, parameters: np.ndarray) -> np.ndarray:
        """Return log densities (m,)."""
        return self._density(parameters)


@explain_arguments
def sample_likelihood_free(
    draws: int = 1000,
    *,
    chains: int = 4,
    num_simulations: int = 1000,
    rounds: int | None = None,
    summary: Summary | None = None,
    estimator: LearnedLikelihood | None = None,
    return_likelihood: bool = False,
    executor: Executor | int | None = None,
    store: str | Path | None = None,
    model: pm.Model | None = None,
    random_seed: RandomSeed = None,
    progressbar: bool = True,
) -> xr.DataTree | tuple[xr.DataTree, FittedLikelihood]:
    """Draw from the posterior of a model by a likelihood that is learned from simulations, in cautious rounds.

    The likelihood of the model is never evaluated. The first simulations are made at draws of the prior; the density of
    the data given the parameters is learned from them, and says where the next ones are made: at the prior times the
    learned likelihood to a power, at which enough of the simulations so far still count.

    Parameters
    ----------
    draws, chains : int
        Draws, in ``chains`` chains for ArviZ's sake: they are nearly independent.
    num_simulations : int
        In all rounds together.
    rounds : int, optional
        By default at most five, and fewer where the posterior has settled before.
    summary : callable or dict, optional
        As in :func:`sample_kbr`: a function of the observed variable's array that returns a vector, or a dictionary of
        such functions.
    estimator : LearnedLikelihood, optional
        With settings of your own.
    return_likelihood : bool
        Return the learned likelihood too.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`.
    store : str or path, optional
        Directory with a zarr store for each round, as in :func:`simulate`. A run that was ended goes on with it: give
        the same ``random_seed``.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree, or with ``return_likelihood`` a tuple of it and a FittedLikelihood
        ``posterior``; ``prior``, ``prior_predictive``: the simulations of all rounds; ``observed_data``;
        ``sample_stats``: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables or with one that cannot be simulated, for priors without a density, and
        where nearly all simulations fail.

    Notes
    -----
    Sample statistics, along ``round``: ``round_simulations`` and ``round_failed``, how many were made and failed;
    ``num_near``, how many of all the likelihood was learned from; ``power`` of the likelihood in the distribution that
    was simulated from, 0 for the prior; ``round_effective``, the effective number of earlier simulations in that
    distribution; ``change``, the symmetric Kullback-Leibler divergence between successive posteriors, in nats.

    Of the posterior: ``place``, the probability of data less likely than the observed ones by the learned likelihood at
    posterior draws, and ``place_of_summary`` two-sided for each summary; ``held_out_coverage``, the share of held-out
    simulations near the posterior in the region of the learned distribution that should hold 95 % of them;
    ``log_evidence`` of the summaries; ``particle_correlation``, what the draws remember of where they stood before
    their last moves.

    One warning says all that speaks against the posterior. The learned likelihood needs no correction for where
    simulations were made, so all of them count, those of the region that the rounds have closed in on.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 1)
    ...     y = pm.Normal("y", theta, 0.1, observed=1.0)
    ...     idata = pk.sample_likelihood_free(num_simulations=400, random_seed=1, progressbar=False)
    >>> bool(abs(float(idata["posterior"]["theta"].mean()) - 0.99) < 0.05)
    True
    """
    model = pm.modelcontext(model)
    check_whole(draws=draws, chains=chains, num_simulations=num_simulations, rounds=rounds)
    if store is not None and not isinstance(random_seed, int | np.integer):
        raise ValueError("a store needs random_seed=, a whole number: by it a run that was ended goes on.")
    observed = learnable(model, summary, "sample_likelihood_free")
    rng = np.random.default_rng(random_seed)
    sampler = ParticleSampler(max(draws * chains, _FEWEST_PARTICLES))
    settings = CautiousRounds(num_simulations, rounds, estimator or LearnedLikelihood(), sampler)
    state = settings.init(ModelPrior(model), observed)
    made = []
    while not state.is_finished:
        state, wanted = settings.propose(rng, state)
        kept = None if store is None else Path(store) / f"round_{len(made) + 1}"
        made.append(simulated_again(wanted, model, rng, executor, progressbar, kept))
        state = settings.update(rng, state, *simulated_pairs(made[-1], model, summary))
    found = settings.posterior(rng, state)
    positions = found.draws.positions[: draws * chains]
    groups = learnt_groups(model, positions, (chains, draws), _joined(made))
    place = found.likelihood.fit.place_of(observed, positions, rng)
    groups["sample_stats"] = _stats(found, place)
    warn_of_failed_pairs(sum(r.num_failed for r in found.rounds), len(state.parameters), stacklevel=3)
    _warn(found, place, num_simulations)
    tree = xr.DataTree.from_dict(groups)
    return (tree, found.likelihood.fit) if return_likelihood else tree


def _joined(trees):
    """Return the simulations of all rounds as those of one."""
    names = ("prior", "prior_predictive")
    groups = {name: xr.concat([tree[name].to_dataset() for tree in trees], "draw") for name in names}
    return xr.DataTree.from_dict({n: g.assign_coords(draw=np.arange(g.sizes["draw"])) for n, g in groups.items()})


def _stats(found: Posterior, place):
    def of_rounds(name):
        return "round", np.array([getattr(r, name) for r in found.rounds])

    held_out = found.likelihood.fit.held_out
    return xr.Dataset(
        {
            "round_simulations": of_rounds("num_simulations"),
            "round_failed": of_rounds("num_failed"),
            "num_near": of_rounds("num_near"),
            "power": of_rounds("power"),
            "round_effective": of_rounds("effective"),
            "change": of_rounds("change"),
            "place": place.joint,
            "place_of_summary": ("summary", place.p_values),
            "held_out_coverage": np.nan if held_out is None else held_out.joint_coverage,
            statistics.NUM_FAILED: sum(r.num_failed for r in found.rounds),
            statistics.LOG_EVIDENCE: found.draws.log_evidence,
            "particle_correlation": found.draws.correlation,
        },
        coords={"round": np.arange(1, len(found.rounds) + 1)},
    )


def _warn(found: Posterior, place, num_simulations):
    """Say in one warning what speaks against the answer."""
    last: Round = found.rounds[-1]
    words = [
        f"of what the learned simulator makes of posterior draws, {100 * place.joint:.1f} % is less likely than the "
        "observation: it is outside of what the model simulates, or of what was learned"
        if place.joint < _OUTSIDE
        else "",
        f"the last round still changed it by {last.change:.2g} nats" if last.change > _UNSETTLED else "",
        _wrong_coverage(found.likelihood.fit.held_out),
    ]
    advice = (
        f"Take more simulations than {num_simulations}, and more rounds; if the data are nothing like what the model "
        "simulates, check its prior."
    )
    warn_of_findings([w for w in words if w], advice, stacklevel=4)


def _wrong_coverage(held_out):
    if held_out is None:
        return ""
    count, share = len(held_out.joint), held_out.joint_coverage
    error = np.sqrt(_COVERED * (1.0 - _COVERED) / count)
    if share >= _COVERED - _CLEARLY * error - 0.02:
        return ""
    return f"the regions that should hold 95 % of held-out simulations near the posterior hold {100 * share:.0f} %"
