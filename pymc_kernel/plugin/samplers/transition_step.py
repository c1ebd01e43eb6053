"""A transition of ``mcmc`` as a PyMC step: its density, start, state, statistics and warnings."""

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import RaveledVars
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_value_vars_from_user_vars

from pymc_kernel.errors import NoisyBlockError, NonFiniteStartError
from pymc_kernel.mcmc import noise
from pymc_kernel.mcmc.chain_checks import KnownPlaces, missed
from pymc_kernel.plugin.model.log_density import compile_log_density
from pymc_kernel.plugin.model.priors import STARTS_TRIED, prior_draws
from pymc_kernel.plugin.model.unconstrained import coordinate_names
from pymc_kernel.plugin.progress import STUCK_AFTER, progress_columns, progress_updates
from pymc_kernel.plugin.reports.likelihood_checks import normality_warning
from pymc_kernel.plugin.samplers import chain_warnings

_NUM_VISITED = 500  # draws kept for the checks at the end of a chain, such as whether it missed a known point
_SEARCH_SHARE = 0.1  # of the tuning draws: evaluations of candidates for a start, and of climbs from them to modes
_NO_FIT = "The proposals do not fit the posterior there: tune longer, or reparametrize."

_MEASURES = "accept", "moved", "proposal_scale", "lp"


@dataclass_state
class TransitionState(StepMethodState):
    """Everything in a step that changes while it runs; PyMC saves, resets and restores a step through it."""

    tune: bool
    num_tune: int
    num_draws: int  # announced, after tuning
    transition: Any  # the State of the transition, None before the first draw
    returned: Any  # bytes of the position last handed to PyMC, and of the other variables then
    noise: Any  # generators of an estimated density
    warned: bool
    draw: int  # draws of the chain so far, tuning included
    raised: int  # calls of the model that raised after tuning, where the chain is judged alone
    counted: int  # calls of the model, up to the last draw
    log_weights: list  # of the draws after tuning, where the transition reports them
    known: Any  # KnownPlaces: points evaluated in the search for a start
    # Of some draws after tuning: position, log density, and summaries by block where they are taken for normal.
    visited: list


class TransitionStep(ArrayStepShared):
    """A transition of ``pymc_kernel.mcmc`` as a step: evaluates the density, keeps the state, reports statistics.

    Subclasses name the module of the transition and build its configuration.
    """

    _state_class = TransitionState
    _transition_module: ModuleType

    stats_dtypes_shapes = {  # noqa: RUF012 (PyMC reads it from the class)
        **dict.fromkeys(_MEASURES, (np.float64, [])),
        **dict.fromkeys(("stuck_for", "evaluations", "raised"), (np.int64, [])),
        "warning": (SamplerWarning, None),
    }

    def __init__(
        self, vars, config, adaptation, *, model=None, rng=None, initial_point=None, compile_kwargs=None, blocked=True
    ):
        if adaptation not in ("tuning", "vanishing"):
            raise ValueError(f'adaptation must be "tuning" or "vanishing", got {adaptation!r}.')
        model = pm.modelcontext(model)
        chosen = model.continuous_value_vars if vars is None else get_value_vars_from_user_vars(vars, model)
        # In the order of PyMC's points, which is that of positions, whatever the order of ``vars``.
        value_vars = [v for v in model.value_vars if v in chosen]
        if not value_vars:
            raise ValueError(f"{type(self).__name__} samples continuous variables, and the model has none free.")
        if initial_point is None:
            initial_point = model.initial_point()
        self.density = compile_log_density(model, value_vars, initial_point, type(self).__name__, compile_kwargs)
        empty = [v.name for v in value_vars if np.size(initial_point[v.name]) == 0]
        if empty:
            raise ValueError(f"{type(self).__name__} got variables without entries: {', '.join(empty)}.")
        self.tried = None  # set by ``sample_khmc``: KnownPlaces, the points evaluated in its search for starts
        self.learned = None  # set by ``sample_khmc``: the state whose adaptation every chain starts with
        self.is_judged_alone = True  # False in ``sample_khmc``, which gives one warning for all chains
        self.prior = prior_draws(model, value_vars, initial_point)
        config = replace(config, noisy=bool(self.density.estimated))
        if self.prior is not None and config.learns_covariance and config.covariance is None:
            config = replace(config, covariance=np.diag(self.prior.scales**2))
        self.config, self.adaptation = config, adaptation
        super().__init__(value_vars, self.density.shared, blocked=blocked, rng=rng)
        if self.density.estimated:
            names = (*self.density.shares, *self.density.failure_names, "log_estimate_variance")
            self.stats_dtypes_shapes = {**type(self).stats_dtypes_shapes, **dict.fromkeys(names, (np.float64, []))}
            self.stats_dtypes = [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]
        self.coordinates = coordinate_names(value_vars, [np.shape(initial_point[v.name]) for v in value_vars])
        # A wrong shape in the configuration is found here, before any long work.
        self._transition_module.init(np.zeros(len(self.coordinates)), 0.0, config)
        self._start(num_tune=0, num_draws=0)

    def _start(self, num_tune: int, num_draws: int) -> None:
        self.tune, self.warned, self.known = True, False, self.tried
        self.num_tune, self.num_draws = num_tune, num_draws
        self.transition = self.returned = None
        self.draw, self.raised, self.counted = 0, 0, self.density.calls
        self.log_weights, self.visited = [], []
        self.density.seed(self.rng)

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Start a new chain: forget what was learned, draw noise from this chain's generator."""
        super().setup_chain(rng, tune, draws)
        self._start(int(tune), int(draws))
        self.tune = tune > 0

    @property
    def noise(self):
        """The generators of an estimated density."""
        return self.density.noise

    @noise.setter
    def noise(self, generators):
        self.density.noise = generators

    def step(self, point):
        """Return the next point; the other variables are remembered, to notice when they have changed."""
        self._now = tuple(point[name].tobytes() for name in self.shared)
        return super().step(point)

    def astep(self, q0: RaveledVars):
        """Return the next position of the block."""
        raised = self.density.num_raised
        state = self._current(q0.data)
        state, info = self._transition_module.step(self.rng, state, self.density, self.config)
        self.density.settle(info.accepted)
        if self.tune or self.adaptation == "vanishing":
            state = self._adapt(state, info)
        self.transition = state
        self.draw += 1
        raised = self.density.num_raised - raised
        if self.is_judged_alone and not self.tune:
            self.raised += raised
            self.log_weights.append(getattr(info, "log_weight", math.nan))
            if self.draw % max(1, self.num_draws // _NUM_VISITED) == 0:
                self.visited.append((state.position, state.log_density, self.density.simulated))
        position = state.position.astype(q0.data.dtype, copy=False)
        self.returned = position.tobytes(), self._now
        stats = self._stats(state, info)
        stats["warning"] = self._warning(state)
        # Calls that other steps made since the last draw count, too.
        stats["evaluations"], stats["raised"] = self.density.calls - self.counted, raised
        self.counted = self.density.calls
        return RaveledVars(position, q0.point_map_info), [stats]

    def _stats(self, state, info) -> dict:
        values = info.accept_prob, float(info.accepted), info.scale, state.log_density
        known = dict(zip(_MEASURES, values, strict=True), stuck_for=state.rejections) | self.density.shares
        if self.density.estimated:
            known |= self.density.failures() | {"log_estimate_variance": self._log_estimate_variance(state)}
        return known

    def _log_estimate_variance(self, state) -> float:
        """Return the variance of the log estimates, as measured while tuning by a random walk; NaN where it was not."""
        return noise.variance_of(state.noise.ceiling) if state.noise.is_noisy and state.noise.num_probes else math.nan

    def _current(self, position: np.ndarray):
        """Return the state at ``position``; the density is evaluated only where the stored value is not valid there."""
        state = self.transition
        if self.returned == (position.tobytes(), self._now):
            return state
        who = f"{type(self).__name__} for {', '.join(self.var_names)}"
        if state is not None and self.density.estimated:
            raise NoisyBlockError(
                f"{who}: another step moved the chain, but the density is only estimated (by "
                f"{', '.join(self.density.estimated)}). The accepted estimate belongs to the old position, and a new "
                "one would change the posterior: give pm.sample this step alone."
            )
        log_density = self.first_estimate(position) if state is None else self.density(position)
        self.density.settle(True)
        if state is None:
            position, log_density = self._better_start(position, log_density)
            try:
                if self.learned is None:
                    return self._transition_module.init(position, log_density, self.config)
                return self._transition_module.relocate(self.learned, position, log_density)
            except NonFiniteStartError as error:
                cause = self.density.error
                why = "" if cause is None else f" The model raised {type(cause).__name__}: {cause}"
                raise NonFiniteStartError(f"{who}: {error}{why}") from cause
        if not math.isfinite(log_density):
            raise NonFiniteStartError(
                f"{who}: after another step moved the chain, the log density is {log_density}. That step does not see "
                "the same density: give all steps of the compound the same model."
            )
        return self._transition_module.relocate(state, position, log_density)

    def first_estimate(self, position: np.ndarray) -> float:
        """Return the log density where a chain begins; an estimate of zero is drawn again, up to twenty times."""
        for _ in range(STARTS_TRIED if self.density.estimated else 1):
            log_density = self.density(position)
            if math.isfinite(log_density):
                break
        return log_density

    def _better_start(self, position, log_density):
        """Return the start: the given position, or for PyMC's a likely prior draw, or a likelier pilot simulation."""
        is_default = self.prior is not None and np.array_equal(position, self.prior.default)
        is_better = False
        if self.tune and self.density.starts is not None:
            start = self.pilot_start(position, self.rng)
            there = self.density(start)
            is_better = there > log_density
        elif self.tune and is_default and _SEARCH_SHARE * self.num_tune >= STARTS_TRIED:
            start, self.known = self.drawn_start(self.num_tune, self.rng)
            # Estimated once more: the best of many estimates is too large, and the chain would get stuck on it.
            there = self.first_estimate(start)
            is_better = math.isfinite(there)
        if not is_better:
            return position, log_density
        self.density.settle(True)
        return start, there

    def pilot_start(self, position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return a position (d,) from a block's pilot simulations; ``position`` for coordinates not in the block."""
        start = rng.choice(self.density.starts)
        return np.where(np.isnan(start), position, start)

    def drawn_start(self, num_tune: int, rng: np.random.Generator) -> tuple[np.ndarray, KnownPlaces]:
        """Return a likely position (d,) among draws from the prior, which must exist, and all points evaluated."""
        budget = 0 if self.density.estimated else int(_SEARCH_SHARE * num_tune)
        return self.prior.choose(self.density, rng, budget)

    def _adapt(self, state, info):
        num_tune = self.num_tune if self.adaptation == "tuning" else 0
        return self._transition_module.adapt(self.rng, state, info, self.config, num_tune)

    def _warning(self, state) -> SamplerWarning | None:
        """Return a warning, at most once a chain and once more at its last draw, or None."""
        if self.tune:
            return None
        is_last = self.draw == self.num_tune + self.num_draws
        if is_last and self.is_judged_alone and (words := [w for w in self._last_words() if w]):
            return self._said(WarningType.CONVERGENCE, " Besides, ".join(words))
        if self.warned or not (problem := self._problem(state)):
            return None
        self.warned = True
        return self._said(WarningType.BAD_ACCEPTANCE, problem)

    def _said(self, kind: WarningType, message: str) -> SamplerWarning:
        return SamplerWarning(kind, f"{type(self).__name__}: {message}", "warn", step=self.draw)

    def _problem(self, state) -> str:
        """Return what is wrong with a chain after tuning, and why; or nothing."""
        if state.rejections < STUCK_AFTER:
            return ""
        reason = chain_warnings.noise_report(self.density, state) if self.density.estimated else _NO_FIT
        return f"a chain has rejected {state.rejections} proposals in a row. {reason}"

    def _last_words(self) -> list[str]:
        """Return warnings from all draws of the chain, some of them empty."""
        positions, levels, summaries = zip(*self.visited, strict=True)
        simulated = [one for one in zip(positions, summaries, strict=True) if one[1]]
        known = None if self.shared else self.known  # other steps have changed the density at the known points
        return [
            self.missed_point(known, self.transition, np.array(positions), np.array(levels)),
            normality_warning(simulated, self.coordinates),
            chain_warnings.raised_warning(self.raised, self.num_draws, self.density.error),
            chain_warnings.missing_mass_warning(np.array(self.log_weights)),
        ]

    def missed_point(self, known: KnownPlaces | None, state: Any, draws: np.ndarray, levels: np.ndarray) -> str:
        """Return a warning about a known point that draws (n, d) with log densities (n,) have missed; or nothing."""
        if known is None:
            return ""
        few = slice(None, None, max(1, len(draws) // _NUM_VISITED))
        variance = self._log_estimate_variance(state) if self.density.estimated else 0.0
        place = missed(known, draws[few], levels[few], self.density, math.sqrt(variance))
        return chain_warnings.missed_point_warning(place, self.coordinates)

    _progressbar_config = staticmethod(progress_columns)
    _make_progressbar_update_functions = staticmethod(progress_updates)


class RandomWalkStep(TransitionStep):
    """A step whose scale is learned from the acceptance rate; once learning has ended, no evaluation measures noise."""

    def _current(self, position):
        state = super()._current(position)
        if self.tune or self.adaptation == "vanishing" or state.noise.next_probe == math.inf:
            return state
        return state._replace(noise=state.noise._replace(next_probe=math.inf))
