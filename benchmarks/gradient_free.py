"""PyMC's gradient-free steps and ours, at equal numbers of likelihood evaluations.

Every likelihood is a black box that counts its calls. A chain tunes for 2,000 evaluations and then samples for
4,000; four chains a repetition, started at independent draws from a wide normal law. PyMC's Metropolis and
DEMetropolisZ evaluate the current point again at every proposal; those calls count, since a user pays for them.
Per 1,000 evaluations of the sampling phase:

- smallest bulk ESS over the parameters, mean over repetitions;
- error-implied size: how many independent draws would have the same mean squared error of the 0.1, ..., 0.9
  quantiles over the repetitions (smallest over the parameters);

and the norm of the error of the mean (in units of the standard deviation, per parameter), the largest R-hat
(median over repetitions), and the smallest bulk ESS per second.

"Counting tuning" divides the effective size by all evaluations. ``pk.sample_khmc`` tunes its four chains together.

Run: python -m benchmarks.gradient_free [--repetitions 10] [--steps "pk.KernelHMC" ...] [--targets ...]
The table is written to RESULTS.md beside this file and to the README. Seeds are fixed: rows of steps and targets that
are not run stay as they were.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.op import Apply, Op
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from benchmarks.targets import banana, correlated_gaussian, flower
from pymc_kernel.plugin.samplers.pooled import _tune_together

HERE = Path(__file__).parent
TUNE, DRAW, CHAINS = 2000, 4000, 4

STEPS = {
    "pm.Metropolis": pm.Metropolis,
    "pm.DEMetropolisZ": pm.DEMetropolisZ,
    "pm.Slice": pm.Slice,
    "pk.AdaptiveMetropolis": pk.AdaptiveMetropolis,
    "pk.KAMH": pk.KAMH,
    "pk.KAMH, thesis settings": lambda: pk.KAMH(gamma=0.2, whiten=False),
    "pk.KernelHMC": pk.KernelHMC,
    "pk.sample_khmc": pk.KernelHMC,
}
HEADER = ["target", "step", "ESS / 1000", "counting tuning", "error-implied / 1000", "error of mean (sd)", "R-hat"]
HEADER.append("ESS / s")


class CountedDensity(Op):
    """A log density as a black box without gradient that counts its calls."""

    def __init__(self, fn):
        self.fn = fn
        self.calls = 0

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        self.calls += 1
        outputs[0][0] = np.asarray(self.fn(inputs[0]))


TARGETS = {
    "B(0.03, 100)": banana(0.03, 100),
    "B(0.1, 100)": banana(0.1, 100),
    "flower": flower(),
    "Gaussian": correlated_gaussian(),
}


def run_chain(step, density, point, rng, tune):
    """Tune and sample by evaluations, not by draws; returns the draws after tuning and the seconds they took."""
    step.setup_chain(rng, tune, DRAW)
    if hasattr(step, "reset_tuning"):
        step.reset_tuning()
    step.tune = tune > 0
    start = density.calls
    while density.calls - start < tune:
        point, _ = step.step(point)
    step.stop_tuning()
    draws, start, begun = [], density.calls, time.perf_counter()
    while density.calls - start < DRAW:
        point, _ = step.step(point)
        draws.append(point["x"])
    return np.array(draws), time.perf_counter() - begun


def one_repetition(task):
    """Run four chains of one step on one target; returns measures that the parent averages."""
    name, step_name, seed = task
    target = TARGETS[name]
    density = CountedDensity(target.log_density)
    with threadpool_limits(1), pm.Model() as model:
        x = pm.Flat("x", shape=target.num_dims)
        pm.Potential("target", density(x))
        made = STEPS[step_name]()
    rng = np.random.default_rng([seed, 20141])
    reference = target.sample(np.random.default_rng(1), 400_000)
    spread = reference.std(axis=0)
    starts = [model.initial_point() | {"x": rng.standard_normal(target.num_dims) * spread} for _ in range(CHAINS)]
    generators = rng.spawn(CHAINS)
    fresh = made.sampling_state
    if step_name == "pk.sample_khmc":
        with threadpool_limits(1):
            made.learnt, positions = _tune_together(made, starts, TUNE, rng, progressbar=False)
        starts = [s | {"x": x} for s, x in zip(starts, positions, strict=True)]
    draws, seconds = [], 0.0
    for start, generator in zip(starts, generators, strict=True):
        made.sampling_state = fresh
        chain, taken = run_chain(made, density, start, generator, 0 if step_name == "pk.sample_khmc" else TUNE)
        draws.append(chain)
        seconds += taken
    length = min(len(c) for c in draws)
    draws = np.stack([c[:length] for c in draws])
    return {
        "task": task,
        "ess": measures.smallest_bulk_ess(draws),
        "rhat": measures.largest_rhat(draws),
        "shares": measures.share_below(draws, np.quantile(reference, measures.PROBABILITIES, axis=0)),
        "mean_error": np.sqrt((((draws.mean(axis=(0, 1)) - reference.mean(axis=0)) / spread) ** 2).mean()),
        "seconds": seconds,
    }


def row_of(target, step, group):
    """Return a row of the table from the repetitions of one step on one target."""
    sampled = CHAINS * DRAW / 1000
    ess = np.mean([g["ess"] for g in group])
    implied = measures.error_implied_size(np.array([g["shares"] for g in group]))
    return [
        target,
        step,
        f"{ess / sampled:.2f}",
        f"{ess / (sampled + CHAINS * TUNE / 1000):.2f}",
        f"{implied / sampled:.2f}",
        f"{np.mean([g['mean_error'] for g in group]):.2f}",
        f"{np.median([g['rhat'] for g in group]):.2f}",
        f"{np.mean([g['ess'] / g['seconds'] for g in group]):.1f}",
    ]


def write(rows, repetitions):
    """Write the rows, and those of earlier runs that were not run anew, into both files."""
    keys = [(t, s) for t in TARGETS for s in STEPS]
    table = measures.merge_rows(HERE / "RESULTS.md", "gradient-free", HEADER, rows, keys)
    note = f"{repetitions} repetitions of {CHAINS} chains, {TUNE} + {DRAW} evaluations each.\n\n"
    measures.write_between(HERE / "RESULTS.md", "gradient-free", note + table)
    measures.write_between(HERE.parent / "README.md", "gradient-free", note + table)


def main():
    """Run all, print and write the table, target by target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--steps", nargs="*", choices=STEPS, default=list(STEPS))
    parser.add_argument("--targets", nargs="*", choices=TARGETS, default=list(TARGETS))
    arguments = parser.parse_args()
    tasks = [(t, s, r) for t in arguments.targets for s in arguments.steps for r in range(arguments.repetitions)]
    group, rows = [], []
    with ProcessPoolExecutor(2) as pool:
        for result in pool.map(one_repetition, tasks):
            group.append(result)
            if len(group) == arguments.repetitions:
                rows.append(row_of(*result["task"][:2], group))
                print(f"{len(rows) * len(group)}/{len(tasks)}", *rows[-1], flush=True)
                write(rows, arguments.repetitions)
                group = []


if __name__ == "__main__":
    main()
