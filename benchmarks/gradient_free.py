"""PyMC's gradient-free steps and ours, at equal numbers of likelihood evaluations.

Every likelihood is a black box that counts its calls. A chain tunes for 2,000 evaluations and then samples for
4,000; four chains a repetition, started at independent draws from a wide normal distribution. PyMC's Metropolis and
DEMetropolisZ evaluate the current point again at every proposal; those calls count, since a user pays for them.
Per 1,000 evaluations of the sampling phase:

- smallest bulk ESS over the parameters, mean over repetitions;
- error-implied size: how many independent draws would have the same mean squared error of the 0.1, ..., 0.9
  quantiles over the repetitions (smallest over the parameters);

and the norm of the error of the mean (in units of the standard deviation, per parameter), the largest R-hat
(median over repetitions), and the smallest bulk ESS per second.

"Counting tuning" divides the effective size by all evaluations. ``pk.sample_khmc`` tunes its four chains together.

The table is written to RESULTS.md beside this file. Seeds are fixed: rows of steps and targets that are not run stay
as they were. ``benchmarks.same_budget`` draws README's picture of one repetition.
"""

import time
from functools import cache

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.op import Apply, Op

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.targets import banana, correlated_gaussian, flower

TUNE, DRAW, CHAINS = 2000, 4000, 4

STEPS = {
    "pm.Metropolis": pm.Metropolis,
    "pm.DEMetropolisZ": pm.DEMetropolisZ,
    "pm.Slice": pm.Slice,
    "pk.AdaptiveMetropolis": pk.AdaptiveMetropolis,
    "pk.KAMH": pk.KAMH,
    "pk.KAMH, thesis settings": lambda: pk.KAMH(gamma=0.2, whiten=False),
    "pk.KernelHMC": pk.KernelHMC,
    "pk.sample_khmc": None,
}


class CountedDensity(Op):
    """A log density as a black box without gradient that counts its calls."""

    def __init__(self, fn):
        self.fn = fn
        self.calls = 0

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def at(self, x):
        """Return the log density at one place (d,), without a graph."""
        self.calls += 1
        return self.fn(x)

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(self.at(inputs[0]))


TARGETS = {
    "B(0.03, 100)": banana(0.03, 100),
    "B(0.1, 100)": banana(0.1, 100),
    "flower": flower(),
    "Gaussian": correlated_gaussian(),
}
_WORTH = ("ESS / 1000", "counting tuning", "error-implied / 1000")
HEADER = ("target", "step", *_WORTH, "error of mean (sd)", "R-hat", "ESS / s")
KEYS = [(target, step) for target in TARGETS for step in STEPS]
TABLE = harness.Table("gradient-free", HEADER, KEYS)


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


def apart(make_step, density, model, positions, rng):
    """Return draws (chain, draw, d) of chains that tune by themselves, and the seconds after tuning."""
    with model:
        step = make_step()
    fresh, runs = step.sampling_state, []
    for x, generator in zip(positions, rng.spawn(CHAINS), strict=True):
        step.sampling_state = fresh
        runs.append(run_chain(step, density, model.initial_point() | {"x": x}, generator))
    length = min(len(draws) for draws, _ in runs)
    return np.stack([draws[:length] for draws, _ in runs]), sum(seconds for _, seconds in runs)


def together(model, positions, seed):
    """Return the same of chains that tune together; a draw is an evaluation."""
    settings = {"chains": CHAINS, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    starts = [{"x": x} for x in positions]
    idata = pk.sample_khmc(DRAW, tune=TUNE, initvals=starts, random_seed=seed, model=model, **settings)
    return idata["posterior"]["x"].values, idata["posterior"].attrs["sampling_time"]


@cache
def reference_draws(name):
    """Return exact draws of a target."""
    return TARGETS[name].sample(np.random.default_rng(1), 400_000)


def one_repetition(name, step, seed):
    """Return the target's name, draws (chain, draw, d) of one step on it, and the seconds they took."""
    target = TARGETS[name]
    density = CountedDensity(target.log_density)
    with pm.Model() as model:
        pm.Potential("target", density(pm.Flat("x", shape=target.num_dims)))
    rng = np.random.default_rng([seed, 20141])
    positions = rng.standard_normal((CHAINS, target.num_dims)) * reference_draws(name).std(axis=0)
    if STEPS[step] is None:
        return name, *together(model, positions, seed)
    return name, *apart(STEPS[step], density, model, positions, rng)


def cells(group):
    """Return what stands behind the names of target and step, from the repetitions."""
    reference, runs = reference_draws(group[0][0]), [draws for _, draws, _ in group]
    ess, implied, rhat = measures.worth(runs, reference)
    off = (np.array([draws.mean(axis=(0, 1)) for draws in runs]) - reference.mean(axis=0)) / reference.std(axis=0)
    error = np.sqrt((off**2).mean(axis=1)).mean()
    speed = np.mean([measures.smallest_bulk_ess(draws) / seconds for _, draws, seconds in group])
    sampled, tuned = CHAINS * DRAW / 1000, CHAINS * TUNE / 1000
    found = ess / sampled, ess / (sampled + tuned), implied / sampled, error, rhat
    return *(f"{value:.2f}" for value in found), f"{speed:.1f}"


def main(repetitions=10, steps=tuple(STEPS), targets=tuple(TARGETS), jobs=2):
    note = f"{repetitions} repetitions of {CHAINS} chains, {TUNE} + {DRAW} evaluations each."
    TABLE.fill(one_repetition, cells, repetitions, note, [(t, s) for t in targets for s in steps], jobs)


if __name__ == "__main__":
    harness.run(main)
