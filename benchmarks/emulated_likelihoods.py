"""``pk.emulate`` on the log likelihoods of ``few_evaluations``: how many evaluations, how far off, what it says.

Each is a black box of all parameters that returns one number, the hardest case: nothing of the model is known but the
prior. At most 50 (d + 2) evaluations; the search ends by itself where it has learned enough. Distances and the words
silent and wolf are those of ``few_evaluations``, whose medians for ``sample_surrogate`` at all of these evaluations
stand beside. Draws are 4,000 of ``pm.sample`` on the emulated model. Some forty minutes on two cores.
"""

import logging
import warnings
from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

import pymc_kernel as pk
from benchmarks import few_evaluations as few
from benchmarks import harness, measures
from benchmarks.learned_parts import DRAWS, STUCK

BUDGET = min(few.BUDGETS)  # times d + 2
HEADER = (
    "posterior", "d", "runs", "evaluations", "most", "distance", "largest", "sample_surrogate: evaluations", "distance",
    "largest", "said", "silent", "wolf", "s",
)  # fmt: skip
ROWS = harness.Rows(harness.ROWS / "emulated_likelihoods.jsonl", lambda row: (row["name"], row["seed"]))
TABLE = harness.Table("emulated-likelihoods", HEADER)
TARGETS = tuple(name for name in few.TARGETS if few.TARGETS[name][0] is not few.of_posteriordb)


def model_of(costly):
    """Return the model of a target: its normal prior, and its log likelihood as a black box."""
    box = wrap_py([pt.dvector], [pt.dscalar])(lambda x: np.asarray(costly.log_likelihood(x[None])[0]))
    with pm.Model() as model:
        x = pm.Normal("x", costly.prior.mean, costly.prior.spread, shape=costly.num_dims)
        pm.Potential("log_likelihood", box(x))
    return model


def one_run(name, seed):
    """Return the row of a run."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    costly, (exact, _) = few.target(name), few.truth(name)
    most = BUDGET * (costly.num_dims + 2)
    emulate = partial(pk.emulate, model_of(costly), most, random_seed=seed, progressbar=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        emulated, seconds = measures.timed(emulate)
        idata = pm.sample(model=emulated, random_seed=seed, **DRAWS)
    draws = idata["posterior"]["x"].values
    is_stuck = measures.largest_rhat(draws) > STUCK  # PyMC says so
    return {
        "name": name, "seed": seed, "d": costly.num_dims, "evaluations": emulated.emulation.num_evaluations,
        "distance": few.distance(draws.reshape(-1, costly.num_dims), exact), "estimate": emulated.emulation.distance,
        "said": is_stuck or bool(measures.said_by_emulation(said)), "seconds": seconds,
    }  # fmt: skip


def cells(rows, others):
    """Return the row of the table for runs on one target, beside those of ``sample_surrogate``."""
    column = {key: np.array([row[key] for row in rows]) for key in ("evaluations", "distance", "said", "seconds")}
    wrong, good = column["distance"] > few.BAD, column["distance"] <= few.GOOD
    beside = [other["at"][str(BUDGET)] for other in others]
    theirs = np.array([b["distance"] for b in beside])
    return [
        rows[0]["name"], rows[0]["d"], len(rows),
        f"{np.median(column['evaluations']):.0f}", column["evaluations"].max(),
        *_middle_and_largest(column["distance"]),
        beside[0]["evaluations"] if beside else None, *(_middle_and_largest(theirs) if beside else (None, None)),
        column["said"].sum(), (wrong & ~column["said"]).sum(), (good & column["said"]).sum(),
        f"{np.median(column['seconds']):.0f}",
    ]  # fmt: skip


def _middle_and_largest(distances):
    return f"{np.median(distances):.3f}", f"{distances.max():.3f}"


def main(names=TARGETS, first_seed=1000, repetitions=2, again=False, jobs=2):
    for name in names:
        few.truth(name)
    tasks = [(name, seed) for seed in range(first_seed, first_seed + repetitions) for name in names]

    def told(row):
        return f"{row['evaluations']}, {row['distance']:.3f}{', said' if row['said'] else ''}, {row['seconds']:.0f} s"

    rows = [row for row in ROWS.complete(one_run, tasks, told, again, jobs) if row["seed"] >= first_seed]
    groups = [[row for row in rows if row["name"] == name] for name in TARGETS]
    others = [row for row in few.ROWS.kept().values() if not row["noise"]]
    made = [cells(group, [o for o in others if o["name"] == group[0]["name"]]) for group in groups if group]
    print(TABLE.write(sorted(made, key=lambda row: -float(row[5]))))


if __name__ == "__main__":
    harness.run(main)
