"""What speaks for or against the likelihood of a last round, by fits that leave out a part of the simulations each.

Imports NumPy and lower floors only.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import log_expit

from pymc_kernel.rounds.calibration import Calibration, Fold, simulated_ranks, summarized_ranks
from pymc_kernel.rounds.local_likelihood import LocalLikelihood, as_logit
from pymc_kernel.rounds.particles import Draws
from pymc_kernel.smc.weights import normalized

__all__ = ["Checks", "Fold", "checked", "choose_match"]

_FEWEST_MATCHES, _LEAST_SHARE = 20, 0.05  # simulations that give just the data, for their probability to be learned
_TOWARD_PRIOR = 0.5  # power of the weights that make simulated parameters draws of the prior: at 1 few would count


class Checks(NamedTuple):
    """What fits to parts of the simulations say of a posterior, for each parameter on the unconstrained scale."""

    calibration: Calibration
    """Of posteriors of simulations that resemble the observation."""
    mean_error: np.ndarray
    """(d,), standard error of the mean, in posterior standard deviations, by the jackknife over folds.

    A fit to (K - 1) / K of the simulations moves by 1 / (K - 1) of the influence of those left out, so that K - 1 times
    the variance between the K fits is that of the fit to all.
    """
    outside: float
    """Share of the posterior outside of the region that the last round simulated."""


class _Match(NamedTuple):
    """The probability of a match as a likelihood of data that are one."""

    likelihood: LocalLikelihood

    def log_density(self, parameters, _):
        """Return log probabilities (m,)."""
        return self.likelihood(parameters)

    def log_densities(self, parameters, rows):
        """Return log probabilities (k, m), the same for all rows."""
        return np.broadcast_to(self.likelihood(parameters), (len(rows), len(parameters)))


def choose_match(likelihood: LocalLikelihood, folds, parameters, summaries, is_near, learn, rng):
    """Return the likelihood and its folds; by the probability of a match where held-out simulations speak for that.

    It corrects that of the learned density, which knows more where matches are rare.

    Parameters
    ----------
    folds : list of Fold
        Of the simulations ``is_near``.
    parameters, summaries : ndarray (n, d), (n, q)
        All in the region; summaries of those that failed are NaN.
    is_near : ndarray (n,) of bool
        Those that did not fail.
    learn : callable
        Takes parameters, what happened, a generator, ``offset``; returns a Chance, or None where it is certain.
    """
    matches = (summaries == likelihood.observed).all(axis=1)
    if matches.sum() < max(_FEWEST_MATCHES, _LEAST_SHARE * len(matches)) or matches.all():
        return likelihood, folds
    if (likelihood.observed != np.round(likelihood.observed)).any():
        return likelihood, folds
    # What a fit says of the simulations that it was learned from would be too good.
    near, plain = np.flatnonzero(is_near), replace(likelihood, region=None)
    logits = as_logit(plain(parameters))
    for rows, fit in folds:
        logits[near[rows]] = as_logit(replace(plain, fit=fit)(parameters[near[rows]]))
    found, gain = [], 0.0
    for rows, fit in folds:
        left = near[rows]
        rest = np.setdiff1d(np.arange(len(matches)), left)
        chance = learn(parameters[rest], matches[rest], rng, offset=logits[rest])
        if chance is None:
            return likelihood, folds
        corrected = chance.log_probability(parameters[left], logits[left])
        gain += _log_score(corrected, matches[left]) - _log_score(log_expit(logits[left]), matches[left])
        found.append(Fold(rows[matches[left]], _Match(replace(likelihood, fit=fit, match=chance))))
    if gain <= 0.0:
        return likelihood, folds
    return replace(likelihood, match=learn(parameters, matches, rng, offset=logits)), found


def _log_score(log_chance, happened):
    return log_chance[happened].sum() + np.log(-np.expm1(np.minimum(log_chance[~happened], -1e-12))).sum()


def checked(likelihood: LocalLikelihood, folds, parameters, summaries, log_weights, draws: Draws, rng) -> Checks:
    """Return what folds of the simulations say.

    Parameters
    ----------
    parameters, summaries : ndarray (n, d), (n, q)
        What the likelihood was learned from.
    log_weights : ndarray (n,)
        Logarithms of the prior density over that of where the parameters were simulated.
    draws : Draws
        Of the posterior.
    """
    given = parameters, summaries, likelihood.observed, folds, rng
    calibration = summarized_ranks(*simulated_ranks(*given, _TOWARD_PRIOR * log_weights))
    means = []
    for fold in folds:
        part = fold.fit.likelihood if likelihood.match else replace(likelihood, fit=fold.fit)
        ratio = part(draws.positions) - draws.log_likelihood
        if np.isfinite(ratio).any():  # the data may be impossible, as far as some of the simulations say
            means.append(normalized(np.where(np.isfinite(ratio), ratio, -np.inf)) @ draws.positions)
    if len(means) < 2:
        means = np.full((2, draws.positions.shape[1]), np.nan)
    error = np.std(means, axis=0) * np.sqrt(len(folds) - 1.0) / draws.positions.std(axis=0)
    region = likelihood.region
    outside = 0.0 if region is None else float((region.log_penalty(draws.positions) < 0.0).mean())
    return Checks(calibration, error, outside)
