"""The posterior for one observation: rules fitted anew to ever fewer training points around it.

Using only training points whose observations are near the given one does not change the posterior, since it conditions
on the observation; the regression becomes a simpler problem for the same number of features. Held-out cases near the
observation choose the size of the neighborhood, and check the posterior. Imports NumPy and siblings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymc_kernel.embeddings.choice import HeldOut
from pymc_kernel.embeddings.fitted_rule import FittedRule
from pymc_kernel.embeddings.local_check import LocalErrors, local_errors, moves_from
from pymc_kernel.embeddings.mixture import Mixture
from pymc_kernel.embeddings.predictive import Settings, squared_distances
from pymc_kernel.parallel import one_blas_thread

__all__ = [
    "NUM_REPLICATES",
    "Candidate",
    "Check",
    "LocalPosterior",
    "miscalibration",
    "moments_of",
    "posterior_near",
    "representative",
]

_SHARES = (1.0, 0.3, 0.09, 0.03, 0.01)  # of the training points, that a rule is fitted to
_NEIGHBORHOODS = (
    1.0,
    0.3,
    0.1,
    0.03,
)  # shares of a rule's points; smaller ones come with rules of fewer points
_MIN_POINTS = 250  # effective number of training points of a rule
NUM_REPLICATES = 16  # fits to resampled training points, for the error of learning
_NUM_CHOICES = 1000  # random choices of replicates for the chains, of which the most representative is taken
_CHECKED = (0.5, 0.95)  # probabilities of intervals whose coverage is checked
_ERRORS = 4.0  # standard errors that a coverage may be off
_NUM_CASES = 150  # held-out cases near the observation, by which a rule is chosen
_NUM_CHECKED = 300  # held-out cases that check the posterior


class Check(NamedTuple):
    """A check of the posterior for an observation, by held-out cases around it.

    Attributes
    ----------
    held_out : HeldOut
        Predictions of the cases.
    moves : ndarray (m, p)
        How far the cases are from the observation, in posterior means.
    half : HeldOut
        Predictions of the same cases from half as many training points.
    """

    held_out: HeldOut
    moves: np.ndarray
    half: HeldOut

    def local_errors(self) -> LocalErrors:
        """Return the expected errors of the posterior at the observation."""
        return local_errors(self.held_out.ranks, self.moves, self.held_out.weights)

    def doubling_gain(self) -> tuple[float, float]:
        """Return the gain in mean log density of the cases by doubling the training points, and its standard error."""
        weights, gains = self.held_out.weights, self.half.losses - self.held_out.losses
        mean = weights @ gains
        return float(mean), float(np.sqrt(weights**2 @ (gains - mean) ** 2))


@dataclass(frozen=True, eq=False)
class Candidate:
    """A rule fitted to some of the training points, with its settings for one observation.

    Attributes
    ----------
    rule : FittedRule
    observed : ndarray (q,)
    settings : Settings
        Neighborhood and smoothing of the residuals.
    held_out : HeldOut
        Predictions of held-out cases near the observation, the same ones for all candidates.
    check : callable
        Returns the :class:`Check` of the answer.
    """

    rule: FittedRule
    observed: np.ndarray
    settings: Settings
    held_out: HeldOut
    check: Callable[[], Check]

    @property
    def losses(self) -> np.ndarray:
        """Minus the log densities (m,) of the cases' parameters, up to a constant."""
        return self.held_out.losses + np.log(self.rule.regression.scale).sum()

    @one_blas_thread
    def mixture(self, factors: np.ndarray | None = None) -> Mixture:
        """Return the posterior, of the fit with weights times ``factors`` (n,) of the rule's training points."""
        features, scaled = self.rule.query(self.observed[None])
        return self.rule.regression.posterior(self.settings, features[0], scaled[0], factors)

    def effective_number(self) -> float:
        """Return the effective number of training points behind the posterior."""
        features, scaled = self.rule.query(self.observed[None])
        place = self.rule.regression.places(self.settings.metric, features, scaled)[0]
        return self.rule.regression.predictive(self.settings)[1].effective_number(place)


class LocalPosterior:
    """The posterior for one observation.

    Parameters
    ----------
    candidates : list of Candidate
        From all training points to the fewest around the observation.

    Attributes
    ----------
    best : Candidate
        The one that predicts held-out cases near the observation best.
    scores : dict
        Number of training points -> minus the mean log density of these cases; smaller is better.
    """

    def __init__(self, candidates: list[Candidate]):
        self._candidates = candidates
        self._weights = candidates[0].held_out.weights
        self._losses = np.stack([c.losses for c in candidates])
        means = self._losses @ self._weights
        self.best = candidates[int(np.argmin(means))]
        self.scores = {len(c.rule.latent): float(m) for c, m in zip(candidates, means, strict=True)}

    @property
    def is_global(self) -> bool:
        """Whether all training points and all residuals predict best, so that neighborhoods gain nothing."""
        return self.best is self._candidates[0] and self.best.settings.share == 1.0

    def mixture(self) -> Mixture:
        """Return the posterior of the best candidate."""
        return self.best.mixture()

    def replicate(self, rng: np.random.Generator) -> Mixture:
        """Return a replicate of the posterior, as from other simulations: a Bayesian bootstrap (Rubin 1981).

        Cases get random weights, which may choose another candidate, and so do the training points of its fit.
        """
        weights = self._weights * rng.standard_exponential(len(self._weights))
        candidate = self._candidates[int(np.argmin(self._losses @ weights))]
        return candidate.mixture(rng.standard_exponential(len(candidate.rule.latent)))

    @one_blas_thread
    def replicates(self, rng: np.random.Generator, count: int = NUM_REPLICATES) -> list[Mixture]:
        """Return ``count`` replicates of the posterior."""
        return [self.replicate(rng) for _ in range(count)]

    def learning_error(self, replicates: list[Mixture]) -> tuple[np.ndarray, np.ndarray]:
        """Return the standard deviations (p,) between replicates of posterior means, in posterior ones, and of these.

        The second are of the logarithms of posterior standard deviations: parts of them.
        """
        means, log_spreads = moments_of(replicates)
        spread = np.sqrt(np.diag(self.mixture().moments()[1]))
        return means.std(axis=0, ddof=1) / spread, log_spreads.std(axis=0, ddof=1)


def representative(moments: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices (count,) of replicates that vary as all do: the chains then differ by the error of learning.

    The spread between four replicates at random is a third to twice that between all, and R-hat and Monte Carlo errors
    with it. Of many random choices the one with the most similar means and variances of ``moments`` (k, m) is taken.
    """
    if count < 2 or count >= len(moments):
        return np.arange(count) % len(moments)
    values = moments - moments.mean(axis=0)
    values = values / np.maximum(values.std(axis=0, ddof=1), np.finfo(float).tiny)
    choices = np.stack([rng.choice(len(moments), size=count, replace=False) for _ in range(_NUM_CHOICES)])
    chosen = values[choices]  # (choices, count, m)
    variances = np.maximum(chosen.var(axis=1, ddof=1), 1e-6)
    badness = (np.log(variances) ** 2 + count * chosen.mean(axis=1) ** 2).sum(axis=1)
    return choices[int(np.argmin(badness))]


def moments_of(replicates: list[Mixture]) -> tuple[np.ndarray, np.ndarray]:
    """Return the means (k, p) of replicates, and the logarithms of their standard deviations."""
    moments = [replicate.moments() for replicate in replicates]
    return (
        np.stack([mean for mean, _ in moments]),
        np.stack([0.5 * np.log(np.diag(covariance)) for _, covariance in moments]),
    )


@one_blas_thread
def posterior_near(rule: FittedRule, observed: np.ndarray, rng: np.random.Generator) -> LocalPosterior:
    """Return the posterior for one observation.

    Parameters
    ----------
    rule : FittedRule
        Fitted to all training points, by :class:`~pymc_kernel.embeddings.KernelBayesRule`.
    observed : ndarray (q,)
    rng : numpy.random.Generator

    Notes
    -----
    Rules are fitted to all training points and to the nearest third, tenth, ... of them, each time by the nearness of
    the rule before. All are scored on the same cases, those nearest to the observation: the best by minus the mean log
    density of the held-out cases is taken.
    """
    levels, kept = [], np.arange(len(rule.latent))
    members = [kept]
    for share in _SHARES:
        if share < 1.0:
            size = round(share * len(rule.latent))
            nearest = _nearest(levels[-1], observed, size, rng)
            if _effective_number(levels[-1].rule, nearest) < _MIN_POINTS:
                break
            members.append(members[-1][nearest])
            rule_here = levels[-1].rule.subset(nearest, rng)
        else:
            rule_here = rule
        levels.append(_Level(rule_here, observed, rng))
    checked = members[-1][_nearest(levels[-1], observed, _NUM_CHECKED, rng)]
    cases = checked[:_NUM_CASES]
    candidates = []
    for level, own in zip(levels, members, strict=True):
        index = np.full(len(rule.latent), -1)
        index[own] = np.arange(len(own))
        candidates.append(level.candidate(observed, index[cases], index[checked]))
    return LocalPosterior(candidates)


def miscalibration(held_out: HeldOut) -> str:
    """Return a text on coverage of held-out cases that is off by more than four standard errors; empty if none is."""
    for probability in _CHECKED:
        coverage = held_out.coverage(probability)
        error = np.sqrt(probability * (1.0 - probability) / held_out.effective_number)
        worst = coverage[np.argmax(np.abs(coverage - probability))]
        if abs(worst - probability) > _ERRORS * error:
            return f"{100 * worst:.0f} % have a parameter in its {100 * probability:.0f} % interval"
    return ""


class _Level:
    """A rule, and its choice by cases near the observation."""

    def __init__(self, rule, observed, rng):
        self.rule = rule
        regression = rule.regression
        features, scaled = rule.query(observed[None])
        squared = sum(_scaled_squares(regression, metric, features, scaled) for metric in ("observed", "predicted"))
        self.cross_fit = regression.cross_fit(rng)
        cases = rng.permutation(_smallest(squared, _NUM_CASES, rng))
        self.settings = self.cross_fit.choose(cases, shares=_NEIGHBORHOODS).settings

    def candidate(self, observed, cases, checked):
        """Return the rule with its predictions of the training points ``cases`` (m,), to be ``checked`` on more."""

        @one_blas_thread
        def check():
            regression = self.rule.regression
            at_cases = regression.places("predicted", regression.features[checked], regression.observed[checked])
            at_observation = regression.places("predicted", *self.rule.query(observed[None]))
            half = regression.half_cross_fit(self.cross_fit.fold_of)
            both = [fits.held_out(self.settings, checked) for fits in (self.cross_fit, half)]
            return Check(both[0], moves_from(at_observation[0], at_cases), both[1])

        held_out = self.cross_fit.held_out(self.settings, cases)
        return Candidate(self.rule, observed, self.settings, held_out, check)


def _scaled_squares(regression, metric, features, scaled):
    """Return squared distances (n,) of the training points from a query, in units of their median."""
    places = regression.places(metric, regression.features, regression.observed)
    squared = squared_distances(places, regression.places(metric, features, scaled)[0])
    return squared / (np.median(squared) or squared.mean() or 1.0)  # more than half may be tied with the query


def _nearest(level, observed, size, rng):
    """Return the indices of the training points of a level nearest to the observation, in its own metric."""
    features, scaled = level.rule.query(observed[None])
    squared = _scaled_squares(level.rule.regression, level.settings.metric, features, scaled)
    return _smallest(squared, size, rng)


def _smallest(squared, size, rng):
    """Return the indices of the smallest numbers; of ties any, since points are in the order of their rounds."""
    order = rng.permutation(len(squared))
    return order[np.argsort(squared[order], kind="stable")[:size]]


def _effective_number(rule, inside):
    weights = rule.regression.residual_weights[inside]
    total = weights.sum()
    return total**2 / (weights**2).sum() if total > 0.0 else 0.0
