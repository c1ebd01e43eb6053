"""Kernel HMC on targets that did not choose its recipe, and in 2 to 50 dimensions.

Four chains a repetition, each 2,000 + 4,000 evaluations, started at draws from a normal law with the target's
standard deviations, those of the linear regression at zero; no PyMC in between. Kernel HMC along values and along a
lite score estimate, adaptive Metropolis, and the share of its moves that kernel HMC in the end gave to the surrogate.

Truth comes from exact draws; those of the logistic regression are resampled from a Student t around the mode.

Run: python -m benchmarks.more_targets [--repetitions 3] [--targets ...] [--samplers ...]
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import measures
from benchmarks.targets import (
    banana,
    bimodal,
    correlated_gaussian,
    funnel,
    linear_regression,
    logistic_regression,
    ridge,
    student,
)
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc.moves import ALONG_SURROGATE
from pymc_kernel.scores import Lite

HERE = Path(__file__).parent
TUNE, DRAW, CHAINS = 2000, 4000, 4
SAMPLERS = {
    "adaptive Metropolis": am.Config(),
    "kernel HMC, values": kh.Config(),
    "kernel HMC, lite": kh.Config(Lite(max_points=500)),
}
TARGETS = {  # name: maker and its arguments
    **{f"Gaussian, condition 1000, {d}-d": (correlated_gaussian, d) for d in (2, 5, 10, 20, 50)},
    **{f"B(0.03, 100), {d}-d": (banana, 0.03, 100, d) for d in (2, 20, 50)},
    **{f"B(0.1, 100), {d}-d": (banana, 0.1, 100, d) for d in (2, 20, 50)},
    "Student t, 5 degrees, 6-d": (student, 5.0, 6),
    "Student t, 3 degrees, 6-d": (student, 3.0, 6),
    "funnel, 6-d": (funnel, 6),
    "logistic regression, 10-d": (logistic_regression, 10),
    "linear regression from zero, 8-d": (linear_regression, 8),
    "ridge with many bends, 6-d": (ridge, 6),
    "two modes, 4-d": (bimodal, 4),
}


@cache
def made(name):
    """Return the target, and its reference draws."""
    maker, *arguments = TARGETS[name]
    target = maker(*arguments)
    return target, target.sample(np.random.default_rng(1), 200_000)


def one_chain(task):
    """Return the draws of one chain and the share of surrogate moves."""
    name, sampler, seed = task
    target, reference = made(name)
    config = SAMPLERS[sampler]
    rng = np.random.default_rng([seed, 31])
    start = target.start
    if start is None:
        start = reference.mean(axis=0) + rng.standard_normal(target.num_dims) * reference.std(axis=0)
    module = kh if isinstance(config, kh.Config) else am
    draws = np.empty((DRAW, target.num_dims))
    with threadpool_limits(1, user_api="blas"):
        state = module.init(start, target.log_density(start), config)
        for t in range(TUNE + DRAW):
            state, info = module.step(rng, state, target.log_density, config)
            if t >= TUNE:
                draws[t - TUNE] = state.position
            elif module is kh:
                state = kh.adapt(rng, state, info, config, TUNE)
            else:
                state = am.adapt(state, info, config)
    return task, draws, state.choice.shares[ALONG_SURROGATE].sum() if module is kh else 0.0


def row_of(name, sampler, group):
    """Return a row of the table."""
    _, reference = made(name)
    quantiles = np.quantile(reference, measures.PROBABILITIES, axis=0)
    repetitions = np.array([draws for draws, _ in group]).reshape(-1, CHAINS, DRAW, reference.shape[1])
    sampled = CHAINS * DRAW / 1000
    shares = np.array([measures.share_below(draws, quantiles) for draws in repetitions])
    return [
        name,
        sampler,
        f"{np.mean([measures.smallest_bulk_ess(draws) for draws in repetitions]) / sampled:.2f}",
        f"{measures.error_implied_size(shares) / sampled:.2f}",
        f"{np.median([measures.largest_rhat(draws) for draws in repetitions]):.2f}",
        f"{np.mean([share for _, share in group]):.2f}",
    ]


def main():
    """Run all; the table is written row by row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--samplers", nargs="*", choices=SAMPLERS, default=list(SAMPLERS))
    arguments = parser.parse_args()
    per_row = arguments.repetitions * CHAINS
    tasks = [(t, s, c) for t in arguments.targets for s in arguments.samplers for c in range(per_row)]
    header = ["target", "sampler", "ESS / 1000", "error-implied / 1000", "R-hat", "share of surrogate moves"]
    keys = [(t, s) for t in TARGETS for s in SAMPLERS]
    group, rows = [], []
    with ProcessPoolExecutor(2) as pool:
        for task, draws, share in pool.map(one_chain, tasks):
            group.append((draws, share))
            if len(group) == per_row:
                rows.append(row_of(*task[:2], group))
                print(*rows[-1], flush=True)
                note = f"{arguments.repetitions} repetitions of {CHAINS} chains, {TUNE} + {DRAW} evaluations each.\n\n"
                table = measures.merge_rows(HERE / "RESULTS.md", "more-targets", header, rows, keys)
                measures.write_between(HERE / "RESULTS.md", "more-targets", note + table)
                group = []


if __name__ == "__main__":
    main()
