"""Steps for the variables that kernel HMC leaves out while its chains learn together, as in PyMC's compounds."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
from pymc.sampling.mcmc import assign_step_methods, instantiate_steppers
from pymc.step_methods.arraystep import PopulationArrayStepShared
from pymc.step_methods.compound import BlockedStep, CompoundStep, flatten_steps

from pymc_kernel.plugin.samplers.step_methods import KernelHMC
from pymc_kernel.plugin.samplers.transition_step import TransitionStep

__all__ = ["TunedSteps", "begin_tuning", "end_tuning", "hold", "move_others", "split_steps"]


class TunedSteps(CompoundStep):
    """Steps that have been tuned, for ``pm.sample(tune=0)``: every chain begins with what they have learned.

    PyMC resets the tuning of a step when a chain begins, and ends tuning before the first draw; here it does neither.
    """

    def reset_tuning(self) -> None:
        """Keep what was learned."""

    def stop_tuning(self) -> None:
        """Do nothing: tuning has ended, and ending it again would shorten the histories of some steps again."""


def split_steps(
    model: pm.Model, step, kwargs: dict, compile_kwargs: dict | None = None
) -> tuple[KernelHMC, list[BlockedStep]]:
    """Return the one :class:`KernelHMC` among the steps of a model, and the others; PyMC chooses those not given.

    Parameters
    ----------
    model : pymc.Model
    step : None, a step or a list of steps
    kwargs : dict
        Settings of steps that PyMC chooses, by the names of the steps; they are removed from it.
    compile_kwargs : dict, optional
    """
    given = [KernelHMC(model=model, compile_kwargs=compile_kwargs)] if step is None else step
    given = list(given) if isinstance(given, Sequence) else [given]
    wrong = [s for s in given if not isinstance(s, BlockedStep | CompoundStep)]
    if wrong:
        raise TypeError(
            f"step must be a pk.KernelHMC, or a list of steps with one among them, got {wrong[0]!r}; steps are made by "
            "calling their class, as in step=pk.KernelHMC()."
        )
    given = [one for s in given for one in flatten_steps(s)]
    pooled = [s for s in given if isinstance(s, KernelHMC)]
    if len(pooled) != 1:
        names = ", ".join(type(s).__name__ for s in given)
        raise TypeError(
            f"sample_khmc needs exactly one pk.KernelHMC among its steps, got {names or 'none'}. Other steps are for "
            "other variables, as in step=[pk.KernelHMC([theta]), pm.Metropolis([k])]; without kernel HMC take "
            "pm.sample(step=...)."
        )
    of_a_population = [type(s).__name__ for s in given if isinstance(s, PopulationArrayStepShared)]
    if of_a_population:
        raise TypeError(
            f"{of_a_population[0]} needs all chains at the same time, but sample_khmc runs them separately: take "
            "another step, such as pm.DEMetropolisZ."
        )
    _, chosen = assign_step_methods(model, given)
    settings = {cls.name: kwargs.pop(cls.name) for cls in chosen if cls.name in kwargs}
    made = instantiate_steppers(model, [], chosen, step_kwargs=settings, compile_kwargs=compile_kwargs)
    made = made if isinstance(made, list) else [made]
    others = [s for s in given if s is not pooled[0]]
    return pooled[0], [*others, *(one for s in made for one in flatten_steps(s))]


def begin_tuning(others: Sequence[BlockedStep], rng: np.random.Generator, num_draws: int) -> None:
    """Let steps begin a tuning phase of ``num_draws`` draws, those of all chains together."""
    for other, generator in zip(others, rng.spawn(len(others)), strict=True):
        other.setup_chain(generator, num_draws, 0)
        if hasattr(other, "reset_tuning"):
            other.reset_tuning()


def end_tuning(others: Sequence[BlockedStep]) -> None:
    """End the tuning of steps; steps of this package pass what they learned to every chain."""
    for other in others:
        other.stop_tuning()
        if isinstance(other, TransitionStep):
            other.learned = other.transition


def hold(step: KernelHMC, point: dict) -> bool:
    """Set the other variables that ``step`` depends on to ``point``; return whether that changes them."""
    changed = False
    for name, shared in step.shared.items():
        value = np.asarray(point[name])
        changed = changed or not np.array_equal(shared.get_value(borrow=True), value)
        shared.set_value(np.array(value), borrow=True)
    return changed


def move_others(others: Sequence[BlockedStep], point: dict) -> dict:
    """Return the point after one draw of each step."""
    for other in others:
        point, _ = other.step(point)
    return point
