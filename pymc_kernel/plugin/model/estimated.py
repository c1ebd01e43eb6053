"""Terms of a log density that are only estimated, and the noise that drives them.

An estimate needs random numbers, and PyMC hands none to a compiled function. So the operator here owns no generator:
the samplers of this package set the source of noise for one evaluation (:func:`drawing_noise`), in their own thread
alone. For all others it takes a seed from the operating system, and at a place where it was called before it returns
its earlier estimate: a sampler that evaluates the density again at the current point then keeps the accepted estimate,
and samples the exact posterior.
"""

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.simulator import SimulatorRV
from pytensor.graph import Apply, Op, Variable
from pytensor.graph.traversal import apply_ancestors
from pytensor.tensor.random.op import RandomVariable

# Estimates of the last places. A slice sampler returns to its start once its interval has shrunk to nothing: by 37 nats
# to relative rounding from either side, by 745 to the smallest number. Without the old estimate it would not end.
_KEPT, _FEWEST_KEPT, _KEPT_NUMBERS = 2048, 256, 2**20


class ObjectModeOp(Op):
    """A Python function as an operator: PyTensor's Numba backend calls it in object mode, without a warning."""

    def __new__(cls, *args, **kwargs):
        """Return a new or unpickled operator, whose class the backend then knows."""
        _allow_object_mode(cls)
        return super().__new__(cls)


@cache
def _allow_object_mode(operator):
    """Register an operator class when its first operator is made: the backend takes half a second to import."""
    from pytensor.link.numba.dispatch.basic import generate_fallback_impl, numba_funcify

    @numba_funcify.register(operator)
    def in_object_mode(op, node, **kwargs):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            return generate_fallback_impl(op, node, **kwargs)


class Evaluation(NamedTuple):
    """An evaluation of a density: noise of its operators by their keys, and what they report by names of statistics."""

    noise: Mapping[str, np.random.Generator | list[np.random.Generator]]
    accepted: dict[str, float]  # the share of the simulations that a kernel accepts
    failed: dict[str, float]  # the share of the simulations that failed; of the estimates where there are none
    # By the terms' names simulated summaries (m, q) and those of the data (q,), where they are assumed normal.
    simulated: dict[str, tuple[np.ndarray, np.ndarray]]


_EVALUATION: ContextVar[Evaluation | None] = ContextVar("evaluation", default=None)


@contextmanager
def drawing_noise(noise: Mapping[str, np.random.Generator | list[np.random.Generator]]) -> Iterator[Evaluation]:
    """Let operators, by their keys, draw noise from these generators inside of the block; a list for their streams."""
    evaluation = Evaluation(noise, {}, {}, {})
    token = _EVALUATION.set(evaluation)
    try:
        yield evaluation
    finally:
        _EVALUATION.reset(token)


class EstimatedLogLikelihoodOp(ObjectModeOp):
    """The log of an unbiased likelihood estimate, as an operator on (parameters..., observed)."""

    def __init__(self, name: str, fn: Callable, reuse_noise=0.0, num_streams: int = 1, pointwise: bool = False):
        self.term_name, self.fn, self.pointwise, self.key = name, fn, pointwise, uuid.uuid4().hex
        self.reuse_noise, self.num_streams = reuse_noise, num_streams
        # Whether it assumes normal summaries, which the simulations behind its estimates can check.
        self.assumes_normal = getattr(fn, "assumes_normal", False)
        self.accepts_share = callable(getattr(fn, "accepted_share", None)) and fn.accepted_share(0.0) is not None
        self._kept = {}  # estimates by the hash of their inputs, the oldest first

    def make_node(self, *inputs):
        """Return the application; the output is one float, or one for each entry of the data."""
        inputs = [pt.as_tensor_variable(i) for i in inputs]
        shape = inputs[-1].type.shape if self.pointwise else ()
        return Apply(self, inputs, [pt.tensor(dtype="float64", shape=shape)])

    def do_constant_folding(self, fgraph, node):
        """Refuse: with constant inputs the estimate is still random."""
        return False

    def infer_shape(self, node, input_shapes):
        """Return the shape of a scalar, or that of the data."""
        return [input_shapes[-1] if self.pointwise else ()]

    def perform(self, node, inputs, output_storage):
        """Return an estimate with the noise of this evaluation; outside of one, the last one at this place, if any."""
        evaluation = _EVALUATION.get()
        if evaluation is not None:
            output_storage[0][0] = self._estimate(inputs, evaluation)
            return
        place = hash(tuple((np.shape(value), np.asarray(value).tobytes()) for value in inputs))
        known = self._kept.pop(place, None)
        self._kept[place] = self._estimate(inputs, Evaluation({}, {}, {}, {})) if known is None else known
        output_storage[0][0] = self._kept[place].copy()
        if len(self._kept) > int(np.clip(_KEPT_NUMBERS // max(1, self._kept[place].size), _FEWEST_KEPT, _KEPT)):
            del self._kept[next(iter(self._kept))]

    def _estimate(self, inputs, evaluation):
        """Return the result of the user's function, as an array, and record failures and the like in the evaluation."""
        noise = evaluation.noise.get(self.key)
        views = [np.asarray(value).view() for value in inputs]
        for view in views:  # that cannot be written to: some of the arrays are the chain's own position
            view.flags.writeable = False
        returned = self.fn(np.random.default_rng() if noise is None else noise, *views)
        value = np.asarray(returned, dtype=float)
        shape = np.shape(inputs[-1]) if self.pointwise else ()
        if returned is None or (value.shape != shape if self.pointwise else value.size != 1):
            what = "None" if returned is None else f"an array of shape {value.shape}"
            wanted = "one number, the log of an unbiased likelihood estimate; with pointwise=True one for each entry."
            if self.pointwise:
                wanted = f"an array of the data's shape {shape}, logs of unbiased and independent estimates of each."
            said = f"the function of EstimatedLikelihood {self.term_name!r} returned {what}"
            raise TypeError(f"{said}; it must return {wanted}")
        failed = getattr(self.fn, "failed_share", float(np.mean(~np.isfinite(value))))
        evaluation.failed[f"failed_share_{self.term_name}"] = failed
        if self.assumes_normal:
            evaluation.simulated[self.term_name] = self.fn.simulated
        if self.accepts_share:
            evaluation.accepted[f"accepted_share_{self.term_name}"] = self.fn.accepted_share(float(value.item()))
        return value.reshape(shape)


def estimated_terms(graph: Variable) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the random terms of a log density graph, and the keys of those that are ours.

    A term is random if it is an estimated likelihood of this package or a ``Simulator`` of PyMC, wherever in the graph,
    inner graphs included. Raises ``ValueError`` where the graph draws other random numbers, as ``pm.Minibatch`` does:
    its exponential is then no unbiased estimate of a density, and keeping the accepted value would not make the
    posterior right.
    """
    names, keys = [], []
    for node in _nodes([graph]):
        op = getattr(node.op, "core_op", node.op)
        if isinstance(op, EstimatedLogLikelihoodOp):
            names.append(op.term_name)
            keys.append(op.key)
        elif isinstance(op, SimulatorRV):
            names.append(str(getattr(op, "name", None) or type(op).__name__))
        elif isinstance(op, RandomVariable):
            raise ValueError(
                f"the log density of this model draws random numbers ({type(op).__name__}: pm.Minibatch does), but "
                "not to estimate a likelihood without bias: it can neither be sampled from exactly nor be what draws "
                "are checked against. Build the model with all the data, also to check draws of pm.fit; or put an "
                "unbiased estimate into pk.EstimatedLikelihood."
            )
    return sorted(set(names)), tuple(sorted(set(keys)))


def block_of(variable: Variable) -> EstimatedLogLikelihoodOp | None:
    """Return the operator of the block that made an observed variable; None for variables of PyMC's own."""
    return getattr(type(variable.owner.op), "estimated_likelihood", None)


def blocks_of(model: pm.Model) -> list[EstimatedLogLikelihoodOp]:
    """Return the operators of all blocks of a model."""
    return [op for rv in model.observed_RVs if (op := block_of(rv)) is not None]


def normal_blocks(model: pm.Model) -> list[EstimatedLogLikelihoodOp]:
    """Return the operators of the blocks that assume normal summaries."""
    return [op for op in blocks_of(model) if op.assumes_normal]


def _nodes(outputs):
    """Yield the applications that ``outputs`` depend on, those inside loops and nested graphs too."""
    for node in apply_ancestors(outputs):
        yield node
        inner = getattr(node.op, "fgraph", None)
        if inner is not None and not isinstance(node.op, RandomVariable):
            yield from _nodes(inner.outputs)
