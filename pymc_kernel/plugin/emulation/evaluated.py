"""The unknown functions of a model, evaluated for real: what they were given and returned at a place."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm

from pymc_kernel.plugin.emulation.black_boxes import BlackBox
from pymc_kernel.plugin.emulation.model_graph import LogLikelihoodOp
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp, drawing_noise
from pymc_kernel.plugin.model.interpreter import of_position


class Evaluated(NamedTuple):
    """What an evaluation of the whole model gave."""

    log_density: float
    """Of the model on the unconstrained scale; minus infinity where it has none."""
    inputs: list[list[np.ndarray]]
    """Of each call."""
    outputs: list[list[np.ndarray]]


class TrueModel:
    """Log density of a model with all that its calls without gradient were given and returned; each call runs once.

    As ``vector_at`` returns it, an evaluation is one vector: the log density, then inputs and outputs call by call.

    Parameters
    ----------
    model : pymc.Model
    boxes : sequence of BlackBox
    rng : numpy.random.Generator, optional
        Of the noise of estimates while shapes are learned.
    """

    def __init__(self, model: pm.Model, boxes: Sequence[BlackBox], rng: np.random.Generator | None = None):
        self.estimated = tuple(b.op.key for b in boxes if isinstance(b.op, EstimatedLogLikelihoodOp))
        self._rng = rng
        variables = [v for box in boxes for v in (*box.inputs, *box.node.outputs)]
        self._counts = [(len(box.inputs), len(box.node.outputs)) for box in boxes]
        outputs = [model.logp(), *model.replace_rvs_by_values(variables)]
        point, given = model.initial_point(random_seed=0), model.replace_rvs_by_values(boxes[0].inputs)
        self._function = of_position(model, point, outputs)
        self._inputs_of_one = of_position(model, point, given) if len(boxes) == 1 else None
        self._whole = [b.op for b in boxes if isinstance(b.op, LogLikelihoodOp)]
        self._shapes: list[tuple[int, ...]] = []

    def learn_shapes(self, positions: np.ndarray) -> tuple[Evaluated, Evaluated]:
        """Return the first two evaluations with finite values at positions (n, d), by which all shapes are known.

        The same one twice where there are no two.

        Raises
        ------
        ValueError
            Where there is none, and where a black box is random.
        """
        found, first_error, may_be_zero = [], None, bool(self.estimated or self._whole)
        for position in positions:
            try:
                seed = int(self._rng.integers(2**63)) if self.estimated else 0
                log_density, arrays = self._at(position, np.random.default_rng(seed))
            except Exception as error:
                first_error = first_error or error
                continue
            # An estimate of zero is a value, and with many groups there may be one at every place; so is a likelihood.
            if all((np.isfinite(a) | (np.isneginf(a) & may_be_zero)).all() for a in arrays):
                found.append((position, log_density, arrays, seed))
                if len(found) == 2:
                    break
        if not found:
            raise ValueError(
                f"the black boxes of this model gave finite values at none of {len(positions)} draws of its prior"
                + (f"; the first error: {first_error!r}" if first_error else "")
                + ". Make the prior less wide."
            )
        self._shapes = [a.shape for a in found[0][2]]
        if any([a.shape for a in other] != self._shapes for _, _, other, _ in found):
            raise ValueError(
                "a black box of this model returns arrays of other sizes at other places: let it return always as many "
                "numbers, NaN where there are none."
            )
        position, _, arrays, seed = found[-1]  # the first one is often zero, which relative noise leaves as it is
        _, again = self._at(position, np.random.default_rng(seed))  # estimates by the same random numbers
        if not all(np.array_equal(a, b) for a, b in zip(arrays, again, strict=True)):
            raise ValueError(
                "a black box of this model returns other values when it is called again at the same place. A random "
                "one is a simulator or an estimate: see pk.EstimatedLikelihood, whose function takes all its "
                "randomness from the generator that it is given, and pk.sample_likelihood_free."
            )
        return tuple(self.read(_vector(f, values), x) for x, f, values, _ in (found[0], found[-1]))

    @property
    def is_compiled(self) -> bool:
        """Whether no call compiles what it evaluates, as the first one of a whole log likelihood does."""
        return all(op.is_compiled for op in self._whole)

    @property
    def size(self) -> int:
        """Length of the vector of an evaluation."""
        return 1 + sum(int(np.prod(s)) for s in self._shapes)

    def vector_at(self, position: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """Return the vector of the evaluation at a position (d,), of estimates with this source of noise."""
        log_density, arrays = self._at(position, noise)
        if [a.shape for a in arrays] != self._shapes:
            raise ValueError("a black box returned an array of another size than before.")
        return _vector(log_density, arrays)

    def read(self, vector: np.ndarray, position: np.ndarray) -> Evaluated:
        """Return the parts of the vector of an evaluation at a position (d,); one that failed is NaN.

        Where a model has one call, and that raised, its inputs are those that it was given; with several calls nobody
        knows which one raised.
        """
        edges = np.cumsum([1, *(int(np.prod(s)) for s in self._shapes)])[:-1]
        parts = np.split(np.broadcast_to(vector, self.size), edges)
        arrays = iter([p.reshape(s) for p, s in zip(parts[1:], self._shapes, strict=True)])
        calls = [([next(arrays) for _ in range(i)], [next(arrays) for _ in range(o)]) for i, o in self._counts]
        is_whole = all(np.isfinite(p).all() for p in parts)
        if not is_whole and self._inputs_of_one is not None:
            calls = [([np.asarray(a, dtype=float) for a in self._inputs_of_one(position)], calls[0][1])]
        return Evaluated(float(parts[0][0]) if is_whole else -np.inf, [c[0] for c in calls], [c[1] for c in calls])

    def _at(self, position, noise):
        with drawing_noise(dict.fromkeys(self.estimated, noise)):
            log_density, *arrays = self._function(position)
        return float(log_density), [np.asarray(a, dtype=float) for a in arrays]


def _vector(log_density, arrays):
    return np.concatenate([[log_density], *(np.ravel(a) for a in arrays)])
