"""Compile for a model once, where the same model is asked about again."""

import functools
import threading
from collections.abc import Callable

import pymc as pm

__all__ = ["compiled_once"]

_PLACE = "_compiled_once"  # attribute of a model


class _OfModel(threading.local):
    """What was compiled, by the function that did it; a copy of the model, or a pickled one, begins without."""

    def __init__(self):
        self.known = {}

    def __reduce__(self):
        return _OfModel, ()


def compiled_once[Compiled](compile_for: Callable[[pm.Model], Compiled]) -> Callable[[pm.Model], Compiled]:
    """Keep what a function of a model returned with that model, for as long as the model has the same parts.

    Of a report there is often another one on the same model, and compiling is half of its time. Variables of a model
    do not change, but it can be given more of them, or other transforms. Data may change: compiled functions read
    ``pm.Data`` when they are called. Each thread has its own, since compiled functions work in room of their own.
    """

    @functools.wraps(compile_for)
    def compiled(model):
        known = vars(model).setdefault(_PLACE, _OfModel()).known
        parts, (before, _) = _parts(model), known.get(compile_for, ((), None))
        if len(parts) != len(before) or any(a is not b for a, b in zip(parts, before, strict=True)):
            # The parts are kept, so that no other object gets the identity of one of them.
            known[compile_for] = parts, compile_for(model)
        return known[compile_for][1]

    return compiled


def _parts(model):
    """Return what the log density of a model is made of."""
    variables = model.basic_RVs
    values = [model.rvs_to_values[v] for v in variables]
    transforms = [model.rvs_to_transforms[v] for v in variables]
    return [*model.value_vars, *variables, *values, *transforms, *model.potentials]
