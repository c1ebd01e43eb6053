"""Model blocks whose log density is only estimated, and the noise that drives them.

An estimate needs random numbers, and PyMC hands none to a compiled function. So the operator here owns no generator:
whoever evaluates a density says for one evaluation where the noise comes from (:func:`drawing_noise`), in this thread
alone. Anything else gets numbers of the operating system's, which no two processes share.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.distributions.simulator import SimulatorRV
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
from pytensor.tensor import TensorLike, TensorVariable
from pytensor.tensor.random.op import RandomVariable

from pymc_kernel.plugin.arguments import check_keywords
from pymc_kernel.plugin.blocks.object_mode import allow_object_mode
from pymc_kernel.plugin.samplers.foreign_steps import warn_of_foreign_step

__all__ = [
    "EstimatedLikelihood",
    "EstimatedLogLikelihoodOp",
    "Evaluation",
    "accepted_shares",
    "block_of",
    "check_further",
    "drawing_noise",
    "estimated_terms",
    "failed_shares",
    "has_missing_entries",
    "normal_blocks",
    "predictive",
    "reused_noise",
    "starting_positions",
]

# Arguments of ``pm.CustomDist`` that a block hands on: PyMC itself ignores in silence what it does not know.
_FURTHER = {
    "default_transform",
    "dims",
    "initval",
    "logcdf",
    "rng",
    "shape",
    "support_point",
    "total_size",
    "transform",
}


class Evaluation(NamedTuple):
    """One evaluation of a density: the noise of its operators, by their keys, and what they say of their estimates."""

    noise: Mapping[str, np.random.Generator | list[np.random.Generator]]
    accepted: dict[str, float]
    """The share of the simulations that a kernel accepts."""
    failed: dict[str, float]
    """The share of the simulations that failed; of the estimates, without simulations."""
    simulated: dict[str, tuple[np.ndarray, np.ndarray]]
    """The summaries (m, q) and those (q,) of the data, where they are taken for normal."""


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


class EstimatedLogLikelihoodOp(Op):
    """The log of an unbiased likelihood estimate, as an operator on (parameters..., observed)."""

    def __init__(
        self, name: str, fn: Callable, reuse_noise: float = 0.0, num_streams: int = 1, pointwise: bool = False
    ):
        self.term_name = name
        self.fn = fn
        self.pointwise = pointwise
        self.reuse_noise = reuse_noise
        self.num_streams = num_streams
        self.key = uuid.uuid4().hex
        self.accepts_share = callable(getattr(fn, "accepted_share", None)) and fn.accepted_share(0.0) is not None
        allow_object_mode(type(self))

    def __setstate__(self, state):
        self.__dict__.update(state)
        allow_object_mode(type(self))

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
        """Call the user's function with the generator of this evaluation."""
        evaluation = _EVALUATION.get() or Evaluation({}, {}, {}, {})
        noise = evaluation.noise.get(self.key)
        # Views that cannot be written to: some of the arrays are the chain's own position.
        returned = self.fn(np.random.default_rng() if noise is None else noise, *[_read_only(i) for i in inputs])
        value = np.asarray(np.nan if returned is None else returned, dtype=float)
        shape = np.shape(inputs[-1]) if self.pointwise else ()
        if returned is None or (value.shape != shape if self.pointwise else value.size != 1):
            what = "None" if returned is None else f"an array of shape {value.shape}"
            wanted = (
                f"an array of the data's shape {shape}, the logs of unbiased and independent estimates, one for each "
                "entry."
                if self.pointwise
                else "one number, the log of an unbiased estimate of the whole likelihood; with pointwise=True one for "
                "each entry of the data."
            )
            raise TypeError(
                f"the function of EstimatedLikelihood {self.term_name!r} returned {what}; it must return {wanted}"
            )
        output_storage[0][0] = value.reshape(shape)
        failed = getattr(self.fn, "failed_share", None)
        evaluation.failed[self.key] = float(np.mean(~np.isfinite(value))) if failed is None else failed
        if getattr(self.fn, "assumes_normal", False):
            evaluation.simulated[self.key] = self.fn.simulated
        if self.accepts_share:
            evaluation.accepted[self.key] = self.fn.accepted_share(float(value.item()))


def _read_only(value) -> np.ndarray:
    view = np.asarray(value).view()
    view.flags.writeable = False
    return view


def estimated_terms(graph: Variable) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of the random terms of a log density graph, and the keys of those that are ours.

    A term is random if it is an estimated likelihood of this package or a ``Simulator`` of PyMC, wherever in
    the graph, inner graphs included.

    Raises
    ------
    ValueError
        Where the graph draws other random numbers, as ``pm.Minibatch`` does: its exponential is then no
        unbiased estimate of a density, and keeping the accepted value would not make the posterior right.
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


def accepted_shares(model: pm.Model) -> dict[str, str]:
    """Return key -> name of a statistic, for the blocks whose kernel accepts a share of the simulations."""
    ops = [block_of(rv) for rv in model.observed_RVs]
    return {op.key: f"accepted_share_{op.term_name}" for op in ops if op is not None and op.accepts_share}


def failed_shares(model: pm.Model) -> dict[str, str]:
    """Return key -> name of a statistic, for all blocks of the model."""
    ops = [block_of(rv) for rv in model.observed_RVs]
    return {op.key: f"failed_share_{op.term_name}" for op in ops if op is not None}


def normal_blocks(model: pm.Model) -> dict[str, str]:
    """Return key -> name, for the blocks that take their summaries for normal."""
    ops = [block_of(rv) for rv in model.observed_RVs]
    return {op.key: op.term_name for op in ops if op is not None and getattr(op.fn, "assumes_normal", False)}


def starting_positions(model: pm.Model) -> dict[str, np.ndarray]:
    """Return value variable's name -> draws (n, ...) near the posterior, of the blocks that made pilot simulations."""
    starts = {}
    for rv in model.observed_RVs:
        starts |= getattr(getattr(block_of(rv), "fn", None), "starts", None) or {}
    return starts


def reused_noise(graph: Variable) -> dict[str, tuple[float, int]]:
    """Return, by key, how likely a stream of random numbers is reused and how many streams there are."""
    ops = [getattr(node.op, "core_op", node.op) for node in _nodes([graph])]
    ours = [op for op in ops if isinstance(op, EstimatedLogLikelihoodOp) and op.reuse_noise]
    return {op.key: (op.reuse_noise, op.num_streams) for op in ours}


def _nodes(outputs):
    """Yield the applications that ``outputs`` depend on, those inside loops and nested graphs too."""
    for node in {id(v.owner): v.owner for v in ancestors(outputs) if v.owner is not None}.values():
        yield node
        inner = getattr(node.op, "fgraph", None)
        if inner is not None and not isinstance(node.op, RandomVariable):
            yield from _nodes(inner.outputs)


def EstimatedLikelihood(
    name: str,
    fn: Callable,
    *params: TensorLike,
    observed: TensorLike,
    random: Callable | None = None,
    pointwise: bool = False,
    reuse_noise: float = 0.0,
    **kwargs: Any,
) -> TensorVariable:
    """Add a likelihood that is known only through unbiased estimates to the model in context.

    Pseudo-marginal sampling (Beaumont 2003; Andrieu and Roberts 2009): if exp of what ``fn`` returns has the likelihood
    as its expectation, up to a constant factor, the steps of this package sample the exact posterior, however noisy the
    estimate is. They keep the estimate that was accepted, and plain ``pm.sample()`` takes :class:`KernelHMC` for such a
    model. PyMC's Metropolis, DEMetropolis(Z) and Slice draw a new estimate at the current point and sample a wrong
    posterior; a warning says so when one of them is made.

    Parameters
    ----------
    name : str
        Of the observed variable.
    fn : callable
        ``fn(rng, *params, observed)`` returns the log of an unbiased estimate, one number. It is given a
        ``numpy.random.Generator`` and must take all its randomness from there; -inf says that the estimate
        is zero; NaN counts as zero too. With ``cores`` > 1 it must be picklable by cloudpickle.
    *params : tensor_like
        The parameters that the likelihood depends on, any shapes.
    observed : array_like
        The data; ``fn`` gets them as an array, and they appear as ``observed_data``.
    random : callable, optional
        ``random(rng, *params, size)`` returns a data set of shape ``size``, that of the data, for
        ``pm.sample_prior_predictive`` and ``pm.sample_posterior_predictive``.
    pointwise : bool
        Whether ``fn`` returns an array of the data's shape: the log of an estimate for each entry, with noise that is
        independent between entries, so that the product of the estimates is unbiased. ``pm.compute_log_likelihood``
        then has an entry for each observation, as ``az.loo`` needs them. These are fresh estimates: noise of variance
        v adds about v to the effective number of parameters for each observation, so make v small there.
    reuse_noise : float
        Common random numbers, in [0, 1): the probability with which a proposal is evaluated with the random numbers of
        the current point, which are then part of the chain's state; the posterior stays exact. The blocks of simulators
        decide for each simulation separately, so most random numbers are kept and some are new. This lowers the noise
        of the acceptance ratio where data simulated with the same numbers change little with the parameters. The steps
        of this package do this; ``sample_khmc`` and sequential Monte Carlo ignore it.
    **kwargs
        Further arguments of ``pymc.CustomDist``, such as ``dims``.

    Returns
    -------
    TensorVariable
        The observed variable.

    Notes
    -----
    The same ``random_seed`` gives the same draws for any number of cores. A standard deviation of the log
    estimate between 1 and 1.7 spends a fixed computing budget best (Doucet et al. 2015); far above, chains
    get stuck, which the steps report. All free variables of the model must be sampled in one block.

    ``pm.sample_smc`` keeps accepted estimates, so its posterior is right too, but with PyMC's own kernels the noise
    does not follow ``random_seed``; with those of this package it does. Log likelihoods computed afterwards
    (``pm.compute_log_likelihood``) are fresh estimates; the accepted ones, with the prior added, are in
    ``sample_stats["log_density"]``. Missing data are not imputed.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> def log_estimate(rng, theta, observed):
    ...     latent = theta + rng.standard_normal((200, observed.size))
    ...     return np.log(np.exp(-0.5 * (observed - latent) ** 2).mean(axis=0)).sum()
    >>> with pm.Model():
    ...     theta = pm.Normal("theta", 0, 2)
    ...     y = pk.EstimatedLikelihood("y", log_estimate, theta, observed=np.array([0.3, 1.1, 0.8]))
    """
    check_further(name, kwargs)
    if not callable(fn):
        raise TypeError(f"fn must be a function fn(rng, *params, observed), got {type(fn).__name__}.")
    if random is not None and not callable(random):
        raise TypeError(f"random must be a function random(rng, *params, size), got {type(random).__name__}.")
    if not params:
        raise ValueError(
            "EstimatedLikelihood needs at least one parameter: EstimatedLikelihood(name, fn, theta, observed=y)."
        )
    if has_missing_entries(observed):
        raise ValueError(
            f"observed of EstimatedLikelihood {name!r} has missing entries, which cannot be imputed through a "
            "likelihood that is only estimated. Leave them out, or fill them and pass their mask as a parameter to fn."
        )
    if not 0.0 <= reuse_noise < 1.0:
        raise ValueError(f"reuse_noise of {name!r} is a probability below one, got {reuse_noise!r}.")
    params = [pt.as_tensor_variable(p) for p in params]
    data = pt.as_tensor_variable(observed)
    op = EstimatedLogLikelihoodOp(name, fn, reuse_noise, getattr(fn, "num_streams", 1), pointwise)
    kwargs["random"] = _no_predictive(name) if random is None else predictive(name, random)

    def log_estimate(value, *inputs):
        warn_of_foreign_step(name)
        return op(*inputs[:-1], value)

    # The data stand among the parameters as well: that is how PyMC learns the shape of the variable.
    cores = [",".join(f"p{i}_{k}" for k in range(p.type.ndim)) for i, p in enumerate(params)]
    core_data = ",".join(f"data_{k}" for k in range(data.type.ndim))
    signature = ",".join(f"({core})" for core in [*cores, core_data]) + f"->({core_data})"
    variable = pm.CustomDist(
        name, *params, data, logp=log_estimate, signature=signature, dtype=data.type.dtype, observed=observed, **kwargs
    )
    # On the class of the random variable's operator, which is this block's alone: copies of the model keep it.
    type(variable.owner.op).estimated_likelihood = op
    _offer_step()
    return variable


def check_further(name: str, arguments: dict) -> None:
    """Raise ``TypeError`` where a block is given arguments that ``pm.CustomDist`` would ignore in silence."""
    advice = f"Beside its own arguments it takes {', '.join(sorted(_FURTHER))}."
    check_keywords(f"The block {name!r}", arguments, _FURTHER, advice)


def predictive(name: str, random: Callable) -> Callable:
    """Return a function of the parameters and the data that draws a data set, as ``pm.CustomDist`` calls it."""

    def draw(*inputs, rng=None, size=None):
        *params, observed = inputs
        data = np.asarray(random(rng, *params, size=observed.shape))
        if data.shape != observed.shape:
            raise ValueError(
                f"the function that draws {name!r} returned shape {data.shape} for size={observed.shape}; it must "
                "return a data set of that shape."
            )
        return data

    return draw


def _no_predictive(name):
    """Return what PyMC calls for draws that there are none of; by the name of the function it is known to draw none."""

    def default_not_implemented(*inputs, rng=None, size=None):
        raise NotImplementedError(
            f"{name!r} cannot be drawn, only its likelihood is estimated: give EstimatedLikelihood random=, a function "
            "random(rng, *params, size) that returns a data set of that size, and make the model again; the draws of "
            "the posterior that you have can be used with it. Or leave it out by var_names=."
        )

    return default_not_implemented


def _offer_step():
    """Let ``pm.sample`` know the step that it is to choose; steps import this module, so not before it is needed."""
    from pymc_kernel.plugin.samplers.step_methods import offer_to_estimated_models

    offer_to_estimated_models()


def block_of(variable: Variable) -> EstimatedLogLikelihoodOp | None:
    """Return the operator of the block that made an observed variable; None for variables of PyMC's own."""
    return getattr(type(variable.owner.op), "estimated_likelihood", None)


def has_missing_entries(observed: TensorLike) -> bool:
    """Return whether data are masked or have NaN; of graphs that cannot be known."""
    if isinstance(observed, Variable):
        return False
    values = np.asarray(observed)
    return isinstance(observed, np.ma.MaskedArray) or (
        np.issubdtype(values.dtype, np.floating) and bool(np.isnan(values).any())
    )
