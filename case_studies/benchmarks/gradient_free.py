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

Run: python -m case_studies.benchmarks.gradient_free [--repetitions 10] [--glass 0]
The table is written to RESULTS.md beside this file and to the README.
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
from case_studies.benchmarks import measures
from case_studies.targets import banana, correlated_gaussian, flower

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
}


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


def run_chain(step, density, point, rng):
    """Tune and sample by evaluations, not by draws; returns the draws after tuning and the seconds they took."""
    step.setup_chain(rng, TUNE, DRAW)
    if hasattr(step, "reset_tuning"):
        step.reset_tuning()
    step.tune = True
    start = density.calls
    while density.calls - start < TUNE:
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
    fresh = made.sampling_state
    draws, seconds = [], 0.0
    for _ in range(CHAINS):
        made.sampling_state = fresh
        start = {"x": rng.standard_normal(target.num_dims) * spread}
        chain, taken = run_chain(made, density, model.initial_point() | start, rng.spawn(1)[0])
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


def main():
    """Run all, print and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=10)
    arguments = parser.parse_args()
    tasks = [(t, s, r) for t in TARGETS for s in STEPS for r in range(arguments.repetitions)]
    results = {}
    with ProcessPoolExecutor(2) as pool:
        for done, result in enumerate(pool.map(one_repetition, tasks)):
            results.setdefault(result["task"][:2], []).append(result)
            if (done + 1) % arguments.repetitions == 0:
                print(f"{done + 1}/{len(tasks)}", result["task"][:2], flush=True)
    sampled = CHAINS * DRAW / 1000
    rows = []
    for (target, step), group in results.items():
        rows.append(
            [
                target,
                step,
                f"{np.mean([g['ess'] for g in group]) / sampled:.2f}",
                f"{measures.error_implied_size(np.array([g['shares'] for g in group])) / sampled:.2f}",
                f"{np.mean([g['mean_error'] for g in group]):.2f}",
                f"{np.median([g['rhat'] for g in group]):.2f}",
                f"{np.mean([g['ess'] / g['seconds'] for g in group]):.1f}",
            ]
        )
    header = ["target", "step", "ESS / 1000", "error-implied / 1000", "error of mean (sd)", "R-hat", "ESS / s"]
    table = measures.markdown_table(header, rows)
    print(table)
    note = f"{arguments.repetitions} repetitions of {CHAINS} chains, {TUNE} + {DRAW} evaluations each.\n\n"
    measures.write_between(HERE / "RESULTS.md", "gradient-free", note + table)
    measures.write_between(HERE.parent.parent / "README.md", "gradient-free", note + table)


if __name__ == "__main__":
    main()
