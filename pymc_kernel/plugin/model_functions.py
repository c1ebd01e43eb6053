"""Compiled functions of a ``pm.Model``: the only place that turns a model into something to call."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
from pymc.pytensorf import compile as pymc_compile
from pymc.pytensorf import join_nonshared_inputs, make_shared_replacements
from pymc.vartypes import continuous_types
from pytensor.tensor.random.type import RandomGeneratorType

from pymc_kernel.errors import NoisyBlockError
from pymc_kernel.plugin.likelihoods import estimated_terms, install_noise

__all__ = ["LogDensity", "compile_log_density"]


class LogDensity:
    """The log density of a model as a function of one vector, with the noise it may need.

    Attributes
    ----------
    shared : dict
        The variables outside of the block and their shared stand-ins.
    estimated : list of str
        Names of the terms that are random; empty for an exact density.
    evaluations : int
        Number of calls so far.
    """

    def __init__(self, function, shared, estimated, keys):
        self._function = function
        self.shared = shared
        self.estimated = estimated
        self._keys = keys
        self._rng = np.random.default_rng()
        self._rng_variables = [v for v in function.get_shared() if isinstance(v.type, RandomGeneratorType)]
        self.evaluations = 0

    def __call__(self, position: np.ndarray) -> float:
        """Return the log density at ``position`` (d,), with the Jacobians of PyMC's transforms."""
        if self._keys:
            install_noise(self._keys, self._rng)
        self.evaluations += 1
        return float(self._function(position))

    def seed(self, rng: np.random.Generator) -> None:
        """Draw the noise from new generators spawned from ``rng``, independent of it and of each other."""
        self.noise = tuple(rng.spawn(1 + len(self._rng_variables)))

    @property
    def noise(self) -> tuple[np.random.Generator, ...]:
        """The generators that the random terms draw from: part of the state of a chain."""
        return (self._rng, *(v.get_value(borrow=True) for v in self._rng_variables))

    @noise.setter
    def noise(self, generators: tuple[np.random.Generator, ...]) -> None:
        self._rng = generators[0]
        for variable, generator in zip(self._rng_variables, generators[1:], strict=True):
            variable.set_value(generator, borrow=True)


def compile_log_density(
    model: pm.Model, value_vars: Sequence, initial_point: dict, step_name: str, compile_kwargs: dict | None = None
) -> LogDensity:
    """Return the log density of ``model`` in the given value variables, the others held in shared stand-ins.

    Parameters
    ----------
    model, value_vars, initial_point
        As PyMC hands them to a step.
    step_name : str
        For error messages.
    compile_kwargs : dict, optional
        For ``pymc.pytensorf.compile``.

    Raises
    ------
    TypeError
        Where a variable is discrete.
    NoisyBlockError
        Where the density is only estimated and the variables are not all free variables of the model.
    """
    discrete = [v.name for v in value_vars if v.dtype not in continuous_types]
    if discrete:
        raise TypeError(
            f"{step_name} samples continuous variables only, but {', '.join(discrete)} "
            f"{'is' if len(discrete) == 1 else 'are'} discrete. Name the continuous ones, as in "
            f"{step_name}([theta, sigma]); PyMC then finds a step for the rest."
        )
    logp = model.logp()
    names, keys = estimated_terms(logp)
    others = [v.name for v in model.value_vars if v not in set(value_vars)]
    if names and others:
        raise NoisyBlockError(
            f"The log density of this model is only estimated (by {', '.join(names)}), so all free variables must "
            f"be sampled in one block, but {step_name} was not given: {', '.join(others)}. An estimate that was "
            "accepted cannot be kept while another step moves these, and drawing it anew would change the "
            f"posterior. Use pm.sample(step=pk.{step_name}()) for all of them, or make discrete ones part of the "
            "estimate."
        )
    shared = make_shared_replacements(initial_point, value_vars, model)
    [joined], vector = join_nonshared_inputs(
        point=initial_point, outputs=[logp], inputs=list(value_vars), shared_inputs=shared
    )
    with model:
        function = pymc_compile([vector], joined, **(compile_kwargs or {}))
    function.trust_input = True
    return LogDensity(function, shared, names, keys)
