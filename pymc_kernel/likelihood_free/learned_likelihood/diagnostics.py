"""What a learned density says of summaries that it was not learned from. Imports NumPy only."""

from typing import NamedTuple

import numpy as np

_NUM_DRAWS = 200  # at each case; a share of 2.5 % of them has a standard error of 1.1 %
_MAX_CASES = 1000
_LEVEL = 0.95


class HeldOut(NamedTuple):
    """How simulations that were kept back lie in the distributions that were learned for them.

    Its numbers are those of a density learned from the other simulations alone.
    """

    log_scores: np.ndarray
    """(m,), log densities; larger is better."""
    transforms: np.ndarray
    """(m, q), probability-integral transforms; uniform on (0, 1) where the learned distributions are right."""
    joint: np.ndarray
    """(m,), probabilities of a smaller density; uniform likewise."""

    @property
    def log_score(self) -> float:
        """Mean log density."""
        return float(self.log_scores.mean())

    @property
    def coverage(self) -> np.ndarray:
        """Share (q,) of cases in the 95 % interval of each summary."""
        return (np.abs(self.transforms - 0.5) <= 0.5 * _LEVEL).mean(axis=0)

    @property
    def joint_coverage(self) -> float:
        """Share of cases in the region of highest density that holds 95 %."""
        return float((self.joint >= 1.0 - _LEVEL).mean())


class PredictivePlace(NamedTuple):
    """Where an observation lies in the distribution of simulated ones; small numbers say outside."""

    p_values: np.ndarray
    """(q,), two-sided, of each summary."""
    joint: float
    """Probability of a smaller density than the observation's."""


def check_held_out(fit, parameters, summaries, rng) -> HeldOut:
    """Return where rows of ``summaries`` (m, q) lie given ``parameters`` (m, d)."""
    if len(parameters) > _MAX_CASES:
        some = rng.choice(len(parameters), _MAX_CASES, replace=False)
        parameters, summaries = parameters[some], summaries[some]
    scores = fit.log_density(parameters, summaries)
    below, lower = np.zeros(summaries.shape), np.zeros(len(parameters))
    for _ in range(_NUM_DRAWS):
        draws = fit.sample(parameters, rng)
        below += _share_below(draws, summaries, rng)
        lower += fit.log_density(parameters, draws) < scores
    jitter = rng.random(summaries.shape), rng.random(len(parameters))
    return HeldOut(scores, (below + jitter[0]) / (_NUM_DRAWS + 1), (lower + jitter[1]) / (_NUM_DRAWS + 1))


def _share_below(draws, values, rng):
    return np.where(draws == values, rng.random(values.shape), draws < values)


def place_among(fit, observed, parameters, rng) -> PredictivePlace:
    """Return where ``observed`` (q,) lies among draws given ``parameters`` (m, d), one or several each."""
    m = len(parameters)
    repeated = np.tile(parameters, (max(1, -(-2000 // m)), 1))
    draws = fit.sample(repeated, rng)
    rows = np.broadcast_to(observed, draws.shape)
    below = _share_below(draws, rows, rng).sum(axis=0)
    share = (below + 0.5) / (len(draws) + 1.0)
    lower = fit.log_density(repeated, draws) < fit.log_density(repeated, rows)
    return PredictivePlace(2.0 * np.minimum(share, 1.0 - share), float((lower.sum() + 0.5) / (len(draws) + 1.0)))
