"""The complete fit: stages, the distribution of residuals, then all weights at once by a penalized likelihood.

Held-out simulations choose between alternatives.
"""

from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize

from pymc_kernel.likelihood_free.learned_likelihood.model import (
    ConditionalDensity,
    Weights,
    log_terms,
    pull_back,
    residuals_of,
)
from pymc_kernel.likelihood_free.learned_likelihood.residuals import Joint, Residuals, candidates, stacked
from pymc_kernel.likelihood_free.learned_likelihood.stages import Precisions, StagedFit, fit_stages
from pymc_kernel.likelihood_free.learned_likelihood.summaries import Observed

_STEPS = 12  # of the maximization between two looks at the held-out score
_MAX_ROUNDS = 6
_SCALES = np.exp(np.linspace(-0.4, 0.4, 33))
_SD_OF_SCALE = 0.05  # of the prior of the log scale of residuals, which few held-out cases hardly determine
MOST_OF_A_CASE = 10.0  # largest difference of log scores that counts for one case
_CLEARLY = 2.5  # log score by which another distribution of residuals must be better
_BETTER = 1.0  # and another round of maximization
_BOOTSTRAP_STEPS = 20  # of expectation and maximization, from the estimate
_FEWEST = 30  # held-out cases for a choice of the scale


class Data(NamedTuple):
    """Simulations: coordinates of parameters, summaries, weights."""

    z: np.ndarray  # (n, d)
    spread: Observed  # transformed summaries, whole numbers spread over their intervals
    cells: Observed  # transformed summaries, whole numbers as intervals
    weights: np.ndarray  # (n,), of mean one

    def take(self, rows) -> "Data":
        """Return some of them."""
        return Data(self.z[rows], self.spread.take(rows), self.cells.take(rows), self.weights[rows])

    def observed(self, residuals) -> Observed:
        """Return the summaries as these residuals score them: joint ones have no probabilities of intervals."""
        return self.spread if isinstance(residuals, Joint) else self.cells


class Plan(NamedTuple):
    """The choices that held-out simulations made."""

    family: int  # which list of candidates of the residuals
    member: int
    rounds: int  # of joint maximization
    scale: float  # of the residuals
    metric: np.ndarray  # with ``precisions``, the start of stages that are fitted to other cases of the same simulator
    precisions: Precisions


def learn(places, train: Data, held: Data, rng, sizes) -> tuple[ConditionalDensity, Plan]:
    """Return the density learned from the cases ``train``, and the choices made by the ``held`` out ones."""
    staged = fit_stages(train.z, train.spread.values, train.weights, rng, sizes)
    features = staged.design.map(held.z)

    def score(weights, residuals):
        parts = staged.design.raw(weights).entries(features)
        return log_terms(parts, held.observed(residuals), residuals).log_density

    def gain(scores, than):
        # Without a limit, cases far from all others would decide alone.
        return held.weights @ np.clip(scores - than, -MOST_OF_A_CASE, MOST_OF_A_CASE)

    family, member, residuals = _chosen_residuals(staged, train.weights, score, gain, rng)
    rounds, now, residuals = _polished(Polish(staged, train), staged.weights, residuals, score, gain)
    plain = score(now, residuals)
    scores = [gain(score(now, residuals.scaled(s)), plain) - 0.5 * (np.log(s) / _SD_OF_SCALE) ** 2 for s in _SCALES]
    scale = float(_SCALES[int(np.argmax(scores))]) if len(held.weights) >= _FEWEST else 1.0
    density = _density(places, staged.design, [(now, residuals.scaled(scale))])
    return density, Plan(family, member, rounds, scale, staged.design.map.metric, staged.precisions)


def learn_by_plan(places, data: Data, plan: Plan, rng, sizes, num_replicates: int) -> ConditionalDensity:
    """Return the density learned from all cases, followed by ``num_replicates`` draws around it.

    These have weights from a normal approximation of their posterior distribution, and residuals by a Bayesian
    bootstrap: with few observed summaries, the shape of the residuals is decisive, and it is no less uncertain.
    """
    staged = fit_stages(data.z, data.spread.values, data.weights, rng, sizes, plan.metric, plan.precisions)
    members, now = list(candidates(staged.noise, data.weights, rng))[plan.family], staged.weights
    residuals = members[min(plan.member, len(members) - 1)]()  # fewer cases may allow fewer candidates
    polish = Polish(staged, data) if plan.rounds else None
    for _ in range(plan.rounds):
        now, residuals = _round(polish, now, residuals)
    found = [(now, residuals.scaled(plan.scale))]
    if not num_replicates:
        return _density(places, staged.design, found)
    curved = Polish(staged._replace(weights=now), data)
    center, noise = curved.pack(now), curved.noise(now)
    for _ in range(num_replicates):
        weights = curved.unpack(center + rng.standard_normal(center.shape))
        shape = residuals
        if residuals.log_weights.shape[-1] > 1:  # mean and spread of a normal distribution are among the weights
            shape = residuals.fitted(noise, data.weights * rng.standard_exponential(len(noise)), _BOOTSTRAP_STEPS)
        found.append((weights, shape.scaled(plan.scale)))
    return _density(places, staged.design, found)


def _density(places, design, found) -> ConditionalDensity:
    """Return the densities of pairs of weights and residuals, with the features that any of them uses."""
    raw = [design.raw(weights) for weights, _ in found]
    joined, coefficients = np.stack([w.joined() for w in raw]), np.stack([w.coefficients for w in raw])
    used = (joined != 0.0).any(axis=(0, 2))
    used[: coefficients.shape[1]] |= (coefficients != 0.0).any(axis=(0, 2))
    features, index = design.map.reduced(used)
    coefficients = coefficients[:, index[index < coefficients.shape[1]]]
    return ConditionalDensity(places, features, joined[:, index], coefficients, stacked([r for _, r in found]))


def _round(polish, weights: Weights, residuals: Residuals):
    weights = polish.steps(weights, residuals, _STEPS)
    return weights, residuals.fitted(polish.noise(weights), polish.cases, 10)


def _polished(polish, weights, residuals, score, gain):
    """Return the best number of rounds of maximization, and the weights and residuals after them."""
    best = (0, weights, residuals)
    top = score(weights, residuals)
    for number in range(1, _MAX_ROUNDS + 1):
        weights, residuals = _round(polish, weights, residuals)
        found = score(weights, residuals)
        if gain(found, top) > _BETTER:
            best, top = (number, weights, residuals), found
        elif number - best[0] >= 2:
            break
    return best


def _chosen_residuals(staged, weights, score, gain, rng):
    """Return the family, its member and the distribution with the best score of held-out residuals."""
    best, top = None, None
    for family, members in enumerate(candidates(staged.noise, weights, rng)):
        before = None
        for member, make in enumerate(members):
            residuals = make()
            found = score(staged.weights, residuals)
            if best is None or gain(found, top) > _CLEARLY:
                best, top = (family, member, residuals), found
            if before is not None and gain(found, before) < 0.0:
                break
            before = found
    return best


class Polish:
    """The penalized likelihood of a staged fit as a function of one vector, in coordinates of about unit curvature."""

    def __init__(self, staged: StagedFit, data: Data):
        self.design, self.data, self.cases, self.weights = staged.design, data, data.weights, staged.weights
        self.columns = list(self._columns(staged))
        self.ends = np.cumsum([len(active) for _, _, active, *_ in self.columns])[:-1]

    def _columns(self, staged):
        """Yield the record of ``_column`` for each column of weights."""
        spread = np.exp(-2.0 * (self.design.values @ self.weights.log_sd))
        rest = np.exp(-2.0 * (self.design.values @ self.weights.log_rest))
        plain, penalty_of = self.design.plain_gram(self.cases), self.design.of_features
        for j, (of_means, of_log_sd, of_log_rest) in enumerate(zip(*staged.precisions, strict=True)):
            gram = self.design.gram(self.cases * spread[:, j] * rest[:, j])
            yield _column("means", j, penalty_of(of_means), gram)
            yield _column("log_sd", j, penalty_of(4.0 * of_log_sd), 2.0 * plain)
            if j:
                yield _column("log_rest", j, penalty_of(4.0 * of_log_rest), 2.0 * plain)
        for k, penalty in enumerate(staged.coefficient_penalties.T):
            yield _column("coefficients", k, penalty, plain, ridge=0.0)

    def pack(self, weights: Weights) -> np.ndarray:
        """Return the vector of weights."""
        return np.concatenate(
            [root.T @ getattr(weights, part)[active, k] for part, k, active, _, root, _ in self.columns]
        )

    def unpack(self, vector) -> Weights:
        """Return the weights of a vector."""
        out = Weights(*map(np.zeros_like, self.weights))
        for (part, k, active, *_, inverse), piece in zip(self.columns, np.split(vector, self.ends), strict=True):
            getattr(out, part)[active, k] = inverse.T @ piece
        return out

    def loss(self, vector, residuals):
        """Return minus the penalized log likelihood, and its gradient."""
        weights = self.unpack(vector)
        parts = weights.entries(self.design.values)
        terms = log_terms(parts, self.data.observed(residuals), residuals)
        total, pulls = -self.cases @ terms.log_density, pull_back(parts, terms)
        weighted = [pull * -self.cases[:, None] for pull in pulls]
        back = Weights(*[self.design.values[:, : len(w)].T @ p for w, p in zip(weights, weighted, strict=True)])
        gradient = []
        for part, k, active, penalty, _, inverse in self.columns:
            own = getattr(weights, part)[active, k]
            total += 0.5 * penalty @ own**2
            gradient.append(inverse @ (getattr(back, part)[active, k] + penalty * own))
        gradient = np.concatenate(gradient)
        if not np.isfinite(total) or not np.isfinite(gradient).all():
            return 1e300, np.zeros_like(gradient)
        return total, gradient

    def steps(self, weights: Weights, residuals, iterations: int) -> Weights:
        """Return weights after some iterations with these residuals."""
        options = {"maxiter": iterations, "maxcor": 20}
        found = minimize(self.loss, self.pack(weights), (residuals,), "L-BFGS-B", jac=True, options=options)
        return self.unpack(found.x)

    def noise(self, weights: Weights) -> np.ndarray:
        """Return residuals (n, q)."""
        return residuals_of(weights.entries(self.design.values), self.data.spread.values)[1]


def _column(part, number, penalty, gram, ridge=1e-8):
    """Return part, number, active features, their penalties, a root of the curvature, and its inverse for a column."""
    active = np.flatnonzero(np.isfinite(penalty))
    curvature = gram[np.ix_(active, active)] + np.diag(penalty[active] + ridge * np.trace(gram) / len(gram))
    root = cholesky(curvature, lower=True)
    return part, number, active, penalty[active], root, solve_triangular(root, np.eye(len(root)), lower=True)
