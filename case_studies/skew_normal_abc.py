# %% [markdown]
# # Simulations a draw: kernel HMC and Hamiltonian ABC
#
# The data are the mean of ten draws of a skew normal distribution of ten dimensions; it can only be simulated. Kernel
# HMC invests one simulation a draw in accepting or rejecting, and is exact for the ABC posterior. Hamiltonian ABC
# (Meeds, Leenders and Welling 2015) differentiates a Gaussian synthetic likelihood by simultaneous perturbations, with
# one seed for all simulations of a trajectory, and never rejects: two simulations for each of fifty leapfrog steps
# (Strathmann 2018, section 4.4.4). Under a flat prior the ABC posterior of a location is the distribution of the noise,
# mirrored, so its mean and covariance are known.
#
# The source's density 2 N(y | theta, I) Phi(alpha' y) is normalized only for theta = 0; here y - theta stands in Phi.

# %%
from pathlib import Path

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats

import pymc_kernel as pk
from benchmarks import harness, measures

HERE = Path(__file__).parent
D, COUNT, EPSILON = 10, 10, 0.55
DELTA = np.ones(D) / np.sqrt(1.0 + D)  # alpha / sqrt(1 + alpha' alpha), alpha = 1
LEAPFROG, STEP = 50, (0.01, 0.1)


# %%
def simulate(rng, theta, size):
    """Return ten draws (10, 10) of the skew normal distribution around theta."""
    normal = rng.standard_normal((COUNT, D))
    skewing = np.abs(rng.standard_normal((COUNT, 1)))
    # delta |u| plus normal noise of covariance I - delta delta'.
    along = normal @ DELTA / (DELTA @ DELTA)
    shrunk = normal + (np.sqrt(1.0 - DELTA @ DELTA) - 1.0) * along[:, None] * DELTA
    return theta + skewing * DELTA + shrunk


def mean_of(data):
    """Summary of a data set."""
    return data.mean(axis=0)


OBSERVED = simulate(np.random.default_rng(1), np.ones(D), None)
EXACT_MEAN = OBSERVED.mean(axis=0) - np.sqrt(2.0 / np.pi) * DELTA
EXACT_COVARIANCE = (np.eye(D) - 2.0 / np.pi * np.outer(DELTA, DELTA)) / COUNT + EPSILON**2 * np.eye(D)


def exact_draws(rng, count):
    """Return draws (count, d) of the exact ABC posterior: the data's mean minus noise of the summary and the kernel."""
    noise = np.array([simulate(rng, 0.0, None).mean(axis=0) for _ in range(count)])
    return OBSERVED.mean(axis=0) - noise - EPSILON * rng.standard_normal(noise.shape)


def model(num_simulations=1, reuse_noise=0.0):
    """Return the model under a flat prior."""
    with pm.Model() as made:
        theta = pm.Flat("theta", shape=D, initval=OBSERVED.mean(axis=0))
        pk.KernelABC(
            "y", simulate, theta, observed=OBSERVED, summary=mean_of, epsilon=EPSILON,
            num_simulations=num_simulations, reuse_noise=reuse_noise,
        )  # fmt: skip
    return made


def by_pymc(step, draws, tune, seed, num_simulations=1, reuse_noise=0.0):
    """Return draws (chain, draw, d) of four chains, and simulations a draw after tuning."""
    with model(num_simulations, reuse_noise):
        idata = pm.sample(draws, tune=tune, chains=4, cores=2, step=step(), random_seed=seed, progressbar=False)
    return idata["posterior"]["theta"].values, num_simulations * float(idata["sample_stats"]["evaluations"].mean())


def hamiltonian_abc(draws, rng, friction=0.0):
    """Return draws (draw, d) of one chain of Hamiltonian ABC: stochastic gradients, no rejection."""
    theta, found = OBSERVED.mean(axis=0).copy(), np.empty((draws, D))
    seen = OBSERVED.mean(axis=0)

    def log_synthetic(at, seed):
        # The synthetic likelihood of the summary, with the kernel's variance added to the simulations' own.
        data = simulate(np.random.default_rng(seed), at, None)
        variance = data.var(axis=0, ddof=1) / COUNT + EPSILON**2
        return -0.5 * ((seen - data.mean(axis=0)) ** 2 / variance + np.log(variance)).sum()

    def gradient(at, seed):
        signs, width = rng.choice([-1.0, 1.0], D), 0.1
        rise = log_synthetic(at + width * signs, seed) - log_synthetic(at - width * signs, seed)
        return 0.5 * rise / width * signs

    for i in range(draws):
        momentum, size, seed = rng.standard_normal(D), rng.uniform(*STEP), int(rng.integers(2**31))
        for _ in range(LEAPFROG):
            momentum += size * gradient(theta, seed) - friction * size * momentum
            momentum += np.sqrt(2.0 * friction * size) * rng.standard_normal(D)
            theta = theta + size * momentum
        found[i] = theta
    return found


_SPEED = ("ESS / 1000 draws", "simulations a draw", "ESS / 1000 simulations")
HEADER = ("method", *_SPEED, "mean: errors", "mean: bias", "sd: errors", "sd: ratio", "s")


def compared(draws, simulations):
    """Return cells: bulk ESS a thousand draws and simulations, errors of mean and spread in Monte Carlo errors."""
    ess = 1000.0 * measures.smallest_bulk_ess(draws) / draws[..., 0].size
    told = [f"{ess:.0f}", f"{simulations:.0f}", f"{ess / simulations:.2f}"]
    for method, exact in (("mean", EXACT_MEAN), ("sd", np.sqrt(np.diag(EXACT_COVARIANCE)))):
        columns = np.moveaxis(draws, 2, 0)
        errors = np.array([array_stats.mcse(x, chain_axis=0, draw_axis=1, method=method) for x in columns])
        values = draws.mean(axis=(0, 1)) if method == "mean" else draws.std(axis=(0, 1))
        told.append(f"{np.sqrt(np.mean(((values - exact) / errors) ** 2)):.2f}")
        told.append(f"{np.mean(values / exact) if method == 'sd' else np.mean(values - exact):.3f}")
    return told


def by_hamiltonian_abc(draws, friction):
    """Return draws of four chains of Hamiltonian ABC, and simulations a draw."""
    rngs = np.random.default_rng(3).spawn(4)
    return np.stack([hamiltonian_abc(draws + 200, rng, friction)[200:] for rng in rngs]), 2.0 * LEAPFROG


def main(draws=2000):
    """Run all; write the table and the picture."""
    runs = {"pk.AdaptiveMetropolis": (by_pymc, pk.AdaptiveMetropolis, 4 * draws, draws, 1)}
    for count, reuse in ((1, 0.0), (1, 0.5), (10, 0.0), (10, 0.5)):
        name = f"pk.KernelHMC, num_simulations={count}, reuse_noise={reuse}"
        runs[name] = (by_pymc, pk.KernelHMC, draws, 1500, 2, count, reuse)
    # Without friction the noise of the gradients heats the chain until it flies off.
    for friction in (1.0, 3.0, 10.0):
        runs[f"Hamiltonian ABC, friction {friction:.0f}"] = (by_hamiltonian_abc, draws // 5, friction)
    rows, draws_of = [], {"exact": exact_draws(np.random.default_rng(4), 20_000)}
    for name, run in runs.items():
        (found, simulations), seconds = measures.timed(*run)
        rows.append([name, *compared(found, simulations), f"{seconds:.0f}"])
        draws_of[name] = found[:, :, :1].reshape(-1, 1)
        print(*rows[-1], flush=True)
    note = (
        f"Four chains, {draws} draws each (four times that for the random walk, a fifth for Hamiltonian ABC). Errors: "
        "root mean square over the ten coordinates, in Monte Carlo standard errors; 1 is perfect."
    )
    harness.Table("skew-normal", HEADER).write(rows, note)
    harness.draw_intervals(HERE / "figures" / "skew_normal_abc.png", draws_of, ["first of ten parameters"], columns=1)


# %%
if __name__ == "__main__":
    harness.run(main)
