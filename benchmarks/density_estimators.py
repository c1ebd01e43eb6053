"""How many data, or random features, does a score estimate need before the Stein test cannot tell it from the truth?

Kernel exponential families with a Gaussian kernel of length scale one are fitted to draws of a standard normal law,
and tested on 500 fresh ones with the scores of the fit (thesis, section 8.3.5, figures 8.8 and 8.9; uniform base
measure, as there). P-values of a perfect fit are uniform: a median of 0.5, one in twenty below 0.05.

Run: python -m benchmarks.density_estimators [--repetitions 50]
"""

import argparse
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import measures
from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel import stein

RESULTS = Path(__file__).parent / "RESULTS.md"
KERNEL = K.Gaussian(1.0)
SIZES = (50, 100, 200, 500, 1000)
FEATURES = (5, 10, 20, 50, 100, 500)
TEST, MANY = 500, 50_000


def p_value(fitted, rng):
    """Return the p-value of 500 fresh draws under the fitted scores."""
    draws = rng.standard_normal((TEST, 1))
    return stein.ksd_test(
        draws, fitted.score(draws), thin=1, flip_probability=0.5, how="none", num_replicates=500, rng=rng
    ).p_value


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=50)
    repetitions = parser.parse_args().repetitions
    settings = [("full", n, None) for n in SIZES] + [("finite", MANY, m) for m in FEATURES]
    rows = []
    for name, n, m in settings:
        p_values = []
        for seed in range(repetitions):
            rng = np.random.default_rng([seed, n, m or 0])
            data = rng.standard_normal((n, 1))
            if name == "full":
                estimator = S.Full(KERNEL, regularisation=1e-3 / np.sqrt(n), base="uniform")
            else:
                estimator = S.Finite(KERNEL, num_features=m, regularisation=1e-5, base="uniform")
            with threadpool_limits(2):
                p_values.append(p_value(estimator.fit(data, rng=rng), rng))
        p_values = np.array(p_values)
        rows.append([name, f"{n:,}", str(m or ""), f"{np.median(p_values):.2f}", f"{(p_values < 0.05).mean():.2f}"])
        print(*rows[-1], flush=True)
    header = ["estimator", "data", "features", "median p", "p < 0.05"]
    text = f"{repetitions} repetitions.\n\n" + measures.markdown_table(header, rows)
    measures.write_between(RESULTS, "density", text)


if __name__ == "__main__":
    main()
