"""Metropolis-Hastings proposals for all particles at once, learned from the particles.

Each is a frozen description with three methods: ``fit`` learns from particles and from all that has been evaluated,
``propose`` returns a position and a log proposal ratio for every particle in one compiled pass, ``adapt`` follows the
acceptance rate. What is learned is an immutable value that the caller keeps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import check_between
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, clusters
from pymc_kernel.linalg import RIDGE, ridged_cholesky
from pymc_kernel.mcmc import kameleon, local_proposal
from pymc_kernel.mcmc.adaptive_metropolis import optimal_scale
from pymc_kernel.mcmc.local_proposal import LocalPlaces, places_at, propose_all
from pymc_kernel.mcmc.noise import check_target, target_of
from pymc_kernel.mcmc.surrogate_fit import Learned, SurrogateFit, along, check_surrogate_moves, learn, tuned
from pymc_kernel.mcmc.trajectory import largest_correlation as largest_correlation
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.scores.values import Values
from pymc_kernel.smc.weights import impossible_as_zero


class Evaluated(NamedTuple):
    """Positions with both parts of their log density; the tempered one is ``log_prior + beta * log_likelihood``."""

    positions: np.ndarray  # (n, d)
    log_prior: np.ndarray  # (n,)
    log_likelihood: np.ndarray  # (n,)

    def take(self, rows) -> "Evaluated":
        """Return these rows."""
        return Evaluated(self.positions[rows], self.log_prior[rows], self.log_likelihood[rows])

    def log_density(self, inverse_temperature: float) -> np.ndarray:
        """Return the tempered log density (n,), -inf where either part is -inf or NaN."""
        with np.errstate(invalid="ignore"):
            return impossible_as_zero(self.log_prior + inverse_temperature * self.log_likelihood)


Evaluate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  #: (n, d) to both parts of their log density


class Proposals(NamedTuple):
    """A proposed position for every particle."""

    positions: np.ndarray  # (n, d)
    log_ratio: np.ndarray  # (n,), log q(x | y) - log q(y | x)
    is_exploring: np.ndarray  # (n,), bool: by the random walk
    places: tuple | None = None  # of Kameleon: before and proposed, with local covariances; of folds: one each


class Shape(NamedTuple):
    """Mean and lower covariance factor of the particles, and the scale of a walk along it."""

    mean: np.ndarray
    factor: np.ndarray
    log_scale: float
    num_adapted: int


def covariance_factor(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (d,) and lower factor (d, d) of the covariance of the rows, with a ridge of 1e-9 of its diagonal.

    Raises ``ValueError`` where they lie in a subspace, as a walk along their covariance would stay in it.
    """
    mean = positions.mean(axis=0)
    covariance = np.atleast_2d(np.cov(positions.T, bias=True))
    diagonal = np.diag(covariance)
    is_flat = (np.minimum(diagonal, np.ptp(positions, axis=0)) <= 0.0).any()
    factor = None if is_flat else ridged_cholesky(covariance)
    if is_flat or (np.diag(factor) < 2.0 * np.sqrt(RIDGE * diagonal)).any():
        raise ValueError(
            f"the particles have collapsed into a subspace of the {diagonal.size} coordinates. Take more particles, or "
            "smaller steps of temperature (a higher threshold)."
        )
    return mean, factor


def following(learned, accept_prob, target, rate, largest=math.inf):
    """Return what was learned after a Robbins-Monro step of its scale on the mean acceptance of all particles."""
    step = rate if rate is not None else (1.0 + learned.num_adapted) ** -0.5
    log_scale = min(learned.log_scale + step * (float(accept_prob.mean()) - target), largest)
    return learned._replace(log_scale=log_scale, num_adapted=learned.num_adapted + 1)


class Scaled:
    """A move whose scale is learned, and kept as ``log_scale``."""

    def scale_of(self, learned) -> float:
        """Return the scale: nu, or the factor of differences of any two particles."""
        return math.exp(learned.log_scale)


@dataclass(frozen=True)
class Walk(Scaled):
    """Random walk N(x, nu^2 Sigma): adaptive SMC of Fearnhead and Taylor (2013), or a plain walk.

    Parameters
    ----------
    learn_covariance, learn_scale : bool
        With neither it is the plain walk with covariance nu^2 I.
    scale : float, optional
        nu at the start; 2.38 / sqrt(d) by default.
    target_accept : float
    learning_rate : float, optional
        Of the Robbins-Monro steps on log nu, one for each move of all particles; t^-1/2 by default.
    """

    learn_covariance: bool = True
    learn_scale: bool = True
    scale: float | None = None
    target_accept: float = 0.234
    learning_rate: float | None = None

    def __post_init__(self):
        check_target(self.target_accept)
        check_between("scale", "learning_rate", high=math.inf, scale=self.scale, learning_rate=self.learning_rate)

    def fit(self, rng, particles: Evaluated, evaluated, inverse_temperature, learned: Shape | None, shared=None):
        """Return the shape of the particles, equally weighted."""
        d = particles.positions.shape[1]
        mean, factor = covariance_factor(particles.positions) if self.learn_covariance else (np.zeros(d), np.eye(d))
        if learned is None:
            return Shape(mean, factor, math.log(optimal_scale(d) if self.scale is None else self.scale), 0)
        return learned._replace(mean=mean, factor=factor)

    def propose(self, rng, positions: np.ndarray, learned: Shape) -> Proposals:
        """Return x + nu L e for every particle; O(n d^2)."""
        steps = rng.standard_normal(positions.shape) @ learned.factor.T
        n = len(positions)
        return Proposals(positions + math.exp(learned.log_scale) * steps, np.zeros(n), np.ones(n, dtype=bool))

    def adapt(self, learned: Shape, proposals: Proposals, accept_prob: np.ndarray) -> Shape:
        """Return the shape with the scale moved by the mean acceptance."""
        if not self.learn_scale:
            return learned
        return following(learned, accept_prob, self.target_accept, self.learning_rate)


class KameleonFit(NamedTuple):
    """A local proposal and its scale."""

    local: local_proposal.LocalFit
    log_scale: float
    num_adapted: int
    places: tuple[LocalPlaces, LocalPlaces] | None = None  # before the last move, proposed: each is at one of the two


@dataclass(frozen=True)
class Kameleon(Scaled):
    """The proposal of kernel adaptive Metropolis-Hastings around every particle: kernel adaptive SMC.

    A pass over n particles with m basis points costs O(n m d^2), on all cores; memory O(n d^2 + m d).

    Parameters
    ----------
    config : kameleon.Config
        Kernel, number of basis points (``num_basis``), widths, target acceptance.
    learning_rate : float, optional
        As in :class:`Walk`.
    """

    config: kameleon.Config = field(default_factory=kameleon.Config)
    learning_rate: float | None = None

    def fit(self, rng, particles, evaluated, inverse_temperature, learned: KameleonFit | None, shared=None):
        """Return the proposal learned from the particles, or from a random part of them."""
        positions = particles.positions
        if len(positions) > self.config.num_basis:
            positions = positions[rng.choice(len(positions), self.config.num_basis, replace=False)]
        mean, factor = covariance_factor(particles.positions)
        local = local_proposal.fit(positions, mean, factor, self.config, rng)
        if learned is None:
            return KameleonFit(local, math.log(self.config.scale or optimal_scale(positions.shape[1])), 0)
        return KameleonFit(local, learned.log_scale, learned.num_adapted)

    def propose(self, rng, positions: np.ndarray, learned: KameleonFit) -> Proposals:
        """Return a proposal for every particle, with the log ratio of the two local normal densities."""
        gamma, nu = self.config.widths(math.exp(learned.log_scale) * learned.local.unit)
        before = _where(positions, learned)
        proposed, log_ratio = propose_all(before, learned.local, gamma, nu, rng.standard_normal(positions.shape))
        return Proposals(proposed.positions, log_ratio, np.ones(len(positions), dtype=bool), places=(before, proposed))

    def adapt(self, learned: KameleonFit, proposals: Proposals, accept_prob: np.ndarray) -> KameleonFit:
        """Return the proposal with the scale moved by the mean acceptance."""
        learned = learned._replace(places=proposals.places)
        if not self.config.learn_scale:
            return learned
        largest = math.log(self.config.largest_scale(learned.local.mean.size))
        return following(learned, accept_prob, target_of(self.config.target_accept), self.learning_rate, largest)


def _where(positions, learned):
    """Return local covariances at the particles, computed only where the last move did not already compute them."""
    if learned.places is not None and len(positions) == len(learned.places[0].positions):
        before, proposed = learned.places
        has_moved = (positions == proposed.positions).all(axis=1)
        if (has_moved | (positions == before.positions).all(axis=1)).all():
            ends = zip(proposed, before, strict=True)
            return LocalPlaces(*(np.where(has_moved.reshape(-1, *[1] * (a.ndim - 1)), a, b) for a, b in ends))
    return places_at(positions, learned.local)


class HamiltonianFit(NamedTuple):
    """A surrogate of the tempered density, how to move along it, and the walk beside it."""

    walk: Shape
    fit: SurrogateFit | None  # None before the first one, or where it failed
    learned: Learned | None  # by the last fit that did not fail


@dataclass(frozen=True)
class Hamiltonian:
    """Chains of Hamiltonian trajectories along a surrogate of the tempered log density.

    A proposal is a chain of 1 to 32 Hamiltonian transitions on the surrogate alone, as many as decorrelate the
    particles there. It is accepted with the ratio of tempered density to surrogate (Liu 2001, section 9.4.3): one
    evaluation a move. The surrogate learns from all evaluations, rejected proposals included: prior and likelihood are
    kept separately, so that an evaluation at one temperature gives the tempered density at every other.

    Parameters
    ----------
    surrogate
        Of ``pymc_kernel.scores``: ``Values``, or one that matches scores, which learns from the particles alone.
    exploring_share : float
        Share of random-walk moves, in (0, 1].
    max_steps : int
        Leapfrog steps of a trajectory, at most.
    noisy : bool
        Whether likelihoods are estimates.
    """

    surrogate: object = field(default_factory=lambda: Values(num_basis=500, max_values=3000))
    exploring_share: float = 0.1
    max_steps: int = 30
    noisy: bool = False
    walk: Walk = field(default_factory=Walk)

    def __post_init__(self):
        check_surrogate_moves(self.surrogate, self.exploring_share, self.max_steps)

    def fit(self, rng, particles, evaluated, inverse_temperature, learned: HamiltonianFit | None, shared=None):
        """Return a surrogate of the density at this temperature; without one where the fit fails.

        A ``shared`` one, fitted to the same evaluations for other particles, is reused with a walk of their own, unless
        the estimator learns from the particles.
        """
        shape = self.walk.fit(rng, particles, evaluated, inverse_temperature, None if learned is None else learned.walk)
        if shared is not None and self.surrogate.learns_from == "values":
            return shared._replace(walk=shape)
        previous = None if learned is None else learned.learned
        draws, coordinates = particles.positions, (shape.mean, shape.factor)
        density = evaluated.log_density(inverse_temperature)
        followed = learn(
            rng, self.surrogate, draws, evaluated.positions, density, coordinates, previous,
            search=previous is None, noisy=self.noisy,
        )  # fmt: skip
        if followed is None:
            return HamiltonianFit(shape, None, previous)
        return HamiltonianFit(shape, tuned(rng, followed, coordinates, draws, self.max_steps), followed)

    def propose(self, rng, positions: np.ndarray, learned: HamiltonianFit) -> Proposals:
        """Return a proposal for every particle by the surrogate, or by the walk for a random part of them."""
        walked = self.walk.propose(rng, positions, learned.walk)
        if learned.fit is None:
            return walked
        is_along = rng.random(len(positions)) >= self.exploring_share
        walked.positions[is_along], walked.log_ratio[is_along] = along(rng, positions[is_along], learned.fit)
        return walked._replace(is_exploring=~is_along)

    def adapt(self, learned: HamiltonianFit, proposals: Proposals, accept_prob: np.ndarray) -> HamiltonianFit:
        """Return what was learned with the walk's scale moved by the acceptance of those that walked."""
        walked = proposals.is_exploring
        if not walked.any():
            return learned
        return learned._replace(walk=self.walk.adapt(learned.walk, proposals, accept_prob[walked]))

    def scale_of(self, learned: HamiltonianFit) -> float:
        """Return the step size, or the scale of the walk where there is no surrogate."""
        return learned.fit.step_size if learned.fit is not None else self.walk.scale_of(learned.walk)


type Moves = Walk | Kameleon | Hamiltonian | Differences


_ACCEPT_OF_DIFFERENCES = 0.3  # of steps along differences
_JITTER = 1e-3  # of a difference, so that finitely many of them reach every place
_LARGEST_LOG_SCALE = 50.0  # of steps on an unbounded target, so that factors stay finite
_MAX_POINTS = 3000  # that a mixture is fitted to
_POINTS_A_NUMBER = 6.0  # points for each number of a component's mean and covariance, at least
_MAX_COMPONENTS = 32
_WITHIN_RIDGE = 1e-4  # of the variance within components, relative to that of all points in the same direction
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
    labels = clusters(scaled, count, 8, rng) if count > 1 else np.zeros(len(some), dtype=int)
    parts = [scaled[labels == label] for label in np.unique(labels)]
    centers = [part.mean(axis=0) for part in parts]
    squares = [(part - center).T @ (part - center) for part, center in zip(parts, centers, strict=True)]
    within = _WITHIN_RIDGE * np.diag(np.diag(overall)) + sum(squares) / len(some)
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
    """Steps along differences of other particles, and by turns independent proposals from a mixture fitted to them.

    ter Braak (2006), with pairs from other folds than that of the particle that moves, so that detailed balance is
    exact.
    """

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
        return following(learned._replace(is_anew=True), accept_prob, _ACCEPT_OF_DIFFERENCES, rate, _LARGEST_LOG_SCALE)
