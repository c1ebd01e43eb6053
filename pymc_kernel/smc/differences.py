"""Differential evolution: steps along differences of other particles, for targets of any shape and many modes.

ter Braak (2006), with pairs from other folds than that of the particle that moves, so that detailed balance is exact.
These steps alternate with independent proposals from a mixture of normals fitted to the other folds.
"""

import math
from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, clusters
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.smc.moves import Evaluated, Proposals, Scaled, following

_TARGET_ACCEPT = 0.3  # of steps along differences
_JITTER = 1e-3  # of a difference, so that finitely many of them reach every place
_LARGEST_LOG_SCALE = 50.0  # of steps on an unbounded target, so that factors stay finite
_MAX_POINTS = 3000  # that a mixture is fitted to
_POINTS_A_NUMBER = 6.0  # points for each number of a component's mean and covariance, at least
_MAX_COMPONENTS = 32
_RIDGE = 1e-4  # of the variance within components, relative to that of all points in the same direction
_INFLATION = 1.3  # of each covariance: tails that are too light keep particles where they are
_WIDE_SHARE, _WIDE = 0.05, 4.0  # weight of one normal for all, and the inflation of its covariance


@one_blas_thread
def fit_mixture(rng: np.random.Generator, positions: np.ndarray) -> Joint:
    """Return a mixture with heavier tails than the positions (n, d), its components from k-means.

    Hard assignments, not maximum likelihood: EM may collapse to a point, and the acceptance step corrects for the
    density of the proposal anyway. O(n d k).
    """
    n, d = positions.shape
    some = positions if n <= _MAX_POINTS else positions[rng.choice(n, _MAX_POINTS, replace=False)]
    mean, spread = some.mean(axis=0), some.std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    scaled = (some - mean) / spread
    overall = np.atleast_2d(np.cov(scaled.T)) + 1e-9 * np.eye(d)
    numbers = d + d * (d + 1) / 2
    count = int(np.clip(len(some) / (_POINTS_A_NUMBER * numbers), 1, _MAX_COMPONENTS))
    count = min(count, len(np.unique(scaled[:, 0])))  # particles that never moved may have few places
    labels = np.zeros(len(some), dtype=int)
    if count > 1:
        labels = clusters(scaled, count, 8, rng)
    parts = [scaled[labels == label] for label in np.unique(labels)]
    centers = [part.mean(axis=0) for part in parts]
    squares = [(part - center).T @ (part - center) for part, center in zip(parts, centers, strict=True)]
    within = _RIDGE * np.diag(np.diag(overall)) + sum(squares) / len(some)
    means, covariances, weights = [np.zeros(d), *centers], [_WIDE * overall], [_WIDE_SHARE]
    for part, square in zip(parts, squares, strict=True):
        # Shrunk to the pooled covariance, as if by d + 1 more points.
        covariances.append(_INFLATION * (square + (d + 1) * within) / (len(part) + d + 1))
        weights.append((1.0 - _WIDE_SHARE) * len(part) / len(some))
    roots = np.linalg.inv(np.linalg.cholesky(np.outer(spread, spread) * np.array(covariances)))
    return Joint(np.log(weights), mean + spread * np.array(means), roots)


class Pairs(NamedTuple):
    """Differences of other particles, and what is learned of how far to go along them."""

    differences: np.ndarray  # (m, d)
    mixture: Joint
    log_scale: float  # of steps along differences
    num_adapted: int
    is_anew: bool  # whether the next move is an independent proposal


class Differences(Scaled):
    """Steps along the differences of other particles."""

    def fit(self, rng, particles: Evaluated, evaluated, inverse_temperature, learned: Pairs | None, shared=None):
        """Return the differences of these particles; the scale and the kind of the next move carry on."""
        positions = particles.positions
        differences = positions - positions[rng.permutation(len(positions))]
        mixture = fit_mixture(rng, positions)
        if learned is None:
            return Pairs(differences, mixture, math.log(2.38 / math.sqrt(2.0 * positions.shape[1])), 0, True)
        # The shape of the particles changes with the temperature: adaptation starts again from the scale reached.
        return learned._replace(differences=differences, mixture=mixture, num_adapted=0)

    def propose(self, rng: np.random.Generator, positions: np.ndarray, learned: Pairs) -> Proposals:
        """Return a place for every particle; O(n d)."""
        n = len(positions)
        if learned.is_anew:
            proposed = learned.mixture.sample(n, rng)
            log_ratio = learned.mixture.log_densities(positions) - learned.mixture.log_densities(proposed)
            return Proposals(proposed, log_ratio, np.zeros(n, dtype=bool))
        along, other = learned.differences[rng.integers(len(learned.differences), size=(2, n))]
        steps = rng.choice([-1.0, 1.0], (n, 1)) * math.exp(learned.log_scale) * along
        steps += _JITTER * rng.standard_normal((n, 1)) * other
        return Proposals(positions + steps, np.zeros(n), np.ones(n, dtype=bool))

    def adapt(self, learned: Pairs, proposals: Proposals, accept_prob: np.ndarray) -> Pairs:
        """Return what was learned, its scale moved by the acceptance of differences; the other kind of move is next."""
        if learned.is_anew:
            return learned._replace(is_anew=False)
        rate = 2.0 * (1.0 + learned.num_adapted) ** -0.5
        return following(learned._replace(is_anew=True), accept_prob, _TARGET_ACCEPT, rate, _LARGEST_LOG_SCALE)
