"""Kernel HMC on the 8-dimensional banana against the number of points it has learnt from (thesis, figure 4.4).

B(0.03, 100); the surrogate is matched to the scores of n exact draws, with n basis points (lite) or n random features
(finite), and does not change; chains of 200 + 2,000 draws, one in ten a random walk, the others single trajectories.
Beside it adaptive Metropolis and Kameleon, tuned for 2,000 draws. Reported: the acceptance rate, smallest bulk ESS per
1,000 draws, R-hat over the chains, and the norm of the error of the mean.

Run: python -m benchmarks.history_size [--chains 6]
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import measures
from benchmarks.targets import banana
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.mcmc import moves
from pymc_kernel.mcmc.history import History
from pymc_kernel.mcmc.surrogate_fit import refit
from pymc_kernel.scores import Finite, Lite

HERE = Path(__file__).parent
TUNE, BURN_IN, DRAW = 2000, 200, 2000
SIZES = (100, 500, 1000, 2000)
TARGET = banana(0.03, 100)
WALKS = {"adaptive Metropolis": (am, am.Config()), "KAMH, thesis settings": (ka, ka.Config(gamma=0.2, whiten=False))}
LEARNT = {f"lite, n = m = {n}": (n, Lite(max_points=n)) for n in SIZES}
LEARNT |= {f"finite, n = m = {n}": (n, Finite(num_features=n)) for n in SIZES}


def learnt_state(num_points, estimator, rng):
    """Return a state whose surrogate comes from exact draws, and its configuration."""
    config = kh.Config(estimator)
    start = TARGET.sample(rng, 1)[0]
    state = kh.init(start, TARGET.log_density(start), config)
    # The latest two thirds of a history are learnt from.
    draws = TARGET.sample(rng, num_points * 3 // 2)
    shape = state.walk._replace(mean=draws.mean(axis=0), factor=np.linalg.cholesky(np.cov(draws.T)))
    state = state._replace(visited=History(draws, len(draws), 1, 0), walk=shape)
    state = kh.with_fit(state, refit(rng, [state], config), config)
    shares = np.zeros(len(moves.MOVES))
    shares[moves.WALK.place], shares[moves.LONG.place] = 0.1, 0.9
    return state._replace(choice=state.choice._replace(shares=shares)), config


def one_chain(task):
    """Return draws and acceptance rate of one chain."""
    name, seed = task
    rng = np.random.default_rng([seed, 44])
    with threadpool_limits(1, user_api="blas"):
        if name in WALKS:
            module, config = WALKS[name]
            start = TARGET.sample(rng, 1)[0]
            state = module.init(start, TARGET.log_density(start), config)
            for _ in range(TUNE):
                state, info = module.step(rng, state, TARGET.log_density, config)
                state = am.adapt(state, info, config) if module is am else ka.adapt(rng, state, info, config, TUNE)
        else:
            module = kh
            state, config = learnt_state(*LEARNT[name], rng)
        draws, accepted = np.empty((BURN_IN + DRAW, TARGET.num_dims)), 0.0
        for t in range(BURN_IN + DRAW):
            state, info = module.step(rng, state, TARGET.log_density, config)
            draws[t] = state.position
            accepted += info.accepted / (BURN_IN + DRAW)
    return name, draws[BURN_IN:], accepted


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=6)
    chains = parser.parse_args().chains
    rows, group = [], []
    with ProcessPoolExecutor(2) as pool:
        for name, draws, accepted in pool.map(one_chain, [(s, c) for s in [*WALKS, *LEARNT] for c in range(chains)]):
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
    text = f"{chains} chains of {DRAW} draws.\n\n" + measures.markdown_table(header, rows)
    measures.write_between(HERE / "RESULTS.md", "history", text)


if __name__ == "__main__":
    main()
