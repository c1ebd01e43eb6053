"""The log density of a model on the unconstrained scale, compiled, with the noise of its estimates; its gradients."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import pymc as pm
from pymc.vartypes import continuous_types
from pytensor.gradient import grad
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_kernel.errors import NoGradientError, NoisyBlockError
from pymc_kernel.plugin.model.estimated import Evaluation, blocks_of, drawing_noise, estimated_terms
from pymc_kernel.plugin.model.interpreter import STABLE, of_vector, over_draws
from pymc_kernel.plugin.model.remembered import remember, remembered_in

SAME_NATS = 0.01  # difference of log densities that is more than rounding, on another machine, too
_GRADIENT_ERRORS = (NotImplementedError, TypeError, AttributeError, ValueError)  # what an Op without a gradient raises


class LogDensity:
    """The log density of a model as a function of one vector, with the noise it may need."""

    def __init__(self, function, shared, estimated, keys, blocks, starts):
        self._function, self._keys, self._blocks = function, keys, blocks
        self.shared = shared  # the variables outside of the block and their shared stand-ins
        self.estimated = estimated  # names of the terms that are random; empty for an exact density
        self.starts = starts  # (n, d), from pilot simulations of a block; NaN in the other coordinates
        self._rng = np.random.default_rng()
        self._kept = self._tried = None  # the seeds of the current point and of the last evaluation
        self._last = Evaluation({}, {}, {}, {})
        # Shares of simulations that a block's kernel accepted for the estimate at the current point, by name.
        self.shares = {f"accepted_share_{op.term_name}": np.nan for op in blocks if op.accepts_share}
        # Of blocks that assume normal summaries: name -> those of the estimate at the current point, and of the data.
        self.simulated = {}
        self.failure_names = tuple(f"failed_share_{op.term_name}" for op in blocks)
        self._rng_variables = [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]
        self.evaluations = 0
        self._boxes = remembered_in(function)
        self.error, self.num_raised = None, 0  # the first error of the model, and the number of calls that raised one

    def __call__(self, position: np.ndarray) -> float:
        """Return the log density at ``position`` (d,), with the Jacobians of PyMC's transforms."""
        self.evaluations += 1
        try:
            with drawing_noise(dict.fromkeys(self._keys, self._rng) | self._reused()) as self._last:
                return float(self._function(position)[0])
        except Exception as error:
            # A black box may fail at a far proposal, and one failure must not cost all evaluations so far. The density
            # counts as zero there, as in ``sample_surrogate``.
            self.error = self.error or error
            self.num_raised += 1
            return -math.inf

    @property
    def calls(self) -> int:
        """Calls of the black box that was called most, by all steps; with all variables in one block, evaluations."""
        return max((box.calls for box in self._boxes), default=self.evaluations)

    def _reused(self):
        """Return the generators of terms that reuse noise; some of their seeds are those of the current point.

        Seeds are a uniform part of the chain's state. To keep one or draw anew, whatever the position, is symmetric.
        """
        self._tried, sources = {}, {}
        for op in [op for op in self._blocks if op.reuse_noise]:
            seeds = self._rng.integers(2**63, size=op.num_streams)
            if self._kept is not None:
                seeds = np.where(self._rng.random(op.num_streams) < op.reuse_noise, self._kept[op.key], seeds)
            self._tried[op.key] = seeds
            streams = [np.random.default_rng(s) for s in seeds]
            sources[op.key] = streams if op.num_streams > 1 else streams[0]
        return sources

    def estimates(self, position: np.ndarray, times: int) -> np.ndarray:
        """Return independent estimates at one position."""
        kept, self._kept = self._kept, None
        estimates = np.array([self(position) for _ in range(times)])
        self._kept = kept
        return estimates

    def settle(self, accepted: bool) -> None:
        """Make the noise of the last evaluation that of the current point, if the proposal was ``accepted``."""
        if accepted:
            self._kept = self._tried
            self.shares = dict.fromkeys(self.shares, math.nan) | self._last.accepted
            self.simulated = self._last.simulated

    def failures(self) -> dict[str, float]:
        """Return the share of simulations, or of estimates, that failed in the last evaluation: name -> share."""
        return dict.fromkeys(self.failure_names, math.nan) | self._last.failed

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``, independent of it and of each other."""
        self.noise = (None, {}, *rng.spawn(1 + len(self._rng_variables)))

    @property
    def noise(self) -> tuple:
        """What belongs to the current point, and the generators of the random terms: part of the state of a chain."""
        return (self._kept, self.shares, self._rng, *(v.get_value(borrow=True) for v in self._rng_variables))

    @noise.setter
    def noise(self, values: tuple) -> None:
        self._kept, self.shares, self._rng = values[:3]
        for variable, generator in zip(self._rng_variables, values[3:], strict=True):
            variable.set_value(generator, borrow=True)


def compile_log_density(
    model: pm.Model, value_vars: Sequence, initial_point: dict, step_name: str, compile_kwargs: dict | None = None
) -> LogDensity:
    """Return the log density of ``model`` in the given value variables, the others held in shared stand-ins.

    Raises ``TypeError`` where a variable is discrete, ``NoisyBlockError`` where the density is only estimated and the
    variables are not all free variables of the model.
    """
    logp = model.logp()
    names, keys = estimated_terms(logp)
    discrete = [v.name for v in (model.value_vars if names else value_vars) if v.dtype not in continuous_types]
    if discrete and names:
        raise NoisyBlockError(
            f"The log density of this model is only estimated (by {', '.join(names)}), so all free variables must be "
            f"sampled in one block, and {', '.join(discrete)}, being discrete, cannot be in it. Sum them out, or let "
            "the estimate draw them: its average over draws from their prior is an unbiased estimate too."
        )
    if discrete:
        raise TypeError(
            f"{step_name} samples continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Name the continuous ones, as in "
            f"{step_name}([theta, sigma]); PyMC then finds a step for the rest."
        )
    others = [v.name for v in model.value_vars if v not in set(value_vars)]
    if names and others:
        raise NoisyBlockError(
            f"The log density of this model is only estimated (by {', '.join(names)}), so all free variables must "
            f"be sampled in one block, but {step_name} was not given: {', '.join(others)}. An estimate that was "
            "accepted cannot be kept while another step moves these, and drawing it anew would change the "
            f"posterior. Use pm.sample(step=pk.{step_name}()) for all of them, or make discrete ones part of the "
            "estimate."
        )
    if others:
        remember(logp)
    function, shared = of_vector(model, value_vars, initial_point, [logp], compile_kwargs or {})
    blocks = blocks_of(model)
    known = {name: values for op in blocks for name, values in (getattr(op.fn, "starts", None) or {}).items()}
    return LogDensity(function, shared, names, keys, blocks, _starts(known, value_vars, initial_point))


def _starts(known, value_vars, initial_point):
    """Return starts (n, d) of the variables, NaN for those without ``known`` values; None where none has any."""
    count = min((len(known[v.name]) for v in value_vars if v.name in known), default=0)
    if count == 0:
        return None
    columns = {v.name: np.full((count, *np.shape(initial_point[v.name])), np.nan) for v in value_vars} | known
    return np.concatenate([np.reshape(columns[v.name][:count], (count, -1)) for v in value_vars], axis=1)


def compile_scores(model: pm.Model):
    """Return a function from draws of all value variables, a list of (n, ...), to scores (n, d).

    The scores are those of the continuous value variables, one after the other. Raises ``NoGradientError`` where a term
    has no gradient, or is only estimated or simulated. Interpreted: vectorized over draws that is as fast as machine
    code. The quick mode leaves out the numerically stable forms of some functions: where a score is not finite, all are
    evaluated again with these, some ten times slower.
    """
    variables = model.continuous_value_vars
    if not variables:
        raise NoGradientError("this model has no continuous variables, so it has no score.")
    try:
        logp = model.logp()
    except NotImplementedError as error:  # a variable that can only be drawn
        raise NoGradientError(
            f"the log density of this model is not known: {error}. Compare with a run that you trust by "
            "pk.mmd_test(idata, trusted)."
        ) from error
    estimated, _ = estimated_terms(logp)
    if estimated:
        raise NoGradientError(_no_gradient(estimated, "only estimated"))
    try:
        gradients = grad(logp, variables, disconnected_inputs="ignore")
    except _GRADIENT_ERRORS as error:
        raise NoGradientError(_no_gradient(without_gradient(model, variables), "a black box")) from error
    quick, stable = over_draws(model, gradients), functools.cache(lambda: over_draws(model, gradients, mode=STABLE))

    def flat(slopes):
        return np.concatenate([f.reshape(len(f), -1) for f in slopes], axis=1)

    def scores(values):
        evaluated = flat(quick(values))
        return evaluated if np.isfinite(evaluated).all() else flat(stable()(values))

    return scores


def without_gradient(model, variables):
    """Return the names of the model's terms that cannot be differentiated."""
    terms = zip([*model.basic_RVs, *model.potentials], model.logp(sum=False), strict=True)
    names = []
    for variable, term in terms:
        try:
            grad(term.sum(), variables, disconnected_inputs="ignore")
        except _GRADIENT_ERRORS:
            names.append(variable.name)
    return names


def _no_gradient(names, why):
    return (
        f"the log density of this model has no gradient: {', '.join(names) or 'a term'} is {why}. A Stein discrepancy "
        'needs scores. With score="surrogate" they are learned from the log densities of the draws; or give your own '
        "as score=, a function from unconstrained draws (n, d) to gradients of the log density (n, d), or compare with "
        "a run that you trust by pk.mmd_test(idata, trusted)."
    )
