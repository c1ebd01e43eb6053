"""A posterior from few evaluations of a costly likelihood: a surrogate that says where to evaluate next.

Kernel regression on all values so far (``scores.Values``) is the surrogate; the prior is known and is not learned. Half
of each batch are draws from the surrogate's posterior, which find what it has too high and measure its error; the other
half are places where it is least certain. While the bulk is still searched for, it is flattened to a power that the
values can bear, and the other places are those where the log density may be highest. No place is far from good ones.

A surrogate that was learned along a part of a ridge may end where it was learned. So a search that would end evaluates
draws that are shifted beyond their ends, and goes on where the density hardly falls there.

``init -> propose -> update -> propose -> ...``: given settings, state and generator the next state is determined, and
the caller evaluates. Imports NumPy, SciPy and the lower floors only.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from pymc_kernel.kernels.points import MAD_TO_SD, as_numbers, as_points, check_whole
from pymc_kernel.mcmc.chain_checks import HALF_WAY, NUM_COORDINATES, NUM_JUDGED, OpenEnd, beyond_end, shifted_ratio
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.rounds.learned_posterior import SearchBatch, SearchedEnd, SearchState, drawn_from, learned_state
from pymc_kernel.rounds.particles import Draws, ParticleSampler, Prior
from pymc_kernel.rounds.surrogate_distance import Distance, distance_of, unknown_distance
from pymc_kernel.scores.values import Values

_FRESH_SHARE = 0.5  # of a batch that are draws from the surrogate's posterior
_FRESH_SHARE_CLIMBING = 0.25  # the same while the bulk is searched for
_CLIMBING = 0.1  # share of particles above the best value so far, from which on the bulk counts as not found
_CANDIDATES = 300  # particles among which the other places of a batch are chosen
_LARGEST_RADIUS = 8.0  # of the region, in units of sqrt(d) whitened ones
_GROW, _SHRINK, _SETTLE = 1.5, 1.5, 1.2  # factors of the radius: few batches reach the bulk, none leaps over it
_AT_EDGE, _WITHIN = 0.05, 0.01  # shares of particles at the region's edge, from which it grows, below which it shrinks
_ACCURATE = 2.0  # nats of error of the flattened surrogate with which the region may grow; with three times it shrinks
_FEWEST_FRESH = 30  # draws that the distance is measured by, or three a dimension
_LOWEST_OF_BULK = 0.01  # quantile of the surrogate at its particles
_FEWEST_OUTSIDE = 0.1  # share of the particles of a second search, below which it has come to the same bulk
_SETTLED = 3  # batches in a row, after which the bulk counts as found
_RIVAL_BATCHES = 20  # of a second search, at most
_NEXT_RIVAL = 2  # times as many evaluations as at the end of one second search, the next one may begin
_ABOVE_BEST, _ABOVE_ANY = 0.1, 0.5  # nats, a dimension and in all, that a density may have above its best value
_TRIES, _UNSEEN = 3, 0.1  # draws are made anew where they hold so many nats of mass that the search never saw
_BEYOND_SHARE = 0.1  # of all evaluations, that one look beyond the ends of the draws may take
_BEYOND_EACH = 3  # draws that are shifted beyond each end and evaluated
_BEYOND_PATH = 0.1  # share of the draws that such a path leads through: there are always enough for a near one
_EVIDENCE_TOLERANCE = 0.3  # nats by which two runs of a thousand particles on one surrogate may differ
_RIDGE = 1e-4  # squared nats of noise of exact values, when places are chosen


@dataclass(frozen=True)
class ActiveLearning:
    """Settings.

    Parameters
    ----------
    batch_size : int, optional
        Evaluations of a batch; by default one a dimension, at least four.
    noisy : bool
        Whether log likelihoods are estimates.
    estimator : Values
        Of the log likelihood.
    sampler : ParticleSampler
        Of the learned posterior between batches.
    """

    batch_size: int | None = None
    noisy: bool = False
    estimator: Values = field(default_factory=lambda: Values(window=np.inf))
    sampler: ParticleSampler = field(
        default_factory=lambda: ParticleSampler(1000, moves=8, max_moves=40, correlation=0.2)
    )

    def __post_init__(self):
        check_whole("batch_size", batch_size=self.batch_size)

    def init(self, prior: Prior, start, is_from_prior: bool = True) -> SearchState:
        """Return the state before the first evaluation; ``start`` (n, d) is evaluated first.

        A second search begins from half of it; from draws of the prior alone where ``start`` is not from there, and all
        of it may lie near one mode.
        """
        start = as_points(start)
        nothing = np.empty((0, start.shape[1])), np.empty(0), np.empty(0)
        return SearchState(prior, *nothing, proposed=start, num_start=len(start) if is_from_prior else 0)

    @one_blas_thread
    def update(self, rng: np.random.Generator, state: SearchState, log_likelihood) -> SearchState:
        """Return the state with the values (b,) at the proposed places learned; NaN and infinities mean no density.

        With fewer proposed than were asked for, the first ones are those that were evaluated.
        """
        values = as_numbers(log_likelihood, "log_likelihood")
        if values.ndim != 1 or values.size > len(state.proposed):
            raise ValueError(f"log_likelihood must have at most {len(state.proposed)} entries, got {values.shape}.")
        new = state.proposed[: values.size]
        values = np.where(np.isfinite(values), values, -np.inf)
        log_prior = state.prior.log_density(new)
        radius, ratios, caution, error = state.radius, np.empty(0), np.empty(0), np.nan
        rival, known = state.rival, np.nan
        if state.is_rivals_turn:
            rival = self.update(rng, rival, values)
        elif state.learned is not None and not state.ends:  # these say nothing of how well draws are predicted
            ratios = values - state.learned.log_likelihood(new)
            error = _error(ratios if state.is_climbing else ratios[: state.num_fresh])
            ratios = ratios[: state.num_fresh]
            caution, known = state.learned.caution(new[: state.num_fresh]), self._known_evidence(state)
            radius = self._next_radius(state, error)
        state = state._replace(
            positions=np.concatenate([state.positions, new]),
            log_prior=np.concatenate([state.log_prior, np.where(np.isfinite(log_prior), log_prior, -np.inf)]),
            log_likelihood=np.concatenate([state.log_likelihood, values]),
            radius=radius,
            rival=rival,
        )
        power = np.nan if state.learned is None else state.learned.power
        search = len(state.positions), power, state.is_climbing, float(state.log_density.max()), error
        is_elsewhere = state.is_rivals_turn or bool(state.ends)
        batch = SearchBatch(*search, ratios, caution, state.log_evidence, known, is_elsewhere)
        state = state._replace(batches=(*state.batches, batch))
        state = learned_state(rng, state, self.estimator, self.sampler, self.noisy)
        return _judged(state, values.size) if state.ends else state

    @one_blas_thread
    def propose(self, rng: np.random.Generator, state: SearchState) -> SearchState:
        """Return the state with the places (b, d) to evaluate next, fresh draws of the learned posterior first.

        Once the bulk is found, every other batch is a second search's, until that one has found its own.
        """
        state = self._with_rival(rng, self._proposed(rng, state))
        if state.rival is None or state.is_rivals_turn:
            return state._replace(is_rivals_turn=False)
        rival = self._proposed(rng, state.rival) if state.rival.batches else state.rival
        return state._replace(proposed=rival.proposed, num_fresh=0, is_rivals_turn=True, rival=rival)

    @staticmethod
    def num_beyond_ends(num_dims: int, evaluations: int) -> int:
        """Return how many evaluations one look beyond the ends of the draws takes; 0 with too few in all."""
        wanted = 2 * _BEYOND_EACH * min(num_dims, NUM_COORDINATES)
        return wanted if wanted <= _BEYOND_SHARE * evaluations else 0

    def beyond_ends(self, rng: np.random.Generator, state: SearchState, draws: Draws, size: int) -> SearchState:
        """Return the state with ``size`` draws, shifted beyond their ends, to evaluate next.

        With more than four coordinates, those beyond whose ends the surrogate is least certain. The next ``update``
        says which ends are open, by what has been learned then.
        """
        d = draws.positions.shape[1]
        each = max(size // (2 * min(d, NUM_COORDINATES)), 1)
        found = []
        for j in range(d):
            shifted = [beyond_end(rng, draws.positions, j, sign, _BEYOND_PATH, NUM_JUDGED) for sign in (1, -1)]
            both = [SearchedEnd(j, s.end, draws.positions[s.rows], s.places) for s in shifted if s is not None]
            if both:
                unknown = state.learned.caution(np.concatenate([end.places[:each] for end in both])).mean()
                found.append((unknown, both))
        chosen = sorted(found, key=lambda one: -one[0])[:NUM_COORDINATES]
        ends = tuple(end for _, both in chosen for end in both)
        places = np.concatenate([end.places[:each] for end in ends]) if ends else np.empty((0, d))
        return state._replace(proposed=places, num_fresh=0, is_rivals_turn=False, ends=ends, open_ends=())

    @staticmethod
    def has_searched_twice(state: SearchState) -> bool:
        """Return whether a second search has ended, and no other one has begun.

        Distances are measured where the first search looked: they are small from the moment that it has found one mode.
        """
        return state.rival is None and state.next_rival > 0

    def _with_rival(self, rng, state):
        """Return the state with a second search begun, where it is time for one, or ended, where it has ended."""
        rival = state.rival
        if rival is not None:
            if self._is_settled(rival) or len(rival.batches) >= _RIVAL_BATCHES:
                return state._replace(rival=None, next_rival=_NEXT_RIVAL * len(state.positions))
            if rival.learned is None:
                return state
            is_outside = _is_outside(state.learned, state.particles, rival.particles)
            if is_outside.mean() < _FEWEST_OUTSIDE:
                return state._replace(rival=None, next_rival=_NEXT_RIVAL * len(state.positions))
            return state._replace(rival=rival._replace(particles=rival.particles[is_outside]))
        if not self._is_settled(state) or len(state.positions) < state.next_rival:
            return state
        far, d = self._far_design(state), state.positions.shape[1]
        rival = self.init(state.prior, state.prior.draw(rng, max(4, d) if far.size else 2 * d + 6))
        rival = rival._replace(
            positions=state.positions[far], log_prior=state.log_prior[far], log_likelihood=state.log_likelihood[far]
        )
        return state._replace(rival=rival)

    @staticmethod
    def _far_design(state):
        """Return the half of the prior's draws at the start that is farther from the bulk, as indices."""
        if state.num_start == 0:
            return np.empty(0, dtype=int)
        design = state.positions[: state.num_start]
        scale = design.std(axis=0)
        distance = (((design - state.particles.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)) ** 2).sum(axis=1)
        return np.sort(np.argsort(distance)[state.num_start // 2 :])

    def _proposed(self, rng, state):
        """Return the state with the places that it proposes by itself."""
        d = state.positions.shape[1]
        size = max(4, d) if self.batch_size is None else int(self.batch_size)
        if state.learned is None:  # too few values to learn from
            return state._replace(proposed=state.prior.draw(rng, size), num_fresh=0, is_climbing=True)
        learned, particles = state.learned, state.particles
        values = learned.height(particles[:_CANDIDATES])
        is_climbing = learned.power < 1.0 or float(np.mean(values > state.log_density.max())) > _CLIMBING
        share = _FRESH_SHARE_CLIMBING if is_climbing else _FRESH_SHARE
        num_fresh = min(max(1, round(share * size)), size)
        candidates = particles[num_fresh : num_fresh + _CANDIDATES]
        fresh = particles[:num_fresh]
        chosen = self._uncertain(learned, fresh, candidates, size - num_fresh, is_climbing)
        return state._replace(
            proposed=np.concatenate([fresh, candidates[chosen]]), num_fresh=num_fresh, is_climbing=is_climbing
        )

    @one_blas_thread
    def sample(self, rng: np.random.Generator, state: SearchState, size: int, tries: int = _TRIES) -> Draws:
        """Return draws from the learned posterior; their ``log_likelihood`` is the log ratio to where they began.

        Where they hold mass that the search never saw they are made anew, in so many ``tries``.
        """
        if state.learned is None:
            raise ValueError(
                f"only {int(np.isfinite(state.log_density).sum())} of {len(state.positions)} evaluations have a finite "
                "log density, too few to learn from: give start= near the data."
            )
        sampler = ParticleSampler(max(size, self.sampler.num_particles))
        ceiling = state.log_density.max() + _ABOVE_BEST * state.positions.shape[1] + _ABOVE_ANY
        careful = replace(state.learned, power=1.0, is_careful=True, ceiling=ceiling)
        draws = drawn_from(rng, careful, state.particles, sampler)
        most = self._evidence_range(state)[1] + _UNSEEN
        for _ in range(tries - 1):
            if draws.log_evidence < most:
                break
            again = drawn_from(rng, careful, state.particles, sampler)
            draws = min(draws, again, key=lambda found: found.log_evidence)
        return draws

    def unjudged_mass(self, state: SearchState, *draws: Draws) -> float:
        """Return the share of mass that only one has: last draws, or the particles that the distance is judged by.

        Both are of the same surrogate, so their evidence differs where one of them has found a mode that the other has
        not: perhaps a false one, where nothing was evaluated. Of several draws it is the largest share.
        """
        if not draws or state.learned.power < 1.0:
            return 0.0  # the bulk is still searched for, and there is no judgment yet
        known, largest = self._evidence_range(state)
        found = [part.log_evidence for part in draws]
        difference = max(max(found) - largest, known - min(found))
        return float(1.0 - np.exp(-max(difference - _EVIDENCE_TOLERANCE, 0.0)))

    def adopt(self, state: SearchState, draws: Draws) -> SearchState:
        """Return the state with last draws as its particles, among which the next places are chosen.

        Its kernel has put mass where there may be none, so that it is searched for again.
        """
        particles = draws.positions[: self.sampler.num_particles]
        return state._replace(particles=particles, log_evidence=draws.log_evidence, hyperparameters=None, searched_at=0)

    @staticmethod
    def _known_evidence(state):
        """Return the log evidence of the search's particles, as far as caution leaves it."""
        kept = np.exp(-state.learned.caution(state.particles[:_CANDIDATES])).mean()
        return state.log_evidence + float(np.log(max(kept, 1e-300)))

    def _evidence_range(self, state):
        """Return the known log evidence of the latest surrogate, and the largest of it and the batches judged by.

        Where the latest surrogate has a false mode most of its particles are there, and hardly one says what is known.
        """
        known = self._known_evidence(state)
        return known, max([known, *(batch.known_evidence for batch in self._judged_by(state))])

    def _judged_by(self, state):
        """Return the latest batches of fresh draws, as many as the distance needs."""
        batches, wanted = [], max(_FEWEST_FRESH, 3 * state.positions.shape[1])
        for batch in reversed([batch for batch in state.batches if not batch.is_elsewhere]):
            if sum(len(b.log_ratios) for b in batches) >= wanted or not batch.power >= 1.0:
                break
            batches.append(batch)
        return batches

    def distance(self, state: SearchState, *draws: Draws) -> Distance:
        """Return the distance between the learned and the true posterior, from the latest fresh draws.

        With the last ``draws``, of one chain or several, it is at least their mass that was not judged.

        The draws are judged by the surrogate that proposed them, before it learned from them, so the last one is better
        than this says. Ratios of noisy values hold their noise, too: its variance is taken off that of the ratios.
        """
        batches = self._judged_by(state)
        if not batches:
            return unknown_distance()
        parts = (np.concatenate([getattr(b, name) for b in batches]) for name in ("log_ratios", "caution"))
        noise = state.learned.unit * state.learned.fit.noise_sd if self.noisy else 0.0
        before = np.concatenate([np.full(len(b.log_ratios), b.log_evidence) for b in batches])
        # Mass where the latest surrogate is unsure is none that was found.
        found = distance_of(*parts, noise, before - self._known_evidence(state))
        unjudged = self.unjudged_mass(state, *draws)
        return found._replace(
            total_variation=float(np.maximum(found.total_variation, unjudged)),
            error=0.0 if unjudged > found.total_variation else found.error,
        )

    def _uncertain(self, learned, fresh, candidates, count, is_climbing):
        """Return candidates, each where the surrogate is least certain given those before, or may be highest."""
        if count == 0 or len(candidates) == 0:
            return np.empty(0, dtype=int)
        together = np.concatenate([fresh, candidates])
        covariance = learned.covariance(together)
        noise = _RIDGE + ((learned.unit * learned.fit.noise_sd) ** 2 if self.noisy else 0.0)
        for i in range(len(fresh)):
            covariance = _given(covariance, i, noise)
        heights = learned.height(candidates) if is_climbing else None
        chosen = []
        for _ in range(min(count, len(candidates))):
            variance = np.maximum(np.diag(covariance)[len(fresh) :], 0.0)
            worth = variance if heights is None else heights + np.sqrt(variance)
            worth = worth.copy()
            worth[chosen] = -np.inf
            chosen.append(int(np.argmax(worth)))
            covariance = _given(covariance, len(fresh) + chosen[-1], noise)
        return np.array(chosen)

    def _is_settled(self, state):
        """Return whether the last batches were draws from a bulk that is roughly known."""
        own = [batch for batch in state.batches if not batch.is_elsewhere][-_SETTLED:]
        if len(own) < _SETTLED or state.learned is None:
            return False
        tolerance = _ACCURATE + (state.learned.unit * state.learned.fit.noise_sd if self.noisy else 0.0)
        return all(b.power >= 1.0 and not b.is_climbing and b.error < tolerance for b in own)

    @staticmethod
    def _next_radius(state, error):
        """Return the radius of the next region: larger where particles press against it and it was predicted well."""
        region, tolerance = state.learned.region, _ACCURATE / state.learned.power
        at_edge = float(np.mean(region.distance(state.particles) > 0.97 * region.radius))
        if error < tolerance and at_edge > _AT_EDGE:
            return min(_GROW * state.radius, _LARGEST_RADIUS)
        if error > 3.0 * tolerance:
            return max(state.radius / _SHRINK, 1.0)
        return max(state.radius / _SETTLE, 1.0) if at_edge < _WITHIN else state.radius


def _judged(state, num_evaluated):
    """Return the state with those ends that are open, by what the evaluated draws beyond them have taught."""
    learned, each = state.learned, len(state.proposed) // len(state.ends)
    found = []
    for end in state.ends[: num_evaluated // each]:
        beyond = learned.log_density(end.places)
        if learned.support is not None:
            beyond[~learned.support.contains(end.places)] = -np.inf
        ratio = shifted_ratio(beyond, learned.log_density(end.draws))
        if ratio > HALF_WAY:
            found.append(OpenEnd(end.coordinate, end.end, ratio))
    return state._replace(ends=(), open_ends=tuple(found))


def _is_outside(learned, particles, others):
    """Return which particles (m,) of another search lie below the bulk, by the surrogate that knows all values."""
    return learned.height(others) < np.quantile(learned.height(particles), _LOWEST_OF_BULK)


def _error(log_ratios):
    """Return the standard deviation of normal errors with this median size; places without density are infinite."""
    sizes = np.where(np.isfinite(log_ratios), np.abs(log_ratios), np.inf)
    return MAD_TO_SD * float(np.median(sizes)) if sizes.size else np.nan


def _given(covariance, index, noise):
    """Return the covariance after a value with this noise has been seen at an index."""
    column = covariance[:, index]
    return covariance - np.outer(column, column / (covariance[index, index] + noise))
