"""Posteriors from a likelihood that is learned in rounds of simulations of a PyMC model."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.plugin import statistics
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.model.priors import prior_density, prior_positions
from pymc_kernel.plugin.simulation.pairs import (
    Summary,
    check_whole,
    learned_groups,
    observed_for,
    simulated_again,
    simulated_pairs,
    warn_of_failed_pairs,
)
from pymc_kernel.plugin.simulation.trust import warn_of_findings
from pymc_kernel.plugin.unknown_arguments import explain_arguments
from pymc_kernel.rounds import CautiousRounds, LocalLikelihood, ParticleSampler, Posterior

__all__ = ["sample_likelihood_free"]

_UNLIKELY = 0.01  # probability of summaries less likely than the data's, below which a warning is due
_COVERAGE = (0.9, 0.99)  # of held-out simulations, in regions of 95 %: outside, and by chance hardly so, it is said
_CHANCE = 3.0  # binomial standard errors
_STILL_MOVING = 0.5  # nats between the last two posteriors: a mean that moved by .7 standard deviations costs as much
_REMEMBERED = 0.5  # correlation of particles with where they were before their last moves


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
) -> xr.DataTree | tuple[xr.DataTree, LocalLikelihood]:
    """Draw from the posterior of a model that can only be simulated, by a likelihood learned from its simulations.

    The distribution of the summaries given the parameters is learned by kernel regression: their means, spreads and
    dependence are smooth functions of the parameters. Its value at the data is a likelihood, which particles sample,
    together with the prior that the model states. For simulators with noise, where the data pin the parameters down,
    it needs far fewer simulations than methods that learn the posterior (:func:`sample_kbr`).

    Parameters
    ----------
    draws, chains : int
        Draws, in ``chains`` chains for ArviZ's sake; they are independent particles.
    num_simulations : int
        In all rounds together.
    rounds : int, optional
        After the first, parameters are simulated where the learned likelihood, raised to a power that the simulations
        so far can bear, says that the posterior is. By default up to five rounds, fewer where nothing changes any more.
    summary : callable or dict, optional
        A function of the observed variable's array that returns a vector, as in :func:`sample_kbr`. A few to some
        dozens of numbers, whose distribution at given parameters has one hump or few.
    estimator : pymc_kernel.likelihood_free.LearnedLikelihood, optional
        With settings of your own.
    return_likelihood : bool
        Return the learned log likelihood of the data, too: a function of parameters (n, d) on the unconstrained scale.
    executor : concurrent.futures.Executor or int, optional
        For the simulations, as in :func:`simulate`.
    store : str or path, optional
        Directory in which each round's simulations are kept, batch by batch (extra ``store``); a run that was killed
        goes on with them. Needs ``random_seed``.
    model : pymc.Model, optional
        The model in context by default.
    random_seed : int or numpy.random.Generator, optional
    progressbar : bool

    Returns
    -------
    xarray.DataTree, or with ``return_likelihood`` a tuple of it and a function
        ``posterior``; ``prior`` and ``prior_predictive``: all simulations, with a coordinate ``round``;
        ``round_stats``; ``sample_stats``; ``observed_data``, ``constant_data``. Statistics: see Notes.

    Raises
    ------
    ValueError
        For a model without observed variables, with discrete free ones, with a prior that has no density, and where so
        many simulations failed that nothing can be learned.

    Notes
    -----
    Statistics of a round: ``num_simulations``, ``num_failed``, ``num_near`` (simulations of all rounds that it learned
    from), ``power`` of the likelihood where it simulated, ``effective`` number of earlier simulations there,
    ``change`` of the posterior (symmetric divergence, in nats), ``place`` (probability of summaries that are less
    likely than the data's, given posterior draws), ``held_out_coverage`` (share of held-out simulations in the region
    that should hold 95 %), ``correlation`` of the particles before and after their last moves. ``sample_stats`` has
    those of the last round, and ``log_evidence`` by the learned likelihood.

    A likelihood does not depend on where simulations were made, so rounds need no correction. They are cautious: where
    a round simulates, an effective number of 5 d + 10 of the simulations before it, and 1.5 % of them, must count.
    Interrupted, it returns the posterior by the rounds that are finished.

    One warning says all that speaks against the posterior: data in an unlikely place, held-out simulations outside of
    their regions, a posterior that the last round still moved, a likelihood that was not yet used in full.

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
    check_whole(draws=draws, chains=chains, num_simulations=num_simulations, rounds=rounds)
    if store is not None and random_seed is None:
        raise ValueError("store needs random_seed: a run that goes on must propose the same parameters again.")
    observed = observed_for(model, summary, "sample_likelihood_free")
    rng = np.random.default_rng(random_seed)
    settings = {} if estimator is None else {"estimator": estimator}
    sampler = ParticleSampler(num_particles=max(ParticleSampler.num_particles, draws * chains))
    config = CautiousRounds(num_simulations, rounds, sampler=sampler, **settings)
    run = _Run(config, _ModelPrior.of(model), model, summary, executor, None if store is None else Path(store))
    posterior, simulations = run(rng, observed, progressbar)
    positions = posterior.draws.positions[: draws * chains]
    groups = learned_groups(model, positions, (chains, draws), simulations)
    groups["round_stats"] = _round_stats(posterior.rounds)
    groups["sample_stats"] = _stats(posterior)
    _say(posterior)
    tree = xr.DataTree.from_dict(groups)
    return (tree, posterior.likelihood) if return_likelihood else tree


class _ModelPrior(NamedTuple):
    """The prior of a model, as rounds want it."""

    model: pm.Model
    log_density: Callable

    @classmethod
    def of(cls, model):
        prior = cls(model, prior_density(model))
        prior.log_density(prior.draw(np.random.default_rng(0), 2))  # a prior without density ends here
        return prior

    def draw(self, rng, size):
        return prior_positions(self.model, size, rng)


@dataclass
class _Run:
    """Rounds on a model: proposes, simulates, learns."""

    config: CautiousRounds
    prior: _ModelPrior
    model: pm.Model
    summary: Summary | None
    executor: Executor | int | None
    store: Path | None

    def __call__(self, rng, observed, progressbar) -> tuple[Posterior, xr.DataTree]:
        """Return the posterior and all simulations; interrupted, from the simulations that are there."""
        state, simulations, is_interrupted = self.config.init(self.prior, observed), [], False
        while not (state.is_finished or is_interrupted):
            try:
                with _said(f"Round {len(simulations) + 1}: where to simulate", progressbar):
                    proposed, parameters = self.config.propose(rng, state)
                tree = self._simulated(parameters, len(simulations), rng, progressbar)
                latent, summaries = simulated_pairs(tree, self.model, self.summary)
                is_interrupted = len(latent) < len(parameters)
                with _said(f"Round {len(simulations) + 1}: learning from {len(latent)} simulations", progressbar):
                    state = self.config.update(rng, proposed, latent if is_interrupted else parameters, summaries)
                simulations.append(tree)
            except KeyboardInterrupt:
                if not state.rounds:
                    raise
                is_interrupted = True
        with _said("Drawing from the posterior", progressbar):
            return self.config.posterior(rng, state), _joined(simulations)

    def _simulated(self, parameters, number, rng, progressbar):
        store = None if self.store is None else self.store / f"round_{number}"
        return simulated_again(parameters, self.model, rng, self.executor, progressbar, store)


def _said(words: str, progressbar: bool):
    """Return a context that shows what is being done and for how long."""
    progress = Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), disable=not progressbar)
    progress.add_task(words, total=None)
    return progress


def _joined(simulations):
    """Return the simulations of all rounds, one after another, with a coordinate that says which."""
    sizes = [tree["prior"].sizes["draw"] for tree in simulations]
    number = xr.DataArray(np.repeat(np.arange(len(sizes)), sizes), dims="draw")
    groups = {}
    for name in ("prior", "prior_predictive"):
        joined = xr.concat([tree[name].to_dataset() for tree in simulations], dim="draw")
        groups[name] = joined.assign_coords(draw=np.arange(sum(sizes)), round=number)
    return xr.DataTree.from_dict(groups)


def _round_stats(rounds):
    columns = {name: ("round", np.array([getattr(r, name) for r in rounds])) for name in rounds[0]._fields}
    columns["correlation"] = columns.pop("max_correlation")
    return xr.Dataset(columns, coords={"round": np.arange(len(rounds))})


def _stats(posterior: Posterior):
    last, draws = posterior.rounds[-1], posterior.draws
    return xr.Dataset(
        {
            "num_simulations": sum(r.num_simulations for r in posterior.rounds),
            statistics.NUM_FAILED: sum(r.num_failed for r in posterior.rounds),
            "num_rounds": len(posterior.rounds),
            "place": last.place,
            "held_out_coverage": last.held_out_coverage,
            "power": last.power,
            "change": last.change,
            statistics.CORRELATION: draws.correlation,
            statistics.LOG_EVIDENCE: draws.log_evidence,
        }
    )


def _say(posterior: Posterior) -> None:
    """Warn once of all that speaks against the posterior."""
    rounds, last = posterior.rounds, posterior.rounds[-1]
    total = sum(r.num_simulations for r in rounds)
    warn_of_failed_pairs(sum(r.num_failed for r in rounds), total, stacklevel=4)
    slack = _CHANCE * np.sqrt(0.95 * 0.05 / max(last.num_near // 5, 1))  # a fifth is held out
    problems = [
        f"the data are in a place that posterior draws predict with probability {last.place:.3g}"
        if last.place < _UNLIKELY
        else "",
        f"of held-out simulations, {100 * last.held_out_coverage:.0f} % lie in the regions that should hold 95 %"
        if not _COVERAGE[0] - slack < last.held_out_coverage < _COVERAGE[1] + slack
        else "",
        f"the last round still moved the posterior by {last.change:.2g} nats" if last.change > _STILL_MOVING else "",
        f"the last round simulated from the prior times the likelihood to the power {last.power:.2g} only"
        if 0.0 < last.power < 1.0
        else "",
        "particles have not forgotten where they were, so weights of modes may be wrong"
        if posterior.draws.correlation > _REMEMBERED
        else "",
    ]
    advice = (
        "Take more simulations; summaries that vary smoothly with the parameters; or sample_kbr. If the data are "
        "nothing like what the model simulates, check its prior."
    )
    warn_of_findings([p for p in problems if p], advice, stacklevel=4)
