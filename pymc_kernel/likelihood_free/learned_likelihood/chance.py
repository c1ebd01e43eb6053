"""The probability of an event given parameters: a regression on blocks of features, with precisions by evidence.

A weighted sum of features is the logit of the probability p, or log(-log p) (complementary log-log link), whichever is
likelier. The latter suits the event that nothing happens: a Poisson process has no event with probability exp(-h),
where h is proportional to the rate. With a logit that is linear in the log rate, the probability would fall as a power
of the rate, with too long a tail. Where something else gives a rough probability, the sum is of the difference from it.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import expit, log_expit

from pymc_kernel.likelihood_free.learned_likelihood.choices import choose_parameter_map
from pymc_kernel.likelihood_free.learned_likelihood.evidence import MAX_LOG, ROWS, fit_blocks, row_blocks
from pymc_kernel.likelihood_free.learned_likelihood.features import FeatureMap, ParameterMap, make_features
from pymc_kernel.likelihood_free.learned_likelihood.stages import Design
from pymc_kernel.parallel import one_blas_thread

_MAX_STEPS = 30  # of Newton's method
_LONGEST = 3.0  # largest change of a sum of features in one step
_MOVED = 0.02  # change below which steps end
_LEAST_CURVATURE = 1e-3  # of the log likelihood of a case, which bounds the steps where cases are certain
_SURE = -1e-12  # log probability from which on an event counts as certain
_IMPOSSIBLE = -1e12  # and the lowest one, so that scores are finite


class Logit:
    """The sum of features is the logit of the probability."""

    log_probability = staticmethod(log_expit)

    @staticmethod
    def of_log(log_chance):
        """Return the sum for a log probability below zero."""
        return log_chance - np.log(-np.expm1(log_chance))

    @staticmethod
    def step(sums, happened):
        """Return the expected curvature of the log likelihood of each case, and its slope."""
        chance = expit(sums)
        return chance * (1.0 - chance), np.where(happened, expit(-sums), -chance)


class LogLog:
    """The sum of features is the logarithm of h; the probability is exp(-h)."""

    @staticmethod
    def of_log(log_chance):
        """Return the sum for a log probability below zero."""
        return np.log(-log_chance)

    @staticmethod
    def log_probability(sums):
        """Return log probabilities."""
        return -np.exp(sums)

    @staticmethod
    def step(sums, happened):
        """Return the expected curvature of the log likelihood of each case, and its slope."""
        h = np.exp(sums)
        odds = h * np.exp(-h) / -np.expm1(-h)  # h times the odds of the event
        return h * odds, np.where(happened, -h, odds)


Link = type[Logit | LogLog]
LINKS: tuple[Link, ...] = Logit, LogLog


@dataclass(frozen=True, eq=False)
class Chance:
    """The probability of an event as a function of parameters."""

    link: Link
    parameters: ParameterMap
    features: FeatureMap
    weights: np.ndarray  # (r, p), of the features: the estimate first, then draws around it, by its uncertainty

    def replicate(self, number: int) -> "Chance":
        """Return the probability with the weights of one replicate in place of the estimate."""
        return replace(self, weights=self.weights[number + 1, None])

    def log_probability(self, parameters, rough=None) -> np.ndarray:
        """Return log probabilities (m,) at parameters (m, d), given the ``rough`` ones there if it was learned so."""
        return self.evaluate(parameters, False, 1, rough)[0][0]

    @one_blas_thread
    def evaluate(self, parameters, gradient: bool, number: int, rough=None) -> tuple[np.ndarray, np.ndarray]:
        """Return log probabilities (number, m) by the first weights; gradients (number, m, d), zero if not wanted."""
        weights, shift = self.weights[:number], _shift(self.link, rough, len(parameters))
        log_probabilities, slopes = np.empty((number, len(parameters))), np.zeros((number, *np.shape(parameters)))
        for rows in row_blocks(len(parameters), max(ROWS // number, 1)):
            part = parameters[rows]
            z = self.parameters(part)
            features = self.features(z)
            free = shift[rows] + weights @ features.T
            sums = np.clip(free, -MAX_LOG, MAX_LOG)
            log_probabilities[:, rows] = self.link.log_probability(sums)
            if gradient:
                pulls = np.where(free == sums, self.link.step(sums, True)[1], 0.0)
                back = self.features.pull_back(z, features, pulls[:, :, None] * weights[:, None])
                slopes[:, rows] = back * self.parameters.slope(part)
        return log_probabilities, slopes


@one_blas_thread
def learn_chance(parameters, happened, rng, sizes, num_replicates: int, weights=None, rough=None) -> Chance:
    """Return the probability of an event learned from cases (n,) with ``weights`` in which it ``happened`` or did not.

    ``sizes`` takes n and d and returns the numbers of bumps per parameter and of joint bumps. Replicates are draws of
    the weights from a normal approximation of their posterior distribution. Of the links the likeliest is taken.
    ``rough`` (n,) are log probabilities from elsewhere, which stay where the cases do not tell.

    Newton's steps for the penalized likelihood, precisions of the blocks of features by MacKay's updates between them:
    C. K. I. Williams, D. Barber, "Bayesian classification with Gaussian processes" (1998).
    """
    n, d = parameters.shape
    cases = np.ones(n) if weights is None else weights / weights.mean()
    places = choose_parameter_map(parameters, happened[:, None].astype(float), rng)
    z = places(parameters)
    design = Design(make_features(z, rng, *sizes(n, d)), z)
    fits = (_fitted(design, happened, cases, link, _shift(link, rough, n)) for link in LINKS)
    link, fit = max(fits, key=lambda found: found[0])[1:]
    drawn = np.zeros((num_replicates + 1, len(fit.weights)))
    drawn[1:, fit.active] = rng.standard_normal((num_replicates, len(fit.active))) @ fit.factor
    return Chance(link, places, design.map, (fit.weights + drawn) @ design.whitening.T)


def _shift(link, rough, number):
    """Return what rough log probabilities (n,) add to the sums; zero without any."""
    if rough is None:
        return np.zeros(number)
    return np.clip(link.of_log(np.clip(rough, _IMPOSSIBLE, _SURE)), -MAX_LOG, MAX_LOG)


def _fitted(design, happened, cases, link, shift):
    """Return log likelihood less the number of weights that cases determine (Akaike 1974), link and penalized fit."""
    weights = np.zeros(design.values.shape[1])
    if not shift.any():
        weights[0] = link.of_log(np.log((cases @ happened + 0.5) / (cases.sum() + 1.0)))
    precisions = None
    for _ in range(_MAX_STEPS):
        sums = shift + design.values @ weights
        curvature, slope = link.step(np.clip(sums, -MAX_LOG, MAX_LOG), happened)
        curvature = np.maximum(curvature, _LEAST_CURVATURE)
        response = sums - shift + slope / curvature
        own = cases * curvature
        given = design.gram(own), design.values.T @ (own * response), own @ response**2, len(happened), design.sizes
        fit = fit_blocks(*given, precisions, 1.0, 20 if precisions is None else 2)
        change = design.values @ (fit.weights - weights)
        longest = np.abs(change).max()
        weights = weights + min(1.0, _LONGEST / max(longest, 1e-300)) * (fit.weights - weights)
        precisions = fit.precisions
        if longest < _MOVED:
            break
    logs = link.log_probability(np.clip(shift + design.values @ fit.weights, -MAX_LOG, MAX_LOG))
    determined = own @ ((design.values[:, fit.active] @ fit.factor.T) ** 2).sum(axis=1)
    return cases @ log_scores(logs, happened) - determined, link, fit


def log_scores(log_probabilities: np.ndarray, happened: np.ndarray) -> np.ndarray:
    """Return the log probability of each case (n,), by that of the event and whether it happened."""
    log_probabilities = np.clip(log_probabilities, _IMPOSSIBLE, 0.0)
    return np.where(happened, log_probabilities, np.log(-np.expm1(np.minimum(log_probabilities, _SURE))))
