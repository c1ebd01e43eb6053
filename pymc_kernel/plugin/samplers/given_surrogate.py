"""What ``sample_surrogate`` has learned, as what kernel HMC moves along: rebuilt from a stored result; exact draws.

Chains whose evaluations go to workers propose and decide together.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pymc as pm
import xarray as xr

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import Coverage, coverage_of
from pymc_kernel.mcmc.kernel_hmc import Config, State, with_given
from pymc_kernel.mcmc.surrogate_fit import emulated
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.plugin.model.priors import STARTS_TRIED, ModelPrior, initial_position
from pymc_kernel.plugin.model.unconstrained import unconstrained_draws
from pymc_kernel.plugin.warn import warn_user
from pymc_kernel.rounds import ActiveLearning, LogPosterior

FREE_VARIABLES, RADIUS = "free_variables", "region_radius"  # attributes of the group ``evaluations``
_NUM_DRAWS = 2000  # from a learned log posterior that comes without draws
_SEED = 0  # of a rebuilt surrogate, which is the same for all chains and processes

# Of every step, and of kernel HMC.
STEP_STATISTICS = {
    "accept": np.float64,
    "moved": np.float64,
    "proposal_scale": np.float64,
    "lp": np.float64,
    "stuck_for": np.int64,
}
MOVE_STATISTICS = {
    "move": f"<U{max(map(len, kernel_hmc.MOVES))}",
    "num_steps": np.int64,
    "energy_error": np.float64,
    "surrogate_quality": np.float64,
    "log_weight": np.float64,
}


def step_statistics(state, info) -> dict:
    """Return the statistics of a draw, by name."""
    values = info.accept_prob, float(info.accepted), info.scale, state.log_density, state.rejections
    return dict(zip(STEP_STATISTICS, values, strict=True))


def move_statistics(state: State, info) -> dict:
    """Return those of kernel HMC."""
    quality = np.nan if state.fit is None else state.fit.learned.quality
    values = info.move, info.num_steps, info.energy_error, quality, info.log_weight
    return dict(zip(MOVE_STATISTICS, values, strict=True))


class GivenSurrogate(NamedTuple):
    """A learned log posterior, and draws from it."""

    learned: LogPosterior
    draws: np.ndarray  # (n, d), on the unconstrained scale


def given_surrogate(source: xr.DataTree | LogPosterior, model: pm.Model, noisy: bool) -> GivenSurrogate:
    """Return the surrogate of a result of ``sample_surrogate``, learned once more from its evaluations.

    The model has the same variables, or ``ValueError`` is raised, as it is where nothing can be learned. Where its
    prior or its data have changed the surrogate is worse, and nothing else.
    """
    rng = np.random.default_rng(_SEED)
    if isinstance(source, LogPosterior):
        num_dims, wanted = source.region.points.shape[1], initial_position(model).size
        if num_dims != wanted:
            raise ValueError(
                f"the surrogate has {num_dims} parameters on the unconstrained scale, and the model {wanted}: "
                "give that of the same model."
            )
        learned = replace(source, power=1.0, is_careful=True)
        return GivenSurrogate(learned, learned.draw(rng, _NUM_DRAWS))
    _check_same_model(source, model)
    evaluated = source["evaluations"]
    config = ActiveLearning(noisy=noisy)
    state = config.init(ModelPrior(model), evaluated["position"].values)
    state = state._replace(radius=float(evaluated.attrs[RADIUS]))
    state = config.update(rng, state, evaluated["log_likelihood"].values)
    if state.learned is None:
        raise ValueError(
            f"{int(np.isfinite(state.log_density).sum())} of the {len(state.positions)} evaluations have a finite log "
            "density under this model, too few to learn from: give the result of the same model."
        )
    draws = unconstrained_draws(source["posterior"].to_dataset(), model)
    return GivenSurrogate(replace(state.learned, power=1.0, is_careful=True), draws.reshape(-1, draws.shape[-1]))


def transition_state(given: GivenSurrogate, config: Config) -> State:
    """Return the state of kernel HMC along the surrogate, at one of its draws; nothing is evaluated."""
    fit = emulated(np.random.default_rng(_SEED), given.learned, given.draws, config.max_steps)
    return with_given(given.draws[0], 0.0, fit, config)


def _check_same_model(source, model) -> None:
    if not {"evaluations", "posterior"} <= set(source.children) or RADIUS not in source["evaluations"].attrs:
        raise ValueError(
            f"surrogate= takes a result of pk.sample_surrogate, and this has the groups {', '.join(source.children)}."
        )
    stored = source["evaluations"]
    known, wanted = stored.attrs[FREE_VARIABLES], [v.name for v in model.free_RVs]
    known = [known] if isinstance(known, str) else list(known)  # netCDF makes a text of a list with one
    if set(known) != set(wanted):
        raise ValueError(
            f"the surrogate was learned for a model with the variables {', '.join(known)}, and this one has "
            f"{', '.join(wanted)}: give that of the same model."
        )
    for rv, lengths in model.eval_rv_shapes().items():
        shape = tuple(int(n) for n in lengths)
        if rv in known and stored[rv].shape[1:] != shape:
            raise ValueError(
                f"the surrogate was learned for {rv} of shape {stored[rv].shape[1:]}, and the model has {shape}."
            )


class Trace:
    """Values at places that were evaluated, in the order of their numbers.

    ``evaluate`` takes the number of the first and places (n, d), and returns log likelihoods (n,), NaN where there is
    none; ``log_prior`` takes places alone.
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

    positions: np.ndarray  # (chains, draws, d)
    statistics: dict[str, np.ndarray]  # each (chains, draws), as of KernelHMC
    coverage: Coverage  # how the surrogate covers the density, from all chains


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
    The same kernel as of ``pm.sample(step=KernelHMC(surrogate=...))``, whose proof holds for it. The ``first`` state is
    that of a chain with a given surrogate, the shape the number of chains and of draws of each. Raises
    ``NonFiniteStartError`` where a chain found no start with a finite density.
    """
    chains, draws = shape
    rngs = rng.spawn(chains)
    states = _begun(rngs, first, surrogate_draws, trace)
    positions, rows = [], []  # of each round
    try:
        for _ in range(draws):
            states, infos, is_evaluated = _round(rngs, states, trace)
            pairs = zip(states, infos, is_evaluated, strict=True)
            rows.append([step_statistics(s, i) | move_statistics(s, i) | {"evaluations": e} for s, i, e in pairs])
            positions.append([state.position for state in states])
            advance(chains)
    except (KeyboardInterrupt, WorkersLost) as ended:
        if not positions:
            raise
        if isinstance(ended, WorkersLost):
            warn_user(f"{ended} {len(positions)} exact draws a chain are finished.")
    dtypes = STEP_STATISTICS | MOVE_STATISTICS | {"evaluations": np.int64}
    rows = rows[: len(positions)]
    statistics = {n: np.array([[one[n] for one in row] for row in rows], dtype).T for n, dtype in dtypes.items()}
    positions = np.array(positions).swapaxes(0, 1)
    return ExactDraws(positions, statistics, coverage_of(statistics["log_weight"].ravel()))


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
