"""Every sampler of the package, with its defaults, on a zoo of posteriors with known answers: right, said or silent.

Twelve posteriors of posteriordb and thirteen of our own (``benchmarks/posteriors``). Right: all means, standard
deviations and 5 % and 95 % quantiles lie within four Monte Carlo errors of the truth, or within a tenth of a standard
deviation (this alone where R-hat is above 1.05: then nobody knows the Monte Carlo error).
Said: not right, but the sampler said so: R-hat above 1.05, or a warning of its own, which the table repeats. Silent:
neither.

Four chains (sixteen of ``sample_kbr`` and ``sample_abc``), two seeds, everything else by default. A row is kept in
``benchmarks/rows`` as it is finished, and not run again unless ``--again`` is given; the table is judged anew from
all rows that are there.
"""

import logging
import re
import time
import warnings
from collections import Counter
from functools import partial

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness
from benchmarks.posteriors import ZOO, own
from benchmarks.posteriors.judge import judge, largest_rhat, split_names, summarized

ROWS = harness.Rows(harness.ROWS / "zoo.jsonl", lambda row: (row["model"], row["sampler"], row["seed"]))
CHAINS = 4
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


# The last of each: what its chains are besides chains, see ``summarized``.
SAMPLERS = {
    "AdaptiveMetropolis": (partial(_steps, pk.AdaptiveMetropolis), ""),
    "KAMH": (partial(_steps, pk.KAMH), ""),
    "KernelHMC": (partial(_steps, pk.KernelHMC), ""),
    "sample_khmc": (lambda model, seed: pk.sample_khmc(chains=CHAINS, cores=1, random_seed=seed, **_QUIET), ""),
    "sample_smc, ASMC": (partial(_smc, pk.ASMC), "populations"),
    "sample_smc, KASMC": (partial(_smc, pk.KASMC), "populations"),
    "sample_smc, KernelHMCSMC": (partial(_smc, pk.KernelHMCSMC), "populations"),
    "sample_pmc": (lambda model, seed: pk.sample_pmc(chains=CHAINS, random_seed=seed, **_QUIET), "populations"),
    "sample_likelihood_free": (lambda model, seed: pk.sample_likelihood_free(random_seed=seed, **_QUIET), "replicates"),
    "sample_kbr": (lambda model, seed: pk.sample_kbr(random_seed=seed, **_QUIET), "replicates"),
    "sample_abc": (lambda model, seed: pk.sample_abc(random_seed=seed, **_QUIET), "replicates"),
    "KernelABC": (partial(_steps, pk.AdaptiveMetropolis), ""),
    "SyntheticLikelihood": (partial(_steps, pk.AdaptiveMetropolis), ""),
}
_FROM_THE_PRIOR = ("sample_smc, ASMC", "sample_smc, KASMC", "sample_smc, KernelHMCSMC", "sample_pmc")
_SIMULATING = ("sample_likelihood_free", "sample_kbr", "sample_abc")
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
    make = partial(own.BLOCKS[model_name], _BLOCKS[sampler]) if sampler in _BLOCKS else posterior.make
    row = {"model": model_name, "sampler": sampler, "seed": seed}
    return row | measured(make, partial(call, seed=seed), posterior.truth(), chains_are)


def measured(make, call, truth, chains_are):
    """Return what ``call(model)`` gives for the quantities of the truth, what was said, and the seconds."""
    row = {}
    words, logger = _Words(), logging.getLogger("pymc")
    begun = time.perf_counter()
    logger.addHandler(words)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make()
            with model:
                idata = call(model)
            draws = _draws(idata["posterior"], truth)
            found = summarized(draws, truth, chains_are)
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


HEADER = ("model", "sampler", "seed", "outcome", "furthest off", "by (sd)", "R-hat", "said", "s")


def table(rows, before=()):
    """Return the text between the markers; ``before`` are cells of outcomes that stay where there is no new row."""
    merged = {tuple(c[:3]): c for c in [*before, *(_cells(row, *verdict_of(row)) for row in rows)]}
    order = {name: i for i, name in enumerate([*ZOO, *SAMPLERS])}
    known = [c for c in merged.values() if c[0] in ZOO and c[1] in SAMPLERS]
    known.sort(key=lambda c: (OUTCOMES.index(c[3]), order[c[0]], order[c[1]], c[2]))
    count = Counter(c[3] for c in known)
    alarms = sum(bool(c[7]) for c in known if c[3] == "right")
    note = (
        f"{len(known)} outcomes: {count['silent']} silent, {count['said']} said, {count['right']} right; "
        f"{alarms} of the right ones said something all the same. One thread of BLAS.\n\n"
    )
    return note + harness.markdown_table(HEADER, known)


def _cells(row, outcome, worst, error, said):
    words = "; ".join(harness.shortened(word) for word in said)
    off, rhat, seconds = f"{error:.2f}", f"{row.get('rhat', np.nan):.2f}", f"{row['seconds']:.0f}"
    return [row["model"], row["sampler"], str(row["seed"]), outcome, worst, off, rhat, words, seconds]


def told(row):
    """Return what is printed of a row."""
    outcome, worst, error, said = verdict_of(row)
    words = "; ".join(harness.shortened(word, 60) for word in said)
    return f"{outcome}, {worst} by {error:.2f} sd, {row['seconds']} s. {words}"


def main(models=tuple(ZOO), samplers=tuple(SAMPLERS), seeds=(1, 2), jobs=1, again=False):
    wanted = [(m, s, seed) for seed in seeds for s in samplers for m in models if applies(s, ZOO[m])]
    rows = ROWS.complete(run, wanted, told, again, jobs)
    known = [row for row in rows if row["model"] in ZOO and row["sampler"] in SAMPLERS]
    harness.write_results("zoo", table(known, harness.rows_between(harness.ZOO, "zoo")), harness.ZOO)


if __name__ == "__main__":
    harness.run(main)
