"""Every sampler on posteriors that nobody has tuned on: right, said or silent, by the judge of the zoo.

A seed draws shapes, sizes, places and units of each family (``benchmarks/posteriors/drawn.py``), and an observation of
each simulator (``benchmarks/simulated_problems.py``). Default calls, but for ``sample_surrogate``, which has no default
number of evaluations: 50 (d + 2). Seeds below 1,000 are for development; those from 1,000 on are run for the table.
A row is kept in ``benchmarks/rows`` as it is finished.
"""

from collections import Counter
from functools import lru_cache, partial

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness, zoo
from benchmarks.posteriors.drawn import FAMILIES, drawn
from benchmarks.posteriors.judge import judge, truth_of
from benchmarks.simulated_problems import FAMILIES as SIMULATORS
from benchmarks.simulated_problems import MATCHED, exact_draws, problem_of

ROWS = harness.Rows(harness.ROWS / "fresh.jsonl", lambda row: (row["family"], row["seed"], row["sampler"]))
HEADER = ("sampler", "answers", "right", "right: said", "wrong: said", "silent", "silent on", "s")
TABLE = harness.Table("fresh", HEADER)


def _surrogate(model, seed):
    d = sum(int(np.prod(v.type.shape)) for v in model.value_vars)
    return pk.sample_surrogate(evaluations=50 * (d + 2), random_seed=seed, progressbar=False)


_FROM_DENSITIES = {
    name: zoo.SAMPLERS[name] for name in ("sample_khmc", "KernelHMC", "sample_smc, ASMC", "sample_pmc")
} | {"sample_surrogate": (_surrogate, "")}
_FROM_SIMULATIONS = {name: zoo.SAMPLERS[name] for name in ("sample_likelihood_free", "sample_kbr", "sample_abc")}
SAMPLERS = {**_FROM_DENSITIES, **_FROM_SIMULATIONS}


def _simulator_model(problem, observed):
    with pm.Model() as model:
        z = pm.Normal("z", 0.0, 1.0, shape=problem.width)
        pm.Simulator("y", lambda rng, z, size: problem.simulate(rng, z[None])[0], z, observed=observed)
    return model


@lru_cache(maxsize=1)
def posterior_of(family, seed):
    """Return a function that makes the model, its truth and how many exact draws that is from."""
    simulators = {**SIMULATORS, **MATCHED}
    if family in simulators:
        problem, _, _, observed = problem_of(family, seed, 1, simulators)
        make, has_moments = partial(_simulator_model, problem, observed), True
        exact = {"z": exact_draws(problem, observed, np.random.default_rng(seed))}
    else:
        made = drawn(family, seed)
        make, exact, has_moments = made.make, made.exact, made.has_moments
    return make, truth_of(exact, has_moments), len(next(iter(exact.values())))


def run(family, seed, sampler):
    """Return a row of the zoo, with its verdict."""
    make, truth, num_exact = posterior_of(family, seed)
    call, chains_are = SAMPLERS[sampler]
    row = zoo.measured(make, partial(call, seed=seed), truth, chains_are)
    row = {"family": family, "seed": seed, "sampler": sampler} | row
    summary = row.pop("summary", None)
    if summary is None:
        return row | {"outcome": "said", "worst": "", "error": None, "said": [row["raised"], *row["said"]]}
    found = judge(summary, truth, row["rhat"], row["said"], num_exact)
    return row | {"outcome": found.outcome, "worst": found.worst, "error": found.error, "said": list(found.said)}


def told(row):
    """Return what is printed of a row."""
    words = "; ".join(harness.shortened(word, 70) for word in row["said"])
    error = row["error"] or 0.0
    return f"{row['outcome']}, {row['worst']} by {error:.2f} sd, {row['seconds']:.0f} s. {words}"


def cells(sampler, rows):
    """Return a row of the table."""
    count = Counter(row["outcome"] for row in rows)
    alarms = sum(bool(row["said"]) for row in rows if row["outcome"] == "right")
    silent = [row for row in rows if row["outcome"] == "silent"]
    where = ", ".join(f"{r['family']} {r['seed']} ({r['error']:.2f})" for r in silent)
    seconds = f"{np.mean([row['seconds'] for row in rows]):.0f}"
    return [sampler, len(rows), count["right"], alarms, count["said"], count["silent"], where, seconds]


def main(
    families=(*FAMILIES, *SIMULATORS), samplers=tuple(SAMPLERS), first_seed=1000, repetitions=2, again=False, jobs=2
):
    wanted = [
        (family, seed, sampler)
        for seed in range(first_seed, first_seed + repetitions)
        for family in families
        for sampler in samplers
        if sampler in (_FROM_DENSITIES if family in FAMILIES else _FROM_SIMULATIONS)
    ]
    rows = [row for row in ROWS.complete(run, wanted, told, again, jobs) if row["seed"] >= 1000]
    if rows:
        groups = {name: [row for row in rows if row["sampler"] == name] for name in SAMPLERS}
        print(TABLE.write([cells(name, own) for name, own in groups.items() if own]))


if __name__ == "__main__":
    harness.run(main)
