"""The checks of draws, with their defaults, on the zoo: do exact draws pass, and are wrong ones rejected?

The check is the joint p-value of ``pk.diagnose``, that of ``pk.summary`` and ``pk.ksd_test`` too, at 5 %. Draws:

- exact ones, 20 sets of 200 and 10 of 1,000 (a sampler of the posterior's own, ``benchmarks/posteriors/draws.py``; a
  long run of NUTS where there is none), ten sets of 100 reference draws of posteriordb where its folder is given, and
  10 chains of 500 draws of NUTS, each tested by itself;
- 1,000 exact draws made wrong: without the lowest tenth of one coordinate, with .8 of their spread, one mean shifted by
  .3 standard deviations (on the unconstrained scale; the first coordinate for odd seeds, the last for even ones);
- 1,000 draws of approximations: ``pm.fit`` with "advi" and "fullrank_advi", and Laplace's.

Silent: a mean, a standard deviation or a quantile is off by more than .3 standard deviations, and nothing is said.
False alarm: of sets of exact draws more are rejected than one table in a hundred would have of such a row by chance.
Said: wrong, not rejected, but R-hat, "separated modes" or an error tells. Right: all else.

A row is kept in ``benchmarks/rows`` as it is finished, and not run again unless ``--again`` is given.
"""

import logging
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pymc as pm
from scipy import stats

import pymc_kernel as pk
from benchmarks import harness, zoo_draws
from benchmarks.posteriors import ZOO
from benchmarks.posteriors.exact import PROBABILITIES
from benchmarks.posteriors.judge import LARGEST_RHAT, STATISTICS, compared, largest_rhat, split_names, summarized
from benchmarks.zoo_draws import CHANGES, KINDS, NO_SCORE, RIGHT_KINDS, as_tree, model_and_scores, quantities
from pymc_kernel import stein
from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.model.unconstrained import constrained_draws, unconstrained_draws

ROWS = harness.Rows(harness.ROWS / "zoo_checks.jsonl", lambda row: (row["model"], row["kind"], row["seed"]))
LEVEL = 0.05
OUTCOMES = ("silent", "false alarm", "said", "right")
OFF = 0.3  # standard deviations: more has to be seen
_NUM_REPLICATES = 500  # as ``pk.summary``
_FALSE_ALARM = 2e-4  # chance that a row of exact draws is taken for one: one table of fifty such rows in a hundred
_TESTS = ("rejected", "smallest p", "furthest off", "by (sd)", "R-hat", "said")
HEADER = ("model", "draws", "seed", "outcome", *_TESTS)


# -- rows ----------------------------------------------------------------------------------------------


def tested(name, draws, num_sets):
    """Return what the tests of disjoint sets of draws found, those of ``pk.summary``."""
    model, scores = model_and_scores(name)
    tree = as_tree(draws, num_sets)
    positions = unconstrained_draws(tree, model)
    pulled = scores(positions.reshape(-1, positions.shape[-1])).reshape(positions.shape)
    tests = [
        stein.ksd_test(x, s, coordinates=True, num_replicates=_NUM_REPLICATES)
        for x, s in zip(positions, pulled, strict=True)
    ]
    return {
        "p": [t.p_value for t in tests],
        "columns": [int(sum((t.margin_p_values <= LEVEL).sum() for t in tests)), num_sets * positions.shape[-1]],
        "rhat": round(largest_rhat(quantities(tree["posterior"])), 3),
        "draws": min(t.num_draws for t in tests),
        "said": [],
    }


def diagnosed(name, tree):
    """Return what ``pk.diagnose`` found."""
    model, scores = model_and_scores(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, found = pk.diagnose(tree, model=model, score=scores, show_diagnostics=False, return_diagnostics=True)
    report = found["ksd"]
    columns = np.concatenate([np.ravel(p) for p in report.p_values.data_vars.values()])
    return {
        "p": [report.p_value],
        "columns": [int((columns <= LEVEL).sum()), columns.size],
        "rhat": round(largest_rhat(quantities(tree["posterior"])), 3),
        "draws": report.test.num_draws,
        "said": [f"separated modes of {', '.join(found['modes'])}"] if found["modes"] else [],
    }


def furthest_off(name, tree, unconstrained):
    """Return how many standard deviations a mean, standard deviation or quantile is off, and which one.

    Of the quantities that have a truth; and of the unconstrained coordinates, against exact draws, where draws were
    changed in these.
    """
    truth = ZOO[name].truth()
    model = model_and_scores(name)[0]
    positions = unconstrained_draws(tree, model)
    chains, n, d = positions.shape
    found = constrained_draws(model, positions.reshape(-1, d))
    draws = {}
    for variable in dict.fromkeys(q.split("[")[0] for q in truth):
        draws |= split_names(variable, found[variable].reshape(chains, n, *found[variable].shape[1:]))
    if unconstrained:
        known = zoo_draws.positions_of(name, zoo_draws.exact(name, np.random.default_rng(0), zoo_draws.LONG_RUN))
        for i, quantiles in enumerate(np.quantile(known, PROBABILITIES, axis=0).T):
            summary = np.array([np.nan, np.nan, *quantiles])  # tails of the unconstrained scale may be heavy
            truth, draws = truth | {f"coordinate {i}": summary}, draws | {f"coordinate {i}": positions[..., i]}
    largest, which = 0.0, ""
    for quantity, summary in summarized(draws, truth).items():
        wanted = truth[quantity]
        spread, which_count = compared(wanted)
        off = np.abs(summary.estimates - wanted) / spread
        k = max(which_count, key=lambda k: off[k])
        if off[k] > largest:
            largest, which = float(off[k]), f"{STATISTICS[k]} of {quantity}"
    return {"off": largest, "worst": which}


def run(name, kind, seed):
    """Return a row."""
    row = {"model": name, "kind": kind, "seed": seed}
    begun = time.perf_counter()
    try:
        if name in NO_SCORE:
            return row | _without_score(name) | {"seconds": round(time.perf_counter() - begun, 1)}
        if kind in RIGHT_KINDS:
            row |= tested(name, *KINDS[kind](name, seed))
        else:
            tree = KINDS[kind](name, seed)
            row |= diagnosed(name, tree) | furthest_off(name, tree, kind in CHANGES)
    except Exception as error:  # the user sees it, and the other rows are to be run
        row["raised"] = f"{type(error).__name__}: {error}"
    return row | {"seconds": round(time.perf_counter() - begun, 1)}


def _without_score(name):
    model = ZOO[name].make()
    rng = np.random.default_rng(1)
    shapes = model.eval_rv_shapes()
    start = {
        rv.name: np.asarray(v) for rv, v in zip(model.free_RVs, pm.draw(model.free_RVs, random_seed=rng), strict=True)
    }
    tree = as_tree({k: np.broadcast_to(v, (40, *shapes[k])) for k, v in start.items()}, 4)
    try:
        pk.ksd_test(tree, model=model)
    except NoGradientError as error:
        return {"raised": f"NoGradientError: {error}"}
    return {"p": [1.0], "off": np.inf, "worst": "", "columns": [0, 0], "rhat": 1.0, "draws": 40, "said": []}


def verdict_of(row):
    """Return the outcome of a row, and what was said."""
    if "raised" in row:
        return "said", [row["raised"]]
    said = [*([f"R-hat {row['rhat']:.2f}"] if row["rhat"] > LARGEST_RHAT else []), *row["said"]]
    rejected, count = sum(p <= LEVEL for p in row["p"]), len(row["p"])
    if row["kind"] in RIGHT_KINDS:
        too_many = stats.binom.sf(rejected - 1, count, LEVEL) < _FALSE_ALARM
        # Chains of NUTS that have not converged are wrong, and may be rejected.
        is_alarm = too_many and not (row["kind"] == "NUTS" and row["rhat"] > LARGEST_RHAT)
        return ("false alarm" if is_alarm else "right"), said
    if row["off"] <= OFF or rejected:
        return "right", said
    return ("said" if said else "silent"), said


# -- the table -----------------------------------------------------------------------------------------


def table(rows):
    """Return the text between the markers."""
    judged = [(row, *verdict_of(row)) for row in rows]
    count = Counter(outcome for _, outcome, _ in judged)
    note = f"{len(judged)} outcomes: " + ", ".join(f"{count[o]} {o}" for o in OUTCOMES) + "."
    lines = [note, "", *_rates([r for r in rows if "p" in r])]
    order = {name: i for i, name in enumerate([*ZOO, *KINDS])}
    judged.sort(key=lambda j: (OUTCOMES.index(j[1]), order[j[0]["model"]], order[j[0]["kind"]], j[0]["seed"]))
    return "\n".join(lines) + "\n\n" + harness.markdown_table(HEADER, [_cells(*j) for j in judged])


def _cells(row, outcome, said):
    p = row.get("p")
    tests = (f"{sum(x <= LEVEL for x in p)}/{len(p)}", f"{min(p):.3f}") if p else (None, None)
    off, rhat = (f"{row[name]:.2f}" if name in row else None for name in ("off", "rhat"))
    words = harness.shortened("; ".join(said))
    return [row["model"], row["kind"], row["seed"], outcome, *tests, row.get("worst"), off, rhat, words]


def _rates(rows):
    """Return a table of the share of rejections, by kind of draws."""
    cells = []
    for kind in KINDS:
        ours = [r for r in rows if r["kind"] == kind]
        wrong = kind not in RIGHT_KINDS
        if wrong:
            ours = [r for r in ours if r["off"] > OFF]
        p_values = [p for r in ours for p in r["p"]]
        if p_values:
            rejected, columns = np.mean(np.array(p_values) <= LEVEL), np.sum([r["columns"] for r in ours], axis=0)
            what = "off by more than .3 sd" if wrong else "exact"
            cells.append([kind, what, len(p_values), f"{rejected:.1%}", f"{columns[0] / columns[1]:.1%}"])
    return harness.markdown_table(["draws", "", "tests", "rejected", "columns below 5 %"], cells).splitlines()


def told(row):
    """Return what is printed of a row."""
    outcome, said = verdict_of(row)
    p = " ".join(f"{p:.3f}" for p in sorted(row["p"])[:6]) if "p" in row else ""
    off = f", {row['worst']} by {row['off']:.2f} sd" if "off" in row else ""
    return f"{outcome}{off}; p {p}; {row['seconds']} s. {harness.shortened('; '.join(said), 60)}"


def main(models=tuple(ZOO), kinds=tuple(KINDS), seeds=(1, 2), jobs=1, again=False, references: Path | None = None):
    """``references`` is a folder with posteriordb's draws, NAME.draws.npz; it is remembered."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    if references is not None:
        zoo_draws.FOLDER.mkdir(parents=True, exist_ok=True)
        (zoo_draws.FOLDER / "references").write_text(str(references.resolve()))
    wanted = [(m, kind, s) for m in models for kind in kinds for s in seeds if zoo_draws.applies(m, kind, s)]
    # A model's tasks together, so that its scores are compiled seldom.
    rows = ROWS.complete(run, wanted, told, again, jobs, chunk=len(KINDS))
    known = [row for row in rows if row["model"] in ZOO and row["kind"] in KINDS]
    harness.write_results("zoo_checks", table(known), harness.ZOO)


if __name__ == "__main__":
    harness.run(main)
