"""Models whose unknown part is a black box of few inputs: ``pk.emulate``, judged by NUTS on the model with gradients.

For each seed a new data set and a new run: evaluations of the whole model until it stopped by itself, how far means and
spreads of NUTS on the emulated model are from those of NUTS on the true one (the worst parameter), what was said. Both
have Monte Carlo errors, some hundredths each. Some forty minutes on two cores.
"""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pytensor import wrap_py

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.posteriors import posteriordb
from benchmarks.posteriors.black_boxes import BlackBox

HARES = "hudson_lynx_hare-lotka_volterra"
HOURS = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 24.0])
DRAWS = {
    "draws": 1000,
    "tune": 1000,
    "chains": 4,
    "cores": 1,
    "progressbar": False,
    "compute_convergence_checks": False,
}


def level(rates, dose=10.0):
    """Return the level of a drug: rates (..., 3) of absorption and clearance, and the volume."""
    absorption, clearance, volume = (rates[..., i, None] for i in range(3))
    loss = clearance / volume
    return dose / volume * absorption / (absorption - loss) * (np.exp(-loss * HOURS) - np.exp(-absorption * HOURS))


def _subjects(num_subjects, seed, doses):
    rng = np.random.default_rng([seed, num_subjects])
    rates = np.exp(np.log([1.5, 2.8, 32.0]) + [0.4, 0.25, 0.2] * rng.standard_normal((num_subjects, 3)))
    clean = np.array([level(r, d) for r, d in zip(rates, doses, strict=True)])
    return clean * np.exp(0.1 * rng.standard_normal(clean.shape))


def _hierarchy(observed, outputs):
    """Return the model of subjects whose levels are ``outputs(rates)``, rates (subjects, 3)."""
    with pm.Model() as model:
        center = pm.Normal("center", [0.5, 1.0, 3.5], 1.0, shape=3)
        spread = pm.HalfNormal("spread", 0.5, shape=3)
        effect = pm.Normal("effect", 0.0, 1.0, shape=(len(observed), 3))
        noise = pm.HalfNormal("noise", 0.3)
        levels = outputs(pt.exp(center + spread * effect))
        pm.LogNormal("y", pt.log(pt.maximum(levels, 1e-9)), noise, observed=observed)
    return model


def _symbolic(rates, doses):
    absorption, clearance, volume = (rates[:, i, None] for i in range(3))
    loss = clearance / volume
    scale = doses[:, None] / volume * absorption / (absorption - loss)
    return scale * (pt.exp(-loss * HOURS) - pt.exp(-absorption * HOURS))


def one_operator(num_subjects, way):
    """Return a function of a seed: the model with one black box for all subjects, and the same with gradients."""

    def made(seed):
        doses = np.full(num_subjects, 10.0)
        observed = _subjects(num_subjects, seed, doses)
        matrix, row = wrap_py([pt.dmatrix], [pt.dmatrix])(level), wrap_py([pt.dvector], [pt.dvector])(level)
        ways = {"matrix": matrix, "loop": lambda rates: pt.stack([row(rates[i]) for i in range(num_subjects)])}
        return _hierarchy(observed, ways[way]), _hierarchy(observed, lambda rates: _symbolic(rates, doses))

    return made


def own_operators(seed):
    """Return the model in which each of twelve subjects has an operator, and a dose, of its own."""
    doses = np.random.default_rng([seed, 1]).uniform(6.0, 14.0, 12)
    observed = _subjects(12, seed, doses)

    def outputs(rates):
        boxes = [wrap_py([pt.dvector], [pt.dvector])(lambda r, dose=dose: level(r, dose)) for dose in doses]
        return pt.stack([box(rates[i]) for i, box in enumerate(boxes)])

    return _hierarchy(observed, outputs), _hierarchy(observed, lambda rates: _symbolic(rates, doses))


def sensor(seed):
    """Return a regression with thirty coefficients whose predictions a sensor multiplies, a black box of two inputs."""
    rng = np.random.default_rng([seed, 2])
    design, slopes = rng.standard_normal((100, 30)), 0.5 * rng.standard_normal(30)

    def factor(lib, a, b):
        return lib.tanh(a) * lib.exp(0.3 * b) + 1.5

    observed = design @ slopes * factor(np, 0.6, 0.2) + 0.5 * rng.standard_normal(100)
    box = wrap_py([pt.dscalar, pt.dscalar], [pt.dscalar])(lambda a, b: np.asarray(factor(np, a, b)))

    def model(calibration):
        with pm.Model() as made:
            slope = pm.Normal("slope", 0.0, 0.5, shape=30)
            a, b = pm.Normal("a", 0.5, 0.5), pm.Normal("b", 0.0, 0.5)
            noise = pm.HalfNormal("noise", 1.0)
            pm.Normal("y", design @ slope * calibration(a, b), noise, observed=observed)
        return made

    return model(box), model(lambda a, b: factor(pt, a, b))


def hares(seed):
    """Return the model of hares and lynx, whose reference draws stand for the truth."""
    return posteriordb.MODELS[HARES](), None


def few_steps(rates, start, times, steps_a_year=1):
    """Return the log numbers (n, 2) of hares and lynx at the end of each year, by few steps of Runge and Kutta."""

    def change(logs):
        return pt.stack([rates[0] - rates[1] * pt.exp(logs[1]), rates[3] * pt.exp(logs[0]) - rates[2]])

    def step(logs, *_):
        h = 1.0 / steps_a_year
        one = change(logs)
        two = change(logs + 0.5 * h * one)
        three = change(logs + 0.5 * h * two)
        return logs + h / 6.0 * (one + 2.0 * two + 2.0 * three + change(logs + h * three))

    num_years = times.type.shape[0]
    logs = pytensor.scan(step, None, [pt.log(start)], [rates], n_steps=num_years * steps_a_year, return_updates=False)
    return logs[steps_a_year - 1 :: steps_a_year]


TARGETS = {  # models, evaluations at most, and cheap versions of black boxes
    "12 subjects, 43 parameters, matrix": (one_operator(12, "matrix"), 100, None),
    "12 subjects, 43 parameters, loop": (one_operator(12, "loop"), 100, None),
    "12 subjects, 43 parameters, an operator each": (own_operators, 100, None),
    "30 subjects, 97 parameters": (one_operator(30, "matrix"), 100, None),
    "sensor in a regression, 34 parameters": (sensor, 60, None),
    "hares and lynx, 8 parameters": (hares, 250, None),
    "hares and lynx, a solver with a step a year beside": (hares, 150, {BlackBox("lotka_volterra"): few_steps}),
}
ROWS = harness.Rows(harness.ROWS / "learned_parts.jsonl", lambda row: (row["target"], row["seed"]))
HEADER = (
    "model", "runs", "evaluations", "most", "means off", "worst", "spreads off", "worst", "distance", "said", "silent",
)  # fmt: skip
TABLE = harness.Table("learned-parts", HEADER, [(name,) for name in TARGETS])
STUCK = 1.05  # R-hat of the four chains of pm.sample on the emulated model; PyMC warns from 1.01 on
OFF = 0.25  # posterior standard deviations of a mean beyond two Monte Carlo errors, from which on an answer is wrong


def draws_of(idata, names):
    """Return the draws of some variables, (chains, n, d)."""
    parts = [idata["posterior"][name].values for name in names]
    return np.concatenate([np.reshape(p, (*p.shape[:2], -1)) for p in parts], axis=2)


def moments(idata, names):
    """Return means, standard deviations, Monte Carlo variances of means (in posterior variances), the largest R-hat."""
    draws = draws_of(idata, names)
    rhat = measures.largest_rhat(draws)
    sizes = np.array([measures.smallest_bulk_ess(draws[:, :, [i]]) for i in range(draws.shape[2])])
    flat = draws.reshape(-1, draws.shape[2])
    return flat.mean(axis=0), flat.std(axis=0), 1.0 / sizes, rhat


def one_run(target, seed):
    """Return a row: evaluations, the largest errors of means (standard deviations) and spreads, what was said."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    make, evaluations, coarse = TARGETS[target]
    unknown, known = make(seed)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        emulated = pk.emulate(unknown, evaluations, coarse=coarse, random_seed=seed, progressbar=False)
        said = measures.said_by_emulation(said)
    names = [v.name for v in emulated.free_RVs]
    mean, sd, variance, rhat = moments(pm.sample(model=emulated, random_seed=seed, **DRAWS), names)
    if known is None:
        true_mean, true_sd = np.array(list(posteriordb.reference(HARES).values()))[:, :2].T  # in the order of the names
        true_variance = 1.0 / posteriordb.NUM_REFERENCE_DRAWS
    else:
        true_mean, true_sd, true_variance, _ = moments(pm.sample(model=known, random_seed=seed + 1, **DRAWS), names)
    emulation, off = emulated.emulation, np.abs((mean - true_mean) / true_sd)
    certain = off - 2.0 * np.sqrt(variance + true_variance)
    return {
        "target": target, "seed": seed, "evaluations": emulation.num_evaluations, "distance": emulation.distance,
        "mean": float(off.max()), "certain": float(certain.max()),
        "spread": float(np.abs(sd / true_sd - 1.0).max()), "said": bool(said), "rhat": rhat,
    }  # fmt: skip


def cells(rows):
    """Return a row of the table."""
    keys = "evaluations", "mean", "certain", "spread", "distance", "said"
    column = {key: np.array([row[key] for row in rows]) for key in keys}
    column["said"] |= np.array([row.get("rhat", 1.0) for row in rows]) > STUCK  # PyMC says so
    wrong = column["certain"] > OFF
    numbers = [len(rows), f"{np.median(column['evaluations']):.0f}", column["evaluations"].max()]
    for key in ("mean", "spread"):
        numbers += [f"{np.median(column[key]):.2f}", f"{column[key].max():.2f}"]
    return [*numbers, f"{np.median(column['distance']):.3f}", column["said"].sum(), (wrong & ~column["said"]).sum()]


def main(targets=tuple(TARGETS), first_seed=3000, repetitions=10, again=False, jobs=2):
    tasks = [(t, s) for s in range(first_seed, first_seed + repetitions) for t in targets]
    rows = ROWS.complete(one_run, tasks, lambda row: f"{row['evaluations']}, {row['mean']:.2f}", again, jobs)
    print(TABLE.write_by_name(rows, "target", cells))


if __name__ == "__main__":
    harness.run(main)
