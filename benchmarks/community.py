"""Posteriors from simulations alone, on the ten tasks of the community's benchmark, by its published judge.

Tasks, observations and reference posteriors are those of Lueckmann, Boelts, Greenberg, Goncalves and Macke,
"Benchmarking simulation-based inference" (2021); their figures stand in the table. The score is the accuracy of a
classifier that tells draws from reference draws: 0.5 is perfect. One default for all tasks;
``sample_likelihood_free`` chooses its rounds by itself. A row is kept in ``benchmarks/rows`` as it is finished, and not
run again. Saves ``benchmarks/figures/community.png``.
"""

import time
import warnings
from itertools import product

import numpy as np
from matplotlib.figure import Figure

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.classifier import accuracy
from benchmarks.sbibm_tasks import TASKS, make_model, observation, reference

ROWS = harness.Rows(harness.ROWS / "community.jsonl", lambda row: tuple(row["key"]))
BUDGETS = (1_000, 10_000)
CHAINS = 4


def _kbr(model, budget, draws, seed):
    settings = {"draws": draws // CHAINS, "chains": CHAINS, "num_simulations": budget}
    return pk.sample_kbr(model=model, random_seed=seed, progressbar=False, **settings)


def _abc(model, budget, draws, seed):
    simulations = pk.simulate(budget, model=model, random_seed=seed, progressbar=False)
    settings = {"draws": draws // CHAINS, "chains": CHAINS, "quantile": 100 / budget}
    return pk.sample_abc(simulations=simulations, model=model, random_seed=seed, **settings)


def _likelihood(model, budget, draws, seed, rounds):
    settings = {"draws": draws // CHAINS, "chains": CHAINS, "num_simulations": budget, "rounds": rounds}
    return pk.sample_likelihood_free(model=model, random_seed=seed, progressbar=False, **settings)


METHODS = {
    "pk.sample_likelihood_free": lambda *task: _likelihood(*task, rounds=None),
    "pk.sample_likelihood_free, rounds=1": lambda *task: _likelihood(*task, rounds=1),
    "pk.sample_kbr": _kbr,
    "pk.sample_abc": _abc,
}
# Mean accuracies over ten observations, as published (mixture: the authors' rerun of the corrected task): rejection
# ABC, SMC-ABC, neural posterior estimation in one round, and the best of all neural methods.
_PUBLISHED = {  # with 1,000 simulations, and with 10,000
    "two_moons": ((0.960, 0.922, 0.725, 0.643), (0.847, 0.707, 0.606, 0.554)),
    "mixture": ((0.860, 0.791, 0.716, 0.669), (0.781, 0.722, 0.615, 0.551)),
    "epidemic": ((0.964, 0.921, 0.815, 0.637), (0.838, 0.626, 0.680, 0.561)),
    "Lotka-Volterra": ((1.000, 1.000, 0.999, 0.909), (1.000, 0.996, 0.997, 0.738)),
    "simple likelihood": ((0.982, 0.982, 0.975, 0.921), (0.973, 0.969, 0.901, 0.713)),
    "linear": ((0.913, 0.922, 0.694, 0.628), (0.858, 0.829, 0.552, 0.536)),
    "linear, uniform prior": ((0.977, 0.968, 0.696, 0.631), (0.948, 0.928, 0.553, 0.527)),
    "logistic GLM": ((0.994, 0.991, 0.863, 0.634), (0.976, 0.981, 0.678, 0.553)),
    "simple likelihood, distractors": ((0.988, 0.986, 0.982, 0.978), (0.987, 0.987, 0.970, 0.931)),
    "logistic GLM, raw": ((0.995, 0.990, 0.900, 0.870), (0.984, 0.959, 0.765, 0.658)),
}
PUBLISHED = {(t, budget): p for t, both in _PUBLISHED.items() for budget, p in zip(BUDGETS, both, strict=True)}


_OTHERS = ("rejection ABC", "SMC-ABC", "neural posterior", "best neural")
HEADER = ("task", "simulations", "method", "accuracy", "warned", "s", *_OTHERS)
KEYS = [(*key, method) for key in PUBLISHED for method in METHODS]
TABLE = harness.Table("community", HEADER, KEYS)
NOTE = (
    "Means over the published observations run so far, standard errors in brackets; how many of the posteriors "
    "came with a warning; the last four columns as published. Seconds are those of a clock on a busy machine, of "
    "sample_likelihood_free those of one processor, simulations included."
)


def run(task, number, budget, method):
    """Return the row of one posterior: its accuracy, seconds, and what the method said of it."""
    exact = reference(task, number)
    model = make_model(task, observation(task, number))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        begun = time.process_time()
        found = METHODS[method](model, budget, len(exact), number)
        seconds = time.process_time() - begun
    draws = found["posterior"]["theta"].values.reshape(-1, exact.shape[1])
    is_said = any("should not be trusted" in str(w.message) for w in said)
    key = [task, number, budget, method]
    return {"key": key, "accuracy": accuracy(draws, exact), "seconds": seconds, "said": is_said}


def mean_accuracy(rows):
    """Return the mean over observations with its standard error, which one of them has not."""
    scores = np.array([row["accuracy"] for row in rows])
    return measures.with_error(scores) if len(rows) > 1 else f"{scores[0]:.3f} (-)"


def cells(task, budget, method, rows):
    """Return a row of means over observations."""
    score = mean_accuracy(rows)
    said, seconds = sum(row["said"] for row in rows), np.mean([row["seconds"] for row in rows])
    published = [f"{value:.3f}" for value in PUBLISHED[task, budget]]
    return [task, budget, method, score, f"{said} of {len(rows)}", f"{seconds:.0f}", *published]


#: Column of the table, or method -> marker, color and label in the picture.
DRAWN = {
    "SMC-ABC": ("|", "0.55", "sequential ABC"),
    "best neural": ("D", "#d55e00", "best of the neural networks"),
    "pk.sample_kbr": ("^", "#56b4e9", "sample_kbr"),
    "pk.sample_likelihood_free": ("o", "#0072b2", "sample_likelihood_free"),
}


def draw(table):
    """Save accuracies by task, a panel a number of simulations, from the cells of the table."""
    rows = [dict(zip(HEADER, cells, strict=True)) for cells in table]
    names = list(_PUBLISHED)
    figure = Figure(figsize=(10.0, 3.8), layout="constrained")
    axes = figure.subplots(1, len(BUDGETS), sharey=True)
    for ax, budget in zip(axes, BUDGETS, strict=True):
        own = [row for row in rows if row["simulations"] == str(budget)]
        for what, (marker, color, label) in DRAWN.items():
            if what in _OTHERS:
                scores = {row["task"]: float(row[what]) for row in own}
            else:
                scores = {row["task"]: float(row["accuracy"].split()[0]) for row in own if row["method"] == what}
            places = [names.index(name) for name in scores]
            ax.plot(list(scores.values()), places, marker, color=color, label=label, ms=8, mew=2, ls="")
        ax.axvline(0.5, color="0.6", lw=1, ls=":")
        ax.set(xlim=(0.48, 1.02), title=f"{budget:,} simulations")
        ax.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
        ax.grid(axis="y", color="0.9")
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].invert_yaxis()
    figure.supxlabel(
        "accuracy of a classifier that tells draws from the reference posterior (0.5: it cannot)", fontsize=11
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(DRAWN), frameon=False)
    figure.savefig(harness.FIGURES / "community.png", dpi=110)


def main(observations=tuple(range(1, 8)), tasks=tuple(TASKS), methods=tuple(METHODS), budgets=BUDGETS, again=False):
    wanted = [(t, n, b, m) for n, t, b, m in product(observations, tasks, budgets, methods)]
    rows = ROWS.complete(run, wanted, lambda row: f"{row['accuracy']:.3f}, {row['seconds']:.0f} s", again)
    groups = {(*key, method): [] for key in PUBLISHED for method in METHODS}
    for row in rows:
        groups[row["key"][0], *row["key"][2:]].append(row)
    new = [cells(*key, group) for key, group in groups.items() if group]
    before = harness.rows_between(harness.RESULTS, TABLE.marker)
    TABLE.write(
        harness.with_most_runs(new, before, lambda row: tuple(row[:3]), lambda row: int(row[4].split()[-1])), NOTE
    )
    draw(harness.rows_between(harness.RESULTS, TABLE.marker))


if __name__ == "__main__":
    harness.run(main)
