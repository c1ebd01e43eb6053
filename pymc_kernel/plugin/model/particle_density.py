"""Log prior and log likelihood of a model for many particles at once, compiled."""

import warnings
from concurrent.futures import Executor

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.pytensorf import compile as pymc_compile
from pytensor import function as pytensor_function
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.random.type import RandomGeneratorType
from pytensor.tensor.type import TensorType

from pymc_kernel.likelihood_free import Workers
from pymc_kernel.plugin.model.estimated import drawing_noise, estimated_terms
from pymc_kernel.plugin.model.interpreter import DRAWS_AT_A_TIME, QUICK, compiling, of_vector
from pymc_kernel.plugin.model.remote import Remote

_LARGEST_BATCH = 2**24  # numbers in the largest array that a batch of particles needs
_SHARES = 16  # blocks of particles that an executor gets at once


class ParticleDensity:
    """Log prior and log likelihood of a model for many particles at once, with the noise that they may need."""

    def __init__(self, function, is_vectorized, batch, estimated, keys):
        self._function, self._batch, self._keys = function, batch, keys
        self.is_vectorized = is_vectorized  # whether one call serves all particles; otherwise they are looped over
        self.estimated = estimated  # names of the terms that are random
        self.executor = None
        self.seed(np.random.default_rng())

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``."""
        self._noise = rng.spawn(1)[0]

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior (n,) and log likelihood (n,) at positions (n, d).

        NaN is returned as -inf. Positions that are not finite get -inf without an evaluation.
        """
        finite = np.isfinite(positions).all(axis=1)
        if finite.all():
            return self._at(positions)
        prior, likelihood = np.full((2, len(positions)), -np.inf)
        if finite.any():
            prior[finite], likelihood[finite] = self._at(positions[finite])
        return prior, likelihood

    def _at(self, positions):
        # The noise is spawned block by block, so blocks are the same with an executor and without.
        is_shared = self.executor is not None or bool(self.estimated)
        size = min(self._batch, -(-len(positions) // _SHARES)) if is_shared else self._batch
        blocks = [positions[a : a + size] for a in range(0, len(positions), size)]
        noises = self._noise.spawn(len(blocks)) if self.estimated else [None] * len(blocks)
        parts = [None] * len(blocks)

        def arguments(index):
            return self._remote, blocks[index], noises[index]

        with Workers(self.executor) as workers:
            for index, result, error in workers.run(evaluate_block, range(len(blocks)), arguments, retries=0):
                if error is not None:
                    raise error
                parts[index] = result
        prior, likelihood = (np.concatenate(p) for p in zip(*parts, strict=True))
        prior[np.isnan(prior)] = -np.inf
        likelihood[np.isnan(likelihood)] = -np.inf
        return prior, likelihood

    def block(self, positions: np.ndarray, noise: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior (n,) and log likelihood (n,) at positions (n, d), of estimates with this source of noise."""
        function = self._function
        with drawing_noise(dict.fromkeys(self._keys, noise)):
            if noise is not None:
                for variable in [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]:
                    variable.set_value(noise.spawn(1)[0], borrow=True)
            if self.is_vectorized:
                prior, likelihood = function(np.ascontiguousarray(positions))
                n = len(positions)
                return np.array(np.broadcast_to(prior, n)), np.array(np.broadcast_to(likelihood, n))
            rows = [function(x) for x in np.ascontiguousarray(positions)]
        rows = np.array(rows, dtype=float).reshape(len(positions), 2)
        return rows[:, 0].copy(), rows[:, 1].copy()

    @property
    def executor(self) -> Executor | None:
        """Where particles are evaluated, None for here."""
        return self._executor

    @executor.setter
    def executor(self, executor: Executor | None) -> None:
        self._executor, self._remote = executor, Remote(lambda: self, is_sent=executor is not None)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in ("_executor", "_remote")}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.executor = None


def evaluate_block(remote, positions, noise):
    """Return log prior and log likelihood (n,) at positions (n, d); runs in a worker."""
    return remote.here().block(positions, noise)


def compile_particle_density(model: pm.Model, kernel_name: str, compile_kwargs: dict | None = None) -> ParticleDensity:
    """Return the log prior and log likelihood of ``model`` for many particles, (n, d) on the unconstrained scale.

    One vectorized graph evaluates all particles in batches; models with an estimated term, or with an operator that
    cannot be vectorized, are looped over. Raises ``TypeError`` where a variable is discrete, ``ValueError`` where the
    model has no free variable.
    """
    if not model.free_RVs:
        raise ValueError("the model has no free variable: there is nothing to infer.")
    discrete = [v.name for v in model.discrete_value_vars]
    if discrete:
        raise TypeError(
            f"{kernel_name} moves continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Sum them out, make them part of an estimated "
            "likelihood, or use pm.sample_smc's own kernels."
        )
    outputs = [model.varlogp, model.datalogp]
    names, keys = estimated_terms(pt.stack(outputs))
    point = model.initial_point(random_seed=0)
    kwargs = {"on_unused_input": "ignore", **(compile_kwargs or {})}
    example = np.concatenate([np.ravel(point[v.name]) for v in model.value_vars])
    if not names:
        try:
            with warnings.catch_warnings():
                # PyTensor's warnings on the speed of single operators do not matter to a user who chose none.
                warnings.simplefilter("ignore")
                function = _vectorized(model, outputs, point, kwargs)
                function(np.stack([example, example]))
                batch = _batch_size(outputs, point)
            return ParticleDensity(function, True, batch, names, keys)
        except Exception:  # an operator without a vectorized form may fail in many ways; the loop says what is wrong
            pass
    function, _ = of_vector(model, model.value_vars, point, outputs, kwargs)
    return ParticleDensity(function, False, DRAWS_AT_A_TIME, names, keys)


def _vectorized(model, outputs, point, kwargs):
    """Return a compiled function of positions (n, d) that gives the ``outputs`` of the model at each."""
    shapes = [np.shape(point[value.name]) for value in model.value_vars]
    # With all shapes known, the graph need not compute them: code that does takes seconds to compile.
    many = pt.tensor("particles", dtype="float64", shape=(None, sum(int(np.prod(shape)) for shape in shapes)))
    parts, start = {}, 0
    for value, shape in zip(model.value_vars, shapes, strict=True):
        stop = start + int(np.prod(shape))
        part = many[:, start:stop] if shape else many[:, start]
        if len(shape) > 1:
            part = part.reshape((many.shape[0], *shape))
        parts[value] = pt.specify_shape(part, (None, *shape)).astype(value.dtype)
        start = stop
    with model, compiling():
        function = pymc_compile([many], vectorize_graph(outputs, parts), **kwargs)
    function.trust_input = True
    return function


def _batch_size(outputs, point):
    """Return how many particles at a time keep the largest array of the graph within bounds.

    The sizes of all intermediate results for one particle are worked out once, where their shapes can be.
    """
    largest = max([1, *(int(np.size(v)) for v in point.values())])
    symbols = [
        v.shape.prod() for v in ancestors(outputs) if v.owner is not None and isinstance(v.type, TensorType) and v.ndim
    ]
    if symbols:
        inputs = [v for v in ancestors(outputs) if v.name in point and v.owner is None]
        values = [np.asarray(point[v.name], dtype=v.dtype) for v in inputs]
        function = pytensor_function(inputs, symbols, mode=QUICK, on_unused_input="ignore")
        largest = max(largest, *(int(size) for size in function(*values)))
    return int(np.clip(_LARGEST_BATCH // largest, 16, 4096))
