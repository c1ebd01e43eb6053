"""Forty models with black boxes that were written without knowledge of the code: right, said or silent.

``pk.emulate`` by default, ``pm.sample`` on what it returns; the truth by NUTS on the same model with gradients, or by
``pm.sample_smc`` where NUTS may miss a mode. An answer is right where means are off by less than .25 posterior standard
deviations beyond two Monte Carlo errors, and spreads by less than a quarter beyond theirs. What ``pk.emulate`` warns of
is *said*, and so is an R-hat above 1.05 in ``pm.sample``; a truth whose own effective size is below 200 is no truth.
Some two hours on one core.
"""

import logging
import warnings

import arviz as az
import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_parts import DRAWS, OFF, STUCK, draws_of, moments
from benchmarks.posteriors.black_box_models import MODELS, made

WIDER = 1.25  # or narrower, from which on a spread is wrong
LEAST_TRUTH = 200  # effective draws
ROWS = harness.Rows(harness.ROWS / "learned_strangers.jsonl", lambda row: (row["model"], row["seed"]))
HEADER = (
    "model", "evaluations", "distance", "mean off", "spread off", "R-hat", "divergences", "effective draws", "of truth",
    "verdict",
)  # fmt: skip
TABLE = harness.Table("learned-strangers", HEADER)
VERDICTS = "silent", "no answer", "said", "false alarm", "no truth", "right"  # the bad ones first


def one_run(name, seed):
    """Return a row; one whose ``error`` is not empty has no answer."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    row = {"model": name, "seed": seed, "error": ""}
    known = made(name, True)
    names = [v.name for v in known.free_RVs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if MODELS[name][1]:
            truth = pm.sample_smc(2000, chains=4, cores=1, random_seed=seed, progressbar=False, model=known)
        else:
            truth = pm.sample(model=known, random_seed=seed, target_accept=0.95, **DRAWS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            emulated = pk.emulate(made(name, False), random_seed=seed, progressbar=False)
        except Exception as error:  # what users would see
            return row | {"error": f"{type(error).__name__}: {error}"}
        idata = pm.sample(model=emulated, random_seed=seed, **DRAWS)
    said = measures.said_by_emulation(said)
    true_mean, true_sd, true_variance, _ = moments(truth, names)
    mean, sd, variance, rhat = moments(idata, names)
    off, wider = np.abs(mean - true_mean) / true_sd, np.abs(np.log(sd / true_sd))
    true_size, size = 1.0 / true_variance, np.maximum(1.0 / variance, 4.0)  # of four chains that do not agree
    error = 2.0 * np.sqrt(1.0 / true_size + (sd / true_sd) ** 2 / size)
    spread_error = 2.0 * np.hypot(relative_errors(truth, names), relative_errors(idata, names))
    return row | {
        "evaluations": emulated.emulation.num_evaluations, "distance": emulated.emulation.distance,
        "mean": float(off.max()), "certain": float((off - error).max()), "spread": float(wider.max()),
        "certain_spread": float((wider - spread_error).max()), "rhat": rhat,
        "divergences": int(idata["sample_stats"]["diverging"].sum()), "size": float(size.min()),
        "true_size": float(true_size.min()), "said": said,
    }  # fmt: skip


def relative_errors(idata, names):
    """Return Monte Carlo errors of the standard deviations of all parameters, in units of these.

    By ArviZ, from fourth moments: of heavy tails they are several times as large as those of a normal distribution.
    """
    draws = np.moveaxis(draws_of(idata, names), 2, 0)
    return np.array([az.mcse(x, method="sd") / x.std() for x in draws])


def verdict(row):
    """Return a word of VERDICTS."""
    if row["error"]:
        return "no answer"
    if row["true_size"] < LEAST_TRUTH:
        return "no truth"
    is_right = row["certain"] < OFF and row["certain_spread"] < np.log(WIDER)
    is_said = bool(row["said"]) or row["rhat"] > STUCK
    return {(True, True): "false alarm", (True, False): "right", (False, True): "said"}.get(
        (is_right, is_said), "silent"
    )


def cells(row):
    """Return a row of the table."""
    word = verdict(row)
    if word == "no answer":
        return [*[None] * 8, f"{word}: {harness.shortened(row['error'])}"]
    numbers = [row["evaluations"], f"{row['distance']:.3f}", f"{row['mean']:.2f}", f"{row['spread']:.2f}"]
    return [*numbers, f"{row['rhat']:.3f}", row["divergences"], f"{row['size']:.0f}", f"{row['true_size']:.0f}", word]


def main(models=tuple(MODELS), seed=11, again=False, jobs=2):
    rows = ROWS.complete(one_run, [(name, seed) for name in models], verdict, again, jobs)
    rows = sorted((r for r in rows if r["model"] in MODELS), key=lambda r: VERDICTS.index(verdict(r)))
    counts = ", ".join(f"{sum(verdict(r) == v for r in rows)} {v}" for v in VERDICTS)
    print(TABLE.write([[r["model"], *cells(r)] for r in rows], f"Of {len(rows)} models: {counts}."))


if __name__ == "__main__":
    harness.run(main)
