"""Do checks by the score of a surrogate come to the same verdict as checks by the model's gradient?

``pk.ksd_test(idata, score="surrogate")`` learns a score from log densities at the draws alone. On each posterior of the
zoo that has a gradient and exact draws: 1,000 exact draws, and 1,000 made wrong as in ``zoo_checks`` (without the
lowest tenth of a coordinate, with 0.8 of their spread, one mean shifted by 0.3 standard deviations). Both checks judge
the same draws at 5 %; where the surrogate says that it cannot judge, there is nothing to compare.

A row is kept in ``benchmarks/rows`` as it is finished, and not run again unless ``--again`` is given.
"""

import logging

import numpy as np

import pymc_kernel as pk
from benchmarks import harness, measures, zoo_draws
from benchmarks.posteriors.draws import EXACT_DRAWS

ROWS = harness.Rows(harness.ROWS / "surrogate_checks.jsonl", lambda row: (row["model"], row["kind"], row["seed"]))
KINDS = ("exact", *zoo_draws.CHANGES)
LEVEL = 0.05
UNJUDGED = "cannot be judged"
_NUM_DRAWS = 1000
_COUNTS = ("checks", "misfits by gradient", "judged", "same verdict")
HEADER = ("posterior", *_COUNTS, "score error", "least overlap", "s")


def draws_of(name, kind, seed):
    """Return draws of a kind as a DataTree of four chains."""
    if kind == "exact":
        return zoo_draws.as_tree(EXACT_DRAWS[name](np.random.default_rng([seed, 5]), _NUM_DRAWS), 4)
    return zoo_draws.KINDS[kind](name, seed)


def run(name, kind, seed):
    """Return a row: what both checks find, and what the surrogate says of itself."""
    model, gradient = zoo_draws.model_and_scores(name)
    tree = draws_of(name, kind, seed)
    settings = {"model": model, "num_replicates": 500}
    learned, seconds = measures.timed(lambda: pk.ksd_test(tree, score="surrogate", **settings))
    known = pk.ksd_test(tree, score=gradient, **settings)
    return {
        "model": name,
        "kind": kind,
        "seed": seed,
        "verdict": known.verdict(LEVEL),
        "p": known.p_value,
        "learned_verdict": learned.verdict(LEVEL),
        "learned_p": learned.test.p_value,
        "why": learned.unjudged,
        **learned.learned.attributes(),
        "seconds": round(seconds, 1),
    }


def agreement(rows):
    """Return how many rows the surrogate judged, and in how many of these both verdicts are the same."""
    judged = [r for r in rows if r["learned_verdict"] != UNJUDGED]
    return len(judged), sum(r["verdict"] == r["learned_verdict"] for r in judged)


def cells(name, rows):
    """Return the row of a posterior."""
    judged, same = agreement(rows)
    misfits = sum(row["verdict"] == "misfit" for row in rows)
    errors, overlaps, seconds = ([row[key] for row in rows] for key in ("score_error", "overlap", "seconds"))
    measured = f"{np.median(errors):.3f}", f"{min(overlaps):.3f}", f"{np.median(seconds):.1f}"
    return [name, len(rows), misfits, judged, same, *measured]


def table(rows):
    """Return the text between the markers: a line of totals, and a row for each posterior."""
    judged, same = agreement(rows)
    total = (
        f"{len(rows)} checks, {judged} of them judged by the surrogate; the same verdict as by gradients in {same} of "
        f"these ({same / max(judged, 1):.1%})."
    )
    by_name = {name: [row for row in rows if row["model"] == name] for name in EXACT_DRAWS}
    found = [cells(name, ours) for name, ours in by_name.items() if ours]
    return f"{total}\n\n{harness.markdown_table(HEADER, found)}"


def told(row):
    """Return what is printed of a row."""
    learned = f"{row['learned_verdict']} (p {row['learned_p']:.3f})"
    errors = f"score error {row['score_error']:.3f}, overlap {row['overlap']:.3f}"
    return f"{row['verdict']} (p {row['p']:.3f}); surrogate: {learned}, {errors}"


def main(models=tuple(EXACT_DRAWS), seeds=(1, 2), jobs=1, again=False):
    logging.getLogger("pymc").setLevel(logging.ERROR)
    wanted = [(model, kind, seed) for model in models for kind in KINDS for seed in seeds]
    rows = ROWS.complete(run, wanted, told, again, jobs)
    harness.write_results("surrogate_checks", table(rows))


if __name__ == "__main__":
    harness.run(main)
