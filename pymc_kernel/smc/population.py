"""Population Monte Carlo: adaptive importance sampling by clouds around particles, with a drift along a learned score.

Kernel gradient importance sampling (Strathmann 2018, section 5.2.2), gradient importance sampling (Schuster 2015) where
the model has a gradient, plain adaptive population Monte Carlo without a drift (Cappe et al. 2004, 2008). No Markov
chain and no temperature: draws are independent given the past, each with a weight, and the mean of the weights is the
evidence. Departures from the thesis:

- Each draw comes from a mixture of scales whose shares follow the weight that each scale has earned (D-kernel
  population Monte Carlo, Douc et al. 2007), in place of a single, tuned scale.
- Weights are by default those of the whole mixture over particles, which cost O(n^2 d) for n particles, vary less than
those by a draw's own particle, and are seldom huge.
- Covariance, score and ancestors are learned from weights to a power, below one until the proposals have reached the
target (Koblents and Miguez 2015).
- The drift is scaled: N(x + delta Sigma grad f(x), nu^2 Sigma), so that delta means the same in every direction.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from pymc_kernel.kernels.points import as_numbers, as_points, check_between
from pymc_kernel.linalg import ridged_cholesky, whiten
from pymc_kernel.mcmc.adaptive_metropolis import optimal_scale
from pymc_kernel.parallel import one_blas_thread, over_row_blocks
from pymc_kernel.scores.score_matching import Finite
from pymc_kernel.smc.weights import (
    effective_share,
    impossible_as_zero,
    log_mean_exp,
    next_temperature,
    normalized,
    resample,
)

_SCALES = (0.35, 0.7, 1.0, 1.4)  # nu in units of 2.38 / sqrt(d): narrow ones miss tails, wide ones waste draws
_SAFE_SHARE = 0.05  # of every scale, at least
_LEARNED_SHARE = 0.25  # of the particles: the effective sample size of the tempered weights for learning
_LARGEST_DRIFT = 2.0  # in standard deviations of the weighted draws
_ROWS = 256  # of the distances between draws and particles that each thread has in memory at a time


@dataclass(frozen=True)
class Config:
    """Settings, validated once.

    Parameters
    ----------
    drift : {"kernel", "none"} or callable
        Along the score of a kernel exponential family with random features, learned from all weighted draws so far;
        none; or a function that returns scores, (n, d) -> (n, d).
    drift_size : float
        delta, in (0, 1): at 1 a Gaussian target's particles would all drift to its mode.
    surrogate : Finite
        Of the learned score.
    weights : {"mixture", "own"}
        The proposal density in a draw's weight: of the mixture over all particles, O(n^2 d), or of its own particle.
    """

    drift: str | Callable = "kernel"
    drift_size: float = 0.3
    surrogate: Finite = field(default_factory=lambda: Finite(num_features=200, regularization=1e-2))
    weights: str = "mixture"

    def __post_init__(self):
        if not (callable(self.drift) or self.drift in ("kernel", "none")):
            raise ValueError(f'drift must be "kernel", "none" or a function of positions, got {self.drift!r}.')
        check_between(drift_size=self.drift_size)
        if self.weights not in ("mixture", "own"):
            raise ValueError(f'weights must be "mixture" or "own", got {self.weights!r}.')
        if not callable(getattr(self.surrogate, "fit", None)):
            raise TypeError(f"surrogate must be one of pymc_kernel.scores, got {type(self.surrogate).__name__}.")


class State(NamedTuple):
    """What is carried from iteration to iteration."""

    positions: np.ndarray  # (t n, d), all draws so far
    log_weights: np.ndarray  # (t n,), unnormalized, all of the same target
    particles: np.ndarray  # (n, d), resampled: the places of the next clouds
    shares: np.ndarray  # (scales,), of the scales


class Info(NamedTuple):
    """What an iteration reports."""

    effective_share: float  # of this iteration's weights
    log_evidence: float  # log mean of this iteration's weights
    drift: float  # mean length of the drift, in standard deviations of the weighted draws
    mean_scale: float  # mean nu, in units of 2.38 / sqrt(d)


@one_blas_thread
def init(rng: np.random.Generator, positions: np.ndarray, log_weights: np.ndarray) -> State:
    """Return the first state, from draws and importance weights, such as those of the prior and the likelihood.

    Raises ``ValueError`` where no draw has a finite weight.
    """
    positions, log_weights = as_points(positions, "positions"), as_numbers(log_weights, "log_weights")
    n = len(positions)
    if log_weights.shape != (n,):
        raise ValueError(f"log_weights must have shape ({n},), got {log_weights.shape}.")
    return _resampled(rng, positions, log_weights, n, np.full(len(_SCALES), 1.0 / len(_SCALES)))


@one_blas_thread
def forget(rng: np.random.Generator, state: State, size: int) -> State:
    """Return the state without its first ``size`` draws, with particles resampled from the others."""
    positions, log_weights = state.positions[size:], state.log_weights[size:]
    if not (log_weights > -np.inf).any():
        raise ValueError("the density is zero at all draws around the start: begin nearer to the posterior.")
    return _resampled(rng, positions, log_weights, len(state.particles), state.shares)


def _shape(positions, weights):
    """Return the lower factor of the weighted covariance."""
    off = positions - weights @ positions
    covariance = (off * weights[:, None]).T @ off
    if not (np.diag(covariance) > 0.0).all():
        raise ValueError(
            "all weight is on one draw: take more particles, or begin nearer (after stages of pk.ASMC, as start=)."
        )
    return ridged_cholesky(covariance)


@one_blas_thread
def step(
    rng: np.random.Generator, state: State, log_density: Callable[[np.ndarray], np.ndarray], config: Config
) -> tuple[State, Info]:
    """Return the state with the draws of one more iteration, and what happened; n evaluations.

    The log density, (n, d) -> (n,), may be estimated: unbiased estimates leave evidence and expectations consistent.
    Raises ``ValueError`` where all weight is on one draw.
    """
    n, d = state.particles.shape
    weights = _tempered(state.log_weights, n)
    factor = _shape(state.positions, weights)
    scales = optimal_scale(d) * np.array(_SCALES)
    drift = _drift(state.particles, _score(rng, state, weights, factor, config), factor, config.drift_size)
    centers = state.particles + drift
    which = rng.choice(len(scales), size=n, p=state.shares)
    noise = rng.standard_normal((n, d))
    positions = centers + scales[which][:, None] * (noise @ factor.T)
    whitened = solve_triangular(factor, positions.T, lower=True).T
    middle = solve_triangular(factor, centers.T, lower=True).T
    if config.weights == "mixture":
        by_scale = np.empty((n, len(scales)))

        def block(start, stop):
            squared = cdist(whitened[start:stop], middle, "sqeuclidean")
            nearest = squared.min(axis=1, keepdims=True)
            squared -= nearest
            for k, rate in enumerate(0.5 / scales**2):
                by_scale[start:stop, k] = np.log(np.exp(-rate * squared).mean(axis=1)) - rate * nearest[:, 0]

        over_row_blocks(block, n, float(n * (d + 10 * len(scales))), _ROWS)
    else:
        by_scale = -0.5 * ((whitened - middle) ** 2).sum(axis=1)[:, None] / scales**2
    by_scale -= d * np.log(math.sqrt(2.0 * math.pi) * scales) + np.log(np.diag(factor)).sum()
    joint = by_scale + np.log(state.shares)
    log_proposal = logsumexp(joint, axis=1)
    log_weights = impossible_as_zero(np.asarray(log_density(positions), dtype=float) - log_proposal)
    shares = state.shares
    if (log_weights > -np.inf).any():
        earned = normalized(log_weights) @ np.exp(joint - log_proposal[:, None])
        shares = np.maximum(earned, _SAFE_SHARE)
        shares /= shares.sum()
    length = np.sqrt((solve_triangular(factor, drift.T, lower=True) ** 2).sum(axis=0)).mean()
    measures = effective_share(log_weights), log_mean_exp(log_weights), float(length)
    info = Info(*measures, float(state.shares @ np.array(_SCALES)))
    positions = np.concatenate([state.positions, positions])
    log_weights = np.concatenate([state.log_weights, log_weights])
    # Ancestors come from all draws so far, which have weights for the same target.
    return _resampled(rng, positions, log_weights, n, shares), info


def _tempered(log_weights, num_particles):
    """Return tempered weights for learning and resampling: to a power with a sufficient effective size.

    At first nearly all weight may be on one draw. The power is the largest, at most one, with an effective size of a
    quarter of the particles (nonlinear importance sampling, Koblents and Miguez 2015); estimates use the true weights.
    """
    alive = np.count_nonzero(log_weights > -np.inf)
    wanted = min(_LEARNED_SHARE * num_particles / max(alive, 1), 1.0)
    return normalized(next_temperature(log_weights, 0.0, wanted) * log_weights)


def _resampled(rng, positions, log_weights, size, shares):
    """Return the state of all draws so far, with particles resampled from them."""
    return State(positions, log_weights, positions[resample(rng, _tempered(log_weights, size), size)], shares)


def _score(rng, state, weights, factor, config):
    """Return a function from positions (n, d) to scores; to zeros without a drift, or where it cannot be learned."""
    if config.drift != "kernel":
        return config.drift if callable(config.drift) else np.zeros_like
    kept = np.flatnonzero(weights > 1e-3 / weights.size)
    if kept.size < 5 * state.positions.shape[1] + 10:
        return np.zeros_like
    # In whitened coordinates one length scale serves all directions.
    mean = weights @ state.positions
    whitened = whiten(state.positions[kept], mean, factor)
    try:
        fitted = config.surrogate.fit(whitened, weights[kept], rng=rng)
    except (ValueError, np.linalg.LinAlgError):
        return np.zeros_like
    return lambda x: solve_triangular(factor, fitted.score(whiten(x, mean, factor)).T, lower=True, trans=1).T


def _drift(particles, score_of, factor, drift_size):
    """Return delta Sigma grad f at the particles, cut to two standard deviations of the weighted draws."""
    score = np.asarray(score_of(particles))
    along = drift_size * np.where(np.isfinite(score), score, 0.0) @ factor
    length = np.sqrt((along**2).sum(axis=1, keepdims=True))
    along *= np.minimum(1.0, _LARGEST_DRIFT / np.maximum(length, 1e-300))
    return along @ factor.T
