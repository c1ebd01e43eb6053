"""Reasons to distrust a posterior that was learned from simulations, in words."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtr

from pymc_kernel.embeddings.inputs import OUTSIDE, typicality
from pymc_kernel.kernels.points import scales_of
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.plugin.warn import report_all
from pymc_kernel.smc.weights import normalized

NUM_REPLICATES = 16  # fits to resampled simulations: 16 determine their standard deviation to within a fifth
_FEW_EFFECTIVE = 30  # effective number of simulations, below which a warning is given
_LARGE_ERROR = 0.2  # learning error in posterior standard deviations, above which a warning is given

_OPINION_SIMULATIONS = 2000  # that a likelihood is learned from for a second opinion, which takes seconds
# Differences of means, in posterior standard deviations, and of log spreads, above which to warn. With the error of
# learning, 7 % of 44 right and 94 % of 18 wrong posteriors had a warning (for fresh problems see table kbr-warnings).
_FAR_APART = 0.4
_LEAST_LIKELY = 0.01  # share of a posterior, where its own density is lowest
# Share of the draws, less _LEAST_LIKELY, where the other posterior is least likely: a lower bound of the total
# variation distance. The limit is the distance between normal distributions whose means are _FAR_APART.
_MUCH_OUTSIDE = 2.0 * ndtr(0.5 * _FAR_APART) - 1.0


class SecondOpinion(NamedTuple):
    """A posterior by a likelihood learned from the same simulations, compared with another; NaN if none is learned."""

    shift: np.ndarray
    """(d,), its means minus those of the posterior, in standard deviations of the latter."""
    spread: np.ndarray
    """(d,), its standard deviations over those of the posterior."""
    effective: float
    """Effective number of simulations that the likelihood gives weight to."""
    outside: float
    """Share of the other posterior where this likelihood is as low as for one in a hundred of its own draws."""

    def __str__(self):
        words, far = [], np.nan_to_num(np.abs(self.shift)).max()
        if far > _FAR_APART:
            words.append(f"puts a mean {far:.2f} posterior standard deviations away")
        logs = np.nan_to_num(np.abs(np.log(self.spread)))
        if logs.max() > _FAR_APART:
            words.append(f"has a standard deviation {self.spread[logs.argmax()]:.2f} times as large")
        if self.outside - _LEAST_LIKELY > _MUCH_OUTSIDE:
            words.append(
                f"finds {100 * self.outside:.0f} % of these draws as unlikely as the least likely "
                f"{100 * _LEAST_LIKELY:.0f} % of its own"
            )
        if words and self.effective < _FEW_EFFECTIVE:
            words[-1] += f" (it gives weight to an effective number of {self.effective:.0f} simulations)"
        return f"a likelihood learned from the same simulations {' and '.join(words)}" if words else ""


def judged(
    posterior, replicates, opinion: SecondOpinion, summaries, observed, to_take: str, rng: np.random.Generator
) -> xr.Dataset:
    """Warn of all reasons to distrust a posterior, and return its statistics.

    ``replicates`` are posteriors by resampled simulations, ``summaries`` (n, q) those of simulations that did not fail,
    and ``to_take`` says in words what the user should take to improve the posterior.
    """
    typical = float(typicality(summaries, observed[None], rng)[0])
    effective = float(1.0 / (posterior.weights**2).sum())
    errors = learning_errors(posterior, replicates)
    stats = xr.Dataset(
        {"typicality": typical, "num_effective": effective}
        | errors
        | {f"second_opinion_{n}": ("unconstrained", v) if np.ndim(v) else v for n, v in opinion._asdict().items()}
    )
    advice = (
        f"Take {to_take}, or sample_likelihood_free; if the model simulates nothing like the data, check its prior."
    )
    report_all(findings(typical, effective, errors["learning_error"], [str(opinion)]), advice, stats)
    return stats


def second_opinion(posterior, latent, summaries, observed, rng) -> SecondOpinion:
    """Return how far a posterior is from the one by a learned likelihood, whose errors are of another kind.

    ``latent`` (n, d) and ``summaries`` (n, q) are of all simulations from the prior, including failed ones.
    """
    mean, spread = scales_of(posterior.points, posterior.weights)
    nothing = SecondOpinion(*np.full((2, len(mean)), np.nan), np.nan, np.nan)
    latent, summaries = (rows[np.isfinite(latent).all(axis=1)] for rows in (latent, summaries))
    some = rng.permutation(len(latent))[:_OPINION_SIMULATIONS]
    try:
        likelihood = LearnedLikelihood(num_replicates=1).fit(latent[some], summaries[some], rng)
    except ValueError:  # too few simulations, or all the same
        return nothing
    logs = likelihood.log_density(latent, observed)
    if not np.isfinite(logs.max()):
        return nothing
    weights = normalized(logs)
    other_mean, other_spread = scales_of(latent, weights)
    order = np.argsort(logs)
    low = logs[order][np.searchsorted(np.cumsum(weights[order]), _LEAST_LIKELY)]
    at_posterior = np.nan_to_num(likelihood.log_density(posterior.points, observed), nan=-np.inf)
    outside = float(posterior.weights @ (at_posterior < low))
    effective = float(1.0 / (weights**2).sum())
    return SecondOpinion((other_mean - mean) / spread, other_spread / spread, effective, outside)


class Weighted(NamedTuple):
    """Parameters (n, d) with weights (n,) of sum one; None for equal ones."""

    points: np.ndarray
    weights: np.ndarray | None = None


def learning_errors(posterior, replicates) -> dict[str, float]:
    """Return the largest standard deviations over replicates, of means (in posterior spreads) and of log spreads.

    They are called as in the statistics of a result; NaN for a single replicate.
    """
    means, spreads = np.swapaxes([scales_of(one.points, one.weights) for one in replicates], 0, 1)
    of_means = of_spreads = np.full(1, np.nan)
    if len(means) > 1:
        of_means = means.std(axis=0, ddof=1) / scales_of(posterior.points, posterior.weights)[1]
        of_spreads = np.log(spreads).std(axis=0, ddof=1)
    return {"learning_error": float(of_means.max()), "spread_learning_error": float(of_spreads.max())}


def findings(typical: float, effective: float, learning_error: float, others: list[str]) -> list[str]:
    """Return reasons to distrust a posterior, in words, followed by those of ``others`` that are not empty."""
    problems = []
    if typical < OUTSIDE:
        problems.append(
            f"only {100 * typical:.1f} % of the simulations lie in regions as sparse as that of the observation, "
            "which is at the edge of what the model simulates, or outside"
        )
    if effective < _FEW_EFFECTIVE:
        problems.append(f"the draws come from an effective number of {effective:.0f} simulations")
    return [words for words in (*problems, differences(learning_error), *others) if words]


def differences(learning_error: float) -> str:
    """Return in words how far posteriors lie apart, where that is far."""
    if not learning_error > _LARGE_ERROR:
        return ""
    return (
        f"its means differ by {learning_error:.2f} posterior standard deviations between fits to resampled simulations"
    )
