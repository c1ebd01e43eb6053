"""Cheap versions of black boxes, of which only the error is learned."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.gradient import NullTypeGradError
from pytensor.tensor.blockwise import Blockwise

from pymc_kernel.plugin.emulation.parts import Part, Rows
from pymc_kernel.plugin.model.interpreter import STABLE


class Coarse:
    """A cheap version of a call, and the outputs of the call predicted from it.

    Where all outputs are positive, the learned function multiplies the cheap outputs; else it is added to them.

    ``function`` takes the inputs of the call, tensors, to its outputs. Raises ``ValueError`` where these have other
    numbers or shapes than the call's, or no gradient.
    """

    def __init__(self, call: Rows, function: Callable):
        self._call, self._function = call, function
        box = call.box
        given = {v: v.type() for v in box.inputs}
        outputs = self._outputs([given.get(v, v) for v in box.node.inputs])
        try:
            total = pt.add(*[v.sum() for v in outputs], 0.0)
            pytensor.grad(total, list(given.values()), disconnected_inputs="ignore")
        except (NotImplementedError, NullTypeGradError) as error:
            raise ValueError(f"the coarse version of {box.name} has no gradient: {error}") from error
        self._at = pytensor.function(list(given.values()), outputs, mode=STABLE, on_unused_input="ignore")

    def _outputs(self, inputs):
        """Return the outputs, tensors, at inputs of the call."""
        box = self._call.box
        outputs = self._function(*inputs)
        outputs = [pt.as_tensor(v) for v in (outputs if isinstance(outputs, list | tuple) else [outputs])]
        if len(outputs) != len(box.node.outputs):
            of_box = f"{box.name} {len(box.node.outputs)}"
            raise ValueError(f"the coarse version of {box.name} returns {len(outputs)} tensors, and {of_box}.")
        for tensor, shape in zip(outputs, self._call.output_shapes, strict=True):
            self._check(tensor.type.shape, shape)
        return outputs

    def _check(self, found, wanted):
        """Raise where a shape differs from the call's; a length of None is not known yet."""
        if len(found) != len(wanted) or any(n not in (None, m) for n, m in zip(found, wanted, strict=True)):
            name = self._call.box.name
            raise ValueError(f"the coarse version of {name} returns an array of shape {found}, and {name} {wanted}.")

    def rows(self, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """Return the outputs at inputs of the call, as rows (b, q)."""
        outputs = self._at(*inputs)
        for value, shape in zip(outputs, self._call.output_shapes, strict=True):
            self._check(value.shape, shape)
        return self._call.outputs(outputs)

    def corrected(self, inputs: Sequence, learned: Sequence, is_factor) -> list:
        """Return outputs of the call, tensors: the cheap ones at all inputs of its node, corrected by ``learned``."""
        pairs = zip(self._outputs(inputs), learned, strict=True)
        return [pt.switch(is_factor > 0.5, rough * more, rough + more) for rough, more in pairs]


def is_difference(part: Part, coarse: Mapping[int, Coarse]) -> bool:
    """Return whether a part learns the errors of cheap versions, which have no limits and are no log likelihood."""
    return not coarse.keys().isdisjoint(part.calls)


def coarse_versions(calls: Sequence[Rows], functions: Mapping) -> dict[int, Coarse]:
    """Return the cheap version of each call that has one, by the call's number; check ``functions``, by operators."""
    if not (isinstance(functions, Mapping) and all(map(callable, functions.values()))):
        raise TypeError(f"coarse must map operators to functions, as {{solver: cheap}}, got {functions!r}.")
    found, boxes = {}, [call.box for call in calls]
    for op, function in functions.items():
        members = [i for i, box in enumerate(boxes) if box.op == op]
        if not members:
            names = ", ".join(dict.fromkeys(box.name for box in boxes))
            raise ValueError(
                f"coarse has a function for {op}, which is no black box of this model. Its keys are the operators "
                f"themselves, as wrap_py returned them: {names}."
            )
        if any(isinstance(boxes[i].node.op, Blockwise) for i in members):
            raise ValueError(
                f"{boxes[members[0]].name} was vectorized, and coarse versions of such calls are not supported: call "
                "it in a loop, or with a matrix."
            )
        found |= {i: Coarse(calls[i], function) for i in members}
    return found
