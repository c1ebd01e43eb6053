"""Rounds of simulations that close in on a posterior, never faster than the learned likelihood can be trusted.

A likelihood does not depend on where simulations were made, so rounds need no correction. But one learned from a few
hundred draws of the prior can have its maximum many standard deviations off, and simulations around that place alone
cannot correct it. So each round simulates from the prior times the learned likelihood to a power: the largest at which
the simulations so far have a sufficient effective sample size. The next fit then decides the next power.

``init -> propose -> update -> propose -> ...``: settings, state and generator determine the next state; the caller
makes the simulations.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pymc_kernel.kernels.points import as_numbers, as_points, check_whole
from pymc_kernel.likelihood_free.estimates import bootstrap_weights
from pymc_kernel.likelihood_free.learned_likelihood.learned import FEWEST, LearnedLikelihood
from pymc_kernel.likelihood_free.learned_likelihood.training import MOST_OF_A_CASE
from pymc_kernel.parallel import one_blas_thread
from pymc_kernel.rounds.checks import TAIL, Checks, checked, choose_match
from pymc_kernel.rounds.local_likelihood import LocalLikelihood, SimulatedRegion, region_of
from pymc_kernel.rounds.particles import Draws, Prior, sample_particles
from pymc_kernel.smc.weights import effective_share

_MAX_ROUNDS = 5
_EFFECTIVE_SHARE = 0.015  # smallest effective share of the simulations so far, in the next round's distribution
_EFFECTIVE_A_DIMENSION, _EFFECTIVE_AT_LEAST = 5, 10  # smallest effective number: 5 d + 10
NUM_PARTICLES = 2000  # of a proposal or a chain, at least, so that modes keep their weights
_SETTLED = 0.1  # nats of symmetric divergence between successive posteriors: a third of a standard deviation
_LARGEST_LOG_RATIO = 50.0  # nats: largest contribution of a single draw to a divergence


class RoundProposal(NamedTuple):
    """The prior times a likelihood to a power; the prior itself, where there is no likelihood."""

    likelihood: LocalLikelihood | None
    power: float
    log_evidence: float
    region: SimulatedRegion | None

    def log_ratio(self, parameters: np.ndarray) -> np.ndarray:
        """Return the log density (m,) relative to the prior's."""
        if self.likelihood is None:
            return np.zeros(len(parameters))
        return self.power * self.likelihood(parameters) - self.log_evidence


class Round(NamedTuple):
    """What a round reports."""

    num_simulations: int
    num_failed: int
    num_near: int  #: simulations of all rounds that the likelihood is learned from
    power: float  #: of the likelihood in the distribution that was simulated from; 0: the prior
    effective: float  #: effective sample size of the earlier simulations under that distribution
    change: float  #: nats: symmetric divergence between this posterior and the one before; NaN after the first round
    place: float  #: probability of summaries less likely than the observation, in the posterior predictive distribution
    held_out_coverage: float  #: share of held-out simulations in the region that should hold 95 % of them
    correlation: float  #: largest one of the particles between before and after their last moves


class State(NamedTuple):
    """What is carried from round to round."""

    prior: Prior
    observed: np.ndarray
    parameters: np.ndarray  #: (n, d), all that were simulated so far
    summaries: np.ndarray  #: (n, q), NaN where a simulation failed
    near: np.ndarray  #: (n,), bool: what the likelihood was learned from
    proposals: tuple[RoundProposal, ...]  #: one for each round, including the one that is being simulated
    sizes: tuple[int, ...]  #: number of simulations of each round
    likelihood: LocalLikelihood | None
    draws: Draws | None  #: of the posterior so far
    effective: float  #: of the proposal that is being simulated
    rounds: tuple[Round, ...]
    checks: Checks | None  #: of the last round's likelihood; None before
    is_finished: bool


@dataclass(frozen=True)
class CautiousRounds:
    """Settings of rounds.

    By default there are at most five, and fewer once the posterior has settled: then the rest is simulated in one last
    round.
    """

    num_simulations: int = 1000  #: in all rounds together
    rounds: int | None = None
    estimator: LearnedLikelihood = field(default_factory=LearnedLikelihood)
    num_particles: int = NUM_PARTICLES  #: draws of a posterior between rounds

    def __post_init__(self):
        check_whole("rounds", num_simulations=self.num_simulations, rounds=self.rounds)
        check_whole(least=20, num_particles=self.num_particles)
        if not isinstance(self.estimator, LearnedLikelihood):
            raise TypeError(f"estimator must be LearnedLikelihood() with settings of your own, got {self.estimator!r}.")
        if self.num_simulations < (self.rounds or 1):
            raise ValueError(f"{self.num_simulations} simulations are too few for {self.rounds} rounds.")

    def init(self, prior: Prior, observed) -> State:
        """Return the state before the first simulation, for summaries ``observed`` (q,) of the data."""
        observed = as_numbers(observed, "observed")
        if observed.ndim != 1 or not np.isfinite(observed).all():
            raise ValueError("observed must be a vector of finite numbers.")
        nothing = np.empty((0, 0)), np.empty((0, len(observed))), np.empty(0, bool)
        return State(prior, observed, *nothing, (), (), None, None, np.nan, (), None, False)

    @one_blas_thread
    def propose(self, rng: np.random.Generator, state: State) -> tuple[State, np.ndarray]:
        """Return the state and the parameters (m, d) that are to be simulated next."""
        if state.is_finished:
            raise ValueError("all rounds are finished.")
        size = self._next_size(state)
        if state.likelihood is None:
            parameters = as_points(state.prior.draw(rng, size), "draws of the prior")
            proposal, effective = RoundProposal(None, 0.0, 0.0, None), np.nan
        else:
            power, effective = choose_power(state)
            draws = sample_particles(rng, state.prior, state.likelihood, max(NUM_PARTICLES, size), power)
            parameters = draws.positions[:size]
            proposal = RoundProposal(state.likelihood, power, draws.log_evidence, region_of(rng, draws.positions))
        proposals, sizes = (*state.proposals, proposal), (*state.sizes, size)
        return state._replace(proposals=proposals, sizes=sizes, effective=effective), parameters

    @one_blas_thread
    def update(self, rng: np.random.Generator, state: State, parameters, summaries) -> State:
        """Return the state after a round with parameters (m, d) as proposed and summaries (m, q), NaN where one failed.

        Raises ``ValueError`` where so many simulations failed that nothing can be learned.
        """
        new_parameters = as_points(parameters, "parameters")
        new_summaries = as_points(summaries, "summaries", finite=False)
        if new_summaries.shape != (wanted := (len(new_parameters), len(state.observed))):
            raise ValueError(f"summaries must have shape {wanted}, got {new_summaries.shape}.")
        parameters = np.concatenate([p for p in (state.parameters, new_parameters) if p.size])
        summaries = np.concatenate([state.summaries, new_summaries])
        whole = np.isfinite(summaries).all(axis=1)
        region = state.proposals[-1].region
        inside = np.ones(len(whole), dtype=bool) if region is None else region.log_penalty(parameters) >= 0.0
        near = whole & inside
        _check_enough(near, parameters.shape[1])
        is_last = len(parameters) >= self.num_simulations
        if is_last and (whole & ~near).any():
            newest = np.arange(len(near)) >= len(near) - len(new_parameters)
            if self._far_ones_help(rng, parameters, summaries, whole, near, newest):
                # The region is kept even so: a fit to few simulations far out says nothing about places beyond it.
                near = whole
        fit = self.estimator.fit(parameters[near], summaries[near], rng)
        learn = self.estimator.fit_chance
        likelihood, folds = LocalLikelihood(fit, state.observed, region, learn(parameters, whole, rng)), []
        if is_last:
            folds = list(self.estimator.fit_folds(fit, parameters[near], summaries[near], rng))
            likelihood, folds = choose_match(likelihood, folds, parameters, summaries, near, learn, rng)
        draws = sample_particles(rng, state.prior, likelihood, self.num_particles)
        change = np.nan if state.draws is None else divergence(state.draws, state.likelihood, draws, likelihood)
        place = fit.place_of(state.observed, draws.positions, rng)
        coverage = np.nan if fit.held_out is None else float((fit.held_out >= TAIL).mean())
        counts = len(new_parameters), int((~np.isfinite(new_summaries).all(axis=1)).sum()), int(near.sum())
        report = Round(*counts, state.proposals[-1].power, state.effective, change, place, coverage, draws.correlation)
        state = state._replace(parameters=parameters, summaries=summaries, near=near, likelihood=likelihood)
        if folds:
            log_weights = -log_mixture_ratio(state, parameters[near])
            checks = checked(likelihood, folds, parameters[near], summaries[near], log_weights, draws, rng)
            state = state._replace(checks=checks)
        return state._replace(draws=draws, rounds=(*state.rounds, report), is_finished=is_last)

    @one_blas_thread
    def refits(self, rng: np.random.Generator, state: State, number: int) -> list[LocalLikelihood]:
        """Return likelihoods that are learned anew from all simulations, each time with random weights of them.

        The choices of a fit vary with the weights, while its own ``replicates`` keep them fixed.
        """
        known, parameters, summaries = state.likelihood, state.parameters[state.near], state.summaries[state.near]
        matches = (state.summaries == state.observed).all(axis=1)
        estimator = replace(self.estimator, num_replicates=0)
        replicates, found = known.replicates() or [known], []
        for i, weights in enumerate(bootstrap_weights(rng, number, len(matches))):
            fit = estimator.fit(parameters, summaries, rng, weights=weights[state.near])
            one = replace(replicates[i % len(replicates)], fit=fit)
            if known.match is not None:
                one = one.corrected(estimator.fit_chance, state.parameters, matches, rng, weights=weights)
            found.append(one)
        return found

    def _next_size(self, state):
        """Return how many simulations the next round has."""
        number, done = len(state.rounds), sum(state.sizes)
        left = self.num_simulations - done
        if self.rounds is None and number:
            last = state.rounds[-1]
            if last.power >= 1.0 and last.change < _SETTLED:  # a further round would hardly change the posterior
                return left
        most = min(_MAX_ROUNDS, self.num_simulations // FEWEST) if self.rounds is None else self.rounds
        return left // max(most - number, 1)

    def _far_ones_help(self, rng, parameters, summaries, whole, near, newest) -> bool:
        """Return whether simulations outside of the last round's region improve predictions of held-out ones from it.

        Where one model fits everywhere, as a linear one may, they do; where regions differ, they mislead.
        """
        latest = np.flatnonzero(near & newest)
        cases = rng.permutation(latest)[: max(len(latest) // 3, 1)]
        is_kept = ~np.isin(np.arange(len(near)), cases)
        fits = [self.estimator.fit(parameters[c], summaries[c], rng) for c in (near & is_kept, whole & is_kept)]
        before, after = (fit.log_density(parameters[cases], summaries[cases]) for fit in fits)
        with np.errstate(invalid="ignore"):  # where neither fit has any density
            gain = np.nan_to_num(after - before, nan=0.0)
        return float(np.clip(gain, -MOST_OF_A_CASE, MOST_OF_A_CASE).mean()) > 0.0


def _check_enough(near, num_dims):
    if near.sum() < 2 * (num_dims + 2):
        failed = "most have NaN or infinite numbers. Take more simulations, or a prior under which the simulator works."
        advice = "take more, or fewer rounds." if near.all() else failed
        raise ValueError(f"only {near.sum()} simulations can be learned from, of {num_dims} parameters: {advice}")


def choose_power(state: State) -> tuple[float, float]:
    """Return the largest power at which the simulations have a sufficient effective sample size, and that size."""
    parameters = state.parameters[state.near]
    n, d = parameters.shape
    wanted = max(_EFFECTIVE_A_DIMENSION * d + _EFFECTIVE_AT_LEAST, _EFFECTIVE_SHARE * n)
    values = state.likelihood(parameters)
    density = log_mixture_ratio(state, parameters)

    def effective(power):
        log_weights = power * values - density
        finite = log_weights[np.isfinite(log_weights)]
        return finite.size * effective_share(finite) if finite.size else 0.0

    if (at_posterior := effective(1.0)) >= wanted:
        return 1.0, at_posterior
    power = 0.0
    for step in 0.5 ** np.arange(1.0, 41.0):  # one binary digit after the other, to 1e-12
        power += step * (effective(power + step) >= wanted)
    return power, effective(power)


def log_mixture_ratio(state: State, parameters: np.ndarray) -> np.ndarray:
    """Return the log density (m,) of the mixture that all rounds simulated from, relative to the prior's."""
    sizes = np.array(state.sizes, dtype=float)
    terms = [np.log(s / sizes.sum()) + p.log_ratio(parameters) for p, s in zip(state.proposals, sizes, strict=True)]
    return np.logaddexp.reduce(terms, axis=0)


def divergence(before: Draws, likelihood_before, after: Draws, likelihood_after) -> float:
    """Return the symmetric Kullback-Leibler divergence of two posteriors with one prior, whose evidence cancels."""
    total = 0.0
    for draws, sign in ((before, 1.0), (after, -1.0)):
        with np.errstate(invalid="ignore"):
            ratio = sign * (likelihood_before(draws.positions) - likelihood_after(draws.positions))
        total += np.clip(np.nan_to_num(ratio, nan=0.0), -_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).mean()
    return float(max(total, 0.0))
