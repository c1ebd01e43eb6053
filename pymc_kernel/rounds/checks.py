"""Checks of the likelihood of the last round, by fits that each leave out a part of the simulations.

**Calibration.** Are posteriors of data sets that resemble the observation right? This is simulation-based calibration,
locally. Before its data are known, the parameters of a simulation are equally likely to be any of the simulated places.
Given its data, each place has a probability in proportion to its likelihood, and the rank of the true place, weighted
by these, is uniform. That holds for any selection and any weights of data sets: here those whose likelihood overlaps
most with the observation's, weighted by that overlap. In a mean over all data sets, errors of either sign would cancel.
The likelihood of each comes from a fit to other simulations, so that none is judged by itself.

S. Talts and others, "Validating Bayesian inference algorithms with simulation-based calibration" (2018).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import bdtr, bdtrc, ndtri, softmax

from pymc_kernel.likelihood_free.learned_likelihood.chance import log_scores
from pymc_kernel.rounds.local_likelihood import LocalLikelihood
from pymc_kernel.rounds.particles import Draws

_MAX_PLACES, _MAX_CASES = 500, 1000
_MOST_ALIKE = 200  # nearest cases: they show a shift of a quarter of a standard deviation at 3.5 standard errors
_LEAST_ALIKE = 0.05  # overlap of a case's posterior and the observation's: normal ones five spreads apart
TAIL = 0.05  # probability: of ranks on either side, and of the smallest densities, where draws are no longer typical


class Calibration(NamedTuple):
    """How true parameters lie in the posteriors of their data; in normal scores of their ranks."""

    num_cases: float
    shift: np.ndarray  #: (d,), mean: how many posterior standard deviations true parameters lie above the learned mean
    spread: np.ndarray  #: (d,), root mean square about it: above one where the learned posterior is too narrow
    tails: np.ndarray  #: (2, d), shares of true parameters below the learned 5 % quantile, and above the 95 % quantile

    @property
    def shift_error(self) -> float:
        """Standard error of the shifts, if the posterior is right."""
        return 1.0 / np.sqrt(max(self.num_cases, 1))

    @property
    def log_spread_error(self) -> float:
        """Standard error of logarithms of the spreads, if the posterior is right."""
        return 1.0 / np.sqrt(2.0 * max(self.num_cases, 1))

    @property
    def tail_chance(self) -> np.ndarray:
        """Probabilities (2, d) of shares as far from 5 % as the ``tails``, on the same side, if all is right."""
        number = int(self.num_cases)
        found = np.floor(np.nan_to_num(self.tails, nan=TAIL) * number)
        fewer, more = bdtr(np.minimum(found + 1.0, number), number, TAIL), bdtrc(found - 1.0, number, TAIL)
        return np.where(self.tails < TAIL, fewer, np.where(found > 0.0, more, 1.0))


def simulated_ranks(parameters, summaries, observed, folds, rng, log_weights=None):
    """Return ranks (k, d) in (0, 1) of true parameters, and weights (k,), of simulations that resemble the observation.

    Of all simulations there are parameters (n, d) and summaries (n, q). ``folds`` are pairs of rows (k,) and a
    likelihood that was learned from all others, with ``log_density`` and ``log_densities``. ``log_weights`` (n,) are
    logarithms of the prior density relative to that of where parameters were simulated, so that the posteriors are
    those under the prior.
    """
    n = len(parameters)
    log_weights = np.zeros(n) if log_weights is None else log_weights
    places = rng.permutation(n)[:_MAX_PLACES]
    candidates = rng.permutation(n)[:_MAX_CASES]
    ranks, alike, chosen = [np.empty((0, parameters.shape[1]))], [np.empty(0)], [np.empty(0, int)]
    for rows, fit in folds:
        cases = rows[np.isin(rows, candidates)]
        if not len(cases):
            continue
        values = fit.log_densities(parameters[places], summaries[cases])
        own = fit.log_density(parameters[cases], summaries[cases])
        values, own = values + log_weights[places], own + log_weights[cases]
        both = np.concatenate([places, cases])
        here = fit.log_density(parameters[both], observed) + log_weights[both]
        with np.errstate(invalid="ignore"):
            weights = _weights(values, own, places, cases)
            at_observed = np.broadcast_to(here[: len(places)], values.shape)
            alike.append(np.sqrt(weights * _weights(at_observed, here[len(places) :], places, cases)).sum(axis=1))
        chosen.append(cases)
        ranks.append(ranks_of(parameters[cases], parameters[places], weights, rng))
    ranks, alike, cases = np.concatenate(ranks), np.nan_to_num(np.concatenate(alike)), np.concatenate(chosen)
    nearest = np.argsort(-alike, kind="stable")[: min(_MOST_ALIKE, int((alike >= _LEAST_ALIKE).sum()))]
    logs = log_weights[cases[nearest]]
    return ranks[nearest], alike[nearest] * np.exp(logs - logs.max(initial=-np.inf))


def _weights(values, own, places, cases):
    """Return normalized likelihoods (k, m + 1) at all places; each case's own place is the last, and only there."""
    joined = np.column_stack([np.where(places == cases[:, None], -np.inf, values), own])
    return softmax(joined, axis=1)


def ranks_of(parameters, places, weights, rng) -> np.ndarray:
    """Return ranks (k, d) of ``parameters`` (k, d) among places (m, d), by weights (k, m + 1), the last their own."""
    out = np.empty(parameters.shape)
    for j in range(parameters.shape[1]):
        below = (places[:, j] < parameters[:, j, None]) * weights[:, :-1]
        out[:, j] = below.sum(axis=1) + rng.random(len(out)) * weights[:, -1]
    return out


def summarized_ranks(ranks: np.ndarray, weights: np.ndarray) -> Calibration:
    """Return what ranks (k, d) of cases with weights (k,) say."""
    usable = np.isfinite(ranks).all(axis=1) & (weights > 0.0)
    ranks, weights = ranks[usable], weights[usable]
    k, d = ranks.shape
    if k < 2:
        return Calibration(k, *np.full((2, d), np.nan), np.full((2, d), np.nan))
    size = weights.sum() ** 2 / (weights**2).sum()
    scores = ndtri(np.clip(ranks, 0.1 / k, 1.0 - 0.1 / k))
    shift = weights @ scores / weights.sum()
    spread = np.sqrt(weights @ (scores - shift) ** 2 / weights.sum())
    tails = np.stack([weights @ (ranks < TAIL), weights @ (ranks > 1.0 - TAIL)]) / weights.sum()
    return Calibration(size, shift, spread, tails)


_FEWEST_MATCHES, _LEAST_SHARE = 20, 0.05  # fewest simulations equal to the data, to learn their probability
_TOWARD_PRIOR = 0.5  # power of the weights that make simulated parameters draws of the prior: at 1 few would count


class Checks(NamedTuple):
    """Checks of a posterior by fits to parts of the simulations, for each parameter on the unconstrained scale."""

    calibration: Calibration  #: of posteriors of simulations that resemble the observation
    outside: float  #: share of the posterior outside of the region that the last round simulated


class _OfMatches(NamedTuple):
    """The probability of a match, as the likelihood of simulations that match."""

    likelihood: LocalLikelihood

    def log_density(self, parameters, _):
        """Return log probabilities (m,)."""
        return self.likelihood(parameters)

    def log_densities(self, parameters, rows):
        """Return log probabilities (k, m), the same for all rows."""
        return np.broadcast_to(self.likelihood(parameters), (len(rows), len(parameters)))


def choose_match(likelihood: LocalLikelihood, folds, parameters, summaries, is_near, learn, rng):
    """Return the likelihood and its folds; corrected by the probability of a match if held-out simulations favor it.

    The correction assumes nothing about the distribution of the data, and uses only whether simulations match.

    ``folds``, as in :func:`simulated_ranks`, are of the simulations ``is_near`` (n,), from which the density was
    learned; parameters (n, d) and summaries (n, q) are of all, NaN where one failed. ``learn`` takes parameters, what
    happened, a generator, and ``rough``; it returns a Chance, or None where it is certain.
    """
    matches = (summaries == likelihood.observed).all(axis=1)
    is_enough = matches.sum() >= max(_FEWEST_MATCHES, _LEAST_SHARE * len(matches)) and not matches.all()
    if not is_enough or (likelihood.observed != np.round(likelihood.observed)).any():
        return likelihood, folds
    near, plain = np.flatnonzero(is_near), replace(likelihood, region=None)
    found, gain = [], 0.0
    for rows, fit in folds:
        left = near[rows]
        rest, by_density = np.setdiff1d(np.arange(len(matches)), left), replace(plain, fit=fit)
        by_match = by_density.corrected(learn, parameters[rest], matches[rest], rng)
        if by_match.match is None:
            return likelihood, folds
        gain += log_scores(by_match(parameters[left]), matches[left]).sum()
        gain -= log_scores(by_density(parameters[left]), matches[left]).sum()
        found.append((rows[matches[left]], _OfMatches(replace(by_match, region=likelihood.region))))
    if gain <= 0.0:
        return likelihood, folds
    return likelihood.corrected(learn, parameters, matches, rng), found


def checked(likelihood: LocalLikelihood, folds, parameters, summaries, log_weights, draws: Draws, rng) -> Checks:
    """Return the checks, from fits to folds of the simulations, with ``draws`` of the posterior.

    The likelihood was learned from parameters (n, d) and summaries (n, q). ``log_weights`` (n,) are logarithms of the
    prior density over that of where the parameters were simulated.
    """
    given = parameters, summaries, likelihood.observed, folds, rng
    calibration = summarized_ranks(*simulated_ranks(*given, _TOWARD_PRIOR * log_weights))
    region = likelihood.region
    outside = 0.0 if region is None else float((region.log_penalty(draws.positions) < 0.0).mean())
    return Checks(calibration, outside)
