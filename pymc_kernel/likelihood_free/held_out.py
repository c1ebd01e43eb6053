"""Rejection ABC checked on simulations, whose parameters are known: the share to accept, and the posterior's accuracy.

Simulations near the observation are treated as the observation in turn, each left out of its own posterior. Imports
NumPy and siblings.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.rejection import regression_adjusted, rejection, scale_adjusted
from pymc_kernel.parallel import one_blas_thread

__all__ = ["ADJUSTMENTS", "Answer", "HeldOutAnswers", "Plan", "answer", "held_out_answers", "preferred"]

ADJUSTMENTS = {"none": None, "linear": regression_adjusted, "scaled": scale_adjusted}
_CLEAR_DIFFERENCE = 2.0  # standard errors by which a plan must be better than those before it


class Plan(NamedTuple):
    """The accepted share, and its adjustment to the observation."""

    quantile: float
    adjustment: str


class Answer(NamedTuple):
    """The posterior for one observation."""

    points: np.ndarray
    """(k, d)."""
    weights: np.ndarray
    """(k,), of sum one."""
    index: np.ndarray
    """(k,), of the accepted simulations."""
    epsilon: float
    """The largest distance among them."""


class HeldOutAnswers(NamedTuple):
    """Posteriors of held-out simulations by one plan."""

    scores: np.ndarray
    """(m,), continuous ranked probability scores, summed over parameters in their spreads; smaller is better."""
    ranks: np.ndarray
    """(m, d), posterior probabilities below the true parameters."""
    errors: np.ndarray
    """(m, d), true parameters minus posterior means."""


@one_blas_thread
def answer(latent, summaries, observed, plan: Plan, factors=None) -> Answer:
    """Return the posterior.

    Parameters
    ----------
    latent : ndarray (n, d)
    summaries : ndarray (n, q)
        Of comparable scales.
    observed : ndarray (q,)
    plan : Plan
    factors : ndarray (n,), optional
        The weights of accepted simulations are multiplied by these, as for a Bayesian bootstrap.
    """
    accepted = rejection(summaries, observed, plan.quantile)
    index, adjust = accepted.index, ADJUSTMENTS[plan.adjustment]
    weights = np.full(len(index), 1.0 / len(index)) if adjust is None else accepted.weights
    if factors is not None:
        weights = weights * factors[index] / (weights @ factors[index])
    points = latent[index] if adjust is None else adjust(latent[index], summaries[index], observed, weights)
    return Answer(points, weights, index, accepted.epsilon)


@one_blas_thread
def held_out_answers(latent, summaries, cases, plans: list[Plan]) -> list[HeldOutAnswers]:
    """Return for each plan its posteriors of the simulations ``cases`` (m,), each from all the others.

    Notes
    -----
    Time O(m n q), and O(m k q^2) for each plan that accepts k simulations.
    """
    spread = latent[cases].std(axis=0)
    spread = np.where(spread > 0.0, spread, 1.0)
    largest = max(plan.quantile for plan in plans)
    size = min(max(round(largest * len(latent)), 2) + 1, len(latent))
    records = [([], [], []) for _ in plans]
    for case in cases:
        squared = ((summaries - summaries[case]) ** 2).sum(axis=1)
        squared[case] = np.inf
        around = np.argpartition(squared, size - 2)[: size - 1]
        share = len(latent) / len(around)  # quantiles are of all simulations
        for plan, (scores, ranks, errors) in zip(plans, records, strict=True):
            inner = Plan(min(plan.quantile * share, 1.0), plan.adjustment)
            points, weights, *_ = answer(latent[around], summaries[around], summaries[case], inner)
            truth = latent[case]
            scores.append((_ranked_score(points, weights, truth) / spread).sum())
            ranks.append(weights @ (points < truth) + 0.5 * weights @ (points == truth))
            errors.append(truth - weights @ points)
    return [HeldOutAnswers(*map(np.array, parts)) for parts in records]


def preferred(scores: list[np.ndarray]) -> int:
    """Return the number of the plan to take: the first, unless one has clearly better scores (m,) on the same cases."""
    taken = 0
    for number in np.argsort([s.mean() for s in scores], kind="stable")[:1]:
        gain = scores[taken] - scores[number]
        if gain.mean() > _CLEAR_DIFFERENCE * gain.std() / np.sqrt(len(gain)):
            taken = int(number)
    return taken


def _ranked_score(points, weights, truth):
    """Return E|X - t| - E|X - X'| / 2 for each coordinate (d,)."""
    away = weights @ np.abs(points - truth)
    apart = np.empty(points.shape[1])
    for j, column in enumerate(points.T):
        order = np.argsort(column)
        below = np.cumsum(weights[order])[:-1]
        apart[j] = (2.0 * below * (1.0 - below)) @ np.diff(column[order])
    return away - 0.5 * apart
