"""Reasons to distrust a posterior that was learned from simulations, in words."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import xarray as xr
from scipy.special import ndtr

from pymc_kernel.embeddings.inputs import OUTSIDE, typicality
from pymc_kernel.kernels.points import scales_of
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.plugin.warn import report_all
from pymc_kernel.rounds import LocalLikelihood, sample_particles
from pymc_kernel.rounds.cautious import NUM_PARTICLES
from pymc_kernel.rounds.particles import Prior

NUM_REPLICATES = 16  # fits to resampled simulations: 16 determine their standard deviation to within a fifth
_FEW_EFFECTIVE = 30  # effective number of simulations, below which a warning is given
# R-hat of fits to resampled simulations, above which a warning is given: the posterior is that many times as wide as
# with more simulations. Draws of all fits have it in their spread, and from 1.02 on (table fresh) none was wrong.
_LARGEST_RHAT = 1.05

# Of means and log spreads by a learned likelihood, whose errors were .1 by root mean square (55 drawn problems, 1,000
# simulations; table fresh).
_OPINION_ERROR = 0.1
_LEAST_LIKELY = 0.01  # share of a posterior, where its own density is lowest
# Share of the draws, less _LEAST_LIKELY, where the other posterior is least likely: a lower bound of the total
# variation distance. The limit: between normal distributions whose means, both with that error, are two standard
# errors of their difference apart.
_MUCH_OUTSIDE = 2.0 * ndtr(math.sqrt(2.0) * _OPINION_ERROR) - 1.0


class SecondOpinion(NamedTuple):
    """A posterior by a likelihood learned from the same simulations, compared with another; NaN if there is none."""

    shift: np.ndarray
    """(d,), its means minus those of the posterior, in standard deviations of the latter."""
    spread: np.ndarray
    """(d,), its standard deviations over those of the posterior."""
    outside: float
    """Share of the other posterior where this likelihood is as low as for one in a hundred of its own draws."""

    def words(self, errors) -> str:
        """Say where the posteriors differ by more than two standard errors.

        ``errors`` (2, d) are those of the other posterior's means and log spreads.
        """
        limits = 2.0 * np.hypot(errors, _OPINION_ERROR)
        far, wide = np.nan_to_num(np.abs([self.shift, np.log(self.spread)]))
        found = []
        if (far > limits[0]).any():
            found.append(f"puts a mean {far[(far - limits[0]).argmax()]:.2f} posterior standard deviations away")
        if (wide > limits[1]).any():
            times = self.spread[(wide - limits[1]).argmax()]
            found.append(f"has a standard deviation {times:.2f} times as large")
        if self.outside - _LEAST_LIKELY > _MUCH_OUTSIDE:
            found.append(
                f"finds {100 * self.outside:.0f} % of these draws as unlikely as the least likely "
                f"{100 * _LEAST_LIKELY:.0f} % of its own"
            )
        return f"a likelihood learned from the same simulations {' and '.join(found)}" if found else ""


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
    stats = xr.Dataset(
        {"typicality": typical, "num_effective": effective}
        | largest
        | {f"second_opinion_{n}": ("unconstrained", v) if np.ndim(v) else v for n, v in opinion._asdict().items()}
    )
    advice = (
        f"Take {to_take}, or sample_likelihood_free; if the model simulates nothing like the data, check its prior."
    )
    report_all(findings(typical, effective, largest["learning_error"], [opinion.words(errors)]), advice, stats)
    return stats


def second_opinion(posterior, latent, summaries, observed, make_prior: Callable[[], Prior], rng) -> SecondOpinion:
    """Return how far a posterior is from the one by a learned likelihood, whose errors are of another kind.

    ``latent`` (n, d) and ``summaries`` (n, q) are of all simulations from the prior, including failed ones.
    """
    mean, spread = scales_of(posterior.points, posterior.weights)
    latent, summaries = (rows[np.isfinite(latent).all(axis=1)] for rows in (latent, summaries))
    try:
        likelihood = LocalLikelihood(LearnedLikelihood(num_replicates=1).fit(latent, summaries, rng), observed, None)
        draws = sample_particles(rng, make_prior(), likelihood, NUM_PARTICLES)
    except ValueError:  # too few simulations, or all the same; a prior without density or with nothing like the data
        return SecondOpinion(*np.full((2, len(mean)), np.nan), np.nan)
    low = np.quantile(draws.log_likelihood, _LEAST_LIKELY)
    outside = float(posterior.weights @ (likelihood(posterior.points) < low))
    other_mean, other_spread = scales_of(draws.positions)
    return SecondOpinion((other_mean - mean) / spread, other_spread / spread, outside)


class Weighted(NamedTuple):
    """Parameters (n, d) with weights (n,) of sum one; None for equal ones."""

    points: np.ndarray
    weights: np.ndarray | None = None


def errors_of_learning(posterior, replicates) -> np.ndarray:
    """Return standard deviations (2, d) over replicates: of means, in posterior spreads, and of log spreads.

    NaN for a single replicate.
    """
    means, spreads = np.swapaxes([scales_of(one.points, one.weights) for one in replicates], 0, 1)
    if len(means) < 2:
        return np.full((2, means.shape[1]), np.nan)
    return np.std([means / scales_of(posterior.points, posterior.weights)[1], np.log(spreads)], axis=1, ddof=1)


def learning_errors(posterior, replicates) -> dict[str, float]:
    """Return the largest of these, as the statistics of a result call them."""
    return _largest(errors_of_learning(posterior, replicates))


def _largest(errors):
    of_means, of_spreads = errors.max(axis=1)
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
