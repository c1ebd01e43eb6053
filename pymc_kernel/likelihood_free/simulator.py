"""Simulators that may fail, called again and again. Imports NumPy only."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["Simulations", "simulate_repeatedly"]


class Simulations(NamedTuple):
    """What came of a number of calls of a simulator."""

    summaries: list[np.ndarray]
    """Of the calls that succeeded."""
    exceptions: int
    """Calls that raised an error."""
    not_finite: int
    """Calls that gave NaN or infinite numbers."""
    first_error: Exception | None

    @property
    def failed(self) -> int:
        """Number of calls that failed in one way or another."""
        return self.exceptions + self.not_finite


def simulate_repeatedly(simulate: Callable[[], np.ndarray], summary: Callable | None, times: int) -> Simulations:
    """Call ``simulate()`` a number of ``times`` and take the ``summary`` of each; failures are counted, not raised.

    ``KeyboardInterrupt`` and the like are raised, and so are errors of ``summary`` on finite data: those are mistakes.
    """
    summaries, exceptions, not_finite, first = [], 0, 0, None
    for _ in range(times):
        try:
            data = np.asarray(simulate(), dtype=float)
        except Exception as error:
            exceptions += 1
            first = error if first is None else first
            continue
        found = data if summary is None else np.asarray(summary(data), dtype=float)
        if np.isfinite(found).all() and np.isfinite(data).all():
            summaries.append(found)
        else:
            not_finite += 1
    return Simulations(summaries, exceptions, not_finite, first)
