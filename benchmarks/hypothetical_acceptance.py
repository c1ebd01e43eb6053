# %% [markdown]
# # How good is a learnt gradient, as a proposal, in many dimensions?
#
# Before there is any chain: draw points from a Gaussian, learn the surrogate, follow it from fresh points, and ask with
# which probability the true density would accept the end (Strathmann 2018, section 4.4.1, figures 4.2 and 4.3). The
# easy target is isotropic; in the hard one the variances come from Gamma(1, 1), in random axes.

# %%
import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import measures
from benchmarks.targets import correlated_gaussian, gamma_gaussian
from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel.mcmc.trajectory import leapfrog

FIGURES = Path(__file__).parent / "figures"
STEP_SIZE, LONGEST, TRIALS = 0.1, 10, 100
NOTE = (
    f"Trajectories of 1 to {LONGEST} steps of {STEP_SIZE}; {TRIALS} of them for each of the repetitions; finite "
    "features, uniform base measure. The last column is the same with a Gaussian base measure."
)


def isotropic(num_dims, seed):
    """Return a standard normal law."""
    return correlated_gaussian(num_dims, 1.0, seed)


TARGETS = {"isotropic": isotropic, "gamma spectrum": gamma_gaussian}
KERNELS = {"isotropic": K.Gaussian(), "gamma spectrum": K.RationalQuadratic(alpha=1.0)}


def acceptance(target, expansion, rng):
    """Return the mean probability with which the true density accepts ends of trajectories from fresh draws."""
    total = 0.0
    for start in target.sample(rng, TRIALS):
        momentum = rng.standard_normal(target.num_dims)
        end, turned, _ = leapfrog(start, momentum, STEP_SIZE, int(rng.integers(1, LONGEST + 1)), expansion)
        gain = target.log_density(end) - target.log_density(start) + 0.5 * (momentum @ momentum - turned @ turned)
        total += min(1.0, np.exp(min(gain, 0.0)))
    return total / TRIALS


def learn(kernel, points, num_features, base, rng):
    """Return finite features with their length scale and regularisation cross-validated on 500 of the points."""
    estimator = S.Finite(kernel, num_features=num_features, base=base)
    found = S.cross_validate(estimator, points[:500], rng=rng)
    return found.estimator.fit(points, rng=rng)


def main():
    """Run all sizes, write the table and the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dimensions", type=int, nargs="*", default=[2, 5, 10, 20, 50, 100])
    parser.add_argument("--sizes", type=int, nargs="*", default=[200, 500, 1000, 2000])
    arguments = parser.parse_args()
    rows, means = [], {}
    for name, make in TARGETS.items():
        for d in arguments.dimensions:
            cells = []
            for n, base in [(n, "uniform") for n in arguments.sizes] + [(arguments.sizes[-1], "gaussian")]:
                found = []
                for seed in range(arguments.repetitions):
                    rng = np.random.default_rng([seed, d, n])
                    target = make(d, seed)
                    fitted = learn(KERNELS[name], target.sample(rng, n), n, base, rng)
                    found.append(acceptance(target, fitted.expansion, rng))
                means[name, d, n, base] = np.mean(found)
                cells.append(f"{np.mean(found):.2f}")
            rows.append([name, str(d), *cells])
            print(*rows[-1], flush=True)
    header = ["target", "d", *(f"n = m = {n}" for n in arguments.sizes), "with base"]
    table = f"{NOTE} {arguments.repetitions} repetitions.\n\n{measures.markdown_table(header, rows)}"
    measures.write_between(Path(__file__).parent / "RESULTS.md", "acceptance", table)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, name in zip(axes, TARGETS, strict=True):
        for n in arguments.sizes:
            axis.plot(arguments.dimensions, [means[name, d, n, "uniform"] for d in arguments.dimensions], "o-", label=n)
        axis.set(title=name, xlabel="dimension", xscale="log", ylim=(0, 1))
    axes[0].set_ylabel("hypothetical acceptance")
    axes[0].legend(title="n = m")
    figure.savefig(FIGURES / "hypothetical_acceptance.png", dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main()
