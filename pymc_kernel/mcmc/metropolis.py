"""What all Metropolis-Hastings transitions share: starts, acceptance, gains, a bounded record of the past."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.linalg import definite_cholesky

_LAST_FIT_SHARE = 0.9  # of tuning; in what is left the scale settles, and the moves of the last fit are measured
_ENOUGH_FOR_SHAPE = 10  # positions for each dimension, from which on their own covariance is used

type LogDensity = Callable[[np.ndarray], float]  # of a position (d,)


def checked_start(position, log_density: float, size: int | None = None) -> tuple[np.ndarray, float]:
    """Return the start of a chain as a float vector, of the ``size`` if given, and a number; raise if not finite."""
    position = np.array(position, dtype=float)
    if position.ndim != 1 or position.size == 0 or size not in (None, position.size):
        entries = "at least one entry" if size is None else f"{size} entries"
        raise ValueError(f"position must be a vector of {entries}, got shape {position.shape}.")
    if not np.isfinite(position).all():
        raise NonFiniteStartError(f"the starting position is not finite: {position}.")
    log_density = float(log_density)
    if not math.isfinite(log_density):
        raise NonFiniteStartError(
            f"the log density at the starting position {position} is {log_density}. Start where the density is "
            "positive (initvals= in PyMC); if it is estimated, more replicates an estimate make a zero less likely."
        )
    return position, log_density


def metropolis_accept(rng: np.random.Generator, log_ratio: float) -> tuple[bool, float]:
    """Return whether to accept, and the acceptance probability.

    A ratio that is NaN or plus infinity rejects: neither says that the proposal is likely, and a chain that
    moved there could never leave. The uniform number is drawn in any case, so the stream of random numbers
    does not depend on the density.
    """
    uniform = rng.random()
    if not log_ratio < math.inf:
        return False, 0.0
    probability = 1.0 if log_ratio >= 0.0 else math.exp(log_ratio)
    return uniform < probability, probability


def decided(state, accepted: bool, **proposed):
    """Return the state of any transition with what was ``proposed``, or with one more rejection in a row."""
    return state._replace(**proposed, rejections=0) if accepted else state._replace(rejections=state.rejections + 1)


def robbins_monro_rate(iteration: int) -> float:
    """Return the gain (1 + t)^-0.6 of a stochastic approximation: not summable, squares summable."""
    return (1.0 + iteration) ** -0.6


def fits_between(num_dims: int, num_tune: int) -> tuple[int, float]:
    """Return after how many draws of tuning the first and the last fit come; ``num_tune`` 0 is tuning without end.

    The first needs enough positions to span the space, 100 + 10 d; it comes after three tenths of tuning at the latest.
    """
    enough = 100 + 10 * num_dims
    return (min(enough, int(0.3 * num_tune)), int(_LAST_FIT_SHARE * num_tune)) if num_tune else (enough, math.inf)


class History(NamedTuple):
    """Every ``stride``-th position since the start, at most ``capacity`` of them.

    The buffer is shared by successive states and only ever written beyond ``count``, so an older state still reads what
    it held; a deep copy separates two continuations.
    """

    buffer: np.ndarray  # (capacity, d)
    count: int
    stride: int
    skipped: int  # positions since the last one kept


def empty_history(capacity: int, num_dims: int) -> History:
    """Return an empty record; memory is capacity x d numbers, however many positions follow."""
    return History(np.empty((capacity, num_dims)), 0, 1, 0)


def append(history: History, position: np.ndarray) -> History:
    """Return the record with one more position; when it is full, every second one is dropped."""
    buffer, count, stride, skipped = history
    if skipped + 1 == stride and count == buffer.shape[0]:
        thinned, kept = np.empty_like(buffer), buffer[1::2]
        thinned[: kept.shape[0]] = kept
        buffer, count, stride = thinned, kept.shape[0], 2 * stride
    if skipped + 1 < stride:
        return History(buffer, count, stride, skipped + 1)
    buffer[count] = position
    return History(buffer, count + 1, stride, 0)


def recent(history: History, fraction: float = 2.0 / 3.0) -> np.ndarray:
    """Return a view of the latest ``fraction`` of the record, shape (n, d); its first third counts as burn-in."""
    start = history.count - int(np.ceil(fraction * history.count))
    return history.buffer[start : history.count]


def shape_of(places: np.ndarray, otherwise: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (d,) and lower covariance factor (d, d) of places (n, d); ``otherwise`` if few, or in a subspace."""
    if np.unique(places[:, 0]).size <= _ENOUGH_FOR_SHAPE * places.shape[1]:
        return otherwise
    factor = definite_cholesky(np.atleast_2d(np.cov(places.T, bias=True)))
    return otherwise if factor is None else (places.mean(axis=0), factor)
