# %% [markdown]
# # How well is a score learnt from 500 points?
#
# Two laws whose score is known, from 2 to 20 dimensions: three thin rings, and a mixture at vertices of a hypercube
# (Strathmann 2018, section 6.3.1). The full estimator is the reference; the low-rank ones keep a third and a twelfth of
# the points. Settings are the best on a grid for each method, as in the thesis.

# %%
import argparse
import time
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import measures
from benchmarks.targets import grid, ring
from pymc_kernel import scores as S
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.bandwidth import median_distance

FIGURES = Path(__file__).parent / "figures"
NUM_POINTS = 500
TARGETS = {"ring": (ring, 5000), "grid": (grid, 1500)}
METHODS = {
    "full": lambda k, r: S.Full(k, regularisation=r, base="uniform"),
    "Nystroem, m = 167": lambda k, r: S.Nystrom(k, regularisation=r, num_basis=167, base="uniform"),
    "Nystroem, m = 42": lambda k, r: S.Nystrom(k, regularisation=r, num_basis=42, base="uniform"),
    "lite, m = 167": lambda k, r: S.Lite(k, regularisation=r, penalty="rkhs", max_points=167, base="uniform"),
    "lite, m = 42": lambda k, r: S.Lite(k, regularisation=r, penalty="rkhs", max_points=42, base="uniform"),
}
NUM_SCALES = 4
SCALES = {"ring": (0.05, 0.1, 0.2, 0.4), "grid": (0.3, 0.6, 1.0, 1.8)}  # in units of the median distance
REGULARISATIONS = tuple(10.0 ** (k / 2) for k in range(-12, 3))


def error(fitted, target, test):
    """Return E |estimate - truth|^2 / 2 over the test points."""
    return 0.5 * float(((fitted.score(test) - target.score(test)) ** 2).sum(axis=1).mean())


def tried(method, scale, strength, points, target, test):
    """Return the error of a method at its settings, and the seconds of its fit."""
    begun = time.perf_counter()
    fitted = METHODS[method](Gaussian(scale), strength).fit(points, rng=np.random.default_rng(0))
    seconds = time.perf_counter() - begun
    return error(fitted, target, test), seconds


def climbed(start, trial):
    """Return the smallest error reached from a place of the grid by steps to its neighbours, and seconds of a fit."""
    found = {}
    here, best = None, start
    while best != here:
        here = best
        near = [(here[0] + i, here[1] + j) for i, j in ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))]
        for i, j in near:
            if 0 <= j < len(REGULARISATIONS) and 0 <= i < NUM_SCALES and (i, j) not in found:
                found[i, j] = trial(i, j)
        best = min(found, key=lambda place: found[place][0])
    return found[best][0], float(np.mean([seconds for _, seconds in found.values()]))


def one_run(name, target, num_test, rng):
    """Return {method: (error, seconds)}; the full estimator climbs from the best settings of its Nystroem form."""
    points, test = target.sample(rng, NUM_POINTS), target.sample(rng, num_test)
    distance = median_distance(points, rng)

    def trial(method, i, j):
        return tried(method, SCALES[name][i] * distance, REGULARISATIONS[j], points, target, test)

    out = {}
    for method in [m for m in METHODS if m != "full"]:
        found = {(i, j): trial(method, i, j) for i in range(NUM_SCALES) for j in range(len(REGULARISATIONS))}
        best = min(found, key=lambda place: found[place][0])
        out[method] = found[best][0], float(np.mean([seconds for _, seconds in found.values()]))
        if method == "Nystroem, m = 167":
            start = best
    return out | {"full": climbed(start, partial(trial, "full"))}


def main():
    """Run all, write the table and the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--dimensions", type=int, nargs="*", default=[2, 5, 10, 15, 20])
    arguments = parser.parse_args()
    rows, curves = [], {}
    for name, (make, num_test) in TARGETS.items():
        for d in arguments.dimensions:
            cells = []
            runs = [
                one_run(name, make(d), num_test, np.random.default_rng([seed, d]))
                for seed in range(arguments.repetitions)
            ]
            for method in METHODS:
                mean, seconds = np.mean([run[method] for run in runs], axis=0)
                curves.setdefault((name, method), []).append(mean)
                cells.append(f"{mean:.3g} ({seconds:.2g} s)")
            rows.append([name, str(d), *cells])
            print(*rows[-1], flush=True)
            table = measures.markdown_table(["target", "d", *METHODS], rows)
            note = f"{arguments.repetitions} repetitions; seconds of one fit in brackets.\n\n"
            measures.write_between(Path(__file__).parent / "RESULTS.md", "convergence", note + table)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, name in zip(axes, TARGETS, strict=True):
        for method in METHODS:
            axis.plot(arguments.dimensions, curves[name, method], "o-", label=method)
        axis.set(title=name, xlabel="dimension", yscale="log")
    axes[0].set_ylabel("error of the score")
    axes[1].legend(fontsize=8)
    figure.savefig(FIGURES / "score_convergence.png", dpi=80, bbox_inches="tight")


if __name__ == "__main__":
    main()
