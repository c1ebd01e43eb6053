"""The tolerance of austerity Metropolis-Hastings, judged by the Stein test.

Each step accepts or rejects by a sequential t test: it takes more data until the chance of error at that look is below
epsilon; over several looks it is larger (Korattikara, Chen and Welling 2014). The posterior is that of
``benchmarks.approximate_mcmc``. For each epsilon, chains of 500 draws, thinned until their autocorrelation is below one
half, are tested against the exact posterior (Strathmann 2018, section 8.3.4, figures 8.6 and 8.7). Tolerance 0 is
Metropolis-Hastings on all data.
"""

from functools import cache

import numba
import numpy as np
from scipy.stats import t as student

from benchmarks import harness, measures
from benchmarks.approximate_mcmc import MODES, NUM_DATA, all_scores, make_data, true_quantiles
from pymc_kernel import stein
from pymc_kernel.kernels import Gaussian
from pymc_kernel.stein.draws import choose_thinning

TOLERANCES = (0.0, 0.001, 0.005, 0.01, 0.02, 0.04, 0.1, 0.2)
BATCH = 20  # data that a test takes at a time
PROPOSAL_SD = 0.5  # a fifth of the moves is accepted
NUM_DRAWS, BURN_IN, PILOT = 500, 2000, 100_000
TABLE = harness.Table(
    "austerity",
    ("tolerance", "thinned by", "evaluations of 500 draws, millions", "share of data seen",
     "p, quartiles", "p < 0.05", "error of quantiles"),
    [(f"{tolerance:g}",) for tolerance in TOLERANCES],
)  # fmt: skip


def critical_values(tolerance):
    """Return for each number of batches the t statistic that ends the test."""
    seen = np.arange(BATCH, NUM_DATA + 1, BATCH)
    values = student.ppf(1.0 - tolerance, seen - 1) if tolerance > 0 else np.full(len(seen), np.inf)
    values[-1] = 0.0  # all data are seen: there is no doubt left
    return values


@numba.njit(cache=True)
def is_accepted(rng, theta, proposed, threshold, data, order, critical):
    """Return whether the mean log ratio over the data is above a threshold, by the test, and how many data it saw."""
    total = squares = 0.0
    n = data.size
    for batch in range(critical.size):
        for i in range(batch * BATCH, (batch + 1) * BATCH):
            j = i + rng.integers(0, n - i)  # the next one of a random order, made as far as it is needed
            order[i], order[j] = order[j], order[i]
            x = data[order[i]]
            ratio = np.logaddexp(-((x - proposed[0]) ** 2) / 8.0, -((x - proposed[0] - proposed[1]) ** 2) / 8.0)
            ratio -= np.logaddexp(-((x - theta[0]) ** 2) / 8.0, -((x - theta[0] - theta[1]) ** 2) / 8.0)
            total += ratio
            squares += ratio * ratio
        seen = (batch + 1) * BATCH
        mean = total / seen
        variance = max(squares / seen - mean * mean, 0.0) * seen / (seen - 1.0)
        error = np.sqrt(variance / seen * (1.0 - (seen - 1.0) / (n - 1.0)))
        if abs(mean - threshold) >= critical[batch] * error:
            break
    return mean > threshold, seen


@numba.njit(cache=True)
def chain(rng, start, every, data, critical, out):
    """Write every ``every``-th state and return how many data were seen."""
    theta, proposed, order, evaluations = start.copy(), np.empty(2), np.arange(data.size), 0
    for t in range(every * len(out)):
        for k in range(2):
            proposed[k] = theta[k] + PROPOSAL_SD * rng.standard_normal()
        prior = (theta[0] ** 2 - proposed[0] ** 2) / 20.0 + (theta[1] ** 2 - proposed[1] ** 2) / 2.0
        threshold = (np.log(1.0 - rng.random()) - prior) / data.size
        accepted, seen = is_accepted(rng, theta, proposed, threshold, data, order, critical)
        evaluations += seen
        if accepted:
            theta[:] = proposed
        if (t + 1) % every == 0:
            out[t // every] = theta
    return evaluations


@cache
def thinning(tolerance):
    """Return the smallest number of steps apart at which no coordinate's autocorrelation is one half or more."""
    draws = np.empty((PILOT, 2))
    chain(np.random.default_rng(0), MODES[0], 1, make_data(), critical_values(tolerance), draws)
    return choose_thinning(draws, (PILOT,))


def one_chain(tolerance, seed):
    """Return thinning, evaluations, share of data seen, p-value and error of the quantiles of one chain."""
    tolerance = float(tolerance)
    data, critical, every = make_data(), critical_values(tolerance), thinning(tolerance)
    rng = np.random.default_rng([seed, 19])
    burn_in, draws = np.empty((1, 2)), np.empty((NUM_DRAWS, 2))
    chain(rng, MODES[seed % 2], BURN_IN, data, critical, burn_in)
    evaluations = chain(rng, burn_in[-1], every, data, critical, draws)
    test = stein.ksd_test(
        draws, all_scores(draws, data), Gaussian("median"), thin=1, flip_probability=0.1, how="scale", rng=rng
    )
    error = measures.quantile_error(measures.share_below(draws, true_quantiles()))
    return every, evaluations, evaluations / (every * NUM_DRAWS * NUM_DATA), test.p_value, error


def cells(chains):
    """Return what stands behind a tolerance."""
    every, evaluations, share, p_values, errors = np.transpose(chains)
    quartiles = " ".join(f"{p:.2f}" for p in np.quantile(p_values, [0.25, 0.5, 0.75]))
    rejected = (p_values < 0.05).mean()
    return (
        f"{every[0]:.0f}", f"{evaluations.mean() / 1e6:.2f}", f"{share.mean():.2f}", quartiles, f"{rejected:.2f}",
        f"{np.median(errors):.3f}",
    )  # fmt: skip


def main(chains=100, jobs=2):
    note = f"{chains} chains of {NUM_DRAWS} draws for each tolerance, half of them from each mode; flips of .1."
    TABLE.fill(one_chain, cells, chains, note, jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
