"""The synthetic experiment of the thesis (Strathmann 2018, section 3.3.2), under its own protocol.

Three 8-dimensional targets, 40,000 iterations of which 20,000 burn-in, 20 chains a sampler: standard Metropolis
(SM), adaptive Metropolis with fixed (AM-FS) and learnt scale (AM-LS), and Kameleon (KAMH-LS) with gamma = 0.2, 1,000
points, a Gaussian kernel and the median heuristic in the raw coordinates. Beside them our default.

Reported: acceptance rate, norm of the mean (truth: zero), the deviation of the chain's coverage of the nine quantile
regions from 10 %, ..., 90 % (mean absolute, in per cent) with the half-width of an 80 % interval over the chains, and
the error-implied size of the marginal quantiles per 1,000 draws.

Run: python -m benchmarks.thesis_protocol [--chains 20]
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from scipy import stats
from threadpoolctl import threadpool_limits

from benchmarks import measures
from benchmarks.targets import banana, flower
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka

HERE = Path(__file__).parent
ITERATIONS, BURN_IN = 40_000, 20_000
TARGETS = {"B(0.03, 100)": banana(0.03, 100), "B(0.1, 100)": banana(0.1, 100), "F(10, 6, 6, 1)": flower()}
SAMPLERS = {
    "SM": am.Config(learn_covariance=False, learn_scale=False),
    "AM-FS": am.Config(learn_scale=False),
    "AM-LS": am.Config(),
    "KAMH-LS": ka.Config(gamma=0.2, whiten=False),
    "KAMH, our default": ka.Config(),
}


def one_chain(task):
    """Return acceptance, mean, coverage of the quantile regions and shares below the marginal quantiles."""
    target_name, sampler, seed = task
    target, config = TARGETS[target_name], SAMPLERS[sampler]
    rng = np.random.default_rng([seed, 8])
    start = np.zeros(target.num_dims)
    if target_name.startswith("F"):
        start[0] = 16.0  # the tip of a petal
    module = ka if isinstance(config, ka.Config) else am
    state = module.init(start, target.log_density(start), config)
    draws, accepted = np.empty((ITERATIONS - BURN_IN, target.num_dims)), 0
    with threadpool_limits(1):
        for t in range(ITERATIONS):
            state, info = module.step(rng, state, target.log_density, config)
            if t >= BURN_IN:
                draws[t - BURN_IN] = state.position
                accepted += info.accepted
            elif module is ka:
                state = ka.adapt(rng, state, info, config, BURN_IN)
            else:
                state = am.adapt(state, info, config)
    reference = target.sample(np.random.default_rng(1), 400_000)
    regions = np.quantile(target.level(reference), measures.PROBABILITIES)
    coverage = (target.level(draws)[:, None] <= regions).mean(axis=0)
    shares = measures.share_below(draws, np.quantile(reference, measures.PROBABILITIES, axis=0))
    return task, accepted / len(draws), np.linalg.norm(draws.mean(axis=0)), coverage, shares


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=20)
    chains = parser.parse_args().chains
    results = {}
    with ProcessPoolExecutor(2) as pool:
        for task, *measured in pool.map(
            one_chain, [(t, s, c) for t in TARGETS for s in SAMPLERS for c in range(chains)]
        ):
            results.setdefault(task[:2], []).append(measured)
            if task[2] == chains - 1:
                print(*task[:2], flush=True)
    rows = []
    for (target, sampler), group in results.items():
        accept, norm, coverage, shares = (np.array(column) for column in zip(*group, strict=True))
        deviation = 100 * np.abs(coverage - measures.PROBABILITIES).mean(axis=1)
        half = stats.norm.ppf(0.9) * deviation.std(ddof=1) / np.sqrt(len(group))
        rows.append(
            [
                target,
                sampler,
                f"{accept.mean():.2f}",
                f"{norm.mean():.2f}",
                f"{deviation.mean():.2f} ± {half:.2f}",
                f"{measures.error_implied_size(shares) / (ITERATIONS - BURN_IN) * 1000:.2f}",
            ]
        )
    header = ["target", "sampler", "acceptance", "norm of mean", "region deviation, %", "error-implied / 1000"]
    table = f"{chains} chains of {ITERATIONS:,} iterations, {BURN_IN:,} of them burn-in.\n\n"
    table += measures.markdown_table(header, rows)
    print(table)
    measures.write_between(HERE / "RESULTS.md", "thesis", table)


if __name__ == "__main__":
    main()
