"""Posteriors of one parameter: ``pk.emulate`` against the exact distribution function, known by quadrature.

A seed draws data and noise. Of two families the posterior has a tail that the prior alone ends, since the function is
saturated there; of two others the outputs are probabilities or rates, many of which are next to their limits; of three
the log likelihood is learned whole, with long tails, beside a prior that is far wider. An answer is wrong where the
mass of 4,000 draws of ``pm.sample`` below an exact quantile (5, 25, 50, 75, 95 %) is off by more than .05, the
tolerance of ``pk.emulate``; Monte Carlo errors of such shares are about .02.
"""

import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py
from scipy import stats
from scipy.special import expit, log_expit

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_parts import DRAWS, STUCK

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
GRID = np.concatenate([-np.logspace(3, -4, 30_000), np.logspace(-4, 3, 30_000)])
WRONG = 0.05  # of the mass
ROWS = harness.Rows(harness.ROWS / "learned_tails.jsonl", lambda row: (row["family"], row["seed"]))
HEADER = (
    "function, prior",
    "answers",
    "right",
    "right: said",
    "wrong: said",
    "silent",
    "silent by",
    "evaluations",
    "most",
)


class Problem(NamedTuple):
    """A ``box`` of one input, whose outputs ``likelihood`` takes in a model; ``log_likelihood`` is that of inputs."""

    box: Callable
    prior: object
    likelihood: Callable
    log_likelihood: Callable


def _normal(function, prior, noise, observed):
    def box(a):
        return np.full(len(observed), function(a))

    def log_likelihood(a):
        return -0.5 * (((observed[:, None] - function(a)) / noise) ** 2).sum(axis=0)

    return Problem(box, prior, lambda outputs: pm.Normal("y", outputs, noise, observed=observed), log_likelihood)


def _arctan(rng):
    noise = rng.uniform(0.3, 0.6)
    observed = np.arctan(rng.uniform(2.0, 8.0)) + noise * rng.standard_normal(3)
    return _normal(np.arctan, stats.t(3, scale=3.0), noise, observed)


def _logistic(rng):
    noise = rng.uniform(0.02, 0.1)
    observed = expit(rng.uniform(2.0, 6.0)) + noise * rng.standard_normal(4)
    return _normal(expit, stats.norm(scale=5.0), noise, observed)


def _bernoulli(rng):
    x, steepness = np.sort(rng.uniform(-4.0, 4.0, 30)), rng.uniform(1.0, 5.0)
    observed = rng.random(30) < expit(steepness * (x - rng.normal()))

    def log_likelihood(a):
        return log_expit(np.where(observed, 1.0, -1.0)[:, None] * steepness * (x[:, None] - a)).sum(axis=0)

    def likelihood(outputs):
        pm.Bernoulli("y", outputs, observed=observed.astype(int))

    return Problem(lambda a: expit(steepness * (x - a)), stats.norm(scale=3.0), likelihood, log_likelihood)


def _poisson(rng):
    place, height = np.linspace(-6.0, 6.0, 25), rng.uniform(3.0, 20.0)

    def rates(a):
        return height * np.exp(-0.5 * (place[:, None] - a) ** 2)

    observed = rng.poisson(rates(rng.normal())[:, 0])

    def log_likelihood(a):
        log_rates = np.log(height) - 0.5 * (place[:, None] - a) ** 2
        return (observed[:, None] * log_rates - np.exp(log_rates)).sum(axis=0)

    def likelihood(outputs):
        pm.Poisson("y", outputs, observed=observed)

    return Problem(lambda a: rates(a)[:, 0], stats.norm(scale=3.0), likelihood, log_likelihood)


def _of_tails(tails, rng):
    """Return a problem whose log likelihood is learned as it is, beside a prior that is far wider."""
    place, scale = 5.0 * rng.normal(), np.exp(rng.uniform(-1.0, 1.5))

    def log_likelihood(a):
        return tails.logpdf((a - place) / scale)

    def likelihood(outputs):
        pm.Potential("y", outputs.sum())

    return Problem(lambda a: log_likelihood(a)[None], stats.norm(scale=30.0), likelihood, log_likelihood)


FAMILIES = {
    "arctangent, Student t": _arctan,
    "logistic, normal": _logistic,
    "logistic, Bernoulli": _bernoulli,
    "peak, Poisson": _poisson,
    "log likelihood, Student t": partial(_of_tails, stats.t(3)),
    "log likelihood, Laplace": partial(_of_tails, stats.laplace),
    "log likelihood, Gumbel": partial(_of_tails, stats.gumbel_l),
}
TABLE = harness.Table("learned-tails", HEADER, [(name,) for name in FAMILIES])


def model_of(problem):
    """Return the model with a black box of one input."""
    with pm.Model() as model:
        is_t = problem.prior.dist.name == "t"
        a = pm.StudentT("a", nu=3, sigma=3.0) if is_t else pm.Normal("a", sigma=problem.prior.std())
        problem.likelihood(wrap_py([pt.dscalar], [pt.dvector])(problem.box)(a))
    return model


def exact_quantiles(problem):
    """Return the quantiles of the posterior at LEVELS."""
    with np.errstate(over="ignore"):
        log_density = problem.prior.logpdf(GRID) + problem.log_likelihood(GRID)
    below = np.cumsum(np.exp(log_density - log_density.max()) * np.gradient(GRID))
    return np.interp(LEVELS, below / below[-1], GRID)


def one_run(family, seed):
    """Return a row."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem = FAMILIES[family](np.random.default_rng([seed, len(family)]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        emulated = pk.emulate(model_of(problem), random_seed=seed, progressbar=False)
        said = bool(measures.said_by_emulation(said))
    idata = pm.sample(model=emulated, random_seed=seed, target_accept=0.9, **DRAWS)
    draws = idata["posterior"]["a"].values
    off = np.abs((draws.reshape(-1, 1) <= exact_quantiles(problem)).mean(axis=0) - LEVELS).max()
    rhat = measures.largest_rhat(draws[:, :, None])
    emulation = emulated.emulation
    return {
        "family": family, "seed": seed, "off": float(off), "said": bool(said), "rhat": rhat,
        "evaluations": emulation.num_evaluations, "distance": emulation.distance,
    }  # fmt: skip


def counted(rows, wrong):
    """Return the cells of rows, whose answers are wrong where they are ``off`` by more than ``wrong`` of the mass."""
    off, said, rhat, evaluations = (
        np.array([row[key] for row in rows]) for key in ("off", "said", "rhat", "evaluations")
    )
    is_wrong, said = off > wrong, said | (rhat > STUCK)  # PyMC says so
    silent = np.sort(off[is_wrong & ~said])[::-1]
    counts = [(~is_wrong).sum(), (~is_wrong & said).sum(), (is_wrong & said).sum(), len(silent)]
    return [
        len(rows),
        *counts,
        ", ".join(f"{s:.2f}" for s in silent),
        f"{np.median(evaluations):.0f}",
        evaluations.max(),
    ]


def main(families=tuple(FAMILIES), first_seed=1000, repetitions=10, again=False, jobs=2):
    tasks = [(f, s) for s in range(first_seed, first_seed + repetitions) for f in families]
    rows = ROWS.complete(one_run, tasks, lambda row: f"{row['off']:.3f}, {row['evaluations']}", again, jobs)
    print(TABLE.write_by_name(rows, "family", partial(counted, wrong=WRONG)))


if __name__ == "__main__":
    harness.run(main)
