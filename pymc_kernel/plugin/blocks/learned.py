"""A learned likelihood as a part of a PyMC model, with gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedType
from pytensor.graph import Apply, node_rewriter
from pytensor.tensor import TensorLike, TensorVariable
from pytensor.tensor.rewriting.basic import register_canonicalize
from scipy.stats import binom

from pymc_kernel.embeddings.inputs import OUTSIDE, typicality
from pymc_kernel.likelihood_free import FittedLikelihood
from pymc_kernel.plugin.blocks.likelihoods import check_further, has_missing_entries, predictive
from pymc_kernel.plugin.model.estimated import ObjectModeOp
from pymc_kernel.plugin.warn import FALSE_ALARMS, warn_user


class LearnedLogLikelihoodOp(ObjectModeOp):
    """Log densities (...) of summaries (..., q) at parameters (..., d), by a learned likelihood.

    The density of all rows is averaged over densities that the simulations allow. With ``with_gradient`` there are two
    more outputs, gradients (..., d) by the parameters: of each row by the estimate, and of the sum.
    """

    __props__ = ("learned", "with_gradient")

    def __init__(self, learned: FittedLikelihood, with_gradient: bool = False):
        self.learned, self.with_gradient, self._last = learned, with_gradient, None

    def _given(self, rows):
        """Return the likelihood of the data, which a model asks for again and again: their transforms are kept."""
        last = self._last
        if last is None or not np.array_equal(last[0], rows, equal_nan=True):
            last = self._last = (rows.copy(), self.learned.given(rows))
        return last[1]

    def make_node(self, parameters, observed):
        """Return the application; leading dimensions of both inputs are the same."""
        inputs = [pt.as_tensor_variable(i).astype("float64") for i in (parameters, observed)]
        outputs = [pt.tensor(dtype="float64", shape=inputs[0].type.shape[:-1])]
        if self.with_gradient:
            outputs += [inputs[0].type(), inputs[0].type()]
        return Apply(self, inputs, outputs)

    def infer_shape(self, node, input_shapes):
        """Return the shapes of the outputs."""
        return [input_shapes[0][:-1], input_shapes[0], input_shapes[0]][: len(node.outputs)]

    def perform(self, node, inputs, output_storage):
        """Evaluate all rows at once."""
        parameters, observed = inputs
        places = parameters.reshape(-1, parameters.shape[-1])
        rows = observed.reshape(-1, observed.shape[-1])
        finite = np.isfinite(places).all(axis=1)  # PyMC may ask at infinite parameters, too
        places = np.where(finite[:, None], places, 0.0)
        found = self._given(rows).averaged(places, self.with_gradient)
        for storage, slopes in zip(output_storage[1:], found[1:], strict=False):
            storage[0] = np.where(finite[:, None], slopes, 0.0).reshape(parameters.shape)
        output_storage[0][0] = np.asarray(np.where(finite, found.rows, -np.inf).reshape(parameters.shape[:-1]))

    def pullback(self, inputs, outputs, cotangents):
        """Return the pulled-back gradient for the parameters; the data have none."""
        if self.with_gradient:
            raise NotImplementedError("a learned likelihood has first derivatives only.")
        _, slopes, joint = LearnedLogLikelihoodOp(self.learned, True)(*inputs)
        # All rows share the effect of averaging on the sum.
        shared = cotangents[0].mean() * (joint - slopes)
        return [cotangents[0][..., None] * slopes + shared, DisconnectedType()()]

    def connection_pattern(self, node):
        """Return that densities depend on the parameters; gradients by the data are not offered."""
        return [[True] * len(node.outputs), [False] * len(node.outputs)]


@register_canonicalize
@node_rewriter([LearnedLogLikelihoodOp])
def density_beside_its_gradient(fgraph, node):
    """Reuse the log densities that are evaluated with their gradients: NUTS asks for both at each step."""
    if node.op.with_gradient:
        return None
    for client, _ in fgraph.clients[node.inputs[0]]:
        is_gradient = isinstance(client.op, LearnedLogLikelihoodOp) and client.op.with_gradient
        if is_gradient and client.op.learned is node.op.learned and client.inputs == node.inputs:
            return [client.outputs[0]]
    return None


def LearnedLikelihood(
    name: str,
    learned: FittedLikelihood,
    *params: TensorLike,
    observed: TensorLike,
    random: Callable | None = None,
    **kwargs: Any,
) -> TensorVariable:
    """Add a likelihood that was learned from simulations to the model in context.

    It is a formula with gradients, so everything in PyMC works with it: NUTS, ``pm.find_MAP``, ``pm.fit``,
    ``pm.sample_smc`` and the steps of this package. It is valid under any prior, and a simulator learned once serves
    any number of groups, subjects or experiments, in hierarchies too.

    Parameters
    ----------
    name : str
        Of the observed variable.
    learned : pymc_kernel.likelihood_free.FittedLikelihood
        What ``pk.likelihood_free.LearnedLikelihood().fit(parameters, summaries)`` returned, with parameters on their
        own scale, in the order of ``params``.
    *params : tensor_like
        One tensor (..., d), or d tensors that broadcast with each other and the rows of the data.
    observed : array_like (..., q)
        Summaries of the data, a row for each group.
    random : callable, optional
        ``random(rng, *params, size)`` returns summaries of shape ``size``, for predictive draws from the simulator
        itself; by default they come from the learned distribution.
    **kwargs
        Further arguments of ``pymc.CustomDist``, such as ``dims``.

    Notes
    -----
    It raises ``TypeError`` where ``learned`` is not fitted, and for unknown keywords; ``ValueError`` for parameters or
    data that do not match those learned from, and for missing data. A warning says if more rows than expected by chance
    lie in regions that hardly any simulation reached.

    A learned likelihood says nothing about parameters where nothing was simulated: keep the prior within the simulated
    range, or simulate where the posterior is (``pk.sample_likelihood_free`` does). Errors of one row add up over rows
    that share parameters: n simulations near the posterior cannot support more than n rows. So the likelihood of all
    rows is averaged over densities that agree with the simulations (draws of the learned weights), and posteriors are
    wider where simulations are few. ``pk.diagnose`` says how much of a posterior's width averaging adds, and whether
    draws lie where nothing was simulated. Pointwise log likelihoods are those of the estimate plus equal shares of what
    averaging changes in their sum. The log density of 60 rows and its gradient take about half a millisecond.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> rng = np.random.default_rng(1)
    >>> theta = rng.normal(0.0, 2.0, (1000, 1))
    >>> learned = pk.likelihood_free.LearnedLikelihood().fit(theta, theta + 0.5 * rng.standard_normal((1000, 1)), rng)
    >>> with pm.Model():
    ...     mean = pm.Normal("mean", 0, 1)
    ...     effect = pm.Normal("effect", mean, 0.5, shape=3)
    ...     y = pk.LearnedLikelihood("y", learned, effect, observed=[[0.3], [1.1], [0.8]])
    """
    check_further(name, kwargs)
    if not isinstance(learned, FittedLikelihood):
        raise TypeError(
            f"learned of LearnedLikelihood {name!r} must be a fitted one, as returned by "
            f"pk.likelihood_free.LearnedLikelihood().fit(parameters, summaries), got {type(learned).__name__}."
        )
    theta = _stacked(name, params, learned.num_parameters)
    data = _checked_data(name, observed, learned.num_summaries)

    def log_density(value, parameters, _):
        shape = pt.broadcast_shape(parameters[..., 0], value[..., 0])
        many = [pt.broadcast_to(v, (*shape, v.shape[-1])) for v in (parameters, value)]
        return LearnedLogLikelihoodOp(learned)(*many)

    own_draw = None if random is None else predictive(name, random)

    def draw(parameters, observed, rng=None, size=None):
        if own_draw is not None:
            parts = np.moveaxis(parameters, -1, 0) if len(params) > 1 else [parameters]
            return own_draw(*parts, observed, rng=rng, size=size)
        rows = np.broadcast_to(parameters, (*observed.shape[:-1], parameters.shape[-1]))
        return learned.sample(rows.reshape(-1, rows.shape[-1]), rng).reshape(observed.shape)

    _warn_of_rows_outside(name, learned, data)

    # The data stand among the parameters as well: that is how PyMC learns the shape of the variable.
    signature = "(d),(q)->(q)"
    kwargs |= {"logp": log_density, "random": draw, "signature": signature, "observed": observed}
    variable = pm.CustomDist(name, theta, data, dtype="float64", **kwargs)
    variable.tag.learned = learned
    return variable


def _warn_of_rows_outside(name: str, learned: FittedLikelihood, data: TensorVariable) -> None:
    """Warn where more rows than by chance lie in regions that hardly any simulation reached."""
    rows = data.eval().reshape(-1, learned.num_summaries)
    values = learned.summaries(rows)
    possible = np.isfinite(values).all(axis=1)
    shares = np.where(possible, 0.0, -1.0)
    shares[possible] = typicality(learned.examples[1], values[possible], np.random.default_rng(0))
    number = int((shares < OUTSIDE).sum())
    if number and binom.sf(number - 1, len(rows), OUTSIDE) <= FALSE_ALARMS:
        warn_user(
            f"{number} of the {len(rows)} rows of {name!r} are data as fewer than {100 * OUTSIDE:.0f} % of the "
            f"simulations that it was learned from have them, such as {np.array2string(rows[shares.argmin()])}: there "
            "the likelihood is extrapolated. Learn from simulations at parameters that give such data."
        )


def _stacked(name: str, params: Sequence[TensorLike], wanted: int) -> TensorVariable:
    """Return the parameters as one tensor (..., d)."""
    tensors = [pt.as_tensor_variable(p) for p in params]
    if len(tensors) == wanted and (wanted > 1 or tensors[0].type.shape[-1:] != (1,)):
        return pt.stack(pt.broadcast_arrays(*tensors), axis=-1)
    if len(tensors) == 1 and tensors[0].type.ndim and tensors[0].type.shape[-1] in (wanted, None):
        return tensors[0]
    shapes = ", ".join(str(t.type.shape) for t in tensors)
    raise ValueError(
        f"LearnedLikelihood {name!r} was learned with {wanted} parameters: give {wanted} tensors, or one whose last "
        f"dimension has {wanted} entries, got {len(tensors)} of shape {shapes or 'none'}."
    )


def _checked_data(name: str, observed: TensorLike, wanted: int) -> TensorVariable:
    """Return the data as a tensor (..., q) of floats."""
    if has_missing_entries(observed):
        raise ValueError(
            f"observed of LearnedLikelihood {name!r} has missing entries: leave those rows out, or learn a likelihood "
            "of summaries that need no missing entry."
        )
    data = pt.as_tensor_variable(observed).astype("float64")
    if not data.type.ndim or data.type.shape[-1] not in (wanted, None):
        raise ValueError(
            f"observed of LearnedLikelihood {name!r} must have {wanted} summaries in its last dimension, as the "
            f"simulations had that it was learned from, got shape {data.type.shape}."
        )
    return data
