"""Replace the black boxes of a model by learned functions, so that it is differentiable everywhere.

Outputs may have limits beyond which the model has no density: a rate is above zero, a probability between zero and one.
Errors of the learned outputs would cross them, so they are found by trying where the model has a density.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.model.fgraph import ModelVar
from pytensor.tensor import TensorVariable

from pymc_kernel.emulation import FittedOutputs
from pymc_kernel.emulation.fitted_outputs import SMALLEST
from pymc_kernel.plugin.emulation.coarse import Coarse
from pymc_kernel.plugin.emulation.model_graph import graph_of_model, model_of_graph
from pymc_kernel.plugin.emulation.parts import Part, Rows, distances_of_rows, times_of_rows
from pymc_kernel.plugin.emulation.penalty import arrays_of_bound, filled_up, of_rows, relative_errors, shared_arrays


class GivenRows:
    """Outputs of a part that are given as numbers: rows (b, q)."""

    def __init__(self, part: Part):
        shape = len(part.functions), part.like.sizes[1]
        self.rows = pytensor.shared(np.ones(shape), shape=shape)
        self.is_factor = pytensor.shared(0.0)
        # Lowest and highest outputs (2, b, q) with which the model has a density.
        self.limits = pytensor.shared(no_limits(shape))

    def __call__(self, inputs) -> TensorVariable:
        """Return the rows."""
        return self.rows


class LearnedPart:
    """Outputs of a part as a graph of its inputs; what was learned is in shared variables, so that it can be renewed.

    It is a plain graph of sums, products and exponentials: PyTensor differentiates it, and every backend compiles it.

    ``name`` is of the shared variables. ``given`` is the same part with given outputs: both have one ``is_factor`` and
    one ``limits``.
    """

    def __init__(self, part: Part, name: str, given: GivenRows):
        self.part, self.is_factor, self.limits = part, given.is_factor, given.limits
        k, q = part.like.sizes
        sizes = {
            "log_inputs": (k,), "log_outputs": (q,), "center": (k,), "scale": (k,), "rotation": (k, k), "low": (k,),
            "high": (k,), "inverse_length_scale": (k,), "points": (None, k), "weights": (None, q),
            "coefficients": (1 + k + k * (k + 1) // 2, q), "known": (None, k), "is_failed": (None,), "total": (1,),
        }  # fmt: skip
        if part.has_penalty:  # the arrays of ``arrays_of_bound``
            sizes |= {"carriers": (None, k), "slopes": (None, k), "reduction": (None, None), "root": (1,)}
        steps = np.zeros((len(part.functions), q if part.is_row_of_outputs else 1))
        self._steps = pytensor.shared(steps, name=f"{name}_steps")
        self.shift = None  # by how many of their errors the outputs of a single row are shifted, a scalar
        # Penalty on the log density for uncertainty about terms or several rows, at the inputs of the latest call. For
        # a single row of outputs it is not used: see :func:`lost_on_average`.
        self.loss = None
        # Before anything is learned outputs are zero, so that a cheap version stays as it is.
        self._shared = shared_arrays(name, part.num_functions, sizes)
        self._shared["scale"].set_value(np.ones((part.num_functions, k)))

    def renew(self, fits: Sequence[FittedOutputs], known, is_factor: bool, bounds: Sequence, steps: np.ndarray) -> None:
        """Put in what was learned of each function, and where it failed.

        ``known`` are inputs (n, k), and whether they failed (n,), for each function: outputs are NaN where the nearest
        one failed. ``is_factor`` is whether what was learned multiplies the outputs of a cheap version, or is added to
        them. There are no ``bounds`` without penalty. ``steps`` (b, e) are the largest errors of the rows, by which
        :func:`relative_errors` are multiplied.
        """
        self._steps.set_value(steps)
        self.is_factor.set_value(float(is_factor))
        values = []
        for fit, (inputs, is_failed), bound in zip(fits, known, bounds or [None] * len(fits), strict=True):
            places = fit.scaled(inputs, inside=False) * fit.inverse_length_scale
            keep = np.isfinite(places).all(axis=1) & is_failed.any()  # nothing to tell apart where none has failed
            of_bound = arrays_of_bound(bound, fit.inverse_length_scale) if bound else {}
            values.append(vars(fit) | {"known": places[keep], "is_failed": is_failed[keep]} | of_bound)
        for field, shared in self._shared.items():
            arrays = [np.atleast_1d(np.asarray(v[field], dtype=float)) for v in values]
            # Shorter arrays get points of weight zero, and places that are never the nearest.
            shared.set_value(filled_up(arrays, 1e100 if field == "known" else 0.0))

    def __call__(self, inputs):
        """Return the rows (b, q) of the outputs at rows (b, k) of inputs."""
        functions, block = self.part.functions, self.part.like.block
        of = of_rows(self._shared, functions)
        on_scale = _where(of["log_inputs"], lambda x: pt.log(pt.maximum(x, SMALLEST)), inputs)
        axes = (on_scale - of["center"]) / of["scale"]
        z = self._rotated(axes, of)
        is_failed = self._is_next_to_failed(z * of["inverse_length_scale"], of)
        errors = 0.0
        if self.part.has_penalty:
            errors = relative_errors(of, z, z * of["inverse_length_scale"]) * self._steps
            self.loss = 0.5 * (errors**2).sum()
        inside = self._rotated(pt.clip(axes, of["low"], of["high"]), of)
        s = inside * of["inverse_length_scale"]
        trend = self._trend(inside, of)
        if self.falls:
            trend = pt.minimum(trend, self._trend(z, of))
        learned = times_of_rows(pt.exp(-0.5 * distances_of_rows(s, of["points"])), of["weights"]) + trend
        if self.shift is not None:
            learned += self.shift * errors
        outputs = _where(of["log_outputs"], pt.exp, learned)
        has_total = of["total"] > 0.0
        blocks = outputs.reshape((len(functions), -1, block)).sum(axis=2)
        sums = pt.switch(has_total, pt.repeat(blocks, block, axis=1), 1.0)
        outputs = pt.switch(has_total, outputs * of["total"] / sums, outputs)
        return pt.switch(is_failed[:, None], np.nan, outputs)

    @property
    def falls(self) -> bool:
        """Whether, beyond the range learned from, outputs follow their trend where it is lower than at the border."""
        return self.part.is_term

    def _trend(self, z, of):
        """Return the trends (b, q) at scaled inputs (b, k)."""
        rows, columns = np.triu_indices(z.type.shape[1])
        features = pt.concatenate([pt.ones((z.shape[0], 1)), z, z[:, rows] * z[:, columns]], axis=1)
        return times_of_rows(features, of["coefficients"])

    def _rotated(self, axes, of):
        """Return scaled inputs (b, k), rotated for a single row; several rows are learned along their own inputs."""
        return axes @ of["rotation"] if self.part.is_row else axes

    def _is_next_to_failed(self, s, of):
        """Return for each row (b, k) whether the nearest of the known places is one at which the function failed."""
        nearest = ((s[:, None, :] - of["known"]) ** 2).sum(axis=2).argmin(axis=1)
        failed = of["is_failed"]
        return (failed[nearest] if self.part.num_functions == 1 else failed[pt.arange(s.shape[0]), nearest]) > 0.5


def _where(flags, function, values):
    """Return function(values) where ``flags`` are one, without infinities in the gradients of the others."""
    return pt.switch(flags > 0.5, function(pt.switch(flags > 0.5, values, 1.0)), values)


def model_with(
    model: pm.Model, calls: Sequence[Rows], parts: Sequence[Part], outputs_of: Sequence, coarse: Mapping[int, Coarse]
) -> tuple[pm.Model, list[TensorVariable]]:
    """Return a copy of a model in which the outputs of calls are replaced, and its inputs (b, k) of each part.

    ``outputs_of`` are functions, for each part, from its inputs (b, k), a tensor, to its outputs (b, q), or to
    corrections of a cheap version: factors where its shared variable ``is_factor`` is one. They are clipped to its
    shared variable ``limits``. ``coarse`` has cheap versions by the numbers of calls.
    """
    fgraph, memo = graph_of_model(model)
    inputs_of = []
    for part, outputs in zip(parts, outputs_of, strict=True):
        members = [calls[i] for i in part.calls]
        rows = [m.inputs([memo[v] for v in m.box.inputs]) for m in members]
        inputs = rows[0] if len(rows) == 1 else pt.concatenate(rows, axis=0)
        inputs = pt.specify_shape(inputs, (len(part.functions), members[0].sizes[0]))
        inputs_of.append(inputs)
        learned, start = pt.clip(outputs(inputs), outputs.limits[0], outputs.limits[1]), 0
        for i, call in zip(part.calls, members, strict=True):
            new_outputs = call.assembled(learned[start : start + call.num_rows])
            if i in coarse:
                given = [memo.get(v, v) for v in call.box.node.inputs]
                new_outputs = coarse[i].corrected(given, new_outputs, outputs.is_factor)
            for old, new in zip(call.box.node.outputs, new_outputs, strict=True):
                of_graph = memo[old]
                if isinstance(of_graph.owner.op, ModelVar):  # a potential that is the output itself
                    of_graph = of_graph.owner.inputs[0]
                new = of_graph.type.filter_variable(new.astype(old.type.dtype), allow_convert=True)
                new.name = old.name
                fgraph.replace(of_graph, new, import_missing=True)
                memo[old] = new  # for calls that take it
            start += call.num_rows
    return model_of_graph(fgraph, model), inputs_of


def no_limits(shape: tuple[int, int]) -> np.ndarray:
    """Return infinite limits (2, b, q), lowest and highest, for outputs of a shape (b, q)."""
    return np.stack([np.full(shape, -np.inf), np.full(shape, np.inf)])


def limits_of(has_density: Callable[[np.ndarray], np.ndarray], rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the lowest and highest outputs (2, b, q) with a density; infinite where there is no limit.

    A limit is searched as far beyond the known outputs as their range. It must be the same at all places, and the
    outermost known output must have a density at each: a bound that is a parameter is no limit, nor is a sum that must
    be one. Costs two evaluations of the density at each place, and for a model with limits four for each output.

    ``has_density`` takes outputs (m, b, q) at several places to whether the model has a density there (m,); ``rows``
    (m, b, q) are outputs with one. ``known`` (n, b, q) are all outputs with a density, at these and other places.
    """
    limits = no_limits(rows.shape[1:])
    low, high = known.min(axis=0), known.max(axis=0)
    for of_side, inside, outside in zip(limits, (low, high), (2.0 * low - high, 2.0 * high - low), strict=True):
        if has_density(np.broadcast_to(outside, rows.shape)).all():
            continue
        latest = None
        for output in np.ndindex(inside.shape):

            def has_density_with(value, output=output):
                changed = rows.copy()
                changed[:, *output] = value
                return has_density(changed)

            inner, outer = inside[output], outside[output]
            if has_density_with(outer).any() or not has_density_with(inner).all():
                continue
            if latest is None or not _is_limit(has_density_with, latest, inner, outer):
                latest = _halved(has_density_with, inner, outer)
            if latest is not None:
                of_side[output] = latest
    return limits


def _is_limit(has_density, value, inside, outside):
    """Return whether the density ends at ``value``, on the way from ``inside`` to ``outside``."""
    is_between = (value - outside) * (inside - value) >= 0.0
    beyond = value + math.sqrt(np.finfo(float).eps) * (outside - value)  # by half of its digits
    return is_between and has_density(value).all() and not has_density(beyond).any()


def _halved(has_density, inside, outside):
    """Return the last value on the way from ``inside`` to ``outside`` with a density; None if it differs by place."""
    for _ in range(np.finfo(float).nmant):  # to the precision of a number of the distance's size
        middle = 0.5 * (inside + outside)
        found = has_density(middle)
        if found.all():
            inside = middle
        elif found.any():
            return None
        else:
            outside = middle
    return inside
