"""Glass (see case_studies/glass.py): the samplers on a noisy likelihood, one evaluation a draw; some 15 minutes.

PyMC's own steps re-evaluate a noisy density, so their stationary distribution is another one; they are left out, save
for the spread that they report. Effective sizes are the smallest over the nine parameters, per 1,000 draws after
tuning.
"""

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness, measures
from case_studies.glass import glass_model

TUNE, DRAW = 2000, 4000
STEPS = {
    "random walk": lambda: pk.AdaptiveMetropolis(learn_covariance=False),
    "pk.AdaptiveMetropolis": pk.AdaptiveMetropolis,
    "pk.KAMH": pk.KAMH,
    "pk.KAMH, inverse multiquadric": lambda: pk.KAMH(kernel=pk.kernels.InverseMultiquadric("median")),
    "pk.KAMH, thesis settings": lambda: pk.KAMH(gamma=0.2, whiten=False),
    "pk.KernelHMC": pk.KernelHMC,
    "pk.KernelHMC, lite": lambda: pk.KernelHMC(surrogate=pk.scores.Lite(num_basis=1000)),
}
HEADER = ("step", "ESS / 1000", "R-hat", "longest run of rejections")
TABLE = harness.Table("glass", HEADER, [(step,) for step in STEPS])


def one_chain(step, seed):
    """Return the draws of one chain, and its longest run of rejections."""
    settings = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with glass_model():
        idata = pm.sample(DRAW, tune=TUNE, step=STEPS[step](), random_seed=seed, **settings)
    return idata["posterior"]["log_squared_scale"].values[0], int(idata["sample_stats"]["stuck_for"].max())


def cells(chains):
    """Return what stands behind the step's name."""
    draws = np.stack([draws for draws, _ in chains])
    ess = measures.smallest_bulk_ess(draws) / len(draws) / DRAW * 1000
    return f"{ess:.1f}", f"{measures.largest_rhat(draws):.2f}", max(stuck for _, stuck in chains)


def main(chains=4, steps=tuple(STEPS), jobs=2):
    TABLE.fill(one_chain, cells, chains, f"{chains} chains, {TUNE} + {DRAW} draws.", [(s,) for s in steps], jobs)


if __name__ == "__main__":
    harness.run(main)
