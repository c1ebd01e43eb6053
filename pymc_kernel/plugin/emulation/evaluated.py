"""Evaluate the true model, with the inputs and outputs of its black boxes, on any executor and into a store."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pymc as pm

from pymc_kernel.likelihood_free import ArraySpec, Status, Workers, open_store, simulate_once
from pymc_kernel.plugin.emulation.black_boxes import BlackBox
from pymc_kernel.plugin.emulation.model_graph import LogLikelihoodOp
from pymc_kernel.plugin.model.estimated import EstimatedLogLikelihoodOp, drawing_noise
from pymc_kernel.plugin.model.interpreter import of_position
from pymc_kernel.plugin.model.log_density import SAME_NATS
from pymc_kernel.plugin.model.remote import Remote

_POSITION, _VECTOR, _STATUS = "evaluations/position", "evaluations/emulated", "evaluations/status"  # in a store
_COMPILE_SECONDS = 120.0  # that the first call of a worker may take beyond its time limit, for machine code


class Evaluated(NamedTuple):
    """Result of one evaluation of the whole model."""

    log_density: float  # of the model on the unconstrained scale; minus infinity where it has none
    inputs: list[list[np.ndarray]]  # of each call
    outputs: list[list[np.ndarray]]


class TrueModel:
    """Log density of a model, with inputs and outputs of its calls without gradient; each call runs once.

    ``vector_at`` returns an evaluation as one vector: the log density, then inputs and outputs call by call. The noise
    of estimates is by ``rng`` while shapes are learned.
    """

    def __init__(self, model: pm.Model, boxes: Sequence[BlackBox], rng: np.random.Generator):
        self.estimated = tuple(b.op.key for b in boxes if isinstance(b.op, EstimatedLogLikelihoodOp))
        self._first_seed = int(rng.integers(2**62)) if self.estimated else 0
        variables = [v for box in boxes for v in (*box.inputs, *box.node.outputs)]
        self._counts = [(len(box.inputs), len(box.node.outputs)) for box in boxes]
        outputs = [model.logp(), *model.replace_rvs_by_values(variables)]
        point, given = model.initial_point(random_seed=0), model.replace_rvs_by_values(boxes[0].inputs)
        self._function = of_position(model, point, outputs)
        self._inputs_of_one = of_position(model, point, given) if len(boxes) == 1 else None
        self._whole = [b.op for b in boxes if isinstance(b.op, LogLikelihoodOp)]
        self._shapes: list[tuple[int, ...]] = []

    def learn_shapes(self, positions: np.ndarray) -> tuple[Evaluated, Evaluated]:
        """Return the first two evaluations with finite values at positions (n, d), and note the shapes of all arrays.

        If there is only one, it is returned twice. Raises ``ValueError`` where there is none, shapes change between
        places, or a black box is random.
        """
        found, first_error, may_be_zero = [], None, bool(self.estimated or self._whole)
        for seed, position in enumerate(positions, self._first_seed):
            try:
                log_density, arrays = self._at(position, np.random.default_rng(seed))
            except Exception as error:
                first_error = first_error or error
                continue
            # An estimate or likelihood of zero is a value: with many groups every place may have an estimate of zero.
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
        position, _, arrays, seed = found[-1]  # not the first, often zero: relative noise would not show there
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
        """Whether the next call compiles nothing, unlike the first call of a whole log likelihood."""
        return all(op.is_compiled for op in self._whole)

    @property
    def size(self) -> int:
        """Length of the vector of an evaluation."""
        return 1 + sum(int(np.prod(s)) for s in self._shapes)

    def vector_at(self, position: np.ndarray, noise: np.random.Generator | None) -> np.ndarray:
        """Return the vector of the evaluation at a position (d,); estimates take their noise from ``noise``."""
        log_density, arrays = self._at(position, noise)
        if [a.shape for a in arrays] != self._shapes:
            raise ValueError("a black box returned an array of another size than before.")
        return _vector(log_density, arrays)

    def read(self, vector: np.ndarray, position: np.ndarray) -> Evaluated:
        """Return the parts of the vector of an evaluation at a position (d,); the vector is NaN if it failed.

        If a single call failed, its inputs are computed again; of several, nobody knows which one raised.
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


class Evaluations:
    """Evaluate a ``TrueModel`` once at each place; the first number of each vector is the log density.

    ``entropy`` and its number seed the noise of an evaluation, which may take ``timeout`` seconds. The store has room
    for ``most`` evaluations and is recognized by the texts of ``identity``.
    """

    def __init__(self, true, most, entropy, executor, store, timeout, identity, num_dims):
        self._entropy, self._timeout, self._size = entropy, timeout, true.size
        specs = {
            _POSITION: ArraySpec((num_dims,), "float64", ("coordinate",), np.nan),
            _VECTOR: ArraySpec((true.size,), "float64", ("emulated_dim",), np.nan),
            _STATUS: ArraySpec((), "int8", (), int(Status.NOT_RUN)),
        }
        self._keeper, _ = open_store(store, specs, {}, most, 1, identity, {})
        self._true = Remote(lambda: true, is_sent=executor is not None)
        self._true.here()  # processes forked from this thread need not compile
        self.workers = Workers(executor)
        self._has_own_processes = isinstance(executor, int | np.integer)
        self.first_error = None

    def __call__(self, first: int, positions: np.ndarray, progress) -> np.ndarray:
        """Return vectors (n, size) at positions (n, d), evaluations ``first``, ``first`` + 1, ...; NaN where failed.

        ``progress`` is called after each. Raises ``ValueError`` where the store has evaluations at other positions.
        """
        marks, count = self._keeper.is_done[first:], len(positions)
        # A place that was lost is tried again, unless later ones were chosen without its value.
        is_kept = (marks != 0 if marks[count:].any() else marks == 1)[:count]
        stored = np.array(self._keeper.arrays[_POSITION][0, first : first + count])
        if not np.array_equal(stored[is_kept], positions[is_kept]):
            raise ValueError(
                "the store holds evaluations at other places: it was made with another model, seed, batch size or "
                "start, or with so few evaluations that there were fewer first places. Give another path, or the old "
                "settings."
            )
        for _ in range(np.count_nonzero(is_kept)):
            progress()
        left = np.flatnonzero(~is_kept).tolist()
        # All places of a batch go to an executor that was given: it may have any number of workers.
        in_flight = None if self._has_own_processes else len(left) or 1
        arguments = self._arguments(lambda number: positions[number - first])
        batches = self.workers.run(evaluate_one, [first + i for i in left], arguments, max_in_flight=in_flight)
        for number, result, error in batches:
            value, status, text = result if error is None else (np.nan, Status.LOST, f"{type(error).__name__}: {error}")
            self.first_error = self.first_error or text
            vector = np.full((1, self._size), value)  # NaN if it failed
            arrays = {_POSITION: positions[[number - first]], _VECTOR: vector, _STATUS: np.array([int(status)])}
            self._keeper.write(number, arrays, status != Status.LOST)
            progress()
        return np.array(self._keeper.arrays[_VECTOR][0, first : first + count])

    def status(self, count: int) -> np.ndarray:
        """Return the status of the first ``count`` evaluations."""
        return np.array(self._keeper.arrays[_STATUS][0, :count])

    def close(self) -> None:
        """End the processes that were started here."""
        self.workers.close()

    def check_stored(self) -> None:
        """Evaluate the best of the stored places once more: code that the likelihood calls has no fingerprint.

        Raises ``ValueError`` where the store has evaluations of another likelihood.
        """
        stored = np.array(self._keeper.arrays[_VECTOR][0])
        firsts = np.where(np.isfinite(stored).all(axis=1), stored[:, 0], np.nan)
        usable = np.flatnonzero((self._keeper.is_done[:] == 1) & np.isfinite(firsts))
        if usable.size == 0:
            return
        best = int(usable[np.argmax(firsts[usable])])
        position = np.array(self._keeper.arrays[_POSITION][0, best])
        [(_, result, error)] = self.workers.run(evaluate_one, [best], self._arguments(lambda i: position))
        value = np.atleast_1d(result[0] if error is None else np.nan)[0]
        # NaN after a time-out, say, tells nothing of the likelihood. Close are values also by 1e-9 of their size.
        if np.isfinite(value) and not math.isclose(value, firsts[best], abs_tol=SAME_NATS):
            raise ValueError(
                f"the store was made with another likelihood: evaluation {best} has {firsts[best]:.6g} there, and "
                f"{value:.6g} now. Give another path; or, where the likelihood is random, make it a "
                "pk.EstimatedLikelihood, whose noise has a seed."
            )

    def _arguments(self, position_of):
        return lambda i: (self._true, self._entropy, i, position_of(i), self._timeout)


def evaluate_one(true: Remote, entropy: int, index: int, position: np.ndarray, timeout: float | None) -> tuple:
    """Return vector, status and error text at a position; runs in a worker."""
    true = true.here()
    if timeout is not None and not true.is_compiled:
        # The limit is the likelihood's. It must not end the compiler, whose locks would stay closed.
        timeout = timeout + _COMPILE_SECONDS
    noise = np.random.default_rng([entropy, index]) if true.estimated else None
    status, found, error = simulate_once(lambda: [true.vector_at(position, noise)], timeout)
    value = np.nan if found is None else found[0]
    return value, status, None if error is None else f"{type(error).__name__}: {error}"
