"""NUTS on an emulated model, corrected by estimates of the groups that have moved: exact draws, group by group."""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor
from pymc.blocking import RaveledVars
from pymc.step_methods.arraystep import ArrayStepShared
from pymc.step_methods.compound import StepMethodState
from pymc.step_methods.state import dataclass_state
from pytensor.graph import graph_replace
from pytensor.graph.traversal import apply_ancestors

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.linalg import ridged_cholesky
from pymc_kernel.mcmc.adaptive_metropolis import optimal_scale
from pymc_kernel.mcmc.metropolis import metropolis_accept
from pymc_kernel.plugin.emulation.chains import Chains, density_and_gradient, first_metric, raveled, variances_of
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp, drawing_noise, estimated_terms
from pymc_kernel.plugin.model.interpreter import of_position
from pymc_kernel.plugin.model.priors import STARTS_TRIED
from pymc_kernel.plugin.warn import warn_user

# With 3 instead of 1, the smallest effective sample size of 43 parameters was 100 instead of 65 of 1,000 draws, the
# median 350 instead of 220; a draw of twelve groups took 27 milliseconds instead of 16.
_TRANSITIONS = 3
# Share of random walks among moves of a block with several terms: with trajectories alone, a noise level that is an
# input of twelve likelihoods had 17 effective draws of 4,000 (R-hat 1.20); with random walks 158 (1.03).
_LOCAL = 0.5
_SHORTEST = 0.1  # step of a walk, relative to the best for a normal distribution (Roberts and Rosenthal 2001)
_PROBED = 3  # draws at which each coordinate is moved, to see which estimates depend on it


@dataclass_state
class _State(StepMethodState):
    tune: bool
    is_placed: bool
    estimates: Any
    runs: Any
    inner: Any = None


class Estimates(NamedTuple):
    """Log estimates that belong to a place, and the random numbers behind them: part of the state of a chain."""

    values: list[np.ndarray]
    seeds: list[int]  # of each estimate, which its seed and its inputs determine


class Place(NamedTuple):
    """A current or proposed position of a chain, with all that its acceptance probability depends on."""

    position: np.ndarray
    estimates: Estimates
    inputs: list[list[np.ndarray]]  # what each estimate depends on
    level: float  # true log density, with the estimates
    learned: float  # log density of the emulated model


class _OfBlock:
    """The emulated log density of some coordinates, in the form that PyMC's integrator calls."""

    _extra_vars_shared: dict = {}  # noqa: RUF012 (read by PyMC)
    _raveled_inputs = True

    def __init__(self, function, coordinates, size):
        self._whole, self._coordinates, self.position = function, coordinates, np.zeros(size)
        self.dtype = "float64"

    def _pytensor_function(self, position):
        whole = self.position.copy()
        whole[self._coordinates] = position
        value, gradient = self._whole._pytensor_function(whole)
        return value, np.asarray(gradient)[self._coordinates]


class EmulatedGroups(ArrayStepShared):
    """Exact draws from a model with an estimated likelihood for each group, proposed by its emulated model.

    ``pm.sample(step=pk.EmulatedNUTS(emulated))`` uses it where the model has estimates. Coordinates of the
    unconstrained vector are split into blocks by the estimates that depend on them. A draw is a sweep over the blocks.
    For each, NUTS makes a few transitions on its emulated density, the other blocks fixed. Only terms whose inputs have
    moved are estimated again, and the true density with new and kept estimates decides on acceptance (pseudo-marginal,
    Andrieu and Roberts 2009: the accepted estimate of a term is part of the chain's state, and stays valid as long as
    the term's inputs stay). A block that moves no black box is always accepted.

    Parameters
    ----------
    emulated, model
        As in :class:`EmulatedNUTS`.
    transitions : int, optional
        Transitions of NUTS in each block's proposal, three by default; they cost no estimate.
    **kwargs
        Of ``pymc.NUTS``, such as ``target_accept``.

    Notes
    -----
    In a centred hierarchy (``pm.Normal("effect", center, spread)``) each group is a block, and hyperparameters move
    without estimates: a draw costs one estimate of each group. A block that moves several terms, such as
    hyperparameters of a non-centred hierarchy or a parameter of all likelihoods, costs another estimate of each. The
    errors of all learned terms would add up in one acceptance, so half of its moves are random walks with steps of
    random length; and so would their noises, so each term keeps its random numbers there: an estimate is a function of
    its inputs and a seed, which is part of the chain's state, and only blocks that move the fewest terms draw a new
    one. Other black boxes are called once for each block, and once for each draw.

    Tuning runs on the emulated model alone, and each tuning draw starts at one of the emulation's draws: a long chain
    would reach places where nothing was evaluated, where learned estimates may be wrong by a hundred nats. Statistics:
    ``accept``, the mean probability of acceptance of blocks that move estimates, and ``least_accept``, the smallest of
    these; ``moved``, the share of these that moved; ``stuck``, the largest number of draws in a row in which a block
    has not moved; ``log_density`` with the estimates; ``evaluations``, estimates of the term that was estimated most;
    ``diverging``, of any block.
    """

    name = "emulated_groups"
    _state_class = _State
    stats_dtypes_shapes = {  # noqa: RUF012 (PyMC reads it from the class)
        **dict.fromkeys(("tune", "diverging"), (bool, [])),
        **dict.fromkeys(("accept", "least_accept", "moved", "log_density"), (np.float64, [])),
        **dict.fromkeys(("stuck", "evaluations"), (np.int64, [])),
    }

    def __init__(self, emulated: pm.Model, *, transitions: int | None = None, model=None, rng=None, **kwargs: Any):
        model = pm.modelcontext(model)
        check_emulated(emulated, model, transitions)
        self._density = EstimatedDensity(model)
        function = density_and_gradient(emulated)
        self._learned, self._transitions = function, int(transitions or _TRANSITIONS)
        self._starts = emulated.emulation.draws
        self.blocks = self._found_blocks()
        self._renewed = self._renewing()
        self._begin(True)
        super().__init__(model.value_vars, {}, rng=rng)
        variances, size = variances_of(self._starts), self._starts.shape[1]
        self._steps, self._of_blocks = [], [_OfBlock(function, block, size) for block, _ in self.blocks]
        for (block, _), of_block in zip(self.blocks, self._of_blocks, strict=True):
            of_metric, own = self.rng.spawn(2)
            metric = first_metric(self._starts[:, block].mean(axis=0), variances[block], of_metric)
            settings = {"logp_dlogp_func": of_block, "potential": metric, "rng": own}
            self._steps.append(pm.NUTS(model=emulated, **settings, **kwargs))
        self._fresh = [s.sampling_state for s in self._steps]
        covariance = np.atleast_2d(np.cov(self._starts, rowvar=False))
        np.fill_diagonal(covariance, np.maximum(covariance.diagonal(), variances))  # which are above zero
        self._walks = [ridged_cholesky(covariance[np.ix_(block, block)]) for block, _ in self.blocks]

    def _found_blocks(self) -> list[tuple[np.ndarray, tuple[int, ...]]]:
        """Return coordinates grouped by the terms that they move at a few draws; ``astep`` checks each proposal."""
        rng = np.random.default_rng(0)
        moved = np.zeros((self._starts.shape[1], self._density.num_calls), bool)
        for x in rng.choice(self._starts, _PROBED):
            before, other = self._density.inputs(x), rng.choice(self._starts)
            for d in range(len(x)):
                changed = x.copy()
                changed[d] = other[d] if other[d] != x[d] else x[d] + 1.0
                moved[d] |= self._changed(before, self._density.inputs(changed))
        groups: dict[tuple, list[int]] = {}
        for d, calls in enumerate(moved):
            groups.setdefault(tuple(np.flatnonzero(calls).tolist()), []).append(d)
        return [(np.array(coordinates), calls) for calls, coordinates in sorted(groups.items())]

    def _renewing(self) -> list[set[int]]:
        """Return for each block the terms to which it gives new seeds: those of which no other block moves fewer terms.

        A term that no probe has moved gets one from any block that moves it after all.
        """
        sizes = [[len(calls) for _, calls in self.blocks if c in calls] for c in range(self._density.num_calls)]
        unmoved = {c for c, of_term in enumerate(sizes) if not of_term}
        return [{c for c in calls if len(calls) == min(sizes[c])} | unmoved for _, calls in self.blocks]

    @staticmethod
    def _changed(before, after):
        same = partial(np.array_equal, equal_nan=True)
        return np.array([not all(map(same, x, y)) for x, y in zip(before, after, strict=True)])

    @property
    def inner(self) -> tuple:
        """States of the steps of the blocks."""
        return tuple(s.sampling_state for s in self._steps)

    @inner.setter
    def inner(self, states) -> None:
        for step, state in zip(self._steps, states, strict=True):
            step.sampling_state = state

    def setup_chain(self, rng, tune: int, draws: int) -> None:
        """Start a new chain, with metrics of its own."""
        super().setup_chain(rng, tune, draws)
        self.inner = self._fresh
        self._begin(tune > 0)
        for step, generator in zip(self._steps, self.rng.spawn(len(self._steps)), strict=True):
            step.setup_chain(generator, tune, draws)
            step.tune = self.tune

    def _begin(self, tune):
        self.tune, self.is_placed, self.estimates = tune, False, None
        self.runs = np.zeros(len(self.blocks), int)  # of each block: draws in a row without a move

    def stop_tuning(self) -> None:
        """Fix step sizes and metrics."""
        self.tune = False
        for step in self._steps:
            step.stop_tuning()

    def astep(self, q0: RaveledVars):
        """Return the next position, after one proposal for each block."""
        x = np.array(q0.data, dtype=float)
        if self.tune or not self.is_placed:
            self.is_placed = True
            x = self.rng.choice(self._starts).astype(float)
        counts, here = np.zeros(self._density.num_calls, int), None
        if not self.tune:
            if self.estimates is None:
                x, self.estimates = self._first_estimates(x)
                counts += 1
            here = self._place(x, self.estimates, self._density.inputs(x))
        accepts, moves, diverging = [], [], False
        self.runs = self.runs.copy()
        for number in range(len(self.blocks)):
            is_walk = here is not None and len(self.blocks[number][1]) > 1 and self.rng.random() < _LOCAL
            proposal, has_diverged = (self._walked if is_walk else self._proposed)(number, x)
            diverging |= has_diverged
            if here is None:
                x = proposal
                continue
            gain, there, changed = self._judged(number, here, proposal, is_walk)
            counts += changed
            is_moved, accept = metropolis_accept(self.rng, gain)
            if is_moved:
                here, x, self.estimates = there, there.position, there.estimates
            self.runs[number] = 0 if is_moved else self.runs[number] + 1
            if changed.any():
                accepts.append(accept)
                moves.append(is_moved)
        accepts, moves = accepts or [1.0], moves or [1.0]
        stats = {"accept": float(np.mean(accepts)), "least_accept": float(min(accepts)), "moved": float(np.mean(moves))}
        stats |= {"tune": self.tune, "diverging": diverging, "log_density": math.nan if here is None else here.level}
        stats |= {"stuck": int(self.runs.max()), "evaluations": int(counts.max())}
        return RaveledVars(x.astype(q0.data.dtype), q0.point_map_info), [stats]

    def _first_estimates(self, x):
        """Return a place, ``x`` or a draw of the emulated model, and estimates there that are all above zero."""
        for place in (x, *self.rng.choice(self._starts, STARTS_TRIED).astype(float)):
            inputs = self._density.inputs(place)
            seeds = self.rng.integers(2**63, size=len(inputs)).tolist()
            values = [self._density.estimate(i, v, s) for i, (v, s) in enumerate(zip(inputs, seeds, strict=True))]
            if math.isfinite(self._density(place, values)):
                return place, Estimates(values, seeds)
        raise NonFiniteStartError(
            f"the estimated log density is not finite at {STARTS_TRIED} draws of the emulated model: take more "
            "evaluations in pk.emulate, or estimates that are zero less often."
        )

    def _proposed(self, number, x):
        """Return where NUTS on the emulated density of one block goes, and whether it diverged on its way."""
        (block, _), of_block, step = self.blocks[number], self._of_blocks[number], self._steps[number]
        of_block.position = x
        q, has_diverged = raveled(x[block]), False
        with np.errstate(all="ignore"):
            for _ in range(self._transitions):
                q, [stats] = step.astep(q)
                has_diverged |= bool(stats["diverging"])
        proposal = x.copy()
        proposal[block] = q.data
        return proposal, has_diverged

    def _walked(self, number, x):
        """Return the end of a random-walk step of one block, of a random length, and False: nothing diverges."""
        block, _ = self.blocks[number]
        length = optimal_scale(len(block)) * _SHORTEST ** self.rng.random()
        proposal = x.copy()
        proposal[block] += length * self._walks[number] @ self.rng.standard_normal(len(block))
        return proposal, False

    def _judged(self, number, here, proposal, is_walk):
        """Return the log of the ratio that accepts a block's proposal, its place, and which estimates were made."""
        inputs = self._density.inputs(proposal)
        changed = self._changed(here.inputs, inputs)
        values, seeds = list(here.estimates.values), list(here.estimates.seeds)
        for i in np.flatnonzero(changed):
            if i in self._renewed[number]:
                seeds[i] = int(self.rng.integers(2**63))
            values[i] = self._density.estimate(i, inputs[i], seeds[i])
        there = self._place(proposal, Estimates(values, seeds), inputs)
        gain = there.level - here.level - (0.0 if is_walk else there.learned - here.learned)
        return gain, there, changed

    def _place(self, position, estimates, inputs):
        learned, _ = self._learned._pytensor_function(position)
        return Place(position, estimates, inputs, self._density(position, estimates.values), float(learned))


def check_emulated(emulated: pm.Model, model: pm.Model, transitions: int | None) -> None:
    """Raise unless ``emulated`` was learned from a model like this one; warn where its chains did not agree."""
    emulation = getattr(emulated, "emulation", None)
    if emulation is None:
        raise TypeError(f"emulated must be what pk.emulate(model) returned, got {type(emulated).__name__}.")
    if [v.name for v in emulated.value_vars] != [v.name for v in model.value_vars]:
        raise ValueError("the emulated model has other variables than this one: give what was learned of this one.")
    if transitions is not None and not (isinstance(transitions, int | np.integer) and transitions >= 1):
        raise ValueError(f"transitions must be a whole number >= 1, got {transitions!r}.")
    if not Chains.have_converged(emulation.rhat):
        warn_user(
            f"chains on the emulated model do not agree (R-hat {emulation.rhat:.2f}): an exact chain may stay in "
            "the mode where it begins, and accept all of its proposals there."
        )


class EstimatedDensity:
    """A log density in which estimates are given as numbers; each estimated term is a call that returns one number."""

    def __init__(self, model: pm.Model):
        logp, point = model.logp(), model.initial_point(random_seed=0)
        nodes = [n for n in apply_ancestors([logp]) if isinstance(n.op, EstimatedLogLikelihoodOp)]
        self._nodes = sorted(nodes, key=lambda n: n.op.term_name)
        names, keys = estimated_terms(logp)
        if len(keys) != len(self._nodes) or {n.op.term_name for n in self._nodes} != set(names):
            raise ValueError(f"estimates of this model ({', '.join(names)}) do not each stand alone in its density.")
        self.num_calls = len(self._nodes)  # estimated terms
        self._given = [pytensor.shared(0.0) for _ in self._nodes]
        given = dict(zip([n.outputs[0] for n in self._nodes], self._given, strict=True))
        self._density = of_position(model, point, graph_replace([logp], given, strict=True))
        self._inputs = of_position(model, point, [v for n in self._nodes for v in n.inputs])

    def __call__(self, position: np.ndarray, estimates: list) -> float:
        """Return the log density at a position (d,) with these estimates."""
        for shared, estimate in zip(self._given, estimates, strict=True):
            shared.set_value(estimate)
        return float(self._density(position)[0])

    def inputs(self, position: np.ndarray) -> list[list[np.ndarray]]:
        """Return the inputs of each estimate at a position (d,)."""
        flat = iter(self._inputs(position))
        return [[np.asarray(next(flat)) for _ in n.inputs] for n in self._nodes]

    def estimate(self, call: int, inputs: list[np.ndarray], seed: int) -> np.ndarray:
        """Return the log estimate of a call at these inputs with this seed; the estimate is zero if the call raises."""
        node, storage = self._nodes[call], [[None]]
        streams = [np.random.default_rng([seed, i]) for i in range(node.op.num_streams)]
        try:
            with drawing_noise({node.op.key: streams if len(streams) > 1 else streams[0]}):
                node.op.perform(node, [np.array(v) for v in inputs], storage)
        except Exception:
            return np.asarray(-np.inf)
        return np.asarray(storage[0][0])
