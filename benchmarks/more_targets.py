"""Kernel HMC on targets that did not choose its recipe, and in 2 to 50 dimensions.

Four chains a repetition, each 2,000 + 4,000 evaluations, started at draws from a normal distribution with the target's
standard deviations, those of the linear regression at zero; no PyMC in between. Kernel HMC along values and along a
lite score estimate, adaptive Metropolis, and the share of its moves that kernel HMC in the end gave to the surrogate.

Truth comes from exact draws; those of the logistic regression are resampled from a Student t around the mode.
"""

from functools import cache

import numpy as np

from benchmarks import harness, measures
from benchmarks import targets as T
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kernel_hmc as kh
from pymc_kernel.scores import Lite

TUNE, DRAW, CHAINS = 2000, 4000, 4
SAMPLERS = {
    "adaptive Metropolis": am.Config(),
    "kernel HMC, values": kh.Config(),
    "kernel HMC, lite": kh.Config(Lite(num_basis=500)),
}
TARGETS = {  # name: maker and its arguments
    **{f"Gaussian, condition 1000, {d}-d": (T.correlated_gaussian, d) for d in (2, 5, 10, 20, 50)},
    **{f"B(0.03, 100), {d}-d": (T.banana, 0.03, 100, d) for d in (2, 20, 50)},
    **{f"B(0.1, 100), {d}-d": (T.banana, 0.1, 100, d) for d in (2, 20, 50)},
    "Student t, 5 degrees, 6-d": (T.student, 5.0, 6),
    "Student t, 3 degrees, 6-d": (T.student, 3.0, 6),
    "funnel, 6-d": (T.funnel, 6),
    "logistic regression, 10-d": (T.logistic_regression, 10),
    "linear regression from zero, 8-d": (T.linear_regression, 8),
    "ridge with many bends, 6-d": (T.ridge, 6),
    "two modes, 4-d": (T.bimodal, 4),
}
HEADER = ("target", "sampler", "ESS / 1000", "error-implied / 1000", "R-hat", "share of surrogate moves")
TABLE = harness.Table("more-targets", HEADER, [(target, sampler) for target in TARGETS for sampler in SAMPLERS])


@cache
def made(name):
    """Return the target, and its reference draws."""
    maker, *arguments = TARGETS[name]
    target = maker(*arguments)
    return target, target.sample(np.random.default_rng(1), 200_000)


def one_chain(name, sampler, seed):
    """Return the target's name, the draws of one chain and the share of surrogate moves."""
    target, reference = made(name)
    config = SAMPLERS[sampler]
    rng = np.random.default_rng([seed, 31])
    start = target.start
    if start is None:
        start = reference.mean(axis=0) + rng.standard_normal(target.num_dims) * reference.std(axis=0)
    run = list(measures.chain(rng, start, target.log_density, config, TUNE, DRAW))
    share = 1.0 - run[-1][0].walk_share if isinstance(config, kh.Config) else 0.0
    return name, np.array([state.position for state, _ in run]), share


def cells(chains):
    """Return what stands behind the names of target and sampler."""
    _, reference = made(chains[0][0])
    repetitions = np.array([draws for _, draws, _ in chains]).reshape(-1, CHAINS, DRAW, reference.shape[1])
    ess, implied, rhat = measures.worth(repetitions, reference)
    thousands, share = CHAINS * DRAW / 1000, np.mean([share for *_, share in chains])
    return f"{ess / thousands:.2f}", f"{implied / thousands:.2f}", f"{rhat:.2f}", f"{share:.2f}"


def main(repetitions=3, targets=tuple(TARGETS), samplers=tuple(SAMPLERS), jobs=2):
    note = f"{repetitions} repetitions of {CHAINS} chains, {TUNE} + {DRAW} evaluations each."
    keys = [(target, sampler) for target in targets for sampler in samplers]
    TABLE.fill(one_chain, cells, repetitions * CHAINS, note, keys, jobs)


if __name__ == "__main__":
    harness.run(main)
