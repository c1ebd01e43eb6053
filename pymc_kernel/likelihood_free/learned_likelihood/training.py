"""The whole of a fit: stages, the distribution of residuals, the joint maximization; what helps is chosen by a held-out
part of the simulations. Imports NumPy and siblings only.
"""

from typing import NamedTuple

import numpy as np

from pymc_kernel.likelihood_free.learned_likelihood.model import ConditionalDensity, Weights, residuals_of
from pymc_kernel.likelihood_free.learned_likelihood.polish import Polish
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Marginals, Residuals, candidates
from pymc_kernel.likelihood_free.learned_likelihood.stages import fit_stages

__all__ = ["Plan", "learn", "learn_by_plan"]

_STEPS = 12  # of the maximization between two looks at the held-out score
_MAX_ROUNDS = 6
_SCALES = np.exp(np.linspace(-0.4, 0.4, 17))
_FEWEST = 30  # held-out cases for a choice


class Plan(NamedTuple):
    """What a held-out part of the simulations chose."""

    family: int
    """Which list of candidates of the residuals."""
    member: int
    rounds: int
    """Of joint maximization."""
    scale: float
    """Of the residuals."""


def learn(places, parameters, values, weights, back, rng, sizes) -> tuple[ConditionalDensity, Plan]:
    """Return the density learned from the cases that are not held ``back`` (n,), and what the others chose."""
    z = places(parameters)
    staged = fit_stages(z[~back], values[~back], weights[~back], rng, sizes)
    features, held, cases = staged.design.map(z[back]), values[back], weights[back]

    def score(weights_now, residuals):
        parts = staged.raw(weights_now).entries(features)
        density = residuals.log_density_and_slope(residuals_of(parts, held)[1])[0]
        return cases @ (density - parts.log_sd.sum(axis=1) - parts.log_rest.sum(axis=1))

    now = staged.weights
    noise = residuals_of(staged.raw(now).entries(features), held)[1]
    family, member, residuals = _chosen_residuals(staged.noise, weights[~back], noise, cases, rng)
    rounds, now, residuals = _polished(Polish(staged, values[~back], weights[~back]), now, residuals, score)
    scores = [score(now, residuals.scaled(s)) for s in _SCALES]
    scale = float(_SCALES[int(np.argmax(scores))]) if back.sum() >= _FEWEST else 1.0
    density = ConditionalDensity(places, staged.design.map, staged.raw(now), residuals.scaled(scale))
    return density, Plan(family, member, rounds, scale)


def learn_by_plan(places, parameters, values, weights, plan: Plan, rng, sizes) -> ConditionalDensity:
    """Return the density learned from all cases."""
    staged = fit_stages(places(parameters), values, weights, rng, sizes)
    lists = list(candidates(staged.noise, weights, rng))
    residuals, now = lists[plan.family][plan.member](), staged.weights
    polish = Polish(staged, values, weights) if plan.rounds else None
    for _ in range(plan.rounds):
        now, residuals = _round(polish, now, residuals)
    return ConditionalDensity(places, staged.design.map, staged.raw(now), residuals.scaled(plan.scale))


def _round(polish, weights: Weights, residuals: Residuals):
    weights = polish.steps(weights, residuals, _STEPS)
    return weights, residuals.fitted(polish.noise(weights), polish.cases, 10)


def _polished(polish, weights, residuals, score):
    """Return how many rounds of maximization are best, and what they lead to."""
    best = (0, weights, residuals)
    top = score(weights, residuals)
    for number in range(1, _MAX_ROUNDS + 1):
        weights, residuals = _round(polish, weights, residuals)
        found = score(weights, residuals)
        if found > top:
            best, top = (number, weights, residuals), found
        elif number - best[0] >= 2:
            break
    return best


def _chosen_residuals(noise, weights, held, cases, rng):
    """Return the family, its member and the distribution with the best score of held-out residuals."""
    best, top = (0, 0, Marginals.normal(noise.shape[1])), -np.inf
    for family, members in enumerate(candidates(noise, weights, rng)):
        before = -np.inf
        for member, make in enumerate(members):
            found = make()
            score = cases @ found.log_density_and_slope(held)[0]
            if score > top:
                best, top = (family, member, found), score
            if score < before:
                break
            before = score
    return best
