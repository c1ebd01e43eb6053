"""Chains along a given surrogate whose evaluations go to workers: exact draws after ``sample_surrogate``."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.coverage import Coverage, coverage_of
from pymc_kernel.mcmc.kernel_hmc import State
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.warn import warn_user

__all__ = ["STARTS_TRIED", "ExactDraws", "Trace", "run_exact"]

STARTS_TRIED = 20  # draws of the surrogate, of which one a chain must have a finite density

_STATISTICS = {
    "accept": np.float64,
    "moved": np.float64,
    "proposal_scale": np.float64,
    "log_density": np.float64,
    "stuck_for": np.int64,
    "evaluations": np.int64,
    "move": f"<U{max(map(len, kernel_hmc.MOVES))}",
    "num_steps": np.int64,
    "energy_error": np.float64,
    "surrogate_quality": np.float64,
    "log_weight": np.float64,
}


class Trace:
    """Values at places that were evaluated, in the order of their numbers.

    Parameters
    ----------
    evaluate : callable
        Takes the number of the first, places (n, d); returns log likelihoods (n,), NaN where there is none.
    log_prior : callable
        Takes places (n, d), returns (n,).
    num_dims : int
    """

    def __init__(self, evaluate: Callable, log_prior: Callable, num_dims: int):
        self._evaluate, self._log_prior = evaluate, log_prior
        self._parts = [(np.empty((0, num_dims)), np.empty(0), np.empty(0))]
        self._count = 0

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """Return log densities (n,) at positions (n, d), -inf where there is none."""
        values = self._evaluate(self._count, positions)
        prior = self._log_prior(positions)
        self._parts.append((positions, prior, values))
        self._count += len(positions)
        total = prior + values
        return np.where(np.isfinite(total), total, -np.inf)

    def evaluated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return all positions (n, d), their log priors (n,) and log likelihoods (n,)."""
        positions, log_prior, log_likelihood = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        return positions, log_prior, log_likelihood


class ExactDraws(NamedTuple):
    """What the chains return."""

    positions: np.ndarray
    """(chains, draws, d)."""
    statistics: dict[str, np.ndarray]
    """Each (chains, draws), as of :class:`KernelHMC`."""
    coverage: Coverage
    """How the surrogate covers the density, from all chains."""


def run_exact(
    rng: np.random.Generator,
    first: State,
    surrogate_draws: np.ndarray,
    trace: Trace,
    shape: tuple[int, int],
    advance: Callable[[int], object],
) -> ExactDraws:
    """Return draws of chains that begin at draws of a surrogate and are accepted by the density itself.

    All chains propose, their proposals are evaluated together, all decide: the result depends on nothing but the seed.
    The same kernel as of ``pm.sample(step=KernelHMC(surrogate=...))``, whose proof holds for it.

    Parameters
    ----------
    first : State
        Of a chain with a given surrogate.
    surrogate_draws : ndarray (n, d)
    trace : Trace
        Evaluates.
    shape : tuple
        Number of chains, and draws of each.
    advance : callable
        Told of the number of draws after each round.

    Raises
    ------
    NonFiniteStartError
        Where a chain found no start with a finite density.
    """
    chains, draws = shape
    rngs = rng.spawn(chains)
    states = _begun(rngs, first, surrogate_draws, trace)
    positions = np.empty((chains, draws, surrogate_draws.shape[1]))
    statistics = {name: np.empty(shape, dtype) for name, dtype in _STATISTICS.items()}
    finished = 0
    try:
        for t in range(draws):
            states, infos, is_evaluated = _round(rngs, states, trace)
            for c, (state, info) in enumerate(zip(states, infos, strict=True)):
                positions[c, t] = state.position
                for name, value in _statistics(state, info, is_evaluated[c]).items():
                    statistics[name][c, t] = value
            finished = t + 1
            advance(chains)
    except (KeyboardInterrupt, WorkersLost) as ended:
        if not finished:
            raise
        if isinstance(ended, WorkersLost):
            warn_user(f"{ended} {finished} exact draws a chain are finished.")
    statistics = {name: values[:, :finished] for name, values in statistics.items()}
    return ExactDraws(positions[:, :finished], statistics, coverage_of(statistics["log_weight"].ravel()))


def _begun(rngs, first, surrogate_draws, trace):
    """Return a state for each chain, at a draw of the surrogate where the density is finite."""
    orders = [r.permutation(len(surrogate_draws))[:STARTS_TRIED] for r in rngs]
    states = [None] * len(rngs)
    for attempt in range(min(STARTS_TRIED, len(surrogate_draws))):
        left = [c for c, state in enumerate(states) if state is None]
        if not left:
            break
        places = surrogate_draws[[orders[c][attempt] for c in left]]
        for c, place, value in zip(left, places, trace(places), strict=True):
            if np.isfinite(value):
                states[c] = kernel_hmc.relocate(first, place, value)
    if any(state is None for state in states):
        raise NonFiniteStartError(
            f"the log density was not finite at {STARTS_TRIED} draws of the surrogate, far from the posterior: "
            "take more evaluations before exact draws."
        )
    return states


def _round(rngs, states, trace):
    """Return states, reports and who was evaluated, after one draw of each chain."""
    with one_blas_thread:  # the number of threads would depend on the machine's load, and rounding on that number
        proposed = [kernel_hmc.propose(r, state) for r, state in zip(rngs, states, strict=True)]
    is_evaluated = np.array([proposal.is_to_evaluate for proposal in proposed])
    values = np.full(len(states), -np.inf)
    if is_evaluated.any():
        values[is_evaluated] = trace(np.array([p.position for p in proposed if p.is_to_evaluate]))
    decided = [
        kernel_hmc.decide(r, state, proposal, float(value))
        for r, state, proposal, value in zip(rngs, states, proposed, values, strict=True)
    ]
    return [state for state, _ in decided], [info for _, info in decided], is_evaluated


def _statistics(state, info, is_evaluated):
    return {
        "accept": info.accept_prob,
        "moved": float(info.accepted),
        "proposal_scale": info.scale,
        "log_density": state.log_density,
        "stuck_for": state.rejections,
        "evaluations": int(is_evaluated),
        "move": info.move,
        "num_steps": info.num_steps,
        "energy_error": info.energy_error,
        "surrogate_quality": state.fit.learned.quality,
        "log_weight": info.log_weight,
    }
