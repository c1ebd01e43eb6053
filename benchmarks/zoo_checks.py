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

A row is kept in ``build/zoo_checks/rows.jsonl`` as it is finished, and not run again unless ``--again`` is given.

Run: python -m benchmarks.zoo_checks [--models ...] [--kinds ...] [--seeds 1 2] [--jobs 2] [--again]
     [--references FOLDER]
"""

import argparse
import logging
import multiprocessing
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path

import arviz as az
import numpy as np
import pymc as pm
from scipy import optimize, stats
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from benchmarks import rows as rows_of
from benchmarks.posteriors import ZOO
from benchmarks.posteriors.draws import EXACT_DRAWS, reference_draws
from benchmarks.posteriors.exact import PROBABILITIES
from benchmarks.posteriors.judge import (
    LARGEST_RHAT,
    NORMAL_SPAN,
    STATISTICS,
    compared,
    largest_rhat,
    split_names,
    summarised,
)
from pymc_kernel import stein
from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.model.scores import compile_scores
from pymc_kernel.plugin.model.unconstrained import constrained_draws, split_positions, unconstrained_draws

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "zoo_checks"
SEEDS = (1, 2)
LEVEL = 0.05
OUTCOMES = ("silent", "false alarm", "said", "right")
_OFF = 0.3  # standard deviations: more has to be seen
_NUM_WRONG = 1000  # draws of the wrong kinds
_LONG_RUN = 4000  # draws of NUTS that stand for exact ones
_NUM_REPLICATES = 500  # as ``pk.summary``
_FALSE_ALARM = 2e-4  # chance that a row of exact draws is taken for one: one table of fifty such rows in a hundred
_QUIET = {"progressbar": False}
NO_SCORE = ("bball_drive_event_0", "hmm_example", "hudson_lynx_hare", "one_comp_mm_elim_abs", "noisy")


# -- draws ---------------------------------------------------------------------------------------------


@cache
def _model(name):
    """Return the model, and its scores as a function of unconstrained draws, compiled once."""
    model = ZOO[name].make()
    scores = compile_scores(model)
    return model, lambda positions: scores(split_positions(model, positions))


def as_tree(draws, num_chains):
    """Return draws name -> (n, ...) as a DataTree of chains."""
    n = len(next(iter(draws.values()))) // num_chains
    parts = {k: np.asarray(v)[: n * num_chains].reshape(num_chains, n, *np.shape(v)[1:]) for k, v in draws.items()}
    return az.from_dict({"posterior": parts})


def exact(name, rng, n):
    """Return n exact draws, name -> (n, ...); from a long run of NUTS where there is no other way."""
    if name in EXACT_DRAWS:
        return EXACT_DRAWS[name](rng, n)
    known = _long_run(name)
    rows = rng.permutation(len(next(iter(known.values()))))[:n]
    return {k: v[rows] for k, v in known.items()}


@cache
def _long_run(name):
    return _stored(f"{name}-long", partial(_nuts, name, 4, _LONG_RUN // 2, 1, 2))


def _nuts(name, chains, draws, seed, every=1):
    """Return draws of NUTS, name -> (chains * draws // every, ...), chain after chain."""
    with _model(name)[0], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        posterior = pm.sample(draws, chains=chains, cores=1, random_seed=seed, **_QUIET)["posterior"].to_dataset()
    rhat = largest_rhat(_quantities(posterior))
    if every > 1 and rhat > 1.01:
        raise RuntimeError(f"R-hat of the long run of {name} is {rhat:.3f}.")
    names = [rv.name for rv in _model(name)[0].free_RVs]
    return {k: posterior[k].values[:, ::every].reshape(-1, *posterior[k].shape[2:]) for k in names}


def _stored(title, make):
    """Return draws that take long to make, from a file where they were made before."""
    file = BUILD / "draws" / f"{title}.npz"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **make())
    with np.load(file) as stored:
        return dict(stored)


def _positions(name, draws):
    return unconstrained_draws(as_tree(draws, 1)["posterior"].to_dataset(), _model(name)[0])[0]


def _free(name, positions):
    model = _model(name)[0]
    found = constrained_draws(model, positions)
    return {rv.name: found[rv.name] for rv in model.free_RVs}


def _spread(positions):
    """Return standard deviations that tails do not make larger, (d,)."""
    low, high = np.quantile(positions, [0.05, 0.95], axis=0)
    return (high - low) / NORMAL_SPAN


def exact_sets(count, size, name, seed):
    """Return exact draws, and in how many sets they are to be tested."""
    count = count if name in EXACT_DRAWS else min(count, _LONG_RUN // size)
    return exact(name, np.random.default_rng([seed, size]), count * size), count


def reference_sets(name, seed):
    """Return the reference draws as ten sets."""
    return reference_draws(name, references_folder()), 10


def nuts_chains(name, seed):
    """Return ten chains, each to be tested by itself."""
    return _stored(f"{name}-NUTS-{seed}", partial(_nuts, name, 10, 500, seed)), 10


def _changed(change, name, seed):
    rng = np.random.default_rng([seed, 1])
    positions = _positions(name, exact(name, rng, _NUM_WRONG))
    column = 0 if seed % 2 else positions.shape[1] - 1
    return as_tree(_free(name, change(positions, column)), 4)


def cut(positions, column):
    """Return the draws without the lowest tenth of a coordinate."""
    return positions[positions[:, column] > np.quantile(positions[:, column], 0.1)]


def narrow(positions, column):
    """Return the draws with 0.8 of their spread."""
    middle = np.median(positions, axis=0)
    return middle + 0.8 * (positions - middle)


def shifted(positions, column):
    """Return the draws with one mean shifted by .3 standard deviations."""
    positions = positions.copy()
    positions[:, column] += 0.3 * _spread(positions)[column]
    return positions


def fitted(method, name, seed):
    """Return draws of PyMC's variational approximations."""
    return as_tree(_stored(f"{name}-{method}-{seed}", partial(_fit, method, name, seed)), 1)


def _fit(method, name, seed):
    with _model(name)[0], warnings.catch_warnings():
        warnings.simplefilter("ignore")
        approximation = pm.fit(method=method, random_seed=seed, **_QUIET)
        posterior = approximation.sample(_NUM_WRONG, random_seed=seed)["posterior"].to_dataset()
    return {rv.name: posterior[rv.name].values[0] for rv in _model(name)[0].free_RVs}


def laplace(name, seed):
    """Return draws of the normal distribution at the mode of the unconstrained density; units from exact draws."""
    model, scores = _model(name)
    rng = np.random.default_rng([seed, 2])
    units = _spread(_positions(name, exact(name, rng, 400)))
    log_density = model.compile_logp(mode="FAST_COMPILE")
    values = model.value_vars

    def negative(u):
        parts = split_positions(model, (u * units)[None])
        return -float(log_density({v.name: p[0] for v, p in zip(values, parts, strict=True)}))

    def slope(u):
        return -scores((u * units)[None])[0] * units

    start = model.initial_point()
    start = np.concatenate([np.ravel(start[v.name]) for v in values]) / units
    mode = optimize.minimize(negative, start, jac=slope, method="BFGS").x
    step = 1e-3
    hessian = np.array([(slope(mode + e) - slope(mode - e)) / (2 * step) for e in step * np.eye(mode.size)])
    factor = np.linalg.cholesky(0.5 * (hessian + hessian.T))
    drawn = mode[:, None] + np.linalg.solve(factor.T, rng.standard_normal((mode.size, _NUM_WRONG)))
    return as_tree(_free(name, drawn.T * units), 1)


KINDS = {
    "exact, 20 x 200": partial(exact_sets, 20, 200),
    "exact, 10 x 1000": partial(exact_sets, 10, 1000),
    "reference": reference_sets,
    "NUTS": nuts_chains,
    "cut": partial(_changed, cut),
    "narrow": partial(_changed, narrow),
    "shifted": partial(_changed, shifted),
    "ADVI": partial(fitted, "advi"),
    "full-rank ADVI": partial(fitted, "fullrank_advi"),
    "Laplace": laplace,
}
RIGHT_KINDS, CHANGES = tuple(KINDS)[:4], tuple(KINDS)[4:7]
_ONE_SEED = ("reference", "NUTS", "full-rank ADVI")


def references_folder():
    """Return the folder of posteriordb's reference draws that ``--references`` named, or None."""
    file = BUILD / "references"
    return Path(file.read_text()) if file.exists() else None


def applies(name, kind, seed):
    """Return whether there is such a row."""
    if kind in _ONE_SEED and seed != SEEDS[0]:
        return False
    if name in NO_SCORE:  # any draws will do: there is nothing to check them with
        return kind == "narrow"
    if kind == "reference":
        folder = references_folder()
        return folder is not None and reference_draws(name, folder) is not None
    return True


# -- rows ----------------------------------------------------------------------------------------------


def _quantities(posterior):
    """Return the entries of all variables, name -> (chain, draw), without those that are constant by construction."""
    parts = {}
    for variable in posterior.data_vars:
        parts |= split_names(variable, posterior[variable].values)
    return {k: v for k, v in parts.items() if v.min() < v.max()}


def tested(name, draws, num_sets):
    """Return what the tests of disjoint sets of draws found, those of ``pk.summary``."""
    model, scores = _model(name)
    tree = as_tree(draws, num_sets)
    positions = unconstrained_draws(tree["posterior"].to_dataset(), model)
    pulled = scores(positions.reshape(-1, positions.shape[-1])).reshape(positions.shape)
    tests = [
        stein.ksd_test(x, s, coordinates=True, num_replicates=_NUM_REPLICATES)
        for x, s in zip(positions, pulled, strict=True)
    ]
    return {
        "p": [t.p_value for t in tests],
        "columns": [int(sum((t.share_p_values <= LEVEL).sum() for t in tests)), num_sets * positions.shape[-1]],
        "rhat": round(largest_rhat(_quantities(tree["posterior"])), 3),
        "draws": min(t.num_draws for t in tests),
        "said": [],
    }


def diagnosed(name, tree):
    """Return what ``pk.diagnose`` found."""
    model, scores = _model(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, found = pk.diagnose(tree, model=model, score=scores, show_diagnostics=False, return_diagnostics=True)
    report = found["ksd"]
    columns = np.concatenate([np.ravel(p) for p in report.p_values.data_vars.values()])
    return {
        "p": [report.p_value],
        "columns": [int((columns <= LEVEL).sum()), columns.size],
        "rhat": round(largest_rhat(_quantities(tree["posterior"])), 3),
        "draws": report.test.num_draws,
        "said": [f"separated modes of {', '.join(found['modes'])}"] if found["modes"] else [],
    }


def furthest_off(name, tree, unconstrained):
    """Return how many standard deviations a mean, standard deviation or quantile is off, and which one.

    Of the quantities that have a truth; and of the unconstrained coordinates, against exact draws, where draws were
    changed in these.
    """
    truth = ZOO[name].truth()
    model = _model(name)[0]
    positions = unconstrained_draws(tree["posterior"].to_dataset(), model)
    chains, n, d = positions.shape
    found = constrained_draws(model, positions.reshape(-1, d))
    draws = {}
    for variable in dict.fromkeys(q.split("[")[0] for q in truth):
        draws |= split_names(variable, found[variable].reshape(chains, n, *found[variable].shape[1:]))
    if unconstrained:
        known = _positions(name, exact(name, np.random.default_rng(0), _LONG_RUN))
        for i, quantiles in enumerate(np.quantile(known, PROBABILITIES, axis=0).T):
            summary = np.array([np.nan, np.nan, *quantiles])  # tails of the unconstrained scale may be heavy
            truth, draws = truth | {f"coordinate {i}": summary}, draws | {f"coordinate {i}": positions[..., i]}
    largest, which = 0.0, ""
    for quantity, summary in summarised(draws, truth).items():
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
        with threadpool_limits(1, user_api="blas"):
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
    if row["off"] <= _OFF or rejected:
        return "right", said
    return ("said" if said else "silent"), said


def kept():
    """Return the finished rows by model, kind and seed; the last of each counts."""
    return rows_of.kept(BUILD / "rows.jsonl", lambda row: (row["model"], row["kind"], row["seed"]))


def keep(row):
    """Keep a finished row."""
    rows_of.keep(BUILD / "rows.jsonl", row)


# -- the table -----------------------------------------------------------------------------------------


def table(rows):
    """Return the text between the markers."""
    judged = [(row, *verdict_of(row)) for row in rows]
    count = Counter(outcome for _, outcome, _ in judged)
    note = f"{len(judged)} outcomes: " + ", ".join(f"{count[o]} {o}" for o in OUTCOMES) + "."
    lines = [note, "", *_rates([r for r in rows if "p" in r])]
    order = {name: i for i, name in enumerate([*ZOO, *KINDS])}
    judged.sort(key=lambda j: (OUTCOMES.index(j[1]), order[j[0]["model"]], order[j[0]["kind"]], j[0]["seed"]))
    header = ["model", "draws", "seed", "outcome", "rejected", "smallest p", "furthest off", "by (sd)", "R-hat", "said"]
    cells = [
        [
            row["model"],
            row["kind"],
            str(row["seed"]),
            outcome,
            f"{sum(p <= LEVEL for p in row['p'])}/{len(row['p'])}" if "p" in row else "",
            f"{min(row['p']):.3f}" if "p" in row else "",
            row.get("worst", ""),
            f"{row['off']:.2f}" if "off" in row else "",
            f"{row['rhat']:.2f}" if "rhat" in row else "",
            measures.shortened("; ".join(said)),
        ]
        for row, outcome, said in judged
    ]
    return "\n".join(lines) + "\n\n" + measures.markdown_table(header, cells)


def _rates(rows):
    """Return a table of the share of rejections, by kind of draws."""
    cells = []
    for kind in KINDS:
        ours = [r for r in rows if r["kind"] == kind]
        wrong = kind not in RIGHT_KINDS
        if wrong:
            ours = [r for r in ours if r["off"] > _OFF]
        p_values = [p for r in ours for p in r["p"]]
        if p_values:
            rejected, columns = np.mean(np.array(p_values) <= LEVEL), np.sum([r["columns"] for r in ours], axis=0)
            what = "off by more than .3 sd" if wrong else "exact"
            cells.append([kind, what, str(len(p_values)), f"{rejected:.1%}", f"{columns[0] / columns[1]:.1%}"])
    return measures.markdown_table(["draws", "", "tests", "rejected", "columns below 5 %"], cells).splitlines()


def results(tasks, jobs):
    """Yield the rows of tasks as they are finished."""
    if jobs == 1:
        yield from (run(*task) for task in tasks)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        # A model's tasks together, so that its scores are compiled seldom.
        yield from pool.map(run, *zip(*tasks, strict=True), chunksize=max(1, len(KINDS)))


def main():
    """Run what is missing; write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=ZOO, default=list(ZOO))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run rows that are there already")
    parser.add_argument("--references", type=Path, help="a folder with posteriordb's draws, NAME.draws.npz")
    arguments = parser.parse_args()
    if arguments.references is not None:
        BUILD.mkdir(parents=True, exist_ok=True)
        (BUILD / "references").write_text(str(arguments.references.resolve()))
    known = kept()
    wanted = [
        (model, kind, seed)
        for model in arguments.models
        for kind in arguments.kinds
        for seed in arguments.seeds
        if applies(model, kind, seed)
    ]
    tasks = [t for t in wanted if arguments.again or t not in known]
    print(f"{len(wanted)} outcomes asked for, {len(tasks)} to be run; rows in {BUILD}", flush=True)
    logging.getLogger("pymc").setLevel(logging.ERROR)
    for i, row in enumerate(results(tasks, arguments.jobs) if tasks else [], 1):
        keep(row)
        outcome, said = verdict_of(row)
        p = " ".join(f"{p:.3f}" for p in sorted(row["p"])[:6]) if "p" in row else ""
        off = f", {row['worst']} by {row['off']:.2f} sd" if "off" in row else ""
        name = f"{row['model']}, {row['kind']}, {row['seed']}"
        told = measures.shortened("; ".join(said), 60)
        print(f"[{i}/{len(tasks)}] {name}: {outcome}{off}; p {p}; {row['seconds']} s. {told}", flush=True)
    rows = [row for (model, kind, _), row in kept().items() if model in ZOO and kind in KINDS]
    measures.write_between(HERE / "RESULTS.md", "zoo_checks", table(rows))


if __name__ == "__main__":
    main()
