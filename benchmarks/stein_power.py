"""Power and level of the Stein tests, next to the published ones.

Those are of Chwialkowski, Strathmann and Gretton (2016), and the thesis, section 8.3.

First table: N(0, I) whose first coordinate has a uniform variable added, level 0.1. The published test has the kernel
exp(-|x - y|^2 / 2); ours whitens and takes the inverse multiquadric. Beside it, in a table of its own, the published
rival: the maximum mean discrepancy of the same kernel to the normal distribution in closed form (Baringhaus and Henze
1988, nothing standardized), its critical value simulated.

Last table: draws of a random-walk chain that targets a Student t, tested against the standard normal, level 0.05:
rejection rates of 1,400 draws for the settings of the thesis's figures 8.1 to 8.3 and for the automatic ones.
"""

from functools import cache

import numpy as np
from scipy import stats
from scipy.spatial.distance import pdist

from benchmarks import harness
from pymc_kernel import kernels as K
from pymc_kernel import stein

DIMENSIONS = (2, 5, 10, 15, 20, 25)
PUBLISHED = {500: (1, 1, 0.86, 0.39, 0.05, 0.05), 1000: (1, 1, 1, 0.77, 0.25, 0.05)}
RIVAL = {500: (1, 1, 1, 0.86, 0.29, 0.24), 1000: (1, 1, 1, 1, 0.87, 0.62)}  # Baringhaus and Henze in the thesis
NUM_NULL = 500  # data sets behind a critical value
INDEPENDENT = {"thin": 1, "flip_probability": 0.5, "num_replicates": 200}
CHAIN_TESTS = {
    "signs flip with 0.5": {"thin": 1, "flip_probability": 0.5},
    "signs flip with 0.02": {"thin": 1, "flip_probability": 0.02},
    "one in 20, signs flip with 0.1": {"thin": 20, "flip_probability": 0.1},
    "automatic": {},
}
DEGREES = (1, 5, 10, np.inf)
TABLE = harness.Table("power", ("n", "d", "published", "same test here", "default"))
RIVAL_TABLE = harness.Table(
    "power-normality", ("n", "d", "published", "here"), [(n, d) for n in RIVAL for d in DIMENSIONS]
)


def shifted_draws(n, d, seed):
    """Return normal draws with a uniform variable added to their first coordinate, and the generator behind them."""
    rng = np.random.default_rng([n, d, seed])
    draws = rng.standard_normal((n, d))
    draws[:, 0] += rng.random(n)
    return draws, rng


def discrepancy_to_normal(draws):
    """Return n times the squared discrepancy to N(0, I) of the kernel exp(-|x - y|^2 / 2)."""
    n, d = draws.shape
    among = 1.0 + 2.0 * np.exp(-0.5 * pdist(draws, "sqeuclidean")).sum() / n
    across = 2.0 * 2.0 ** (-0.5 * d) * np.exp(-0.25 * (draws**2).sum(axis=1)).sum()
    return among - across + n * 3.0 ** (-0.5 * d)


@cache
def critical_value(n, d):
    """Return the 0.9 quantile of the discrepancy of normal draws."""
    rng = np.random.default_rng([n, d, 10**6])
    return np.quantile([discrepancy_to_normal(rng.standard_normal((n, d))) for _ in range(NUM_NULL)], 0.9)


def found_by_rival(n, d, seed):
    """Return whether the test of Baringhaus and Henze rejects at 0.1, for one sample."""
    return discrepancy_to_normal(shifted_draws(n, d, seed)[0]) > critical_value(n, d)


def shifted(n, d, seed):
    """Return whether each test rejects at 0.1, for one sample."""
    draws, rng = shifted_draws(n, d, seed)
    published = stein.ksd_test(draws, -draws, K.Gaussian(1.0), how="none", rng=rng, **INDEPENDENT)
    ours = stein.ksd_test(draws, -draws, rng=rng, **INDEPENDENT)
    return [test.p_value <= 0.1 for test in (published, ours)]


def chain_of(degrees, seed):
    """Return p-values of one chain of 1,400 draws from a Student t, one for each setting."""
    rng = np.random.default_rng([seed, 77])
    target = stats.t(degrees) if np.isfinite(degrees) else stats.norm()
    x, draws = float(target.rvs(random_state=rng)), np.empty(1400)
    steps, levels = np.sqrt(0.5) * rng.standard_normal(1400), np.log(rng.random(1400))
    for t in range(1400):
        proposed = x + steps[t]
        if levels[t] < target.logpdf(proposed) - target.logpdf(x):
            x = proposed
        draws[t] = x
    return [
        stein.ksd_test(draws, -draws, how="none", num_replicates=200, rng=rng, **setting).p_value
        for setting in CHAIN_TESTS.values()
    ]


def rival(repetitions, jobs):
    """Write the table of the test of Baringhaus and Henze."""
    rows = []
    for (n, d), found in harness.grouped(found_by_rival, RIVAL_TABLE.keys, repetitions, jobs):
        rows.append([n, d, f"{RIVAL[n][DIMENSIONS.index(d)]:.2f}", f"{np.mean(found):.2f}"])
        print(*rows[-1], flush=True)
    RIVAL_TABLE.write(rows, f"Rejections at level 0.1, {repetitions} repetitions.")


def powers(repetitions, jobs):
    """Write the tables of the Stein tests."""
    rows, keys = [], [(n, d) for n in PUBLISHED for d in DIMENSIONS]
    for (n, d), found in harness.grouped(shifted, keys, repetitions, jobs):
        rates = np.mean(found, axis=0)
        rows.append([n, d, f"{PUBLISHED[n][DIMENSIONS.index(d)]:.2f}", *(f"{rate:.2f}" for rate in rates)])
        print(*rows[-1], flush=True)
    note = f"Rejections at level 0.1, {repetitions} repetitions."
    chains = []
    for (degrees,), found in harness.grouped(chain_of, [(degrees,) for degrees in DEGREES], repetitions, jobs):
        rates = (np.array(found) <= 0.05).mean(axis=0)
        name = f"{degrees:g} degrees" if np.isfinite(degrees) else "normal"
        chains.append([name, *(f"{rate:.2f}" for rate in rates)])
        print(*chains[-1], flush=True)
    below = "Rejections at level 0.05 of 1,400 correlated draws, tested against the normal distribution.\n\n"
    TABLE.write(rows, note, below + harness.markdown_table(["draws from", *CHAIN_TESTS], chains))


def main(repetitions=200, parts=("stein", "normality"), jobs=2):
    """Run all, print and write the tables."""
    if "stein" in parts:
        powers(repetitions, jobs)
    if "normality" in parts:
        rival(repetitions, jobs)


if __name__ == "__main__":
    harness.run(main)
