"""Posteriors that go on where a black box is flat: ``pk.emulate`` against the exact distribution function.

A seed draws data and noise. The posterior of one parameter has a tail that the prior alone ends, since the function is
saturated there; its distribution function is known by quadrature. An answer is wrong where the mass of 4,000 draws of
``pm.sample`` below an exact quantile (5, 25, 50, 75, 95 %) is off by more than .05, the tolerance of ``pk.emulate``;
Monte Carlo errors of such shares are about .02.
"""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py
from scipy import stats

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


def _arctan(rng):
    noise = rng.uniform(0.3, 0.6)
    observed = np.arctan(rng.uniform(2.0, 8.0)) + noise * rng.standard_normal(3)
    return np.arctan, stats.t(3, scale=3.0), noise, observed


def _logistic(rng):
    noise = rng.uniform(0.02, 0.1)
    observed = 1.0 / (1.0 + np.exp(-rng.uniform(2.0, 6.0))) + noise * rng.standard_normal(4)
    return lambda a: 1.0 / (1.0 + np.exp(-a)), stats.norm(scale=5.0), noise, observed


FAMILIES = {"arctangent, Student t": _arctan, "logistic, normal": _logistic}
TABLE = harness.Table("learned-tails", HEADER, [(name,) for name in FAMILIES])


def model_of(function, prior, noise, observed):
    """Return the model with a black box of one input."""
    with pm.Model() as model:
        a = pm.StudentT("a", nu=3, sigma=3.0) if prior.dist.name == "t" else pm.Normal("a", sigma=prior.std())
        box = wrap_py([pt.dscalar], [pt.dvector])(lambda a: np.full(len(observed), function(a)))
        pm.Normal("y", box(a), noise, observed=observed)
    return model


def exact_quantiles(function, prior, noise, observed):
    """Return the quantiles of the posterior at LEVELS."""
    with np.errstate(over="ignore"):
        misfit = ((observed[:, None] - function(GRID)) / noise) ** 2
    log_density = prior.logpdf(GRID) - 0.5 * misfit.sum(axis=0)
    below = np.cumsum(np.exp(log_density - log_density.max()) * np.gradient(GRID))
    return np.interp(LEVELS, below / below[-1], GRID)


def one_run(family, seed):
    """Return a row."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    problem = FAMILIES[family](np.random.default_rng([seed, len(family)]))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        emulated = pk.emulate(model_of(*problem), random_seed=seed, progressbar=False)
        said = any("the emulated model" in str(w.message) for w in said)
    idata = pm.sample(model=emulated, random_seed=seed, target_accept=0.9, **DRAWS)
    draws = idata["posterior"]["a"].values
    off = np.abs((draws.reshape(-1, 1) <= exact_quantiles(*problem)).mean(axis=0) - LEVELS).max()
    rhat = measures.largest_rhat(draws[:, :, None])
    emulation = emulated.emulation
    return {
        "family": family, "seed": seed, "off": float(off), "said": bool(said), "rhat": rhat,
        "evaluations": emulation.num_evaluations, "distance": emulation.distance,
    }  # fmt: skip


def cells(rows):
    """Return a row of the table."""
    off, said, rhat, evaluations = (
        np.array([row[key] for row in rows]) for key in ("off", "said", "rhat", "evaluations")
    )
    wrong, said = off > WRONG, said | (rhat > STUCK)  # PyMC says so
    silent = np.sort(off[wrong & ~said])[::-1]
    counts = [(~wrong).sum(), (~wrong & said).sum(), (wrong & said).sum(), len(silent)]
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
    print(TABLE.write([[f, *cells(own)] for f in FAMILIES if (own := [r for r in rows if r["family"] == f])]))


if __name__ == "__main__":
    harness.run(main)
