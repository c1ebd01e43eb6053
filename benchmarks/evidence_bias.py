"""Is the evidence of few particles too large? Kernel SMC on a conjugate model in nine dimensions.

theta ~ N(0, I), y ~ N(theta, 0.4^2 I), y = 0; 100 particles, five moves at each temperature. An estimate Z' of the
evidence Z that is unbiased has E Z' = Z, so that log mean Z' - log Z is zero but for its error, and its logarithm is
too small on the average, by about half its variance. "bias" is log mean Z' - log Z, "by the log" the mean of log Z' -
log Z with half the variance added, which is the same for a lognormal Z' and less noisy. "one fold": moves learned from
the particles that they move, as they were, for comparison. All but the row that says so are without the importance
sampling that ends a run by default.
"""

import math

import numpy as np

from benchmarks import harness, measures
from pymc_kernel import smc

D, NOISE = 9, 0.4
LOG_EVIDENCE = -0.5 * D * math.log(2.0 * math.pi * (1.0 + NOISE**2))
KAMELEON = smc.Kameleon()
KERNELS = {  # the defaults of the kernels of these names
    "plain walk": {"moves": smc.Walk(learn_covariance=False, learn_scale=False)},
    "pk.ASMC": {"moves": smc.Walk()},
    "pk.KASMC": {"moves": KAMELEON},
    "pk.KernelHMCSMC": {"moves": smc.Hamiltonian()},
    "pk.ASMC, one fold": {"moves": smc.Walk(), "num_folds": 1},
    "pk.KASMC, one fold": {"moves": KAMELEON, "num_folds": 1},
    "pk.ASMC, importance sampling": {"moves": smc.Walk(), "importance": True},
}
HEADER = ["kernel", "runs", "bias", "by the log", "mean of log Z' - log Z", "variance of log Z'", "s a run"]


def evaluate(positions):
    """Return log prior and log likelihood (n,)."""
    squared = (positions**2).sum(axis=1)
    constant = 0.5 * D * math.log(2.0 * math.pi)
    return -0.5 * squared - constant, -0.5 * squared / NOISE**2 - constant - D * math.log(NOISE)


def log_errors(name, runs, num_particles=100, num_moves=5):
    """Return log Z' - log Z of ``runs`` runs."""
    settings = {"importance": False, "min_moves": num_moves, "max_moves": num_moves, **KERNELS[name]}
    config = smc.Config(**settings)
    errors = []
    for seed in range(runs):
        rng = np.random.default_rng([seed, 9])
        start = rng.standard_normal((num_particles, D))
        state, _ = smc.sample(rng, smc.Evaluated(start, *evaluate(start)), evaluate, config)
        errors.append(state.log_evidence - LOG_EVIDENCE)
    return np.array(errors)


def biases(errors):
    """Return both measures of the bias with their standard errors, and mean and variance of the log errors."""
    runs, variance = len(errors), errors.var(ddof=1)
    ratios = np.exp(errors)
    bias = math.log(ratios.mean()), ratios.std(ddof=1) / ratios.mean() / math.sqrt(runs)
    # Of normal logarithms: the variance of the mean, and of half the empirical variance.
    by_log = errors.mean() + 0.5 * variance, math.sqrt(variance / runs + 0.5 * variance**2 / (runs - 1))
    return bias, by_log, (errors.mean(), math.sqrt(variance / runs)), variance


def main(runs=300, kernels=tuple(KERNELS), particles=100, moves=5, jobs=1):
    """Print the table."""
    rows, tasks = [], [(log_errors, name, runs, particles, moves) for name in kernels]
    for name, (errors, seconds) in zip(kernels, harness.results(measures.timed, tasks, jobs), strict=True):
        *measured, variance = biases(errors)
        cells = [f"{value:+.3f} ± {error:.3f}" for value, error in measured]
        rows.append([name, runs, *cells, f"{variance:.3f}", f"{seconds / runs:.2f}"])
        print(*rows[-1], flush=True)
    print(f"\n{particles} particles, {moves} moves.\n\n{harness.markdown_table(HEADER, rows)}")


if __name__ == "__main__":
    harness.run(main)
