"""Does ``pk.sample_khmc`` say where its draws lack a part of the posterior, and only there?

Posteriors with exact draws: bends, funnels, heavy tails, logarithms of scales, modes, rings, skewness, two
to ten parameters. Default calls. An answer is wrong if the mass of the draws beyond a quantile of the true posterior
(2.5, 5, 95, 97.5 %) is off by more than .02 in a coordinate, or R-hat is above 1.05. Seeds below 1,000 were used while
the warning was made, seeds from 1,000 on for the table alone. A row is kept in ``benchmarks/rows`` as it is finished.
"""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy import stats

import pymc_kernel as pk
from benchmarks import harness, measures

ROWS = harness.Rows(harness.ROWS / "missing_mass.jsonl", lambda row: (row["target"], row["seed"]))
HEADER = (
    "seeds", "answers", "right", "right: said", "right: missing mass", "wrong", "wrong: said", "wrong: missing mass",
)  # fmt: skip
TABLE = harness.Table("missing_mass", HEADER)
PROBABILITIES = np.array([0.025, 0.05, 0.95, 0.975])
NUM_TRUE = 40_000  # exact draws, for quantiles


def bend(rng, d, curvature):
    """Return log density and draws of a normal distribution, the second coordinate moved by the first one's square."""
    z = rng.normal(size=(NUM_TRUE, d))
    z[:, 0] *= 3.0
    z[:, 1] += curvature * (z[:, 0] ** 2 - 9.0)
    return lambda x: -0.5 * (x[0] ** 2 / 9 + (x[1] - curvature * (x[0] ** 2 - 9)) ** 2 + (x[2:] ** 2).sum()), z


def funnel(rng, d, sd):
    """Return them where the first coordinate is the log variance of the others."""
    z = rng.normal(size=(NUM_TRUE, d))
    z[:, 0] *= sd
    z[:, 1:] *= np.exp(z[:, :1] / 2)
    return lambda x: -0.5 * (x[0] ** 2 / sd**2 + (x[1:] ** 2).sum() * pt.exp(-x[0]) + (d - 1) * x[0]), z


def student(rng, d, freedom):
    """Return them of Student's distribution in each coordinate."""
    z = rng.standard_t(freedom, size=(NUM_TRUE, d))
    return lambda x: -0.5 * (freedom + 1) * pt.log1p(x**2 / freedom).sum(), z


def correlated(rng, d, correlation):
    """Return them of a normal distribution."""
    covariance = np.full((d, d), correlation) + (1 - correlation) * np.eye(d)
    precision = np.linalg.inv(covariance)
    return lambda x: -0.5 * x @ precision @ x, rng.multivariate_normal(np.zeros(d), covariance, size=NUM_TRUE)


def modes(rng, d, place, share):
    """Return them of two modes at plus and minus ``place`` in each coordinate."""
    z = rng.normal(size=(NUM_TRUE, d)) + np.where(rng.random((NUM_TRUE, 1)) < share, place, -place)
    logs = np.log([share, 1.0 - share])
    return lambda x: pt.logaddexp(
        *(w - 0.5 * ((x - p) ** 2).sum() for w, p in zip(logs, (place, -place), strict=True))
    ), z


def log_gamma(rng, d, shape):
    """Return them of logarithms of gamma variables."""
    return lambda x: (shape * x - pt.exp(x)).sum(), np.log(rng.gamma(shape, size=(NUM_TRUE, d)))


def logit_beta(rng, d, shape):
    """Return them of log odds of beta variables."""
    one, other = rng.gamma(shape, size=(2, NUM_TRUE, d))
    return lambda x: (shape * x - 2 * shape * pt.softplus(x)).sum(), np.log(one) - np.log(other)


def ring(rng, d):
    """Return them of a ring of radius five in the first two coordinates."""
    radius = 5.0 + 0.5 * rng.normal(size=3 * NUM_TRUE)
    radius = radius[rng.random(radius.size) < radius / 8.0][:NUM_TRUE]
    angle = 2.0 * np.pi * rng.random(radius.size)
    z = np.column_stack([radius * np.cos(angle), radius * np.sin(angle), rng.normal(size=(radius.size, d - 2))])
    return lambda x: -2.0 * (pt.sqrt((x[:2] ** 2).sum()) - 5.0) ** 2 - 0.5 * (x[2:] ** 2).sum(), z


def skewed(rng, d):
    """Return them of skew normal variables."""
    z = stats.skewnorm(5).rvs(size=(NUM_TRUE, d), random_state=rng)
    return lambda x: (-0.5 * x**2 + pt.log(pt.erfc(-5 * x / np.sqrt(2)))).sum(), z


TARGETS = {
    "bend 2 .1": (bend, 2, 0.1), "bend 4 .1": (bend, 4, 0.1), "bend 2 .3": (bend, 2, 0.3),
    "funnel 2 1": (funnel, 2, 1.0), "funnel 2 1.5": (funnel, 2, 1.5), "funnel 5 1.5": (funnel, 5, 1.5),
    "funnel 3 3": (funnel, 3, 3.0), "Student 2 3": (student, 2, 3), "Student 5 3": (student, 5, 3),
    "Student 8 5": (student, 8, 5), "Student 2 1": (student, 2, 1), "normal 5 .9": (correlated, 5, 0.9),
    "normal 10 .5": (correlated, 10, 0.5), "normal 2 .999": (correlated, 2, 0.999), "modes 2 1.4": (modes, 2, 1.4, 0.5),
    "modes 2 2.2": (modes, 2, 2.2, 0.3), "modes 5 1.3": (modes, 5, 1.3, 0.3), "log gamma 2 .5": (log_gamma, 2, 0.5),
    "log gamma 5 1": (log_gamma, 5, 1.0), "log gamma 5 .3": (log_gamma, 5, 0.3), "log gamma 8 2": (log_gamma, 8, 2.0),
    "log odds 3 1": (logit_beta, 3, 1.0), "log odds 5 .3": (logit_beta, 5, 0.3),
    "ring 2": (ring, 2), "ring 4": (ring, 4), "skewed 3": (skewed, 3), "skewed 8": (skewed, 8),
}  # fmt: skip


def run(target, seed):
    """Return a row: how far tails are off, the largest R-hat, and what was said."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    make, d, *settings = TARGETS[target]
    log_density, exact = make(np.random.default_rng(seed), d, *settings)
    with pm.Model():
        x = pm.Normal("x", 0, 10, shape=d)
        pm.Potential("rest", log_density(x) + (x**2).sum() / 200)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            idata = pk.sample_khmc(random_seed=seed, progressbar=False, cores=1)
    draws = idata["posterior"]["x"].values.reshape(-1, d)
    below = (draws < np.quantile(exact, PROBABILITIES, axis=0)[:, None]).mean(axis=1)
    said = [str(w.message) for w in caught if "sample_khmc" in str(w.message)]
    return {
        "target": target,
        "seed": seed,
        "tail": float(np.abs(below - PROBABILITIES[:, None]).max()),
        "rhat": measures.largest_rhat(idata["posterior"]["x"].values),
        "said": bool(said),
        "missing": any("likely to be missing" in s for s in said),
    }


def cells(rows):
    """Return the numbers of a line of the table."""
    counts = []
    for is_wrong in (False, True):
        own = [r for r in rows if (r["tail"] > 0.02 or r["rhat"] > 1.05) == is_wrong]
        counts += [len(own), sum(r["said"] for r in own), sum(r["missing"] for r in own)]
    return [len(rows), *counts]


def main(first_seed=1001, repetitions=2, targets=tuple(TARGETS), again=False, jobs=2):
    tasks = [(t, s) for s in range(first_seed, first_seed + repetitions) for t in targets]
    rows = ROWS.complete(run, tasks, lambda row: f"{row['tail']:.3f}, said: {row['said']}", again, jobs)
    groups = {
        "from 1,000 on": [r for r in rows if r["seed"] >= 1000],
        "below, seen while it was made": [r for r in rows if r["seed"] < 1000],
    }
    print(TABLE.write([[name, *cells(own)] for name, own in groups.items() if own]))


if __name__ == "__main__":
    harness.run(main)
