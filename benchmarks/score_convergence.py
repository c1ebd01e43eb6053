"""How well is a score learned from 500 points?

Two distributions whose score is known, from 2 to 20 dimensions: three thin rings, and a mixture at vertices of a
hypercube (Strathmann 2018, section 6.3.1). The full estimator is the reference; the low-rank ones keep a third and a
twelfth of the points. Beside them a denoising auto-encoder (Alain and Bengio 2014): two layers, trained by BFGS under
falling noise. Settings are the best on a grid for each method by the true error on the test points, as in the thesis.
"""

from functools import partial
from itertools import product

import numpy as np

from benchmarks import harness, measures
from benchmarks.auto_encoder import AutoEncoder
from benchmarks.targets import grid, ring
from pymc_kernel import scores as S
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import median_distance

NUM_POINTS = 500
TARGETS = {"ring": (ring, 5000), "grid": (grid, 1500)}


def full(kernel, regularization):
    """Return the full estimator."""
    return S.Full(kernel, regularization=regularization, base="uniform")


def nystrom(num_basis):
    """Return a function of kernel and regularization: the Nystroem estimator."""
    return lambda k, r: S.Nystrom(k, regularization=r, num_basis=num_basis, base="uniform")


def lite(num_basis):
    """Return a function of kernel and regularization: the lite estimator."""
    return lambda k, r: S.Lite(k, regularization=r, penalty="rkhs", num_basis=num_basis, base="uniform")


METHODS = {
    "full": full,
    "Nystroem, m = 167": nystrom(167),
    "Nystroem, m = 42": nystrom(42),
    "lite, m = 167": lite(167),
    "lite, m = 42": lite(42),
}
NUM_SCALES = 4
SCALES = {"ring": (0.05, 0.1, 0.2, 0.4), "grid": (0.3, 0.6, 1.0, 1.8)}  # in units of the median distance
REGULARIZATIONS = tuple(10.0 ** (k / 2) for k in range(-12, 3))
NOISES = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3)  # of the auto-encoder, in units of the median distance
NUM_HIDDEN = (30, 100)
AUTO_ENCODER = "auto-encoder"


def error(fitted, target, test):
    """Return E |estimate - truth|^2 / 2 over the test points."""
    return 0.5 * float(((fitted.score(test) - target.score(test)) ** 2).sum(axis=1).mean())


def tried(estimator, points, target, test):
    """Return the error of an estimator."""
    return error(estimator.fit(points, rng=np.random.default_rng(0)), target, test)


def climbed(start, trial):
    """Return the smallest error reached from a place of the grid by steps to its neighbors."""
    found = {}
    here, best = None, start
    while best != here:
        here = best
        near = [(here[0] + i, here[1] + j) for i, j in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))]
        for i, j in near:
            if 0 <= j < len(REGULARIZATIONS) and 0 <= i < NUM_SCALES and (i, j) not in found:
                found[i, j] = trial(i, j)
        best = min(found, key=found.get)
    return found[best]


def sampled(name, d, seed):
    """Return target, points to learn from, points to test on, and the median distance of the former."""
    make, num_test = TARGETS[name]
    target, rng = make(d), np.random.default_rng([seed, d])
    points, test = target.sample(rng, NUM_POINTS), target.sample(rng, num_test)
    return target, points, test, median_distance(points, rng)


def one_run(name, d, seed):
    """Return {method: error}; the full estimator climbs from the best settings of its Nystroem form."""
    target, points, test, distance = sampled(name, d, seed)

    def trial(method, i, j):
        estimator = METHODS[method](Gaussian(SCALES[name][i] * distance), REGULARIZATIONS[j])
        return tried(estimator, points, target, test)

    out = {}
    for method in [m for m in METHODS if m != "full"]:
        found = {(i, j): trial(method, i, j) for i in range(NUM_SCALES) for j in range(len(REGULARIZATIONS))}
        best = min(found, key=found.get)
        out[method] = found[best]
        if method == "Nystroem, m = 167":
            start = best
    encoders = [AutoEncoder(noise * distance, h) for noise, h in product(NOISES, NUM_HIDDEN)]
    errors = [tried(encoder, points, target, test) for encoder in encoders]
    return out | {"full": climbed(start, partial(trial, "full")), AUTO_ENCODER: min(errors)}


def one_timing(name, d):
    """Return the error of a score of zero, and {method: seconds of one fit} at settings in the middle of the grid."""
    target, points, test, distance = sampled(name, d, 0)
    made = {method: make(Gaussian(SCALES[name][1] * distance), REGULARIZATIONS[8]) for method, make in METHODS.items()}
    made[AUTO_ENCODER] = AutoEncoder(NOISES[2] * distance, NUM_HIDDEN[0])
    seconds = {}
    for method, estimator in made.items():
        estimator.fit(points[:100], rng=np.random.default_rng(0))  # compiled
        seconds[method] = measures.timed(
            lambda estimator=estimator: estimator.fit(points, rng=np.random.default_rng(0))
        )[1]
    return 0.5 * float((target.score(test) ** 2).sum(axis=1).mean()), seconds


ALL_METHODS = (*METHODS, AUTO_ENCODER)
ERROR_TABLE = harness.Table("convergence", ("target", "d", *ALL_METHODS))
TIME_TABLE = harness.Table("convergence-seconds", ("target", "d", "error of a score of zero", *ALL_METHODS))


def main(repetitions=3, dimensions=(2, 5, 10, 15, 20), parts=("errors", "seconds"), jobs=1):
    """The errors take two hours of one processor, most of it for the full estimator and the auto-encoder."""
    keys = [(name, d) for name in TARGETS for d in dimensions]
    if "seconds" in parts:
        rows = []
        for key, (zero, seconds) in zip(keys, harness.results(one_timing, keys, jobs=1), strict=True):
            rows.append([*key, f"{zero:.3g}", *(f"{seconds[method]:.2g}" for method in ALL_METHODS)])
            print(*rows[-1], flush=True)
        TIME_TABLE.write(rows, "Seconds of one fit at settings in the middle of the grid.")
    if "errors" in parts:
        rows, curves = [], {name: {method: [] for method in ALL_METHODS} for name in TARGETS}
        for (name, d), runs in harness.grouped(one_run, keys, repetitions, jobs):
            means = {method: np.mean([run[method] for run in runs]) for method in ALL_METHODS}
            for method, mean in means.items():
                curves[name][method].append(mean)
            rows.append([name, d, *(f"{mean:.3g}" for mean in means.values())])
            print(*rows[-1], flush=True)
        ERROR_TABLE.write(rows, f"{repetitions} repetitions.")
        look = {"xlabel": "dimension", "ylabel": "error of the score", "yscale": "log"}
        harness.draw_curves("score_convergence", dimensions, curves, **look)


if __name__ == "__main__":
    harness.run(main)
