"""Draws and density of the prior on the unconstrained scale, and starts of chains chosen among its draws."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import xarray as xr
from pymc.initial_point import make_initial_point_expression, make_initial_point_fn
from pymc.logprob.basic import transformed_conditional_logp
from scipy.special import ndtr

from pymc_kernel.mcmc.chain_checks import KnownPlaces, other_hills
from pymc_kernel.plugin.model.forward import ForwardGraph, ForwardSampler, can_be_drawn
from pymc_kernel.plugin.model.interpreter import STABLE, UNOPTIMIZED
from pymc_kernel.plugin.model.unconstrained import over_positions, unconstrained_draws
from pymc_kernel.smc.weights import normalized

STARTS_TRIED = 20  # places to begin at, of which one must have a finite density; 2 % of PyMC's 1,000 tuning draws
_NEAREST = 0.01  # smallest share of the way from a start to a prior draw at which a place is added
PRIOR_DRAWS = 200  # enough to know its quantiles to 5 % of its spread, and to look for places among them


def check_prior_draws(model: pm.Model, advice: str) -> None:
    """Raise ``ValueError`` with advice, a sentence, where a free variable has no draws, as ``pm.Flat``."""
    names = [repr(v.name) for v in without_draws(model)]
    if names:
        raise ValueError(
            f"the prior of {', '.join(names)} cannot be drawn from: pm.Flat is improper, and a pm.CustomDist needs "
            f"random=. {advice}"
        )


def without_draws(model: pm.Model) -> list:
    """Return the free variables whose prior cannot be drawn from."""
    return [v for v in model.free_RVs if not can_be_drawn(v)]


def prior_expression(model: pm.Model) -> list:
    """Return a draw of each value variable from the prior, as graphs; where there is none, PyMC's jittered start."""
    improper = {v: model.rvs_to_initial_values.get(v) for v in without_draws(model)}
    given = {v: "support_point" if value is None else value for v, value in improper.items()}
    settings = {"jitter_rvs": set(improper), "default_strategy": "prior", "return_transformed": True}
    settings |= {"free_rvs": model.free_RVs, "rvs_to_transforms": model.rvs_to_transforms}
    return make_initial_point_expression(initval_strategies=dict.fromkeys(model.free_RVs) | given, **settings)


def prior_density(model: pm.Model) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from positions (n, d) on the unconstrained scale to log densities (n,) of the prior.

    It is compiled at its first call, and is the density that forward draws have: without potentials.
    """
    free = {rv: model.rvs_to_values[rv] for rv in model.free_RVs}
    try:
        # The observed variables need no density: simulators have none.
        terms = transformed_conditional_logp(
            tuple(free), rvs_to_values=free, rvs_to_transforms={rv: model.rvs_to_transforms[rv] for rv in free}
        )
    except NotImplementedError as error:
        raise ValueError(
            f"the prior has no density that PyMC can evaluate ({error}), which later rounds need: take rounds=1 with "
            "more simulations, or give it one."
        ) from error
    log_prior = pt.sum([term.sum() for term in terms])

    # Interpreted: on hundreds of draws as fast as machine code.
    compiled = cache(lambda: over_positions(model, [log_prior], {"mode": STABLE})[0])
    return lambda positions: compiled()(positions)[0]


class ModelPrior:
    """The prior of a model on the unconstrained scale, each of its functions compiled once.

    Variables that have no draws, as ``pm.Flat``, begin around the model's initial point, as in PyMC.
    """

    def __init__(self, model: pm.Model):
        self.is_proper = not without_draws(model)
        self._sampler = ForwardSampler(ForwardGraph(prior_expression(model), [], []))
        self.log_density = prior_density(model)

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        """Return draws (size, d)."""
        drawn = self._sampler.prior(int(rng.integers(2**63)), 0, size, size)
        return with_finite_columns(_joined(drawn, size), rng)


def initial_position(model: pm.Model) -> np.ndarray:
    """Return the model's initial point on the unconstrained scale, (d,)."""
    return _position(model, model.initial_point(random_seed=0))


def _position(model, point):
    return _joined([point[v.name] for v in model.value_vars], 1)[0]


def first_places(model: pm.Model, prior: ModelPrior, start: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return places (n, d) that a search begins with: ``start``, or the initial point and ``count`` draws of the prior.

    A start is an array (n, d) on the unconstrained scale, finite; or values by the names of variables, as in PyMC's
    ``initvals``, or several such; or draws. If fewer than ``count`` + 1 places are given by names, others are added,
    each a share of the way from a given one to a draw of the prior. Nobody knows how good a start is, so shares are
    log-uniform.
    """
    initial = initial_position(model)
    if start is None:
        return np.concatenate([initial[None], prior.draw(rng, count)])
    several = [start] if isinstance(start, Mapping) else start
    is_named = isinstance(several, Sequence) and all(isinstance(one, Mapping) for one in several)
    given = _named_places(model, start, count, rng) if is_named else start
    try:
        given = np.array(given, dtype=float)
    except (TypeError, ValueError):
        raise ValueError(_wrong_start(initial.size, f"a {type(start).__name__}")) from None
    if given.ndim != 2 or given.shape[1] != initial.size:
        raise ValueError(_wrong_start(initial.size, f"shape {given.shape}"))
    if not np.isfinite(given).all():
        raise ValueError("start has places that are not finite on the unconstrained scale: give values within bounds.")
    if is_named and len(given) <= count:
        more = count + 1 - len(given)
        shares = _NEAREST ** rng.random((more, 1))
        near = given[rng.integers(len(given), size=more)]
        given = np.concatenate([given, near + shares * (prior.draw(rng, more) - near)])
    return given


def _wrong_start(num_dims, got):
    return (
        "start must be values by the names of variables, as in initvals, or a list of such; draws of the model; or an "
        f"array (n, {num_dims}) of places on the unconstrained scale; got {got}."
    )


def _named_places(model, start, count, rng):
    """Return places (n, d) from a mapping of values by name, from several, or at most ``count`` + 1 from draws."""
    if isinstance(start, xr.DataTree | xr.Dataset):
        draws = unconstrained_draws(start, model)
        return rng.permutation(draws.reshape(-1, draws.shape[2]))[: count + 1]
    free = {v.name for v in model.free_RVs}
    known = free | {v.name for v in model.value_vars}
    every = known | {v.name for v in model.unobserved_RVs}  # pm.find_MAP returns deterministic variables, too
    places = []
    for one in [start] if isinstance(start, Mapping) else start:
        if unknown := [str(name) for name in one if name not in every]:
            raise ValueError(
                f"start has {', '.join(unknown)}, which the model has not; it has {', '.join(sorted(known))}."
            )
        values = {name: value for name, value in one.items() if name in free}
        point = make_initial_point_fn(model=model, overrides=values, jitter_rvs=set(), return_transformed=True)(0)
        point |= {name: value for name, value in one.items() if name in known - free}
        places.append(_position(model, point))
    return places


def with_finite_columns(positions: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return positions (n, d) with coordinates that rounding has put at a bound replaced by random finite ones."""
    for column in positions.T:
        finite = np.isfinite(column)
        if not finite.any():
            raise ValueError("a prior gives no finite draw on the unconstrained scale; make it less extreme.")
        column[~finite] = rng.choice(column[finite], int((~finite).sum()))
    return positions


@dataclass(frozen=True)
class PriorDraws:
    """Draws from the prior of some variables of a model, on the unconstrained scale."""

    positions: np.ndarray  # (n, d); where the model has an initial value for a coordinate, it replaces the draw
    log_densities: np.ndarray  # (n,), of the joint prior of all variables at these draws
    default: np.ndarray  # (d,), PyMC's initial point
    default_log_density: float  # of the prior there

    @property
    def scales(self) -> np.ndarray:
        """Half the distance (d,) of the 16 % and 84 % quantiles, as standard deviations need not exist; one if zero."""
        low, high = np.quantile(self.positions, ndtr([-1.0, 1.0]), axis=0)
        spread = 0.5 * (high - low)
        return np.where(spread > 0.0, spread, 1.0)

    def choose(self, log_density: Callable, rng: np.random.Generator, budget=0) -> tuple[np.ndarray, KnownPlaces]:
        """Return a start, (d,), and all points evaluated: the initial point and twenty draws from the prior.

        The start is one of these, with probability in proportion to the likelihood, which is zero where it fails. So
        where prior draws fall into several modes, chains begin in different ones, and R-hat shows it if they stay
        there. ``budget`` limits further calls, to climb from draws towards other modes, where chains do not start.
        """
        chosen = rng.choice(len(self.positions), min(STARTS_TRIED, len(self.positions)), replace=False)
        candidates = np.vstack([self.default, self.positions[chosen]])
        priors = np.array([self.default_log_density, *self.log_densities[chosen]])
        levels = np.array([log_density(candidate) for candidate in candidates])
        log_likelihoods = np.where(np.isfinite(levels) & np.isfinite(priors), levels - priors, -np.inf)
        places = KnownPlaces(candidates, levels)
        if not np.isfinite(log_likelihoods).any():
            return self.default, places
        start = candidates[rng.choice(len(candidates), p=normalized(log_likelihoods))]
        tops = other_hills(places, log_density, self.scales, budget, rng)
        return start, KnownPlaces(np.vstack([candidates, tops.positions]), np.append(levels, tops.log_densities))


def prior_draws(model: pm.Model, value_vars: Sequence, initial_point: dict) -> PriorDraws | None:
    """Return draws from the prior of ``value_vars``, or None where there are none, as for ``pm.Flat``."""
    initial = {model.rvs_to_values[rv].name for rv, value in model.rvs_to_initial_values.items() if value is not None}
    names = [v.name for v in value_vars]
    if initial.issuperset(names) or without_draws(model):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of compilers about the quick mode
            draws = pm.draw(prior_expression(model), draws=PRIOR_DRAWS, random_seed=0, mode=UNOPTIMIZED)
            log_prior = model.compile_fn(
                model.logp(vars=model.free_RVs), inputs=model.value_vars, on_unused_input="ignore", mode=UNOPTIMIZED
            )
    except NotImplementedError:
        return None
    columns = {model.rvs_to_values[rv].name: d for rv, d in zip(model.free_RVs, draws, strict=True)}
    columns |= {name: np.broadcast_to(initial_point[name], columns[name].shape) for name in initial}
    point = {v.name: initial_point[v.name] for v in model.value_vars}
    with np.errstate(all="ignore"):
        log_densities = [log_prior({n: columns[n][i] for n in point}) for i in range(PRIOR_DRAWS)]
        positions = _joined([columns[name] for name in names], PRIOR_DRAWS)
        # Draws that rounding has put at a bound, or that violate an ordering, are not finite on this scale.
        kept = np.isfinite(positions).all(axis=1) & np.isfinite(log_densities)
        if not kept.any():
            return None
        default = _joined([initial_point[name] for name in names], 1)[0]
        return PriorDraws(positions[kept], np.array(log_densities, float)[kept], default, float(log_prior(point)))


def _joined(values, count):
    return np.concatenate([np.reshape(v, (count, -1)) for v in values], axis=1).astype(float)
