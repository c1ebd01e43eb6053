"""Kernel HMC lite on the 8-dimensional banana against the size of the history it learns from (thesis, figure 4.4).

B(0.03, 100); chains of 2,000 + 4,000 draws; the lite estimator on at most n points of the chain's past, n basis points,
which is the thesis's setting m = n. Beside it adaptive Metropolis, Kameleon, and kernel HMC along values. Reported per
1,000 draws after tuning, over all chains of a sampler, with the acceptance rate and the norm of the error of the mean.

Run: python -m case_studies.benchmarks.history_size [--chains 4]
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from case_studies.benchmarks import measures
from case_studies.targets import banana
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.scores import Lite

HERE = Path(__file__).parent
TUNE, DRAW = 2000, 4000
TARGET = banana(0.03, 100)
SAMPLERS = {
    "adaptive Metropolis": (am, am.Config()),
    "KAMH, thesis settings": (ka, ka.Config(gamma=0.2, whiten=False)),
    **{f"kernel HMC lite, n = m = {n}": (kh, kh.Config(Lite(max_points=n))) for n in (100, 250, 500, 1000, 2000)},
    "kernel HMC, values": (kh, kh.Config()),
}


def one_chain(task):
    """Return draws and acceptance rate of one chain."""
    name, seed = task
    module, config = SAMPLERS[name]
    rng = np.random.default_rng([seed, 44])
    start = rng.standard_normal(TARGET.num_dims) * np.array([10.0, 4.4, *[1.0] * (TARGET.num_dims - 2)])
    draws, accepted = np.empty((DRAW, TARGET.num_dims)), 0.0
    with threadpool_limits(1, user_api="blas"):
        state = module.init(start, TARGET.log_density(start), config)
        for t in range(TUNE + DRAW):
            state, info = module.step(rng, state, TARGET.log_density, config)
            if t >= TUNE:
                draws[t - TUNE] = state.position
                accepted += info.accepted / DRAW
            elif module is am:
                state = am.adapt(state, info, config)
            else:
                state = module.adapt(rng, state, info, config, TUNE)
    return name, draws, accepted


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=4)
    chains = parser.parse_args().chains
    rows, group = [], []
    with ProcessPoolExecutor(2) as pool:
        for name, draws, accepted in pool.map(one_chain, [(s, c) for s in SAMPLERS for c in range(chains)]):
            group.append((draws, accepted))
            if len(group) == chains:
                stacked = np.stack([g[0] for g in group])
                ess = measures.smallest_bulk_ess(stacked) / chains / DRAW * 1000
                error = np.mean([np.linalg.norm(d.mean(axis=0)) for d in stacked])
                rhat = measures.largest_rhat(stacked)
                rows.append(
                    [name, f"{np.mean([g[1] for g in group]):.2f}", f"{ess:.1f}", f"{rhat:.2f}", f"{error:.2f}"]
                )
                print(*rows[-1], flush=True)
                group = []
    header = ["sampler", "acceptance", "ESS / 1000", "R-hat", "norm of the mean's error"]
    text = f"{chains} chains, {TUNE} + {DRAW} draws.\n\n" + measures.markdown_table(header, rows)
    measures.write_between(HERE / "RESULTS.md", "history", text)


if __name__ == "__main__":
    main()
