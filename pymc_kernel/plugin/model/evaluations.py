"""Log likelihoods of a model at single places: on any executor, with time limits, into a store that a run resumes."""

import hashlib
import threading
from concurrent.futures import ProcessPoolExecutor

import cloudpickle
import numpy as np

from pymc_kernel.likelihood_free import (
    ArraySpec,
    Status,
    WorkersLost,
    open_store,
    run_batches,
    simulate_once,
    start_worker,
)
from pymc_kernel.parallel import leave_one_thread
from pymc_kernel.plugin.model.particle_density import ParticleDensity
from pymc_kernel.plugin.model.pickling import pickled

__all__ = ["Evaluations"]

_GROUP = "evaluations"
_TRIES = 2  # of a place whose process died
_COMPILE_SECONDS = 120.0  # that the first call of a worker may take beyond its time limit, for machine code
_SAME_NATS, _SAME_SHARE = 0.01, 1e-9  # by which one likelihood differs between machines: absolute, and of its size
_LOCAL = threading.local()  # the density that this thread used last: compiled functions must not be shared
_COMPILING = threading.Lock()  # PyTensor's mode is one for the process


class Evaluations:
    """Log likelihoods by number, each evaluated once.

    Parameters
    ----------
    density : ParticleDensity
    most : int
        Evaluations that the store has room for.
    entropy : int
        With its number, the seed of each noisy estimate.
    executor : concurrent.futures.Executor, int or None
    store : Path, optional
    timeout : float, optional
        Seconds for one evaluation.
    identity : dict
        Texts that a store is recognized by.
    num_dims : int
    """

    def __init__(self, density: ParticleDensity, most, entropy, executor, store, timeout, identity, num_dims):
        self.density, self.entropy, self.timeout = density, entropy, timeout
        specs = {
            f"{_GROUP}/position": ArraySpec((num_dims,), "float64", ("coordinate",), np.nan),
            f"{_GROUP}/log_likelihood": ArraySpec((), "float64", (), np.nan),
            f"{_GROUP}/status": ArraySpec((), "int8", (), int(Status.NOT_RUN)),
        }
        self._keeper, _ = open_store(store, specs, {}, most, 1, identity, {})
        self._payload = self._key = None
        if executor is not None:
            self._payload = self._pickled()
            self._key = hashlib.sha256(self._payload).hexdigest()
        self._processes = int(executor) if isinstance(executor, int | np.integer) else 0
        if self._processes:
            _LOCAL.key, _LOCAL.density = self._key, density  # processes forked from this thread need not compile
        self._executor = self._new_pool() if self._processes else executor
        self.first_error = None
        self._is_checked = False

    def __call__(self, first: int, positions: np.ndarray, progress) -> np.ndarray:
        """Return log likelihoods (n,) at positions (n, d), evaluations ``first``, ``first`` + 1, ...; NaN where failed.

        ``progress`` is called after each.

        Raises
        ------
        ValueError
            Where the store holds evaluations at other positions, or of another likelihood.
        """
        if not self._is_checked:
            self._check_stored()
            self._is_checked = True
        left = []
        for i, position in enumerate(positions):
            if self._keeper.is_done[first + i] != 1:
                left.append(i)
                continue
            if not np.array_equal(self._array("position")[0, first + i], position):
                raise ValueError(
                    "the store holds evaluations at other places: it was made with another model, seed, batch size or "
                    "start. Give another path, or the old settings."
                )
            progress()
        for _ in range(_TRIES if self._processes else 1):
            left = self._evaluated(first, positions, left, progress)
            if not left:
                break
            self._executor = self._new_pool()
        for i in left:
            self._keep(first + i, positions[i], np.nan, Status.LOST)
            self.first_error = self.first_error or "its worker process died"
        return np.array(self._array("log_likelihood")[0, first : first + len(positions)])

    def status(self, count: int) -> np.ndarray:
        """Return the status of the first ``count`` evaluations."""
        return np.array(self._array("status")[0, :count])

    def close(self) -> None:
        """End the processes that were started here."""
        if self._processes:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _check_stored(self):
        """Evaluate the best of the stored places once more: code that the likelihood calls has no fingerprint.

        Raises
        ------
        ValueError
            Where the likelihood is not what the store has there.
        """
        stored = np.array(self._array("log_likelihood")[0])
        usable = np.flatnonzero((self._keeper.is_done[:] == 1) & np.isfinite(stored))
        if usable.size == 0:
            return
        best = int(usable[np.argmax(stored[usable])])
        position = np.array(self._array("position")[0, best])
        for _, result, error in run_batches(self._task, [best], self._arguments(lambda i: position), self._executor):
            value = result[0] if error is None else np.nan
            if not np.isfinite(value):  # a time-out, say, which tells nothing of the likelihood
                return
            if abs(value - stored[best]) > _SAME_NATS + _SAME_SHARE * abs(value):
                raise ValueError(
                    f"the store was made with another likelihood: evaluation {best} has {stored[best]:.6g} there, and "
                    f"{value:.6g} now. Give another path; or, where the likelihood is random, make it a "
                    "pk.EstimatedLikelihood, whose noise has a seed."
                )

    @property
    def _task(self):
        return self._here if self._executor is None else evaluate_one

    def _arguments(self, position_of):
        return lambda i: (self._payload, self._key, self.entropy, i, position_of(i), self.timeout)

    def _evaluated(self, first, positions, left, progress):
        """Evaluate what is ``left``; return what is left then, because a process died."""
        waiting = set(left)
        arguments = self._arguments(lambda number: positions[number - first])
        numbers = [first + i for i in left]
        batches = run_batches(self._task, numbers, arguments, self._executor, max_in_flight=len(left) or 1)
        try:
            for number, result, error in batches:
                i = number - first
                value, status, text = result if error is None else (np.nan, Status.LOST, f"{error!r}")
                self.first_error = self.first_error or text
                self._keep(first + i, positions[i], value, status)
                waiting.discard(i)
                progress()
        except WorkersLost:
            if not self._processes:
                raise
        finally:
            batches.close()
        return sorted(waiting)

    def _here(self, payload, key, entropy, index, position, timeout):
        return _outcome(self.density, entropy, index, position, timeout)

    def _keep(self, index, position, value, status):
        arrays = {"position": position[None], "log_likelihood": np.array([value]), "status": np.array([int(status)])}
        self._keeper.write(index, {f"{_GROUP}/{name}": v for name, v in arrays.items()}, status != Status.LOST)

    def _array(self, name):
        return self._keeper.arrays[f"{_GROUP}/{name}"]

    def _new_pool(self):
        return ProcessPoolExecutor(self._processes, initializer=start_worker, initargs=(leave_one_thread,))

    def _pickled(self):
        try:
            return pickled(self.density)
        except Exception as error:
            raise TypeError(
                f"the model cannot be sent to workers: {error}. Let its likelihood open what cannot be pickled when it "
                "is called, or use executor=None."
            ) from error


def evaluate_one(
    payload: bytes, key: str, entropy: int, index: int, position: np.ndarray, timeout: float | None
) -> tuple[float, Status, str | None]:
    """Return log likelihood, status and error text at a position; runs in a worker, which keeps the last density."""
    if getattr(_LOCAL, "key", None) != key:
        with _COMPILING:
            _LOCAL.density = cloudpickle.loads(payload)
        _LOCAL.key = key
    return _outcome(_LOCAL.density, entropy, index, position, timeout)


def _outcome(density, entropy, index, position, timeout):
    if timeout is not None and not density.is_compiled:
        # The limit is the likelihood's. It must not end the compiler, whose locks would stay closed.
        timeout = timeout + _COMPILE_SECONDS
    noise = np.random.default_rng([entropy, index]) if density.estimated else None
    status, found, error = simulate_once(lambda: [np.array(density.at_one(position, noise)[1])], timeout)
    value = float(found[0]) if found is not None else np.nan
    return value, status, None if error is None else f"{type(error).__name__}: {error}"
