"""Speed of kernel Bayes' rule and filter, next to one Cholesky factorization and to the formulas as printed."""

import resource

import numpy as np
from scipy.linalg import cholesky

from benchmarks import harness, measures
from pymc_kernel.embeddings import KernelBayesFilter, KernelBayesRule
from pymc_kernel.kernels import Gaussian
from tests.reference import slow_embeddings as slow


def pairs(n, rng):
    """Return latents, observations, prior draws."""
    z = rng.standard_normal((n, 2))
    return z, 1.0 + z + 0.3 * rng.standard_normal((n, 2)), np.sqrt(0.5) * rng.standard_normal((n, 2))


TABLE = harness.Table("kbr-speed", ("what", "time", "in Cholesky factorizations", "bar"))


def measured():
    """Write the table."""
    rng = np.random.default_rng(0)
    n = 2000
    z, x, prior = pairs(n, rng)
    matrix = Gaussian(0.1)(x) + n * np.eye(n)
    factorized = measures.median_time(lambda: cholesky(matrix, lower=True, check_finite=False), 7)
    rows = [["one Cholesky factorization, n = 2000", f"{factorized:.3f} s", "1", ""]]

    def add(name, seconds, bar):
        rows.append([name, f"{seconds:.3f} s", f"{seconds / factorized:.2f}", bar])
        print(*rows[-1], flush=True)

    conditional = measures.median_time(lambda: KernelBayesRule().fit(z, x, rng=0).condition(x[:100]), 7)
    add("conditional: choose, fit, 100 observations", conditional, "1.5")
    weighted = measures.median_time(lambda: KernelBayesRule().fit(z, x, prior, rng=0).condition(x[:100]), 7)
    add("importance: choose both, fit, 100 observations", weighted, "1.5")
    kernel = Gaussian(1.0)
    gram_z, gram_x, mean = kernel(z), kernel(x), kernel(z, prior).mean(axis=1)
    printed = measures.median_time(lambda: slow.importance(gram_z, mean, gram_x, gram_x[:, 0], 0.1, 0.1), 3)
    add("algorithm 1 as printed in NumPy, Gram matrices given, one observation, nothing chosen", printed, "")
    states, seen, _ = pairs(5000, rng)
    settings = {"state_kernel": 0.5, "observed_kernel": 1.0, "regularization": 1e-2, "ratio_regularization": 1e-2}
    # With next to no tolerance the rank is the number of basis points.
    fitted = KernelBayesFilter(**settings, num_basis=200, tolerance=1e-15).fit(states, seen, rng=0)
    state = fitted.start()
    step = measures.median_time(lambda: fitted.update(state, seen[0]), 50)
    add(f"a filter step, T = 5000, rank {fitted.factor.features.shape[1]}", step, "0.020 s")
    z = rng.standard_normal((50_000, 3))
    x = np.column_stack([z, z**2]) + 0.3 * rng.standard_normal((50_000, 6))
    wide = 0.7 * rng.standard_normal((50_000, 3))
    rule, seconds = measures.timed(lambda: KernelBayesRule().fit(z, x, wide, rng=0))
    seconds += measures.timed(lambda: rule.condition(x[:100]))[1]
    rank = rule.features.factor.features.shape[1]
    add(f"importance: choose both, fit, 100 observations, n = 50,000, rank {rank}", seconds, "60 s")
    add("calibration on 1,000 of them", measures.timed(lambda: rule.calibration(num_cases=1000, rng=0))[1], "")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    note = f"Medians in one process, one thread of BLAS; largest memory of the whole process {peak:.2f} GB (bar 2)."
    TABLE.write(rows, note)


def main():
    # Two threads of BLAS slow the many small solves of a pivoted factor down, and gain the large one a tenth.
    list(harness.results(measured, [()], jobs=1))


if __name__ == "__main__":
    harness.run(main)
