"""A zoo of posteriors with known answers, and the judge of samplers: right, said or silent."""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pymc as pm

from benchmarks.posteriors import own, posteriordb


class Posterior(NamedTuple):
    """A posterior with a known answer."""

    name: str
    make: Callable[[], pm.Model]
    truth: Callable[[], dict[str, np.ndarray]]
    """Mean, standard deviation and 5, 50 and 95 % quantiles of each quantity; NaN where a moment is not compared."""
    num_reference_draws: float
    """That the truth was computed from; infinite for exact ones."""
    proper_prior: bool
    can_simulate: bool
    """Whether data and parameters can be drawn from the model."""


@cache
def _truth(find, quantiles_only):
    found = {name: np.array(summary, dtype=float) for name, summary in find().items()}
    for name, summary in found.items():
        if name.split("[")[0] in quantiles_only:
            summary[:2] = np.nan
    return found


def _posteriors():
    for name, make in posteriordb.MODELS.items():
        only = posteriordb.QUANTILES_ONLY.get(name, ())
        truth = cache(partial(_truth, partial(posteriordb.reference, name), only))
        proper, plain = name not in posteriordb.IMPROPER, name in posteriordb.PLAIN
        yield Posterior(name.split("-")[0], make, truth, posteriordb.NUM_REFERENCE_DRAWS, proper, plain)
    for name, make in own.MODELS.items():
        truth = cache(partial(_truth, own.EXACT[name], own.QUANTILES_ONLY.get(name, ())))
        yield Posterior(name, make, truth, np.inf, True, name not in own.IMPLICIT)


ZOO = {posterior.name: posterior for posterior in _posteriors()}
