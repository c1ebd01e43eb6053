"""The synthetic experiment of the thesis (Strathmann 2018, section 3.3.2), under its own protocol.

Three 8-dimensional targets, 40,000 iterations of which 20,000 burn-in, 20 chains a sampler: standard Metropolis
(SM), adaptive Metropolis with fixed (AM-FS) and learned scale (AM-LS), and Kameleon (KAMH-LS) with gamma = 0.2, 1,000
points, a Gaussian kernel and the median heuristic in the raw coordinates. Beside them our default.

Reported: acceptance rate, norm of the mean (truth: zero), the deviation of the chain's coverage of the nine quantile
regions from 10 %, ..., 90 % (mean absolute, in per cent) with the half-width of an 80 % interval over the chains, and
the error-implied size of the marginal quantiles per 1,000 draws. Second table (figure 3.7): norm of the mean and
deviation of the median region on the strongly twisted banana, after so many draws.
"""

import numpy as np
from scipy import stats

from benchmarks import harness, measures
from benchmarks.targets import banana, flower
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka

ITERATIONS, BURN_IN = 40_000, 20_000
TARGETS = {"B(0.03, 100)": banana(0.03, 100), "B(0.1, 100)": banana(0.1, 100), "F(10, 6, 6, 1)": flower()}
SAMPLERS = {
    "SM": am.Config(learn_covariance=False, learn_scale=False),
    "AM-FS": am.Config(learn_scale=False),
    "AM-LS": am.Config(),
    "KAMH-LS": ka.Config(gamma=0.2, whiten=False),
    "KAMH, our default": ka.Config(),
}
HEADER = ("target", "sampler", "acceptance", "norm of mean", "region deviation, %", "error-implied / 1000")
TABLE = harness.Table("thesis", HEADER, [(target, sampler) for target in TARGETS for sampler in SAMPLERS])

TWISTED, SEEN = "B(0.1, 100)", (1250, 2500, 5000, 10_000, 20_000)
PATH_HEADER = ("sampler", *(f"mean, {n}" for n in SEEN), *(f"median region, %, {n}" for n in SEEN))
PATH_TABLE = harness.Table("thesis-path", PATH_HEADER, [(sampler,) for sampler in SAMPLERS])


def draws_of(target_name, sampler, seed):
    """Return the draws of a chain after its burn-in, and which proposals were accepted."""
    target = TARGETS[target_name]
    start = np.zeros(target.num_dims)
    if target_name.startswith("F"):
        start[0] = 16.0  # the tip of a petal
    rng = np.random.default_rng([seed, 8])
    run = measures.chain(rng, start, target.log_density, SAMPLERS[sampler], BURN_IN, ITERATIONS - BURN_IN)
    positions, accepted = zip(*[(state.position, info.accepted) for state, info in run], strict=True)
    return np.array(positions), np.array(accepted)


def one_chain(target_name, sampler, seed):
    """Return acceptance, norm of the mean, coverage of the quantile regions and shares below marginal quantiles."""
    target = TARGETS[target_name]
    draws, accepted = draws_of(target_name, sampler, seed)
    reference = target.sample(np.random.default_rng(1), 400_000)
    regions = np.quantile(target.level(reference), measures.PROBABILITIES)
    coverage = (target.level(draws)[:, None] <= regions).mean(axis=0)
    shares = measures.share_below(draws, np.quantile(reference, measures.PROBABILITIES, axis=0))
    return np.mean(accepted), np.linalg.norm(draws.mean(axis=0)), coverage, shares


def cells(chains):
    """Return what stands behind the names of target and sampler."""
    accept, norm, coverage, shares = (np.array(column) for column in zip(*chains, strict=True))
    deviation = 100 * np.abs(coverage - measures.PROBABILITIES).mean(axis=1)
    half = stats.norm.ppf(0.9) * measures.standard_error(deviation)
    implied = measures.error_implied_size(shares) / (ITERATIONS - BURN_IN) * 1000
    return f"{accept.mean():.2f}", f"{norm.mean():.2f}", f"{deviation.mean():.2f} ± {half:.2f}", f"{implied:.2f}"


def one_path(sampler, seed):
    """Return the norm of the mean and the deviation of the median region in per cent after growing numbers of draws."""
    target = TARGETS[TWISTED]
    draws, _ = draws_of(TWISTED, sampler, seed)
    within = target.level(draws) <= np.median(target.level(target.sample(np.random.default_rng(1), 400_000)))
    means = [np.linalg.norm(draws[:n].mean(axis=0)) for n in SEEN]
    return means + [100 * abs(within[:n].mean() - 0.5) for n in SEEN]


def path_cells(paths):
    """Return what stands behind the sampler."""
    return [f"{value:.2f}" for value in np.mean(paths, axis=0)]


def main(chains=20, parts=("targets", "path"), jobs=2):
    note = f"{chains} chains of {ITERATIONS:,} iterations, {BURN_IN:,} of them burn-in"
    if "targets" in parts:
        TABLE.fill(one_chain, cells, chains, f"{note}.", jobs=jobs)
    if "path" in parts:
        PATH_TABLE.fill(one_path, path_cells, chains, f"{note}; {TWISTED}.", jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
