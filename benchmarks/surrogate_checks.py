"""Do checks by the score of a surrogate come to the same verdict as checks by the model's gradient?

``pk.ksd_test(idata, score="surrogate")`` learns a score from log densities at the draws alone. On each posterior of the
zoo that has a gradient and exact draws: 1,000 exact draws, and 1,000 made wrong as in ``zoo_checks`` (without the
lowest tenth of a coordinate, with 0.8 of their spread, one mean shifted by 0.3 standard deviations). Both checks judge
the same draws at 5 %; where the surrogate says that it cannot judge, there is nothing to compare.

A row is kept in ``build/surrogate_checks/rows.jsonl`` as it is finished, and not run again unless ``--again`` is given.

Run: python -m benchmarks.surrogate_checks [--models ...] [--seeds 1 2] [--again]
"""

import argparse
import logging
import time
from functools import cache
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures, zoo_checks
from benchmarks import rows as rows_of
from benchmarks.posteriors import ZOO
from benchmarks.posteriors.draws import EXACT_DRAWS
from pymc_kernel.plugin.model.scores import compile_scores
from pymc_kernel.plugin.model.unconstrained import split_positions

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "surrogate_checks"
KINDS = ("exact", *zoo_checks.CHANGES)
SEEDS = (1, 2)
UNJUDGED = "cannot be judged"
_NUM_DRAWS = 1000


@cache
def _model(name):
    """Return the model, and its gradient as a function of unconstrained draws, compiled once."""
    model = ZOO[name].make()
    scores = compile_scores(model)
    return model, lambda positions: scores(split_positions(model, positions))


def draws_of(name, kind, seed):
    """Return draws of a kind as a DataTree of four chains."""
    if kind == "exact":
        return zoo_checks.as_tree(EXACT_DRAWS[name](np.random.default_rng([seed, 5]), _NUM_DRAWS), 4)
    return zoo_checks.KINDS[kind](name, seed)


def run(name, kind, seed):
    """Return a row: what both checks find, and what the surrogate says of itself."""
    model, gradient = _model(name)
    tree = draws_of(name, kind, seed)
    begun = time.perf_counter()
    with threadpool_limits(1, user_api="blas"):
        learned = pk.ksd_test(tree, model=model, score="surrogate", num_replicates=500)
        seconds = time.perf_counter() - begun
        known = pk.ksd_test(tree, model=model, score=gradient, num_replicates=500)
    return {
        "model": name,
        "kind": kind,
        "seed": seed,
        "verdict": known.verdict(zoo_checks.LEVEL),
        "p": known.p_value,
        "learned_verdict": learned.verdict(zoo_checks.LEVEL),
        "learned_p": learned.test.p_value,
        "why": learned.unjudged,
        **learned.learned.attributes(),
        "seconds": round(seconds, 1),
    }


def agreement(rows):
    """Return how many rows the surrogate judged, and in how many of these both verdicts are the same."""
    judged = [r for r in rows if r["learned_verdict"] != UNJUDGED]
    return len(judged), sum(r["verdict"] == r["learned_verdict"] for r in judged)


def table(rows):
    """Return the text between the markers: a line of totals, and a row for each posterior."""
    judged, same = agreement(rows)
    lines = [
        f"{len(rows)} checks, {judged} of them judged by the surrogate; the same verdict as by gradients in {same} of "
        f"these ({same / max(judged, 1):.1%})."
    ]
    cells = []
    for name in EXACT_DRAWS:
        ours = [r for r in rows if r["model"] == name]
        if not ours:
            continue
        judged, same = agreement(ours)
        misfits = sum(r["verdict"] == "misfit" for r in ours)
        errors, overlaps = ([r[key] for r in ours] for key in ("score_error", "overlap"))
        cells.append(
            [
                name,
                str(len(ours)),
                str(misfits),
                str(judged),
                str(same),
                f"{np.median(errors):.3f}",
                f"{min(overlaps):.3f}",
                f"{np.median([r['seconds'] for r in ours]):.1f}",
            ]
        )
    header = [
        "posterior",
        "checks",
        "misfits by gradient",
        "judged",
        "same verdict",
        "score error",
        "least overlap",
        "s",
    ]
    return "\n".join(lines) + "\n\n" + measures.markdown_table(header, cells)


def kept():
    """Return the finished rows by model, kind and seed."""
    return rows_of.kept(BUILD / "rows.jsonl", lambda row: (row["model"], row["kind"], row["seed"]))


def main():
    """Run what is missing; write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=EXACT_DRAWS, default=list(EXACT_DRAWS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--again", action="store_true", help="run rows that are there already")
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    known = kept()
    for name in arguments.models:
        for kind in KINDS:
            for seed in arguments.seeds:
                if (name, kind, seed) in known and not arguments.again:
                    continue
                row = run(name, kind, seed)
                rows_of.keep(BUILD / "rows.jsonl", row)
                told = f"{row['learned_verdict']} (p {row['learned_p']:.3f})"
                errors = f"score error {row['score_error']:.3f}, overlap {row['overlap']:.3f}"
                print(f"{name}, {kind}, {seed}: {row['verdict']} (p {row['p']:.3f}); surrogate: {told}, {errors}")
    measures.write_between(HERE / "RESULTS.md", "surrogate_checks", table(list(kept().values())))


if __name__ == "__main__":
    main()
