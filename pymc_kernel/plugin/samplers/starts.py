"""Starts of chains: draws from the prior chosen by their likelihood, and the prior's scales."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pymc as pm
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

from pymc_kernel.mcmc.unvisited import Places, other_hills
from pymc_kernel.plugin.model.priors import prior_expression, without_draws
from pymc_kernel.smc.weights import normalized

__all__ = ["NUM_CANDIDATES", "UNOPTIMIZED", "PriorDraws", "prior_draws"]

NUM_CANDIDATES = 20  # evaluations a chain; 2 % of PyMC's 1,000 tuning draws
_POOL_SIZE = 200  # draws of the prior; its quantiles are known to 5 % of its spread
_SEED = 0  # of the pool; each chain tries draws from it that its own generator chooses
# The graph is called 200 times: rewriting it would take longer, and C libraries for all its operations longer still.
UNOPTIMIZED = Mode(linker=VMLinker(use_cloop=False, c_thunks=False), optimizer=None)
_NORMAL_QUANTILES = (0.15865525, 0.84134475)  # one standard deviation on either side


@dataclass(frozen=True)
class PriorDraws:
    """Draws from the prior of some variables of a model, on the unconstrained scale.

    Attributes
    ----------
    positions : ndarray (n, d)
        Where the model has an initial value for a coordinate, it replaces the draw.
    log_densities : ndarray (n,)
        Of the prior of all variables, from which these draws are.
    default : ndarray (d,)
        PyMC's initial point.
    default_log_density : float
        Of the prior there.
    """

    positions: np.ndarray
    log_densities: np.ndarray
    default: np.ndarray
    default_log_density: float

    @property
    def scales(self) -> np.ndarray:
        """Half the distance between the 16 % and 84 % quantiles of the prior, its standard deviation if normal, (d,).

        One where that is zero. Prior standard deviations need not exist.
        """
        low, high = np.quantile(self.positions, _NORMAL_QUANTILES, axis=0)
        spread = 0.5 * (high - low)
        return np.where(spread > 0.0, spread, 1.0)

    def choose(
        self, log_density: Callable[[np.ndarray], float], rng: np.random.Generator, budget: int = 0
    ) -> tuple[np.ndarray, Places]:
        """Return a start, (d,), and all points evaluated: the initial point and twenty draws from the prior.

        The start is one of these, with probability in proportion to the likelihood. So a chain keeps the initial point
        where that is far better than the draws; and where draws from the prior fall into several modes, chains begin in
        different ones, and R-hat shows it if they stay there. Where the likelihood fails it counts as zero.

        Parameters
        ----------
        log_density
            Of the posterior at a position (d,); called twenty-one times.
        budget : int
            Further calls, to climb towards other modes from the draws; chains do not start at the points found by that.
        """
        chosen = rng.choice(len(self.positions), min(NUM_CANDIDATES, len(self.positions)), replace=False)
        candidates = np.vstack([self.default, self.positions[chosen]])
        priors = np.array([self.default_log_density, *self.log_densities[chosen]])
        levels = np.array([log_density(candidate) for candidate in candidates])
        log_likelihoods = np.where(np.isfinite(levels) & np.isfinite(priors), levels - priors, -np.inf)
        places = Places(candidates, levels)
        if not np.isfinite(log_likelihoods).any():
            return self.default, places
        start = candidates[rng.choice(len(candidates), p=normalized(log_likelihoods))]
        tops = other_hills(places, log_density, self.scales, budget, rng)
        return start, Places(np.vstack([candidates, tops.positions]), np.append(levels, tops.log_densities))


def prior_draws(model: pm.Model, value_vars: Sequence, initial_point: dict) -> PriorDraws | None:
    """Return draws from the prior of ``value_vars``, or None where there are none, as for ``pm.Flat``.

    Parameters
    ----------
    model, value_vars, initial_point
        As PyMC hands them to a step.
    """
    initial = {model.rvs_to_values[rv].name for rv, value in model.rvs_to_initial_values.items() if value is not None}
    names = [v.name for v in value_vars]
    if initial.issuperset(names) or without_draws(model):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of compilers about the quick mode
            draws = pm.draw(prior_expression(model), draws=_POOL_SIZE, random_seed=_SEED, mode=UNOPTIMIZED)
            log_prior = model.compile_fn(
                model.logp(vars=model.free_RVs), inputs=model.value_vars, on_unused_input="ignore", mode=UNOPTIMIZED
            )
    except NotImplementedError:
        return None
    columns = {model.rvs_to_values[rv].name: d for rv, d in zip(model.free_RVs, draws, strict=True)}
    columns |= {name: np.broadcast_to(initial_point[name], columns[name].shape) for name in initial}
    point = {v.name: initial_point[v.name] for v in model.value_vars}
    with np.errstate(all="ignore"):
        log_densities = [log_prior({n: columns[n][i] for n in point}) for i in range(_POOL_SIZE)]
        positions = _joined({name: columns[name] for name in names}, _POOL_SIZE)
        # Draws that rounding has put at a bound, or that violate an ordering, are not finite on the unconstrained
        # scale.
        kept = np.isfinite(positions).all(axis=1) & np.isfinite(log_densities)
        if not kept.any():
            return None
        return PriorDraws(
            positions[kept],
            np.array(log_densities, dtype=float)[kept],
            _joined({name: initial_point[name] for name in names}, 1)[0],
            float(log_prior(point)),
        )


def _joined(values, count):
    return np.concatenate([np.reshape(v, (count, -1)) for v in values.values()], axis=1).astype(float)
