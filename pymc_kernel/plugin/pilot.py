"""Pilot simulations of a block: its parameters as functions of positions on the unconstrained scale."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pymc.initial_point import make_initial_point_expression
from pymc.pytensorf import compile as pymc_compile
from pymc.vartypes import continuous_types
from pytensor.graph.traversal import ancestors

from pymc_kernel.plugin.model_functions import with_finite_columns

__all__ = ["BlockParameters"]

_QUICK = "FAST_COMPILE"


class BlockParameters:
    """The inputs of a block's simulator, and the free variables of the model in context that they depend on.

    Positions (n, d) hold these variables on the unconstrained scale, one after the other; discrete ones as they are.
    """

    def __init__(self, params):
        model = pm.modelcontext(None)
        params = [pt.as_tensor_variable(p) for p in params]
        used = set(ancestors(params))
        free = [rv for rv in model.free_RVs if rv in used]
        self._values = [model.rvs_to_values[rv] for rv in free]
        self._draw = make_initial_point_expression(
            free_rvs=free,
            rvs_to_transforms=model.rvs_to_transforms,
            initval_strategies=dict.fromkeys(free),
            default_strategy="prior",
            return_transformed=True,
        )
        self._function = pymc_compile(
            self._values, model.replace_rvs_by_values(params), on_unused_input="ignore", mode=_QUICK
        )
        self._shapes = self._bounds = None

    def prior(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """Return draws (size, d) from the prior.

        Raises
        ------
        NotImplementedError
            Where a prior, such as ``pm.Flat``, cannot be drawn from.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Numba will use object mode")
            drawn = pm.draw(self._draw, draws=size, random_seed=rng) if self._draw else []
        self._shapes = [values.shape[1:] for values in drawn]
        self._bounds = [(values.min(axis=0), values.max(axis=0)) for values in drawn]
        flat = [np.reshape(values, (size, -1)).astype(float) for values in drawn]
        return with_finite_columns(np.concatenate([np.empty((size, 0)), *flat], axis=1), rng)

    def at(self, position: np.ndarray) -> list[np.ndarray]:
        """Return the simulator's parameters at one position (d,); :meth:`prior` must have been called before."""
        point = [values[0] for values in self.by_name(position[None]).values()]
        return self._function(*point)

    def by_name(self, positions: np.ndarray) -> dict[str, np.ndarray]:
        """Return value variable's name -> (n, ...) at positions (n, d)."""
        edges = np.cumsum([int(np.prod(shape)) for shape in self._shapes])[:-1]
        named = {}
        parts = np.split(positions, edges, axis=1)
        for value, part, shape, bounds in zip(self._values, parts, self._shapes, self._bounds, strict=False):
            values = part.reshape(len(positions), *shape)
            if value.dtype not in continuous_types:
                values = np.clip(np.rint(values), *bounds)
            named[value.name] = values.astype(value.dtype)
        return named
