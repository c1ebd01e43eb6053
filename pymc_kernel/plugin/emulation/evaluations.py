"""Evaluations of a model at single places: on any executor, with time limits, into a store that a run resumes."""

import math

import numpy as np

from pymc_kernel.likelihood_free import ArraySpec, Status, Workers, open_store, simulate_once
from pymc_kernel.plugin.model.remote import Remote

_GROUP, _NAME = "evaluations", "emulated"
_COMPILE_SECONDS = 120.0  # that the first call of a worker may take beyond its time limit, for machine code
_SAME_NATS = 0.01  # by which a likelihood of any size may differ between machines


class Evaluations:
    """Vectors of a model, of which the log density is the first number, each evaluated once.

    The model is a ``TrueModel``. Entropy and number are the seed of each noisy estimate; one may take ``timeout``
    seconds. The store has room for ``most`` evaluations and is recognized by the texts of ``identity``.
    """

    def __init__(self, true, most, entropy, executor, store, timeout, identity, num_dims):
        self._entropy, self._timeout, self._size = entropy, timeout, true.size
        specs = {
            f"{_GROUP}/position": ArraySpec((num_dims,), "float64", ("coordinate",), np.nan),
            f"{_GROUP}/{_NAME}": ArraySpec((self._size,), "float64", (f"{_NAME}_dim",), np.nan),
            f"{_GROUP}/status": ArraySpec((), "int8", (), int(Status.NOT_RUN)),
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
        stored = np.array(self._array("position")[0, first : first + count])
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
            vector = np.full((1, self._size), value)  # NaN of one that failed
            arrays = {"position": positions[[number - first]], _NAME: vector, "status": np.array([int(status)])}
            self._keeper.write(number, {f"{_GROUP}/{k}": v for k, v in arrays.items()}, status != Status.LOST)
            progress()
        return np.array(self._array(_NAME)[0, first : first + count])

    def status(self, count: int) -> np.ndarray:
        """Return the status of the first ``count`` evaluations."""
        return np.array(self._array("status")[0, :count])

    def close(self) -> None:
        """End the processes that were started here."""
        self.workers.close()

    def check_stored(self) -> None:
        """Evaluate the best of the stored places once more: code that the likelihood calls has no fingerprint.

        Raises ``ValueError`` where the store has evaluations of another likelihood.
        """
        stored = np.array(self._array(_NAME)[0])
        firsts = np.where(np.isfinite(stored).all(axis=1), stored[:, 0], np.nan)
        usable = np.flatnonzero((self._keeper.is_done[:] == 1) & np.isfinite(firsts))
        if usable.size == 0:
            return
        best = int(usable[np.argmax(firsts[usable])])
        position = np.array(self._array("position")[0, best])
        for _, result, error in self.workers.run(evaluate_one, [best], self._arguments(lambda i: position)):
            value = np.atleast_1d(result[0] if error is None else np.nan)[0]
            if not np.isfinite(value):  # a time-out, say, which tells nothing of the likelihood
                return
            if not math.isclose(value, firsts[best], abs_tol=_SAME_NATS):  # or by 1e-9 of its size
                raise ValueError(
                    f"the store was made with another likelihood: evaluation {best} has {firsts[best]:.6g} there, and "
                    f"{value:.6g} now. Give another path; or, where the likelihood is random, make it a "
                    "pk.EstimatedLikelihood, whose noise has a seed."
                )

    def _arguments(self, position_of):
        return lambda i: (self._true, self._entropy, i, position_of(i), self._timeout)

    def _array(self, name):
        return self._keeper.arrays[f"{_GROUP}/{name}"]


def evaluate_one(
    true: Remote, entropy: int, index: int, position: np.ndarray, timeout: float | None
) -> tuple[np.ndarray | float, Status, str | None]:
    """Return vector, status and error text at a position; runs in a worker."""
    true = true.here()
    if timeout is not None and not true.is_compiled:
        # The limit is the likelihood's. It must not end the compiler, whose locks would stay closed.
        timeout = timeout + _COMPILE_SECONDS
    noise = np.random.default_rng([entropy, index]) if true.estimated else None
    status, found, error = simulate_once(lambda: [true.vector_at(position, noise)], timeout)
    value = np.nan if found is None else found[0]
    return value, status, None if error is None else f"{type(error).__name__}: {error}"
