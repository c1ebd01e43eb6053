"""The function that estimates the likelihood of a simulator block."""

import math
from itertools import repeat

import numpy as np

from pymc_kernel.likelihood_free import (
    simulate_repeatedly,
    simulate_together,
)
from pymc_kernel.plugin.warn import warn_user

__all__ = ["SimulatedLikelihood", "as_rows"]

_CALLS_BEFORE_WARNING = 100  # of the simulator: enough to know the share of failures to 5 %


class SimulatedLikelihood:
    """Estimates a likelihood: simulates, counts failures, and uses the simulations that succeeded."""

    def __init__(self, name, simulator, summary, num_simulations, max_failures, vectorized):
        for what, function in (("simulator", simulator), ("summary", summary)):
            if not (callable(function) or (what == "summary" and function is None)):
                raise TypeError(f"{what} of {name!r} must be a function, got {type(function).__name__}.")
        if not (isinstance(num_simulations, int | np.integer) and num_simulations >= 1):
            raise ValueError(f"num_simulations of {name!r} must be a whole number >= 1, got {num_simulations!r}.")
        if not 0.0 <= max_failures <= 1.0:
            raise ValueError(f"max_failures of {name!r} is a share and must be in [0, 1], got {max_failures!r}.")
        self.name = name
        self.simulator = simulator
        self.summary = summary
        self.num_simulations = int(num_simulations)
        self.max_failures = max_failures
        self.vectorized = bool(vectorized)
        self._calls = self._failures = 0
        self.failed_share = math.nan  # of the simulations of the last evaluation
        self._observed = None, None  # data and their summary, which every evaluation asks for again
        self._warned = self._has_known_size = False
        self._estimate, self._starts, self._log_peak = None, {}, None
        self.assumes_normal = False
        self.simulated = (
            None  # summaries (m, q) of the last evaluation and of the data, where they are taken for normal
        )

    def estimate_by(
        self, estimate, log_peak: float | None = None, starts: dict | None = None, assumes_normal: bool = False
    ) -> None:
        """Set the function that estimates the log likelihood from summaries.

        Parameters
        ----------
        estimate : callable
            Of simulated summaries, those of the data, and the number of simulations, failed ones included.
        log_peak : float, optional
            Largest log value of a kernel, for the share of simulations that it accepts.
        starts : dict, optional
            See :attr:`starts`.
        assumes_normal : bool
            Whether the estimate takes the summaries for normal, which their simulations can then check.
        """
        self._estimate, self._log_peak, self._starts = estimate, log_peak, starts or {}
        self.assumes_normal = assumes_normal

    @property
    def num_streams(self) -> int:
        """Simulations of one evaluation that may each have random numbers of their own."""
        return 1 if self.vectorized else self.num_simulations

    def __call__(self, rng, *inputs):
        """Return the log of an estimate of the likelihood; the last input is the data."""
        *params, observed = inputs
        run = self._simulations(rng, params, observed.shape)
        self._calls += self.num_simulations
        self._failures += run.failed
        self.failed_share = run.failed / self.num_simulations
        self._warn(run.first_error)
        summary = self._seen(observed)
        if self.assumes_normal:
            self.simulated = as_rows(run.summaries, summary.size), np.ravel(summary)
        return self._estimate(run.summaries, summary, self.num_simulations)

    @property
    def starts(self) -> dict[str, np.ndarray]:
        """Where chains may begin: value variable's name -> draws (n, ...) of an approximate posterior, or nothing."""
        return self._starts

    def accepted_share(self, log_estimate: float) -> float | None:
        """Return the share of simulations that a kernel with values up to one accepts; None for blocks without one."""
        return None if self._log_peak is None else math.exp(log_estimate - self._log_peak)

    def _seen(self, observed):
        """Return the summary of the data, computed again only where the data have changed."""
        data, summary = self._observed
        if data is None or not np.array_equal(data, observed):
            summary = self.summarized(observed)
            self._observed = observed.copy(), summary
        return summary

    def _simulations(self, rng, params, shape):
        if self.vectorized:
            size = (self.num_simulations, *shape)
            return simulate_together(lambda: self._simulated(rng, params, size), self.summary, self.num_simulations)
        sources = iter(rng) if isinstance(rng, list) else repeat(rng)
        return simulate_repeatedly(
            lambda: self._simulated(next(sources), params, shape), self.summary, self.num_simulations
        )

    def _simulated(self, rng, params, size):
        """Return what the simulator returns; a summary would hide that it is of another shape than the data."""
        data = self.simulator(rng, *params, size)
        if not self._has_known_size and self.summary is not None and _holds_numbers(data):
            self._has_known_size = True
            if _sides(np.shape(data)) != _sides(size):
                warn_user(
                    f"the simulator of {self.name!r} returned an array of shape {np.shape(data)} where {tuple(size)} "
                    "was asked for: are its data sets as large as the observed one?"
                )
        return data

    def one_data_set(self, rng, params, shape):
        """Return one simulated data set; failures are raised."""
        if self.vectorized:
            return np.asarray(self._simulated(rng, params, (1, *shape)), dtype=float)[0]
        return np.asarray(self._simulated(rng, params, shape), dtype=float)

    def summarized(self, data) -> np.ndarray:
        """Return the summary of a data set, the data themselves without one."""
        return np.asarray(data if self.summary is None else self.summary(data), dtype=float)

    def _warn(self, error):
        share = self._failures / self._calls
        if not self._warned and self._calls >= _CALLS_BEFORE_WARNING and share > self.max_failures:
            self._warned = True
            last = f" The first error was {type(error).__name__}: {error}" if error is not None else ""
            warn_user(
                f"{100 * share:.0f} % of the first {self._calls} simulations of {self.name!r} failed (errors, NaN or "
                f"infinite numbers); each counts as a likelihood of zero.{last}"
            )


def as_rows(summaries, width: int) -> np.ndarray:
    """Return summaries of any shape as (m, width), none at all included."""
    return np.reshape(summaries, (len(summaries), width))


def _sides(shape):
    """Return a shape without dimensions of length one: a column is as good as a row."""
    return [n for n in shape if n != 1]


def _holds_numbers(data):
    """Return whether a simulator returned finite numbers, which it does not where it failed."""
    try:
        return bool(np.isfinite(np.asarray(data, dtype=float)).any())
    except (TypeError, ValueError):
        return False
