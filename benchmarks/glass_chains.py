"""Glass (see case_studies/glass.py): the samplers on a noisy likelihood, one evaluation a draw.

PyMC's own steps re-evaluate a noisy density, so their stationary law is another one; they are left out, save for the
spread that they report. Effective sizes are the smallest over the nine parameters, per 1,000 draws after tuning.

Run: python -m benchmarks.glass_chains [--chains 4] [--steps ...] (about 15 minutes)
Rows of steps that are not run stay as they were.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from case_studies.glass import glass_model

HERE = Path(__file__).parent
TUNE, DRAW = 2000, 4000
STEPS = {
    "random walk": lambda: pk.AdaptiveMetropolis(learn_covariance=False),
    "pk.AdaptiveMetropolis": pk.AdaptiveMetropolis,
    "pk.KAMH": pk.KAMH,
    "pk.KAMH, inverse multiquadric": lambda: pk.KAMH(kernel=pk.kernels.InverseMultiquadric("median")),
    "pk.KAMH, thesis settings": lambda: pk.KAMH(gamma=0.2, whiten=False),
    "pk.KernelHMC": pk.KernelHMC,
    "pk.KernelHMC, lite": lambda: pk.KernelHMC(surrogate=pk.scores.Lite(max_points=1000)),
}


def one_chain(task):
    """Return the draws of one chain."""
    step_name, seed = task
    with threadpool_limits(1, user_api="blas"), glass_model():
        idata = pm.sample(
            DRAW,
            tune=TUNE,
            chains=1,
            cores=1,
            step=STEPS[step_name](),
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return task, idata["posterior"]["log_squared_scale"].values[0], int(idata["sample_stats"]["stuck_for"].max())


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    arguments = parser.parse_args()
    chains = arguments.chains
    draws = {}
    with ProcessPoolExecutor(2) as pool:
        for task, chain, stuck in pool.map(one_chain, [(s, c) for s in arguments.steps for c in range(chains)]):
            draws.setdefault(task[0], []).append((chain, stuck))
            print(*task, flush=True)
    rows = []
    for name, group in draws.items():
        stacked = np.stack([chain for chain, _ in group])
        rows.append(
            [
                name,
                f"{measures.smallest_bulk_ess(stacked) / stacked.shape[0] / DRAW * 1000:.1f}",
                f"{measures.largest_rhat(stacked):.2f}",
                f"{max(stuck for _, stuck in group)}",
            ]
        )
    table = f"{chains} chains, {TUNE} + {DRAW} draws.\n\n"
    header = ["step", "ESS / 1000", "R-hat", "longest run of rejections"]
    table += measures.merge_rows(HERE / "RESULTS.md", "glass", header, rows, [(s,) for s in STEPS])
    print(table)
    measures.write_between(HERE / "RESULTS.md", "glass", table)


if __name__ == "__main__":
    main()
