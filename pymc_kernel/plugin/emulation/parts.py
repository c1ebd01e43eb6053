"""The unknown functions of a model as rows: each row of inputs gives a row of outputs, by itself.

One call for all subjects, a call for each in a Python loop, and a vectorized operator are treated alike.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.tensor import TensorVariable
from pytensor.tensor.blockwise import Blockwise

from pymc_kernel.linalg import squared_distances
from pymc_kernel.plugin.emulation.black_boxes import BlackBox
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp


class Rows(NamedTuple):
    """How the inputs and outputs of one call split into rows."""

    box: BlackBox
    shape: tuple[int, ...]  # of the rows: (b,) for b rows in a matrix, () where the call is one row
    input_axes: tuple[int | None, ...]  # along which the rows of each input run; None for one that all rows share
    output_axes: tuple[int, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    functions: tuple[int, ...]  # for each row the number of its function

    @property
    def is_estimate(self) -> bool:
        """Whether the outputs have noise."""
        return isinstance(self.box.op, EstimatedLogLikelihoodOp)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return int(np.prod(self.shape))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of inputs and outputs of a row."""
        pairs = zip(self.input_shapes, self.input_axes, strict=True)
        inputs = [int(np.prod(shape)) // (1 if axis is None else self.num_rows) for shape, axis in pairs]
        return sum(inputs), sum(int(np.prod(s)) for s in self.output_shapes) // self.num_rows

    @property
    def block(self) -> int:
        """How many consecutive outputs may have a constant sum: the last dimension, or all if rows run along that."""
        (_, num_outputs), shape, axis = self.sizes, self.output_shapes[0], self.output_axes[0]
        is_along_rows = not shape or (self.shape and axis % len(shape) == len(shape) - 1)
        return num_outputs if is_along_rows or len(self.output_shapes) > 1 or num_outputs % shape[-1] else shape[-1]

    def inputs(self, values: Sequence) -> np.ndarray | TensorVariable:
        """Return the rows (b, k) of the inputs, of arrays or of tensors."""
        lib = np if all(isinstance(v, np.ndarray) for v in values) else pt
        rows = []
        for value, shape, axis in zip(values, self.input_shapes, self.input_axes, strict=True):
            size = int(np.prod(shape))
            if axis is None:
                rows.append(lib.broadcast_to(value.reshape((1, size)), (self.num_rows, size)))
            else:
                rows.append(lib.moveaxis(value, axis, 0).reshape((self.num_rows, size // self.num_rows)))
        return lib.concatenate([r.astype("float64") for r in rows], axis=1)

    def outputs(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Return the rows (b, q) of the outputs."""
        moved = [np.moveaxis(v, a, 0) if v.ndim else v for v, a in zip(values, self.output_axes, strict=True)]
        return np.concatenate([np.reshape(v, (self.num_rows, -1)) for v in moved], axis=1).astype(float)

    def assembled(self, rows: TensorVariable) -> list[TensorVariable]:
        """Return the outputs, assembled from their rows (b, q)."""
        outputs, start = [], 0
        for shape, axis in zip(self.output_shapes, self.output_axes, strict=True):
            size = int(np.prod(shape)) // self.num_rows
            part = rows[:, start : start + size]
            start += size
            if axis == 0 or not self.shape:
                outputs.append(part.reshape(shape))
            else:
                rest = [n for i, n in enumerate(shape) if i != axis % len(shape)]
                outputs.append(pt.moveaxis(part.reshape((self.num_rows, *rest)), 0, axis))
        return outputs


class Part(NamedTuple):
    """Rows that are learned together: of one call, or of several with the same numbers of inputs and outputs."""

    calls: list[int]  # their numbers
    functions: np.ndarray  # (b,), for each row the number of its function, from zero on
    like: Rows  # one of the calls, for what all have in common: how many inputs and outputs, whether they are estimates
    is_term: bool = False  # whether each row has one output, a summand of the log density: a log likelihood

    @property
    def num_functions(self) -> int:
        """How many different functions there are."""
        return int(self.functions.max()) + 1

    @property
    def masks(self) -> list[np.ndarray]:
        """Which rows (b,) have each function."""
        return [self.functions == function for function in range(self.num_functions)]

    @property
    def is_row(self) -> bool:
        """Whether it is a single row, so that no other row shows the function elsewhere."""
        return len(self.functions) == 1

    @property
    def is_row_of_outputs(self) -> bool:
        """Whether it is a single row, and no term of the log density."""
        return self.is_row and not self.is_term

    @property
    def has_penalty(self) -> bool:
        """Whether uncertainty about outputs lowers the log density; gradients would be slow for several estimates."""
        return self.is_row or not self.like.is_estimate


def rows_of(box: BlackBox, inputs: Sequence, outputs: Sequence, others: Sequence) -> Rows:
    """Return how a call splits into rows, from a vectorized operator's graph or by probing an opaque one.

    ``inputs`` and ``outputs`` are those of one call; ``others`` are other inputs that the function may get.
    """
    shapes = tuple(np.shape(v) for v in inputs), tuple(np.shape(v) for v in outputs)
    whole = Rows(box, (), (None,) * len(inputs), (0,) * len(outputs), *shapes, (0,))
    if isinstance(box.node.op, Blockwise):
        return _rows_of_vectorized(box, whole)
    for rows in _candidates(whole):
        if _is_by_row(rows, inputs, outputs, others):
            # At one place different functions may agree, as multiples of zero do, so two places are compared.
            return _with_functions(rows, all(_is_one_function(rows, given) for given in (inputs, others)))
    return whole


def _rows_of_vectorized(box, whole):
    batch = whole.output_shapes[0][: box.node.op.batch_ndim(box.node)]
    num_batch = len(batch)
    # If an input broadcasts over only some of the batch dimensions, the call is learned as one row.
    is_full = [shape[:num_batch] == batch for shape in whole.input_shapes]
    is_single = [set(shape[:num_batch]) <= {1} for shape in whole.input_shapes]
    if not all(a or b for a, b in zip(is_full, is_single, strict=True)):
        return whole
    rows = whole._replace(shape=batch, input_axes=tuple(0 if full else None for full in is_full))
    fixed = set(box.node.inputs).difference(box.inputs)
    varies = any(set(v.type.shape[:num_batch]) != {1} for v in fixed)
    return _with_functions(rows, is_one=not varies)


def _with_functions(rows, is_one):
    """Return rows that all have one function, or each a function of its own."""
    return rows._replace(functions=(0,) * rows.num_rows if is_one else tuple(range(rows.num_rows)))


def _candidates(whole):
    """Yield ways to split a call whose inputs and outputs have an axis of the same length."""
    for axis in (0, -1):
        lengths = {shape[axis] if shape else 1 for shape in whole.output_shapes}
        if len(lengths) != 1 or lengths == {1}:
            continue
        [count] = lengths
        for input_axis in (0, -1):
            axes = tuple(input_axis if s and s[input_axis] == count else None for s in whole.input_shapes)
            if any(a is not None for a in axes):
                yield whole._replace(shape=(count,), input_axes=axes, output_axes=(axis,) * len(whole.output_shapes))


def _is_by_row(rows, inputs, outputs, others):
    """Return whether new inputs for every second row change outputs of these rows, and not a bit of the others."""
    is_even = np.arange(rows.num_rows) % 2 == 0
    before = rows.outputs(outputs)
    if not np.isfinite(before).all():
        return False
    for changed in (is_even, ~is_even):
        after = _outputs_with(rows, inputs, changed, others, changed)
        if not np.array_equal(before[~changed], after[~changed]) or np.array_equal(before[changed], after[changed]):
            return False
    return True


def _is_one_function(rows, inputs):
    """Return whether all rows give the same outputs for the same inputs, up to rounding."""
    after = _outputs_with(rows, inputs, slice(None), inputs, [0])
    return bool(np.allclose(after, after[:1], rtol=1e-9, atol=0.0))


def _outputs_with(rows, inputs, changed, others, chosen):
    """Return the outputs (b, q) of a call whose inputs have ``chosen`` rows of others in place of ``changed`` ones."""
    mixed = [v.copy() for v in inputs]
    for value, other, axis in zip(mixed, others, rows.input_axes, strict=True):
        if axis is not None:
            np.moveaxis(value, axis, 0)[changed] = np.moveaxis(other, axis, 0)[chosen]
    given, free, node = iter(mixed), set(rows.box.inputs), rows.box.node
    values = [next(given) if v in free else v.eval(mode="FAST_COMPILE") for v in node.inputs]
    storage = [[None] for _ in node.outputs]
    node.op.perform(node, values, storage)
    return rows.outputs([np.asarray(s[0]) for s in storage])


def parts_of(calls: Sequence[Rows]) -> list[Part]:
    """Return the calls grouped by what is learned together: none feeds another, with equal sizes, all exact or none."""
    depth: list[int] = []
    groups: dict[tuple, list[int]] = {}
    known = {out: i for i, rows in enumerate(calls) for out in rows.box.node.outputs}
    for i, rows in enumerate(calls):
        feeding = {known[v] for v in pytensor.graph.traversal.ancestors(rows.box.inputs) if v in known}
        depth.append(1 + max((depth[j] for j in feeding), default=0))
        groups.setdefault((depth[i], rows.is_estimate, *rows.sizes), []).append(i)
    parts = []
    for _, members in sorted(groups.items()):
        numbers: dict[tuple, int] = {}
        functions = []
        for i in members:
            # Of calls of one operator with the same fixed inputs, rows of the same number have the same function.
            first = next(j for j in members if j == i or calls[j].box.is_like(calls[i].box))
            functions += [numbers.setdefault((first, f), len(numbers)) for f in calls[i].functions]
        parts.append(Part(members, np.array(functions), calls[members[0]]))
    return parts


def distances_of_rows(rows, points):
    """Return squared distances (b, m) of rows (b, k) from points (m, k) of one function, or of theirs (b, m, k)."""
    if points.type.ndim == 2:
        return pt.maximum(squared_distances(rows, points), 0.0)
    return ((rows[:, None, :] - points) ** 2).sum(axis=2)


def times_of_rows(rows, matrices):
    """Return products (b, q) of rows (b, m) and the matrix (m, q) of one function, or those of theirs (b, m, q)."""
    if matrices.type.ndim == 2:
        return rows @ matrices
    return (rows[:, :, None] * matrices).sum(axis=1)


def products_of_rows(rows, vectors):
    """Return inner products (b, q) of rows (b, m) with the vectors (q, m) of one function, or with theirs (b, q, m).

    With several functions twenty times as fast as :func:`times_of_rows` of the transposed arrays.
    """
    if vectors.type.ndim == 2:
        return rows @ vectors.T
    return (rows[:, None, :] * vectors).sum(axis=2)
