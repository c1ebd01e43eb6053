"""Warnings for steps of others: PyMC's own steps must not sample a likelihood that is only estimated.

A step that evaluates such a likelihood anew at the current point targets a different distribution. PyMC passes neither
the model to ``competence`` nor the step to a likelihood; both are read from the call stack.
"""

import sys
from collections.abc import Iterator
from types import FrameType

import pymc as pm
from pymc.step_methods.compound import BlockedStep

from pymc_kernel.plugin.warn import warn_user

__all__ = ["model_in_question", "warn_of_foreign_step"]


def _callers() -> Iterator[FrameType]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def model_in_question() -> pm.Model | None:
    """Return the model whose variables PyMC is assigning to steps, or else the one in context, if there is one."""
    for frame in _callers():
        if frame.f_code.co_name == "assign_step_methods" and isinstance(frame.f_locals.get("model"), pm.Model):
            return frame.f_locals["model"]
    return pm.Model.get_context(error_if_none=False)


def warn_of_foreign_step(name: str) -> None:
    """Warn if a step that draws estimates anew is being made, on a density with the estimated term ``name``.

    Steps build the density when they are made, in the main process: there a warning is seen, whatever ``cores`` is.
    Sequential Monte Carlo, optimizers and a user's own ``compile_logp`` are no steps and get no warning.
    """
    for step in [frame.f_locals.get("self") for frame in _callers() if frame.f_code.co_name == "__init__"]:
        if isinstance(step, BlockedStep):
            if not getattr(step, "keeps_estimates", False):
                warn_user(
                    f"{type(step).__name__} will sample a wrong posterior: the likelihood {name!r} is only estimated, "
                    "and this step draws a new estimate for the point where the chain already is. Leave step= out, and "
                    "pm.sample takes pk.KernelHMC; or give a step of this package, or use pm.sample_smc."
                )
            return
