"""Power and level of the Stein tests, next to the published ones.

Those are of Chwialkowski, Strathmann and Gretton (2016), and the thesis, section 8.3.

First table: N(0, I) whose first coordinate has a uniform variable added, level 0.1. The published test has the kernel
exp(-|x - y|^2 / 2); ours whitens and takes the inverse multiquadric.

Second table: draws of a random-walk chain that targets a Student t, tested against the standard normal, level 0.05:
rejection rates of 1,400 draws for the settings of the thesis's figures 8.1 to 8.3 and for the automatic ones.
"""

import numpy as np
from scipy import stats

from benchmarks import harness
from pymc_kernel import kernels as K
from pymc_kernel import stein

DIMENSIONS = (2, 5, 10, 15, 20, 25)
PUBLISHED = {500: (1, 1, 0.86, 0.39, 0.05, 0.05), 1000: (1, 1, 1, 0.77, 0.25, 0.05)}
INDEPENDENT = {"thin": 1, "flip_probability": 0.5, "num_replicates": 200}
CHAIN_TESTS = {
    "signs flip with 0.5": {"thin": 1, "flip_probability": 0.5},
    "signs flip with 0.02": {"thin": 1, "flip_probability": 0.02},
    "one in 20, signs flip with 0.1": {"thin": 20, "flip_probability": 0.1},
    "automatic": {},
}
DEGREES = (1, 5, 10, np.inf)
TABLE = harness.Table("power", ("n", "d", "published", "same test here", "default", "aggregated"))


def shifted(n, d, seed):
    """Return whether each test rejects at 0.1, for one sample."""
    rng = np.random.default_rng([n, d, seed])
    draws = rng.standard_normal((n, d))
    draws[:, 0] += rng.random(n)
    published = stein.ksd_test(draws, -draws, K.Gaussian(1.0), how="none", rng=rng, **INDEPENDENT)
    ours = stein.ksd_test(draws, -draws, rng=rng, **INDEPENDENT)
    many = stein.ksd_test_aggregated(draws, -draws, rng=rng, **INDEPENDENT) if seed % 4 == 0 else None
    return [t.p_value <= 0.1 if t is not None else np.nan for t in (published, ours, many)]


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


def main(repetitions=200, jobs=2):
    """Run all, print and write the tables."""
    rows, keys = [], [(n, d) for n in PUBLISHED for d in DIMENSIONS]
    for (n, d), found in harness.grouped(shifted, keys, repetitions, jobs):
        rates = np.nanmean(np.array(found, dtype=float), axis=0)
        rows.append([n, d, f"{PUBLISHED[n][DIMENSIONS.index(d)]:.2f}", *(f"{rate:.2f}" for rate in rates)])
        print(*rows[-1], flush=True)
    note = f"Rejections at level 0.1, {repetitions} repetitions (a quarter of them for the aggregated test)."
    chains = []
    for (degrees,), found in harness.grouped(chain_of, [(degrees,) for degrees in DEGREES], repetitions, jobs):
        rates = (np.array(found) <= 0.05).mean(axis=0)
        name = f"{degrees:g} degrees" if np.isfinite(degrees) else "normal"
        chains.append([name, *(f"{rate:.2f}" for rate in rates)])
        print(*chains[-1], flush=True)
    below = "Rejections at level 0.05 of 1,400 correlated draws, tested against the normal distribution.\n\n"
    TABLE.write(rows, note, below + harness.markdown_table(["draws from", *CHAIN_TESTS], chains))


if __name__ == "__main__":
    harness.run(main)
