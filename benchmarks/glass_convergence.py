"""Glass (see case_studies/glass.py) from the first iteration on, and under other priors.

First table: distance of the mean, and maximum mean discrepancy in all moments up to the third, to a long run, after so
many iterations from zero, no burn-in discarded (Strathmann 2018, figures 3.5 and 4.6; there 100,000 and 6,000
iterations). The discrepancy is that of (1 + x'y / d)^3 on coordinates in the long run's standard deviations.

Second table: the posterior under both prior variances that the thesis prints, 5 and 25, and with the measurements
decorrelated and the log inverse lengths as parameters, as the code has it that its author published. Beside the
samplers stands Hamiltonian Monte Carlo with exact gradients on the normal distribution of the same covariance, with the
thesis's 1 to 10 steps of .01 to .1: more than that no learned gradient can give at these settings.
"""

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import harness, measures
from case_studies.glass import load_glass, make_log_estimate
from pymc_kernel.kernels import Polynomial

POSTERIORS = {"variance 5": (5.0, False), "variance 25": (25.0, False), "variance 5, decorrelated": (5.0, True)}
USUAL = "variance 5"
STEPS = {
    "random walk": lambda: pk.AdaptiveMetropolis(learn_covariance=False),
    "pk.AdaptiveMetropolis": pk.AdaptiveMetropolis,
    "pk.KAMH, thesis settings": lambda: pk.KAMH(gamma=0.2, whiten=False),
    "pk.KernelHMC, lite": lambda: pk.KernelHMC(surrogate=pk.scores.Lite(num_basis=1000)),
    "pk.KernelHMC": pk.KernelHMC,
}
TUNE, DRAW = 2000, 4000
SEEN = (500, 1000, 2000, 4000, 6000)
COMPARED = ("pk.KAMH, thesis settings", "pk.KernelHMC")
THESIS_STEPS, THESIS_SIZES = (1, 10), (0.01, 0.1)
PATH_HEADER = ("step", *(f"mean, {n}" for n in SEEN), *(f"MMD, {n}" for n in SEEN))
PATH_TABLE = harness.Table("glass-convergence", PATH_HEADER, [(step,) for step in STEPS])
PRIOR_HEADER = (
    "posterior",
    "sd",
    *(f"{step}, ESS / 1000" for step in COMPARED),
    "R-hat",
    "exact gradients, ESS / 1000",
)
PRIOR_TABLE = harness.Table("glass-priors", PRIOR_HEADER, [(name,) for name in POSTERIORS])


def posterior(name):
    """Return the PyMC model of a posterior."""
    variance, decorrelated = POSTERIORS[name]
    inputs, labels, _ = load_glass()
    if decorrelated:
        inputs = np.linalg.solve(np.linalg.cholesky(np.cov(inputs.T)), inputs.T).T.copy()
    estimate = make_log_estimate(inputs)

    def log_estimate(rng, theta, observed):
        return estimate(rng, -2.0 * np.asarray(theta) if decorrelated else theta, observed)

    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, np.sqrt(variance), shape=inputs.shape[1])
        pk.EstimatedLikelihood("glass", log_estimate, theta, observed=labels)
    return model


def one_chain(name, step, seed):
    """Return all positions of one chain from zero, tuning first."""
    settings = {"chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with threadpool_limits(1), posterior(name):
        idata = pm.sample(
            DRAW, tune=TUNE, step=STEPS[step](), random_seed=seed, initvals={"theta": np.zeros(9)},
            discard_tuned_samples=False, **settings,
        )  # fmt: skip
    return np.concatenate([idata[group]["theta"].values[0] for group in ("warmup_posterior", "posterior")])


def long_run(chains, jobs):
    """Return the draws (n, 9) of each of some chains of pk.KernelHMC."""
    found = harness.results(one_chain, [(USUAL, "pk.KernelHMC", 100 + seed) for seed in range(chains)], jobs)
    return [chain[TUNE:] for chain in found]


def distances(chain, reference):
    """Return the distances of the mean after each number of iterations, then the discrepancies."""
    spread = reference.std(axis=0)
    kernel, few = Polynomial(np.sqrt(len(spread))), reference[:: max(1, len(reference) // 3000)] / spread
    means = [np.linalg.norm(chain[:n].mean(axis=0) - reference.mean(axis=0)) for n in SEEN]
    return means + [np.sqrt(max(pk.stein.mmd_squared(chain[:n] / spread, few, kernel), 0.0)) for n in SEEN]


def exact_gradients(draws, rng, iterations=6000):
    """Return a chain (iteration, d) on the normal distribution with the covariance of the draws."""
    covariance = np.cov(draws.T)
    precision, out = np.linalg.inv(covariance), np.empty((iterations, len(covariance)))
    place = np.linalg.cholesky(covariance) @ rng.standard_normal(len(covariance))
    for t in range(iterations):
        momentum, size = rng.standard_normal(len(place)), rng.uniform(*THESIS_SIZES)
        end, energy = place, 0.5 * (place @ precision @ place + momentum @ momentum)
        for _ in range(rng.integers(THESIS_STEPS[0], THESIS_STEPS[1] + 1)):
            momentum = momentum - 0.5 * size * (precision @ end)
            end = end + size * momentum
            momentum = momentum - 0.5 * size * (precision @ end)
        if np.log(rng.random()) < energy - 0.5 * (end @ precision @ end + momentum @ momentum):
            place = end
        out[t] = place
    return out


def prior_cells(chains, rng):
    """Return what stands behind a posterior: spreads, effective sizes, R-hat of the last sampler, and the bound."""
    kept = {step: np.stack(found)[:, TUNE:] for step, found in chains.items()}
    best = kept[COMPARED[-1]]
    ess = [f"{measures.smallest_bulk_ess(draws) / draws[..., 0].size * 1000:.1f}" for draws in kept.values()]
    spread = best.std(axis=(0, 1))
    ideal = np.stack([exact_gradients(best.reshape(-1, best.shape[-1]), rng) for _ in range(4)])
    bound = measures.smallest_bulk_ess(ideal) / ideal[..., 0].size * 1000
    return f"{spread.min():.2f} to {spread.max():.2f}", *ess, f"{measures.largest_rhat(best):.2f}", f"{bound:.1f}"


def main(chains=2, parts=("path", "priors"), jobs=2):
    """Run both tables; about 20 minutes."""
    if "priors" in parts:
        rows = []
        for name in POSTERIORS:
            keys = [(name, step) for step in COMPARED]
            found = {step: runs for (_, step), runs in harness.grouped(one_chain, keys, chains, jobs)}
            rows.append([name, *prior_cells(found, np.random.default_rng(0))])
            print(*rows[-1], flush=True)
        PRIOR_TABLE.write(rows, f"{chains} chains, {TUNE} + {DRAW} draws; sd: from the smallest to the largest.")
    if "path" in parts:
        reference, rows = np.concatenate(long_run(2 * chains, jobs)), []
        for (_, step), runs in harness.grouped(one_chain, [(USUAL, step) for step in STEPS], chains, jobs):
            rows.append([step, *(f"{v:.2f}" for v in np.mean([distances(c, reference) for c in runs], axis=0))])
            print(*rows[-1], flush=True)
        PATH_TABLE.write(rows, f"{chains} chains; the long run: {2 * chains} chains of pk.KernelHMC, {DRAW} draws.")


if __name__ == "__main__":
    harness.run(main)
