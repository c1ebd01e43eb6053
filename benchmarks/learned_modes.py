"""Posteriors of two parameters with modes apart: ``pk.sample_surrogate`` against exact quantiles, known on a grid.

A seed draws data, noise and, where it matters, how much the prior tells the modes apart. Which of two labels of a
mixture comes first; a frequency whose aliases fit nearly as well; a source whose distances from sensors on a line say
on which side of it it is only by the prior; a product of two factors whose signs are not told. An answer is wrong where
the mass of the draws below an exact quantile of a parameter (5, 25, 50, 75, 95 %) is off by more than .1: chains that
change modes now and then are far from independent draws.
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

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_tails import HEADER, LEVELS, counted

WRONG = 0.1  # of the mass
_POINTS = 1501  # of the grid, in each parameter
_WIDTH = 5.0  # of the grid, standard deviations of the prior to each side
ROWS = harness.Rows(harness.ROWS / "learned_modes.jsonl", lambda row: (row["family"], row["seed"]))


class Problem(NamedTuple):
    """A model of two parameters with normal priors, and a function of both.

    ``box`` returns outputs with normal noise that were ``observed``, or a log likelihood, where ``observed`` is None.
    """

    means: np.ndarray
    sds: np.ndarray
    box: Callable
    noise: float = 1.0
    observed: np.ndarray | None = None

    def log_likelihood(self, a, b):
        """Return log likelihoods of places (n,)."""
        outputs = self.box(a[:, None], b[:, None])
        if self.observed is None:
            return outputs
        return -0.5 * (((outputs - self.observed) / self.noise) ** 2).sum(axis=-1)


def _labels(rng):
    """Means of a mixture of two normal distributions with known weights and spread."""
    weight, spread, apart = rng.uniform(0.45, 0.6), rng.uniform(0.5, 1.0), rng.uniform(2.0, 3.5)
    first = rng.random(40) < weight
    y = np.where(first, -0.5, 0.5) * apart + spread * rng.standard_normal(40)

    def log_likelihood(a, b):
        of_each = stats.norm.logpdf(y, a, spread) + np.log(weight), stats.norm.logpdf(y, b, spread) + np.log1p(-weight)
        return np.logaddexp(*of_each).sum(axis=-1)

    return Problem(np.zeros(2), np.full(2, 2.0), log_likelihood)


def _frequency(rng):
    """Frequency and amplitude of an oscillation at times that are nearly even."""
    times = np.arange(9.0) + rng.uniform(-0.08, 0.08, 9)
    noise, frequency = rng.uniform(0.3, 0.5), rng.uniform(1.3, 1.7)

    def box(a, b):
        return b * np.cos(a * times)

    observed = box(frequency, 1.0) + noise * rng.standard_normal(9)
    return Problem(np.array([3.0, 1.0]), np.array([2.0, 0.3]), box, noise, observed)


def _source(rng):
    """A place, by distances from five sensors on a line."""
    sensors = np.linspace(-2.0, 2.0, 5)
    noise, place = rng.uniform(0.1, 0.3), rng.uniform([-1.5, 0.8], [1.5, 2.0])

    def box(a, b):
        return np.hypot(a - sensors, b)

    observed = box(*place) + noise * rng.standard_normal(5)
    return Problem(np.array([0.0, rng.uniform(0.0, 0.5)]), np.array([1.5, 1.5]), box, noise, observed)


def _product(rng):
    """Two factors of one number."""
    noise, product = rng.uniform(0.1, 0.3), rng.uniform(0.8, 2.0)

    def box(a, b):
        return np.concatenate([a * b, a**2 - b**2], axis=-1)

    observed = np.array([product, rng.uniform(-0.5, 0.5)]) + noise * rng.standard_normal(2)
    return Problem(np.array([rng.uniform(0.0, 0.3), 0.0]), np.ones(2), box, noise, observed)


FAMILIES = {"labels": _labels, "frequency": _frequency, "source": _source, "product": _product}
TABLE = harness.Table("learned-modes", ("model", *HEADER[1:]), [(name,) for name in FAMILIES])


def model_of(problem):
    """Return the model with a black box of two inputs."""
    is_density = problem.observed is None

    def box(a, b):
        return np.asarray(problem.box(np.atleast_1d(a), np.atleast_1d(b)))

    with pm.Model() as model:
        inputs = [pm.Normal(name, m, s) for name, m, s in zip("ab", problem.means, problem.sds, strict=True)]
        output = wrap_py([pt.dscalar, pt.dscalar], [pt.dscalar if is_density else pt.dvector])(box)(*inputs)
        if is_density:
            pm.Potential("likelihood", output)
        else:
            pm.Normal("y", output, problem.noise, observed=problem.observed)
    return model


def exact_quantiles(problem):
    """Return the quantiles of both parameters at LEVELS, (2, levels)."""
    unit = np.linspace(-_WIDTH, _WIDTH, _POINTS)
    a, b = (m + s * unit for m, s in zip(problem.means, problem.sds, strict=True))
    likelihoods = np.array([problem.log_likelihood(np.full(_POINTS, x), b) for x in a])
    log_density = likelihoods - 0.5 * (unit[:, None] ** 2 + unit**2)
    density = np.exp(log_density - log_density.max())
    below = [np.cumsum(density.sum(axis=axis)) / density.sum() for axis in (1, 0)]
    return np.array([np.interp(LEVELS, mass, values) for mass, values in zip(below, (a, b), strict=True)])


def one_run(family, seed):
    """Return a row."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem = FAMILIES[family](np.random.default_rng([seed, len(family)]))
    with warnings.catch_warnings(record=True) as said, model_of(problem):
        warnings.simplefilter("always")
        idata = pk.sample_surrogate(random_seed=seed, progressbar=False)
    draws = np.stack([idata["posterior"][name].values for name in "ab"], axis=-1)
    masses = np.array([(draws[..., i, None] <= q).mean(axis=(0, 1)) for i, q in enumerate(exact_quantiles(problem))])
    of_draws = idata["sample_stats"]
    return {
        "family": family, "seed": seed, "off": float(np.abs(masses - LEVELS).max()),
        "said": bool(measures.said_by_emulation(said)), "rhat": measures.largest_rhat(draws),
        "evaluations": int(of_draws["num_evaluations"]), "distance": float(of_draws["distance"]),
    }  # fmt: skip


def main(families=tuple(FAMILIES), first_seed=1000, repetitions=10, again=False, jobs=2):
    tasks = [(f, s) for s in range(first_seed, first_seed + repetitions) for f in families]
    rows = ROWS.complete(one_run, tasks, lambda row: f"{row['off']:.3f}, {row['evaluations']}", again, jobs)
    print(TABLE.write_by_name(rows, "family", partial(counted, wrong=WRONG)))


if __name__ == "__main__":
    harness.run(main)
