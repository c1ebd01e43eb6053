"""The samplers as PyMC step methods: nothing here but the handing over between PyMC and ``mcmc``."""

import math
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pymc as pm
from pymc.blocking import RaveledVars
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_value_vars_from_user_vars
from pymc.vartypes import continuous_types
from rich.progress import TextColumn
from rich.table import Column

from pymc_kernel import scores
from pymc_kernel.errors import NoisyBlockError, NonFiniteStartError
from pymc_kernel.kernels import Gaussian, Kernel
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc, noise, unvisited
from pymc_kernel.mcmc.coverage import is_missing_mass
from pymc_kernel.mcmc.moves import NAMES
from pymc_kernel.plugin.foreign_steps import model_in_question
from pymc_kernel.plugin.likelihoods import block_of
from pymc_kernel.plugin.model_functions import compile_log_density
from pymc_kernel.plugin.starts import NUM_CANDIDATES, prior_draws

__all__ = ["KAMH", "AdaptiveMetropolis", "KernelHMC", "offer_to_estimated_models", "register_step_methods"]

# A chain that accepts one proposal in twenty rejects 200 in a row once in 30,000 draws.
_STUCK_AFTER = 200
_NOISE_REPLICATES = 20
_NUM_VISITED = 500  # draws kept to see at the end whether a known place was left out
_LEAST_TUNING = 100  # draws of kernel HMC: with fewer there is one fit to a handful of places, or none
_NAMED = 4  # coordinates of a place that a message shows
_SEARCH_SHARE = 0.1  # of the tuning draws, in evaluations: to look for modes that the prior's draws point to
_TUNE_PER_CANDIDATE = 10  # tuning draws for each candidate of a start, so that these cost a tenth at the most


@dataclass_state
class TransitionState(StepMethodState):
    """All of a step that changes while it runs; PyMC saves, resets and restores a step through it."""

    tune: bool
    num_tune: int
    num_draws: int  # announced, after tuning
    transition: Any  # the State of the transition, None before the first draw
    returned: Any  # bytes of the position last handed to PyMC
    surroundings: Any  # bytes of the other variables at that moment
    noise: Any  # generators of an estimated density
    warned: bool
    draw: int  # draws of the chain so far, tuning included
    moves: int  # proposals accepted after tuning
    known: Any  # Places where the density was evaluated to find a start
    visited: list  # (position, log density) of some draws after tuning


class TransitionStep(ArrayStepShared):
    """A transition of ``pymc_kernel.mcmc`` as a step: reads the density, keeps the state, reports.

    Subclasses name the module of the transition and build its configuration.
    """

    default_blocked = True
    keeps_estimates = True  # the estimate that was accepted belongs to the state
    _state_class = TransitionState
    _transition_module: ModuleType

    stats_dtypes_shapes = {  # noqa: RUF012 (PyMC reads it from the class)
        "accept": (np.float64, []),
        "moved": (np.float64, []),
        "proposal_scale": (np.float64, []),
        "log_density": (np.float64, []),
        "stuck_for": (np.int64, []),
        "evaluations": (np.int64, []),
        "warning": (SamplerWarning, None),
    }

    def __init__(self, vars, config, adaptation, model, rng, initial_point, compile_kwargs, blocked):
        if adaptation not in ("tuning", "vanishing"):
            raise ValueError(f'adaptation must be "tuning" or "vanishing", got {adaptation!r}.')
        model = pm.modelcontext(model)
        value_vars = _continuous(model) if vars is None else get_value_vars_from_user_vars(vars, model)
        if not value_vars:
            raise ValueError(
                f"{type(self).__name__} samples continuous variables, and the model has none that are free."
            )
        if initial_point is None:
            initial_point = model.initial_point()
        self.density = compile_log_density(model, value_vars, initial_point, type(self).__name__, compile_kwargs)
        empty = [v.name for v in value_vars if np.size(initial_point[v.name]) == 0]
        if empty:
            raise ValueError(f"{type(self).__name__} got variables without entries: {', '.join(empty)}.")
        self.tried = None  # by ``sample_khmc``: Places of its search for a start
        self.prior = prior_draws(model, value_vars, initial_point)
        config = replace(config, noisy=bool(self.density.estimated))
        if self.prior is not None and config.learns_covariance and config.covariance is None:
            config = replace(config, covariance=np.diag(self.prior.scales**2))
        self.config = config
        self.adaptation = adaptation
        super().__init__(value_vars, self.density.shared, blocked=blocked, rng=rng)
        if self.density.estimated:
            names = (*self.density.shares, *self.density.failure_names, "log_estimate_variance")
            self.stats_dtypes_shapes = {**type(self).stats_dtypes_shapes, **dict.fromkeys(names, (np.float64, []))}
            self.stats_dtypes = [{name: dtype for name, (dtype, _) in self.stats_dtypes_shapes.items()}]
        num_dims = sum(int(np.size(initial_point[v.name])) for v in value_vars)
        # A wrong shape in the configuration is found here, before any long work.
        self._transition_module.init(np.zeros(num_dims), 0.0, config)
        self._start(num_tune=0, num_draws=0)

    # -- life of a chain ----------------------------------------------------------------------------

    def _start(self, num_tune: int, num_draws: int) -> None:
        self.tune = True
        self.num_tune = num_tune
        self.num_draws = num_draws
        self.transition = None
        self.returned = None
        self.surroundings = None
        self.warned = False
        self.draw = 0
        self.moves = 0
        self.known = self.tried
        self.visited = []
        self.density.seed(self.rng)

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Start a chain afresh: nothing learnt from another one, noise drawn from this chain's generator."""
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

    # -- one draw -----------------------------------------------------------------------------------

    def step(self, point):
        """Return the next point; the other variables are remembered, to know when they have moved."""
        self._now = tuple(point[name].tobytes() for name in self.shared)
        return super().step(point)

    def astep(self, q0: RaveledVars):
        """Return the next position of the block."""
        evaluations = self.density.evaluations
        state = self._current(q0.data)
        state, info = self._transition_module.step(self.rng, state, self.density, self.config)
        self.density.settle(info.accepted)
        if self.tune or self.adaptation == "vanishing":
            state = self._adapt(state, info)
        self.transition = state
        self.draw += 1
        self.moves += not self.tune and info.accepted
        if self.known is not None and not self.tune and self.draw % max(1, self.num_draws // _NUM_VISITED) == 0:
            self.visited.append((state.position, state.log_density))
        position = state.position.astype(q0.data.dtype, copy=False)
        self.returned = position.tobytes()
        self.surroundings = self._now
        stats = self._stats(state, info)
        stats["warning"] = self._warning(state)
        stats["evaluations"] = self.density.evaluations - evaluations
        return RaveledVars(position, q0.point_map_info), [stats]

    def _stats(self, state, info) -> dict:
        estimated = {}
        if self.density.estimated:
            estimated = self.density.failures() | {"log_estimate_variance": self._log_estimate_variance(state)}
        return {
            **estimated,
            "accept": info.accept_prob,
            "moved": float(info.accepted),
            "proposal_scale": info.scale,
            "log_density": state.log_density,
            "stuck_for": state.rejections,
            **self.density.shares,
        }

    def _log_estimate_variance(self, state) -> float:
        """Return the variance of the log estimates, as measured while tuning; NaN where it was not."""
        return _measured_variance(state.noise)

    def _current(self, position: np.ndarray):
        """Return the state at ``position``, evaluating the density only where the stored value is not its value."""
        state = self.transition
        same_place = self.returned == position.tobytes()
        if state is not None and same_place and self.surroundings == self._now:
            return state
        who = f"{type(self).__name__} for {', '.join(self.var_names)}"
        if state is not None and self.density.estimated:
            raise NoisyBlockError(
                f"{who}: another step moved the chain, but the density is only estimated (by "
                f"{', '.join(self.density.estimated)}). The estimate that was accepted belongs to the old place, and "
                "drawing one anew would change the posterior: give pm.sample this step alone."
            )
        log_density = self.density(position)
        self.density.settle(True)
        if state is None:
            position, log_density = self._better_start(position, log_density)
            try:
                return self._begin(position, log_density)
            except NonFiniteStartError as error:
                cause = self.density.error
                told = "" if cause is None else f" The model raised {type(cause).__name__}: {cause}"
                raise NonFiniteStartError(f"{who}: {error}{told}") from cause
        if not math.isfinite(log_density):
            raise NonFiniteStartError(
                f"{who}: after another step moved the chain, the log density is {log_density}. That step does not see "
                "the same density: give all steps of the compound the same model."
            )
        return self._transition_module.relocate(state, position, log_density)

    def _better_start(self, position, log_density):
        """Return the point to begin at: the one given, or where that is PyMC's initial point a likely one of the prior.

        Or one of a block's pilot simulations, if that is more likely than the one given.
        """
        if not self.tune:
            return position, log_density
        if self.density.starts is None:
            return self._drawn_start(position, log_density)
        start = self.rng.choice(self.density.starts)
        start = np.where(np.isnan(start), position, start)
        there = self.density(start)
        if not there > log_density:
            return position, log_density
        self.density.settle(True)
        return start, there

    def _drawn_start(self, position, log_density):
        is_default = self.prior is not None and np.array_equal(position, self.prior.default)
        if not is_default or self.num_tune < _TUNE_PER_CANDIDATE * NUM_CANDIDATES:
            return position, log_density
        start, self.known = self.drawn_start(self.num_tune, self.rng)
        # Estimated once more: the best of many estimates is too large, and would hold the chain.
        for _ in range(NUM_CANDIDATES if self.density.estimated else 1):
            there = self.density(start)
            if math.isfinite(there):
                self.density.settle(True)
                return start, there
        return position, log_density

    def drawn_start(self, num_tune: int, rng: np.random.Generator) -> tuple[np.ndarray, unvisited.Places]:
        """Return a likely position (d,) of those drawn from the prior, and all that were tried; there must be some."""
        budget = 0 if self.density.estimated else int(_SEARCH_SHARE * num_tune)
        return self.prior.choose(self.density, rng, budget)

    def _begin(self, position, log_density):
        return self._transition_module.init(position, log_density, self.config)

    def _adapt(self, state, info):
        raise NotImplementedError

    def _warning(self, state) -> SamplerWarning | None:
        """Return a warning, once a chain, when it has rejected for too long or is bound to creep after tuning."""
        if self.tune:
            return None
        if self._is_last_draw and (missed := self._missed()):
            return SamplerWarning(WarningType.CONVERGENCE, missed, "warn", step=self.draw)
        if self.warned:
            return None
        if untaught := self._untaught(state):
            self.warned = True
            return SamplerWarning(WarningType.BAD_ACCEPTANCE, untaught, "warn", step=self.draw)
        trouble = self._trouble(state)
        if not trouble:
            return None
        self.warned = True
        message = f"{type(self).__name__}: {trouble}"
        if self.density.estimated:
            message += self._noise_report(state)
        else:
            message += "Its proposals do not fit the place where it is: tune longer, or reparametrise."
        return SamplerWarning(WarningType.BAD_ACCEPTANCE, message, "warn", step=self.draw)

    @property
    def _is_last_draw(self) -> bool:
        return self.draw == self.num_tune + self.num_draws

    def _untaught(self, state) -> str:
        """Return what to say of a chain that has not learnt what it is for, or nothing."""
        return ""

    def _missed(self) -> str:
        """Return what to say of a place that the chain should have come to and has not, or nothing."""
        if self.known is None or self.shared or not self.visited:
            return ""  # where other steps move, the density at a place is another one by now
        draws, log_densities = (np.array(a) for a in zip(*self.visited, strict=True))
        place = unvisited.missed(self.known, draws, log_densities)
        if place is None:
            return ""
        return (
            f"{type(self).__name__}: a chain never came near {self._named(place)} (on the unconstrained scale), which "
            "the search for a start found to be as likely as where the chain has been: it is too short, or the "
            "posterior has a mode that it does not show. Take more draws, or pk.sample_smc, which weighs modes."
        )

    def _named(self, position) -> str:
        """Return a position (d,) with the names of its variables, the first few of its coordinates."""
        if len(self.vars) > _NAMED or any(v.type.ndim for v in self.vars):
            shown = ", ".join(f"{x:.3g}" for x in position[:_NAMED])
            return f"({shown}{', ...' if position.size > _NAMED else ''})"
        return ", ".join(f"{v.name} = {x:.3g}" for v, x in zip(self.vars, position, strict=True))

    def _trouble(self, state) -> str:
        """Return what is wrong with a chain after tuning, or nothing."""
        if state.rejections >= _STUCK_AFTER:
            return f"a chain has rejected {state.rejections} proposals in a row. "
        return ""

    def _noise_report(self, state) -> str:
        estimates = self.density.estimates(state.position, _NOISE_REPLICATES)
        finite = estimates[np.isfinite(estimates)]
        zeros = estimates.size - finite.size
        text = f"The likelihood ({', '.join(self.density.estimated)}) is estimated, and where the chain is "
        if finite.size < 2:
            return text + f"{zeros} of {estimates.size} new estimates are zero: use many more replicates per estimate."
        variance = float(finite.var(ddof=1))
        text += f"the log estimate has a variance of {variance:.2g}"
        text += f", and {zeros} of {estimates.size} new estimates are zero" if zeros else ""
        text += f"; it holds on to an estimate {state.log_density - finite.mean():+.2g} from their mean. "
        if variance > 1.0 or state.log_density - finite.mean() > 2.0 * math.sqrt(variance):
            times = max(2, math.ceil(variance))
            return text + f"About {times} times as many replicates per estimate would keep chains from getting stuck."
        return text + "That is little noise: tune longer, or reparametrise."

    # -- PyMC's progress bar and choice of steps ------------------------------------------------------

    @staticmethod
    def _progressbar_config(n_chains=1):
        columns = [
            TextColumn("{task.fields[kernel_accept]:0.2f}", table_column=Column("Accept rate", ratio=1)),
            TextColumn("{task.fields[kernel_scale]:0.2g}", table_column=Column("Proposal scale", ratio=1)),
            TextColumn("{task.fields[kernel_stuck]}", table_column=Column("Stuck for", ratio=1)),
        ]
        stats = {"kernel_accept": [0.0] * n_chains, "kernel_scale": [0.0] * n_chains, "kernel_stuck": [0] * n_chains}
        return columns, stats

    @staticmethod
    def _make_progressbar_update_functions():
        def update_stats(stats):
            return {
                "kernel_accept": stats["accept"],
                "kernel_scale": stats["proposal_scale"],
                "kernel_stuck": stats["stuck_for"],
                "failing": stats["stuck_for"] >= _STUCK_AFTER,
            }

        return (update_stats,)

    @staticmethod
    def competence(var, has_grad):
        """Return how well the step suits a variable: preferred where there is no gradient, never for discrete ones."""
        if var.dtype not in continuous_types:
            return Competence.INCOMPATIBLE
        return Competence.COMPATIBLE if has_grad else Competence.PREFERRED


def _measured_variance(known: noise.Noise) -> float:
    """Return the variance of log-normal noise that lets as few steps through as were measured; NaN where none were."""
    return noise.variance_of(known.ceiling) if known.is_noisy and known.num_probes else math.nan


def _continuous(model) -> list:
    """Return the value variables that are not discrete; PyMC finds steps for the others."""
    return [v for v in model.value_vars if v.dtype in continuous_types]


_SHARED_PARAMETERS = """
    adaptation : {"tuning", "vanishing"}
        Whether learning ends with the tuning phase, after which the chain is an ordinary Metropolis-Hastings
        chain (default), or goes on with ever smaller steps. With ``tune=0`` and the default nothing is learnt.
    model, rng, initial_point, compile_kwargs, blocked
        As in every step of PyMC; ``pm.sample`` fills in what it needs. One block by default.
"""

_SHARED_NOTES = """
    One evaluation of the log density a draw at most; while tuning on an estimated likelihood one more in ten, at the
    point where the chain is, to measure the noise. For an estimated likelihood the estimate that was accepted is
    kept, so the posterior is exact; all free variables must then be in the one block.

    A chain that tunes for 200 draws or more begins at PyMC's initial point or at one of twenty draws from the prior, in
    proportion to their likelihood, and the first proposals have the prior's scales; ``initvals`` and priors that cannot
    be drawn from, as ``pm.Flat``, keep PyMC's start. Another tenth of the tuning draws may be spent on looking for
    modes that these draws point to. A chain that in the end has come near none of the places that are as likely as
    where it was says so.

    Statistics of each draw, in ``sample_stats``: ``accept`` (acceptance probability), ``moved`` (1 if the
    proposal was accepted), ``proposal_scale``, ``log_density`` (at the draw; an estimated one as accepted),
    ``stuck_for`` (rejections in a row up to this draw), ``evaluations`` (of the log density, normally 1). With an
    estimated likelihood ``y`` also ``failed_share_y`` (of the simulations for the proposal, or of its estimates) and
    ``log_estimate_variance`` (measured while tuning). ``pk.provenance`` sums them up.
    A chain that is stuck after tuning is reported once, with the variance of the log estimate if the density
    is estimated; so is one whose scale noise has driven to its floor (a tenth of 2.38 / sqrt(d), in units of the
    learnt covariance), one that cannot reach the ``target_accept`` given under the noise measured, and one that has
    moved less than twelve times for each parameter.
"""


class _RandomWalk(TransitionStep):
    """What steps share whose one scale is learnt from the acceptance rate."""

    def _begin(self, position, log_density):
        return self._settled_unless_learning(super()._begin(position, log_density))

    def stop_tuning(self):
        """End the learning, and with it the evaluations that measure noise."""
        super().stop_tuning()
        if self.transition is not None:
            self.transition = self._settled_unless_learning(self.transition)

    def _settled_unless_learning(self, state):
        if self.tune or self.adaptation == "vanishing":
            return state
        return state._replace(noise=noise.settled(state.noise))

    def _trouble(self, state) -> str:
        found = super()._trouble(state)
        if found or not self.density.estimated:
            return found
        if self._is_last_draw and self.moves < noise.MOVES_PER_DIMENSION * state.position.size:
            return (
                f"a chain has moved {self.moves} times in {self.num_draws} draws, which is too little to show the "
                f"spread of {state.position.size} parameters. "
            )
        if not (state.noise.num_probes and self.config.learn_scale):
            return ""
        ceiling = f"noise lets no more than {state.noise.ceiling:.2g} of all steps through, however short. "
        if noise.is_out_of_reach(self.config.target_accept, state.noise):
            return (
                f"the target acceptance of {self.config.target_accept:g} cannot be reached by steps that get anywhere: "
                f'{ceiling}Leave target_accept at "auto". '
            )
        if self._transition_module.is_at_floor(state, self.config):
            return f"the scale of the proposals has shrunk to its floor, so the chain creeps: {ceiling}"
        return ""


class AdaptiveMetropolis(_RandomWalk):
    """Random-walk Metropolis with a learnt covariance and a learnt scale.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    covariance : array_like (d, d), optional
        Of the proposal, on the unconstrained scale: the start of the learning, or the fixed value.
    learn_covariance, learn_scale : bool
        What is adapted. With both False this is plain Metropolis.
    scale : float, optional
        Factor on the proposal's standard deviation, 2.38 / sqrt(d) to begin with.
    target_accept : float or "auto"
        Acceptance rate that the scale is driven to. "auto" is .234, and for an estimated likelihood the rate that is
        best under its noise, which is measured while tuning: .1 for a standard deviation of 1.5.
    {parameters}

    Notes
    -----
    {notes}
    Source: Haario, Saksman and Tamminen (2001); Andrieu and Thoms (2008). O(d^2) a draw.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.AdaptiveMetropolis(), progressbar=False)  # doctest: +SKIP
    """

    name = "adaptive_metropolis"
    _transition_module = adaptive_metropolis

    def __init__(
        self,
        vars=None,
        *,
        covariance=None,
        learn_covariance: bool = True,
        scale: float | None = None,
        learn_scale: bool = True,
        target_accept: float | str = "auto",
        adaptation: str = "tuning",
        model=None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        config = adaptive_metropolis.Config(covariance, learn_covariance, scale, learn_scale, target_accept)
        super().__init__(vars, config, adaptation, model, rng, initial_point, compile_kwargs, blocked)

    def _adapt(self, state, info):
        return adaptive_metropolis.adapt(state, info, self.config)


class KAMH(_RandomWalk):
    """Kernel adaptive Metropolis-Hastings: a random walk that follows the local shape of the posterior.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    kernel : pymc_kernel.kernels.Kernel, optional
        Any differentiable kernel; ``Gaussian("median")`` by default.
    subsample_size : int
        How many points of the chain's past shape the proposal; a draw costs O(n d^2).
    isotropic_share : float
        Share of the isotropic part in the variance of the proposal, in (0, 1). Far from the past of the chain
        it is all that is left.
    gamma : float, optional
        A fixed standard deviation of the isotropic part instead, in whitened units: the thesis's form. It
        needs to fit the target; chains have been seen to linger in the tails where it does not.
    scale : float, optional
        Of the proposal at the start, in units of the spread that is learnt; 2.38 / sqrt(d) by default.
    learn_scale : bool
        Whether the scale is driven to ``target_accept``.
    target_accept : float or "auto"
        Acceptance rate that the scale is driven to. "auto" is .234, and for an estimated likelihood the rate that is
        best under its noise, which is measured while tuning: .1 for a standard deviation of 1.5.
    whiten : bool or str
        Whether the kernel acts in coordinates of unit covariance; ``"local"`` for those in which the neighbourhoods of
        the chain's past have it, on the average: for thin, bent or scattered posteriors, at 0.1 s for each subsample.
    {parameters}

    Notes
    -----
    {notes}
    Source: Sejdinovic et al. (2014); Strathmann (2018), chapter 3. The proposal is not symmetric, and its full
    density ratio is used. Memory: ten times ``subsample_size`` positions, however long the chain.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.KAMH(), progressbar=False)  # doctest: +SKIP
    """

    name = "kamh"
    _transition_module = kameleon

    def __init__(
        self,
        vars=None,
        *,
        kernel: Kernel | None = None,
        subsample_size: int = 1000,
        isotropic_share: float = 0.5,
        gamma: float | None = None,
        scale: float | None = None,
        learn_scale: bool = True,
        target_accept: float | str = "auto",
        whiten: bool = True,
        adaptation: str = "tuning",
        model=None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        config = kameleon.Config(
            kernel=Gaussian("median") if kernel is None else kernel,
            subsample_size=subsample_size,
            isotropic_share=isotropic_share,
            gamma=gamma,
            scale=scale,
            learn_scale=learn_scale,
            target_accept=target_accept,
            whiten=whiten,
        )
        super().__init__(vars, config, adaptation, model, rng, initial_point, compile_kwargs, blocked)

    def _adapt(self, state, info):
        num_tune = self.num_tune if self.adaptation == "tuning" else 0
        return kameleon.adapt(self.rng, state, info, self.config, num_tune)


_ESTIMATORS = {
    "auto": scores.Values,
    "values": scores.Values,
    "lite": lambda: scores.Lite(max_points=500),
    "finite": scores.Finite,
    "nystrom": lambda: scores.Nystrom(num_basis=50),
}


class KernelHMC(TransitionStep):
    """Gradient-free Hamiltonian Monte Carlo along a surrogate of the log density, learnt while the chain tunes.

    Parameters
    ----------
    vars : list of variables, optional
        All continuous free variables of the model by default; ``pm.sample`` finds steps for discrete ones.
    surrogate : {{"auto", "values", "lite", "finite", "nystrom"}} or an estimator of ``pymc_kernel.scores``
        What is learnt. "values" is kernel regression on the log density at every proposal, rejected ones
        included; the others match scores at the visited points. "auto" is "values", which is far ahead in the
        benchmarks but for heavy tails, where the two families are alike.
    exploring_share : float
        Share of random-walk moves after tuning, in (0, 1]. Where the surrogate does not help it becomes 1 by
        itself.
    max_steps : int
        Leapfrog steps of a trajectory at most; they cost microseconds and no evaluation.
    target_accept : float or "auto"
        Acceptance rate that the random walk's scale is driven to, as of :class:`KAMH`.
    model, rng, initial_point, compile_kwargs, blocked
        As in every step of PyMC; ``pm.sample`` fills in what it needs. One block by default.

    Notes
    -----
    {notes}
    Further statistics: ``move`` (the kind of move, in words: one of ``pymc_kernel.mcmc.moves.NAMES``),
    ``num_steps`` (leapfrog steps), ``energy_error`` (minus the log of the acceptance ratio), ``surrogate_quality``
    (leave-one-out error of the values in units of the log density, or the held-out score-matching loss).

    A surrogate move is one trajectory, or several in a row that the surrogate alone accepts or rejects, taken as
    one proposal. Every kind of move is measured during tuning and the best is kept; then all is frozen. Learning
    takes some seconds a chain (O(n^3) for at most 1,000 points, twenty times), so it pays where an evaluation costs
    more than about a millisecond. With ``cores=1`` the surrogate of the last chain is afterwards in ``step.surrogate``;
    one of any run is ``pk.scores.Values().fit(draws, log_density)``, on draws in the unconstrained space and
    ``sample_stats["log_density"]``.

    A surrogate that is far too low somewhere, as in the neck of a funnel, never leads there, and chains look well mixed
    without it. At the last draw of a chain the ratios of the density to the surrogate are judged as importance weights
    are, by the Pareto shape of their tail, and a warning says where a part of the posterior is likely to be missing.

    Source: Strathmann et al. (2015); Strathmann (2018), chapter 4; Rasmussen (2003) for values; Liu (2001), section
    9.4.3, for chains on a surrogate.

    Examples
    --------
    >>> import pymc as pm, pymc_kernel as pk
    >>> with pm.Model():
    ...     x = pm.Normal("x", shape=3)
    ...     idata = pm.sample(step=pk.KernelHMC(), progressbar=False)  # doctest: +SKIP
    """

    name = "kernel_hmc"
    _transition_module = kernel_hmc

    stats_dtypes_shapes = TransitionStep.stats_dtypes_shapes | {
        "move": (f"<U{max(map(len, NAMES))}", []),
        "num_steps": (np.int64, []),
        "energy_error": (np.float64, []),
        "surrogate_quality": (np.float64, []),
    }

    def __init__(
        self,
        vars=None,
        *,
        surrogate="auto",
        exploring_share: float = 0.1,
        max_steps: int = 60,
        target_accept: float | str = "auto",
        model=None,
        rng=None,
        initial_point=None,
        compile_kwargs: dict | None = None,
        blocked: bool = True,
    ):
        if isinstance(surrogate, str):
            if surrogate not in _ESTIMATORS:
                raise ValueError(f"surrogate must be one of {', '.join(_ESTIMATORS)}, got {surrogate!r}.")
            surrogate = _ESTIMATORS[surrogate]()
        config = kernel_hmc.Config(surrogate, exploring_share, max_steps, target_accept)
        super().__init__(vars, config, "tuning", model, rng, initial_point, compile_kwargs, blocked)
        self.learnt = None  # by ``sample_khmc``: a state whose fit, archive and shares every chain starts with

    @property
    def surrogate(self):
        """The fitted surrogate of the log density on the unconstrained scale, None before there is one."""
        state = self.learnt if self.transition is None else self.transition
        return None if state is None or state.fit is None else state.fit.learned.surrogate

    @staticmethod
    def competence(var, has_grad):
        """Return that nothing suits a model with a block of ours better; all other models are left to PyMC.

        Discrete variables of such a model are taken too: the constructor says what to do with them.
        """
        model = model_in_question()
        is_estimated = model is not None and any(block_of(rv) is not None for rv in model.observed_RVs)
        return Competence.IDEAL if is_estimated else Competence.INCOMPATIBLE

    def _begin(self, position, log_density):
        if self.learnt is None:
            return super()._begin(position, log_density)
        return kernel_hmc.relocate(self.learnt, position, log_density)

    def _log_estimate_variance(self, state):
        # A regression on all values sees more of their noise than the random walk's few probes do.
        noise_sd = None if state.fit is None else getattr(state.fit.learned.surrogate, "noise_sd", None)
        return _measured_variance(state.walk.noise) if noise_sd is None else noise_sd**2

    def _untaught(self, state) -> str:
        if self.learnt is not None or (state.fit is not None and self.num_tune >= _LEAST_TUNING):
            return ""
        return (
            f"KernelHMC: {self.num_tune} tuning draws were too few to learn a surrogate that its moves can trust. Tune "
            "for 500 draws or more, or take pk.sample_khmc, whose chains learn from each other's."
        )

    def _adapt(self, state, info):
        return kernel_hmc.adapt(self.rng, state, info, self.config, self.num_tune)

    def stop_tuning(self):
        """End the learning, even where fewer draws were tuned for than had been announced."""
        state = self.transition
        if self.tune and state is not None and state.iteration < self.num_tune:
            self.transition = kernel_hmc.finish(state._replace(iteration=self.num_tune), self.config)
        return super().stop_tuning()

    def _trouble(self, state) -> str:
        found = super()._trouble(state)
        if found or not self._is_last_draw:
            return found
        coverage = kernel_hmc.coverage(state)
        if coverage is None or not is_missing_mass(coverage):
            return ""
        return (
            f"a chain has met places where the density is {math.exp(min(coverage.excess, 20.0)):.2g} times as high, "
            f"against its surrogate, as elsewhere, and the tail of these ratios (Pareto shape {coverage.shape:.2g}) "
            "tells of more: draws from a part of the posterior are likely to be missing. "
        )

    def _stats(self, state, info):
        return super()._stats(state, info) | {
            "move": info.move.name,
            "num_steps": info.num_steps,
            "energy_error": info.energy_error,
            "surrogate_quality": math.nan if state.fit is None else state.fit.learned.quality,
        }


for _step in (AdaptiveMetropolis, KAMH, KernelHMC):
    if _step.__doc__ is None:  # python -OO
        continue
    _step.__doc__ = _step.__doc__.format(parameters=_SHARED_PARAMETERS.strip(), notes=_SHARED_NOTES.strip())


def register_step_methods() -> None:
    """Let ``pm.sample`` choose :class:`KAMH` by itself for variables without a gradient.

    Importing the package does not do this. Variables with a gradient stay with NUTS, discrete ones with
    PyMC's own steps. Calling it twice changes nothing. Models with a likelihood that is only estimated need no such
    call: once there is one, ``pm.sample`` takes :class:`KernelHMC` for it, and for no other model.
    """
    if KAMH not in STEP_METHODS:
        # Among equals PyMC takes the first.
        STEP_METHODS.insert(0, KAMH)


def offer_to_estimated_models() -> None:
    """Make ``pm.sample`` ask :class:`KernelHMC`, before all others, whether the model has an estimated term."""
    if KernelHMC not in STEP_METHODS:
        STEP_METHODS.insert(0, KernelHMC)
