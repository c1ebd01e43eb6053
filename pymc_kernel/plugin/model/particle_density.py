"""Log prior and log likelihood of a model for many particles at once, compiled."""

from concurrent.futures import Executor

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph import ancestors
from pytensor.tensor import TensorType

from pymc_kernel.likelihood_free import Workers
from pymc_kernel.plugin.model.estimated import drawing_noise, estimated_terms
from pymc_kernel.plugin.model.forward import generators_of
from pymc_kernel.plugin.model.interpreter import DRAWS_AT_A_TIME, QUICK
from pymc_kernel.plugin.model.remote import Remote
from pymc_kernel.plugin.model.unconstrained import over_positions

_LARGEST_BATCH = 2**24  # numbers in the largest array that a batch of particles needs
_MOST_AT_A_TIME = 4096  # particles
_SHARES = 16  # blocks of particles that an executor gets at once


class ParticleDensity:
    """Log prior and log likelihood of a model for many particles at once, with the noise that they may need."""

    def __init__(self, function, batch, estimated, keys, generators, executor):
        self._function, self._batch, self._keys, self._generators = function, batch, keys, generators
        self.estimated = estimated  # names of the terms that are random
        self.seed(np.random.default_rng())
        self._executor, self._remote = executor, Remote(lambda: self, is_sent=executor is not None)

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``."""
        self._noise = rng.spawn(1)[0]

    def __call__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior (n,) and log likelihood (n,) at positions (n, d).

        NaN is returned as -inf. Positions that are not finite get -inf without an evaluation.
        """
        finite = np.isfinite(positions).all(axis=1)
        values = np.full((2, len(positions)), -np.inf)
        if finite.any():
            values[:, finite] = self._at(positions[finite])
        values[np.isnan(values)] = -np.inf
        return values[0], values[1]

    def _at(self, positions):
        # The noise is spawned block by block, so blocks are the same with an executor and without.
        is_shared = self._executor is not None or bool(self.estimated)
        size = min(self._batch, -(-len(positions) // _SHARES)) if is_shared else self._batch
        blocks = [positions[a : a + size] for a in range(0, len(positions), size)]
        noises = self._noise.spawn(len(blocks)) if self.estimated else [None] * len(blocks)
        parts = [None] * len(blocks)

        def arguments(index):
            return self._remote, blocks[index], noises[index]

        with Workers(self._executor) as workers:
            for index, result, error in workers.run(evaluate_block, range(len(blocks)), arguments, retries=0):
                if error is not None:
                    raise error
                parts[index] = result
        return np.concatenate(parts, axis=1)

    def block(self, positions: np.ndarray, noise: np.random.Generator | None) -> tuple[np.ndarray, np.ndarray]:
        """Return log prior (n,) and log likelihood (n,) at positions (n, d), of estimates with this source of noise."""
        with drawing_noise(dict.fromkeys(self._keys, noise)):
            if noise is not None:
                for variable in self._generators:
                    variable.set_value(noise.spawn(1)[0], borrow=True)
            return tuple(self._function(np.ascontiguousarray(positions)))

    def __reduce__(self):
        # In another process it evaluates by itself, with noise that it is given or seeded with.
        return ParticleDensity, (self._function, self._batch, self.estimated, self._keys, self._generators, None)


def evaluate_block(remote, positions, noise):
    """Return log prior and log likelihood (n,) at positions (n, d); runs in a worker."""
    return remote.here().block(positions, noise)


def compile_particle_density(
    model: pm.Model, kernel_name: str, compile_kwargs: dict | None = None, executor: Executor | None = None
) -> ParticleDensity:
    """Return the log prior and log likelihood of ``model`` for many particles, (n, d) on the unconstrained scale.

    One vectorized graph evaluates batches, in workers if there is an executor; models with an estimated term, or with
    an operator that cannot be vectorized, are looped over. Refuses discrete variables, and models without free ones.
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
    function, is_vectorized = over_positions(model, outputs, compile_kwargs or {}, not names, _MOST_AT_A_TIME)
    batch = _batch_size(model, outputs) if is_vectorized else DRAWS_AT_A_TIME
    return ParticleDensity(function, batch, names, keys, generators_of(outputs), executor)


def _batch_size(model, outputs):
    """Return how many particles at a time keep the largest array of the graph within bounds."""
    symbols = [v.shape.prod() for v in ancestors(outputs) if v.owner and isinstance(v.type, TensorType) and v.ndim]
    point = model.initial_point(random_seed=0)
    sizes = model.compile_fn(symbols, inputs=model.value_vars, mode=QUICK, on_unused_input="ignore")(point)
    largest = max(1, *map(np.size, point.values()), *map(int, sizes))
    return int(np.clip(_LARGEST_BATCH // largest, 16, _MOST_AT_A_TIME))
