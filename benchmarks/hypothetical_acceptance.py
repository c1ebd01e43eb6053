"""How good is a learned gradient, as a proposal, in many dimensions?

Before there is any chain: draw points from a Gaussian, learn the surrogate, follow it from fresh points, and ask with
which probability the true density would accept the end (Strathmann 2018, section 4.4.1, figures 4.2 and 4.3). The
easy target is isotropic; in the hard one the variances come from Gamma(1, 1), in random axes.
"""

import numpy as np

from benchmarks import harness
from benchmarks.targets import correlated_gaussian, gamma_gaussian
from benchmarks.trajectories import leapfrog
from pymc_kernel import kernels as K
from pymc_kernel import scores as S

STEP_SIZE, LONGEST, TRIALS = 0.1, 10, 100
NOTE = (
    f"Trajectories of 1 to {LONGEST} steps of {STEP_SIZE}; {TRIALS} of them for each of the repetitions; finite "
    "features, uniform base measure. The last column is the same with a Gaussian base measure."
)


def isotropic(num_dims, seed):
    """Return a standard normal distribution."""
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
    """Return finite features with their length scale and regularization cross-validated on 500 of the points."""
    estimator = S.Finite(kernel, num_features=num_features, base=base)
    found = S.cross_validate(estimator, points[:500], rng=rng)
    return found.estimator.fit(points, rng=rng)


def one_fit(name, d, n, base, seed):
    """Return the acceptance along what is learned from one sample."""
    rng = np.random.default_rng([seed, d, n])
    target = TARGETS[name](d, seed)
    fitted = learn(KERNELS[name], target.sample(rng, n), n, base, rng)
    return acceptance(target, fitted.expansion, rng)


def main(repetitions=3, dimensions=(2, 5, 10, 20, 50, 100), sizes=(200, 500, 1000, 2000), jobs=1):
    """Run all sizes, write the table and the figure."""
    columns = [*((n, "uniform") for n in sizes), (sizes[-1], "gaussian")]
    keys = [(name, d, *column) for name in TARGETS for d in dimensions for column in columns]
    means = {key: np.mean(found) for key, found in harness.grouped(one_fit, keys, repetitions, jobs)}
    rows = [
        [name, d, *(f"{means[name, d, *column]:.2f}" for column in columns)] for name in TARGETS for d in dimensions
    ]
    header = ["target", "d", *(f"n = m = {n}" for n in sizes), "with base"]
    print(harness.Table("acceptance", header).write(rows, f"{NOTE} {repetitions} repetitions."))
    curves = {name: {n: [means[name, d, n, "uniform"] for d in dimensions] for n in sizes} for name in TARGETS}
    look = {"xlabel": "dimension", "ylabel": "hypothetical acceptance", "xscale": "log", "ylim": (0, 1)}
    harness.draw_curves("hypothetical_acceptance", dimensions, curves, legend="n = m", **look)


if __name__ == "__main__":
    harness.run(main)
