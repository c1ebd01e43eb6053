"""Posteriors from simulations alone, on the eight tasks of the community's benchmark, by its published judge.

Tasks, observations and reference posteriors are those of Lueckmann, Boelts, Greenberg, Goncalves and Macke,
"Benchmarking simulation-based inference" (2021); their figures stand in the table. The score is the accuracy of a
classifier that tells draws from reference draws: 0.5 is perfect. One default for all tasks; with two rounds half of the
simulations are made in each. A row is kept in ``build/community.jsonl`` as it is finished, and not run again.

Run: python -m benchmarks.community [--observations 1 2 3] [--tasks ...] [--methods ...] [--budgets 1000]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np

import pymc_kernel as pk
from benchmarks import measures
from benchmarks import rows as rows_of
from benchmarks.classifier import accuracy
from benchmarks.sbibm_tasks import TASKS, make_model, observation, reference

HERE = Path(__file__).parent
KEPT = HERE.parent / "build" / "community.jsonl"
BUDGETS = (1_000, 10_000)
CHAINS = 4


def _kbr(model, budget, draws, seed, rounds):
    return pk.sample_kbr(
        draws=draws // CHAINS,
        chains=CHAINS,
        num_simulations=budget // rounds,
        rounds=rounds,
        model=model,
        random_seed=seed,
        progressbar=False,
    )


def _abc(model, budget, draws, seed):
    simulations = pk.simulate(budget, model=model, random_seed=seed, progressbar=False)
    settings = {"draws": draws // CHAINS, "chains": CHAINS, "quantile": 100 / budget}
    return pk.sample_abc(simulations, model=model, random_seed=seed, **settings)


METHODS = {
    "pk.sample_kbr": lambda *task: _kbr(*task, rounds=1),
    "pk.sample_kbr, rounds=2": lambda *task: _kbr(*task, rounds=2),
    "pk.sample_abc": _abc,
}
# Mean accuracies over ten observations, as published (mixture: the authors' rerun of the corrected task): rejection
# ABC, SMC-ABC, neural posterior estimation in one round, and the best of all neural methods.
PUBLISHED = {
    ("two_moons", 1_000): (0.960, 0.922, 0.725, 0.643),
    ("two_moons", 10_000): (0.847, 0.707, 0.606, 0.554),
    ("mixture", 1_000): (0.860, 0.791, 0.716, 0.669),
    ("mixture", 10_000): (0.781, 0.722, 0.615, 0.551),
    ("epidemic", 1_000): (0.964, 0.921, 0.815, 0.637),
    ("epidemic", 10_000): (0.838, 0.626, 0.680, 0.561),
    ("Lotka-Volterra", 1_000): (1.000, 1.000, 0.999, 0.909),
    ("Lotka-Volterra", 10_000): (1.000, 0.996, 0.997, 0.738),
    ("simple likelihood", 1_000): (0.982, 0.982, 0.975, 0.921),
    ("simple likelihood", 10_000): (0.973, 0.969, 0.901, 0.713),
    ("linear", 1_000): (0.913, 0.922, 0.694, 0.628),
    ("linear", 10_000): (0.858, 0.829, 0.552, 0.536),
    ("linear, uniform prior", 1_000): (0.977, 0.968, 0.696, 0.631),
    ("linear, uniform prior", 10_000): (0.948, 0.928, 0.553, 0.527),
    ("logistic GLM", 1_000): (0.994, 0.991, 0.863, 0.634),
    ("logistic GLM", 10_000): (0.976, 0.981, 0.678, 0.553),
}


def run(task, number, budget, method):
    """Return the row of one posterior: its accuracy, seconds, and what the method said of it."""
    exact = reference(task, number)
    model = make_model(task, observation(task, number))
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        found = METHODS[method](model, budget, len(exact), number)
    seconds = time.perf_counter() - start
    draws = found["posterior"]["theta"].values.reshape(-1, exact.shape[1])
    is_said = any("should not be trusted" in str(w.message) for w in said)
    return {"accuracy": accuracy(draws, exact), "seconds": seconds, "said": is_said}


def kept_rows():
    """Return the rows that are there: (task, observation, budget, method) -> row."""
    return rows_of.kept(KEPT, lambda row: tuple(row["key"]))


def table(rows):
    """Return the table of means over observations."""
    lines = []
    for task, budget in PUBLISHED:
        for method in METHODS:
            own = [r for k, r in rows.items() if (k[0], k[2], k[3]) == (task, budget, method)]
            if own:
                scores = np.array([r["accuracy"] for r in own])
                error = f"{scores.std(ddof=1) / np.sqrt(len(scores)):.3f}" if len(scores) > 1 else "-"
                told = f"{sum(r['said'] for r in own)} of {len(own)}"
                seconds = f"{np.mean([r['seconds'] for r in own]):.0f}"
                numbers = [f"{p:.3f}" for p in PUBLISHED[task, budget]]
                lines.append([task, str(budget), method, f"{scores.mean():.3f} ({error})", told, seconds, *numbers])
    header = ["task", "simulations", "method", "accuracy", "warned", "s", "rejection ABC", "SMC-ABC"]
    return measures.markdown_table([*header, "neural posterior", "best neural"], lines)


def main():
    """Run what is not there yet; write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, nargs="*", default=list(range(1, 8)))
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--budgets", type=int, nargs="*", default=list(BUDGETS))
    arguments = parser.parse_args()
    for number in arguments.observations:
        for task in arguments.tasks:
            for budget in arguments.budgets:
                for method in arguments.methods:
                    key = [task, number, budget, method]
                    if tuple(key) not in kept_rows():
                        row = {"key": key, **run(task, number, budget, method)}
                        rows_of.keep(KEPT, row)
                        print(*key, f"{row['accuracy']:.3f} {row['seconds']:.0f} s", flush=True)
    note = (
        "Means over the published observations run so far, standard errors in brackets; how many of the posteriors "
        "came with a warning; the last four columns as published.\n\n"
    )
    measures.write_between(HERE / "RESULTS.md", "community", note + table(kept_rows()))


if __name__ == "__main__":
    main()
