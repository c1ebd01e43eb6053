"""Every sampler of the package, with its defaults, on a zoo of posteriors with known answers: right, said or silent.

Twelve posteriors of posteriordb and thirteen of our own (``benchmarks/posteriors``). Right: all means, standard
deviations and 5 % and 95 % quantiles lie within four Monte Carlo errors of the truth, or within a tenth of a standard
deviation (this alone where R-hat is above 1.05: then nobody knows the Monte Carlo error).
Said: not right, but the sampler said so: R-hat above 1.05, or a warning of its own, which the table repeats. Silent:
neither.

Four chains everywhere, two seeds, everything else by default. A row is kept in ``build/zoo/rows.jsonl`` as it is
finished, and not run again unless ``--again`` is given; the table is judged anew from all rows that are there.

Run: python -m benchmarks.zoo [--models ...] [--samplers ...] [--seeds 1 2] [--jobs 2] [--again]
"""

import argparse
import logging
import multiprocessing
import re
import signal
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from benchmarks import rows as rows_of
from benchmarks.posteriors import ZOO, own
from benchmarks.posteriors.judge import judge, largest_rhat, split_names, summarised

HERE = Path(__file__).parent
ROWS = HERE.parent / "build" / "zoo" / "rows.jsonl"
CHAINS = 4
SEEDS = (1, 2)
OUTCOMES = ("silent", "said", "right")
_QUIET = {"progressbar": False}
# What PyMC says of every short run: R-hat is judged here, by one bound for all.
_NOT_OF_THE_ANSWER = re.compile(
    "rhat statistic is larger|effective sample size per chain|number of samples is too small"
)
# Whose warnings are about compilers, libraries and single operations.
_OTHERS = re.compile(r"[\\/](pytensor|numba|numpy|scipy|arviz_base|arviz_stats|xarray)[\\/]")


def _steps(make_step, model, seed):
    return pm.sample(step=make_step(), chains=CHAINS, cores=1, random_seed=seed, **_QUIET)


def _smc(kernel, model, seed):
    return pk.sample_smc(kernel=kernel, chains=CHAINS, cores=1, random_seed=seed, **_QUIET)


# The last of each: what its chains are besides chains, see ``summarised``.
SAMPLERS = {
    "AdaptiveMetropolis": (partial(_steps, pk.AdaptiveMetropolis), ""),
    "KAMH": (partial(_steps, pk.KAMH), ""),
    "KernelHMC": (partial(_steps, pk.KernelHMC), ""),
    "sample_khmc": (lambda model, seed: pk.sample_khmc(chains=CHAINS, cores=1, random_seed=seed, **_QUIET), ""),
    "sample_smc, ASMC": (partial(_smc, pk.ASMC), "populations"),
    "sample_smc, KASMC": (partial(_smc, pk.KASMC), "populations"),
    "sample_smc, KernelHMCSMC": (partial(_smc, pk.KernelHMCSMC), "populations"),
    "sample_pmc": (lambda model, seed: pk.sample_pmc(chains=CHAINS, random_seed=seed, **_QUIET), "populations"),
    "sample_kbr": (lambda model, seed: pk.sample_kbr(random_seed=seed, **_QUIET), "replicates"),
    "sample_abc": (lambda model, seed: pk.sample_abc(random_seed=seed, **_QUIET), "replicates"),
    "KernelABC": (partial(_steps, pk.AdaptiveMetropolis), ""),
    "SyntheticLikelihood": (partial(_steps, pk.AdaptiveMetropolis), ""),
}
_FROM_THE_PRIOR = ("sample_smc, ASMC", "sample_smc, KASMC", "sample_smc, KernelHMCSMC", "sample_pmc")
_SIMULATING = ("sample_kbr", "sample_abc")
_BLOCKS = {"KernelABC": pk.KernelABC, "SyntheticLikelihood": pk.SyntheticLikelihood}


def applies(sampler, posterior):
    """Return whether a sampler can be asked for a posterior."""
    if sampler in _BLOCKS:
        return posterior.name in own.BLOCKS
    if sampler in _FROM_THE_PRIOR:
        return posterior.proper_prior
    return posterior.can_simulate or sampler not in _SIMULATING


class _Words(logging.Handler):
    """Collects what PyMC logs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.words = []

    def emit(self, record):
        """Keep the message."""
        self.words.append(record.getMessage())


def run(model_name, sampler, seed):
    """Return a row: estimates, their errors, R-hat, what was said and the seconds that it took."""
    posterior = ZOO[model_name]
    call, chains_are = SAMPLERS[sampler]
    row = {"model": model_name, "sampler": sampler, "seed": seed}
    words, logger = _Words(), logging.getLogger("pymc")
    begun = time.perf_counter()
    logger.addHandler(words)
    try:
        with warnings.catch_warnings(record=True) as caught, threadpool_limits(1, user_api="blas"):
            warnings.simplefilter("always")
            model = own.BLOCKS[model_name](_BLOCKS[sampler]) if sampler in _BLOCKS else posterior.make()
            with model:
                idata = call(model, seed)
            draws = _draws(idata["posterior"], posterior.truth())
            found = summarised(draws, posterior.truth(), chains_are)
            summary = {name: [[float(f"{x:.6g}") for x in part] for part in parts] for name, parts in found.items()}
            row |= {"summary": summary, "rhat": largest_rhat(draws)}
    except Exception as error:  # whatever it is, the user sees it, and the other rows are to be run
        row["raised"] = f"{type(error).__name__}: {error}"
    finally:
        logger.removeHandler(words)
    ours = [w for w in caught if issubclass(w.category, UserWarning) and not _OTHERS.search(w.filename)]
    said = dict.fromkeys(w for w in [*(str(w.message) for w in ours), *words.words] if not _NOT_OF_THE_ANSWER.search(w))
    return row | {"said": list(said), "seconds": round(time.perf_counter() - begun, 1)}


def _draws(posterior, truth):
    """Return the draws of what the truth names, name -> (chain, draw)."""
    found = {}
    for variable in dict.fromkeys(name.split("[")[0] for name in truth):
        found |= split_names(variable, posterior[variable].transpose("chain", "draw", ...).values)
    return {name: found[name] for name in truth}


def verdict_of(row):
    """Return the outcome of a row, its worst statistic, how many standard deviations it is off, and what was said."""
    if "raised" in row:
        return "said", "", np.nan, (f"raised {row['raised']}", *row["said"])
    posterior = ZOO[row["model"]]
    truth, num_draws = posterior.truth(), posterior.num_reference_draws
    found = judge(row["summary"], truth, row["rhat"], row["said"], num_draws)
    return found.outcome, found.worst, found.error, found.said


def kept():
    """Return the finished rows by model, sampler and seed; the last of each counts."""
    return rows_of.kept(ROWS, lambda row: (row["model"], row["sampler"], row["seed"]))


def keep(row):
    """Keep a finished row."""
    rows_of.keep(ROWS, row)


def table(rows):
    """Return the text between the markers."""
    judged = [(row, *verdict_of(row)) for row in rows]
    count = Counter(outcome for _, outcome, *_ in judged)
    alarms = sum(bool(said) for _, outcome, _, _, said in judged if outcome == "right")
    note = (
        f"{len(judged)} outcomes: {count['silent']} silent, {count['said']} said, {count['right']} right; "
        f"{alarms} of the right ones said something all the same. One thread of BLAS.\n\n"
    )
    order = {name: i for i, name in enumerate([*ZOO, *SAMPLERS])}
    judged.sort(key=lambda j: (OUTCOMES.index(j[1]), order[j[0]["model"]], order[j[0]["sampler"]], j[0]["seed"]))
    header = ["model", "sampler", "seed", "outcome", "furthest off", "by (sd)", "R-hat", "said", "s"]
    cells = [
        [
            row["model"],
            row["sampler"],
            str(row["seed"]),
            outcome,
            worst,
            f"{error:.2f}",
            f"{row.get('rhat', np.nan):.2f}",
            "; ".join(measures.shortened(word) for word in said),
            f"{row['seconds']:.0f}",
        ]
        for row, outcome, worst, error, said in judged
    ]
    return note + measures.markdown_table(header, cells)


class _Interrupt:
    """Notes an interrupt: PyMC takes it for the end of sampling and returns what it has, which is no row."""

    def __init__(self):
        self.came = False
        self._before = signal.signal(signal.SIGINT, self)

    def __call__(self, number, frame):
        """Remember it, and interrupt what runs."""
        self.came = True
        raise KeyboardInterrupt


def results(tasks, jobs):
    """Yield the rows of tasks as they are finished, until an interrupt."""
    if jobs == 1:
        interrupt = _Interrupt()
        try:
            for task in tasks:
                row = run(*task)
                if interrupt.came:
                    return
                yield row
        except KeyboardInterrupt:
            return
    else:
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            try:
                yield from pool.map(run, *zip(*tasks, strict=True))
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)


def main():
    """Run what is missing; write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", choices=ZOO, default=list(ZOO))
    parser.add_argument("--samplers", nargs="*", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="run rows that are there already")
    arguments = parser.parse_args()
    known = kept()
    wanted = [
        (model, sampler, seed)
        for seed in arguments.seeds
        for sampler in arguments.samplers
        for model in arguments.models
        if applies(sampler, ZOO[model])
    ]
    tasks = [t for t in wanted if arguments.again or t not in known]
    print(f"{len(wanted)} outcomes asked for, {len(tasks)} to be run; rows in {ROWS}", flush=True)
    logging.getLogger("pymc").setLevel(logging.WARNING)
    for i, row in enumerate(results(tasks, arguments.jobs) if tasks else [], 1):
        keep(row)
        outcome, worst, error, said = verdict_of(row)
        name = f"{row['model']}, {row['sampler']}, {row['seed']}"
        told = "; ".join(measures.shortened(word, 60) for word in said)
        print(
            f"[{i}/{len(tasks)}] {name}: {outcome}, {worst} by {error:.2f} sd, {row['seconds']} s. {told}", flush=True
        )
    rows = [row for (model, sampler, _), row in kept().items() if model in ZOO and sampler in SAMPLERS]
    measures.write_between(HERE / "RESULTS.md", "zoo", table(rows))


if __name__ == "__main__":
    main()
