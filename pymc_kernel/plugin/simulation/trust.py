"""Reasons to distrust a posterior that was learned from simulations, in words."""

import math
from collections.abc import Callable
from itertools import compress
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtri

from pymc_kernel.embeddings.inputs import OUTSIDE, typicality
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.likelihood_free.estimates import statistics_of
from pymc_kernel.plugin.warn import report_all
from pymc_kernel.rounds import LocalLikelihood, sample_particles
from pymc_kernel.rounds.cautious import NUM_PARTICLES
from pymc_kernel.rounds.particles import Prior

NUM_REPLICATES = 16  # fits to resampled simulations: 16 determine their standard deviation to within a fifth
_FEW_EFFECTIVE = 30  # effective number of simulations, below which a warning is given
# R-hat of fits to resampled simulations, above which a warning is given: the draws are that many times as wide as with
# more simulations, but no less right. Of twelve answers that nothing but an R-hat from 1.02 to 1.05 was said of (tables
# fresh and strangers), none was wrong.
_LARGEST_RHAT = 1.05

_CHANCE = 0.01  # that two right posteriors differ by more than errors allow, in any of the statistics of all parameters
_NEAR = 0.1  # posterior standard deviations: a smaller difference matters to nobody
_LEAST_LIKELY = 0.01  # share of a posterior, where its own density is lowest
# Share of the draws, less _LEAST_LIKELY, where the other posterior is least likely: a lower bound of the total
# variation distance, which is .11 between two normal distributions whose means are .28 standard deviations apart.
_MUCH_OUTSIDE = 0.11


class SecondOpinion(NamedTuple):
    """A posterior by a likelihood learned from the same simulations, compared with another; NaN if there is none."""

    differences: np.ndarray
    """(4, d), its means, log spreads, 5 % and 95 % quantiles minus those of the posterior, in its standard deviations.

    The rows of this and other arrays (4, d) are those of :func:`statistics_of`.
    """
    errors: np.ndarray
    """(4, d), standard errors of its own."""
    outside: float
    """Share of the other posterior where this likelihood is as low as for one in a hundred of its own draws."""

    def words(self, errors) -> str:
        """Say where posteriors differ by more than chance, or cannot tell; ``errors`` (4, d) are the other's."""
        limits = -ndtri(0.5 * _CHANCE / self.differences.size) * np.hypot(errors, self.errors)
        beyond = np.nan_to_num(np.abs(self.differences) - np.maximum(limits, _NEAR), nan=-1.0)
        shift, log_spread, low, high = self.differences[np.arange(4), beyond.argmax(axis=1)]
        words = (
            f"puts a mean {abs(shift):.2f} posterior standard deviations away",
            f"has a standard deviation {math.exp(log_spread):.2f} times as large",
            f"puts a 5 % quantile {abs(low):.2f} posterior standard deviations away",
            f"puts a 95 % quantile {abs(high):.2f} posterior standard deviations away",
        )
        found = list(compress(words, (beyond > 0.0).any(axis=1)))
        if self.outside - _LEAST_LIKELY > _MUCH_OUTSIDE:
            found.append(
                f"finds {100 * self.outside:.0f} % of these draws as unlikely as the least likely "
                f"{100 * _LEAST_LIKELY:.0f} % of its own"
            )
        # Errors as large as these would let any posterior pass.
        if not found and (unsure := differences(self.errors[0].max())):
            found.append(f"cannot confirm it, as {unsure}")
        return f"a likelihood learned from the same simulations {', '.join(found)}" if found else ""


def judged(
    posterior, replicates, opinion: SecondOpinion, summaries, observed, to_take: str, rng: np.random.Generator
) -> xr.Dataset:
    """Warn of all reasons to distrust a posterior, and return its statistics.

    ``replicates`` are posteriors by resampled simulations, ``summaries`` (n, q) those of simulations that did not fail,
    and ``to_take`` says in words what the user should take to improve the posterior.
    """
    typical = float(typicality(summaries, observed[None], rng)[0])
    effective = float(1.0 / (posterior.weights**2).sum())
    errors = errors_of_learning(posterior, replicates)
    largest = _largest(errors)
    shift, log_spread, low, high = opinion.differences
    by_coordinate = {"shift": shift, "spread": np.exp(log_spread), "low": low, "high": high}
    stats = xr.Dataset(
        {"typicality": typical, "num_effective": effective, "second_opinion_outside": opinion.outside}
        | largest
        | {f"second_opinion_{name}": ("unconstrained", values) for name, values in by_coordinate.items()}
    )
    advice = (
        f"Take {to_take}, or sample_likelihood_free; if the model simulates nothing like the data, check its prior."
    )
    report_all(findings(typical, effective, largest["learning_error"], [opinion.words(errors)]), advice, stats)
    return stats


def second_opinion(posterior, latent, summaries, observed, make_prior: Callable[[], Prior], rng) -> SecondOpinion:
    """Return how far a posterior is from the one by a learned likelihood, whose errors are of another kind.

    ``latent`` (n, d) and ``summaries`` (n, q) are of all simulations from the prior, including failed ones. Its errors
    are those of draws around the learned likelihood, as weights of its particles.
    """
    given = statistics_of(posterior.points, posterior.weights)
    latent, summaries = (rows[np.isfinite(latent).all(axis=1)] for rows in (latent, summaries))
    try:
        likelihood = LocalLikelihood(LearnedLikelihood().fit(latent, summaries, rng), observed, None)
        draws = sample_particles(rng, make_prior(), likelihood, NUM_PARTICLES)
    except ValueError:  # too few simulations, or all the same; a prior without density or with nothing like the data
        return SecondOpinion(*np.full((2, *given.shape), np.nan), np.nan)
    low = np.quantile(draws.log_likelihood, _LEAST_LIKELY)
    outside = float(posterior.weights @ (likelihood(posterior.points) < low))
    others = []
    for one in likelihood.replicates():
        ratios = one(draws.positions) - draws.log_likelihood
        # Resampled, too: particles are as many draws.
        weights = np.exp(ratios - ratios.max()) * rng.standard_exponential(len(ratios))
        others.append(statistics_of(draws.positions, weights / weights.sum()))
    found, errors = _apart(statistics_of(draws.positions), given), _apart(np.array(others), given).std(axis=0, ddof=1)
    return SecondOpinion(found, errors, outside)


class Weighted(NamedTuple):
    """Parameters (n, d) with weights (n,) of sum one; None for equal ones."""

    points: np.ndarray
    weights: np.ndarray | None = None


def _apart(statistics, given):
    """Return statistics (..., 4, d) minus those given (4, d); all but logarithms in units of the spreads of these."""
    units = np.tile(np.exp(given[1]), (len(given), 1))
    units[1] = 1.0
    return (statistics - given) / units


def errors_of_learning(posterior, replicates) -> np.ndarray:
    """Return standard deviations over replicates (4, d) of the statistics, in posterior spreads; NaN for one."""
    given = statistics_of(posterior.points, posterior.weights)
    apart = _apart(np.array([statistics_of(one.points, one.weights) for one in replicates]), given)
    return apart.std(axis=0, ddof=1) if len(apart) > 1 else np.full(given.shape, np.nan)


def learning_errors(posterior, replicates) -> dict[str, float]:
    """Return the largest of means and spreads, as the statistics of a result call them."""
    return _largest(errors_of_learning(posterior, replicates))


def _largest(errors):
    of_means, of_spreads, *_ = errors.max(axis=1)
    return {"learning_error": float(of_means), "spread_learning_error": float(of_spreads)}


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
    if not math.hypot(1.0, learning_error) > _LARGEST_RHAT:
        return ""
    return (
        f"its means differ by {learning_error:.2f} posterior standard deviations between fits to resampled simulations"
    )
