"""``pk.sample_khmc()`` by default on models of which a part is a black box: exact chains along the learned part.

The models of ``benchmarks.learned_parts``, and a Gaussian process with Poisson counts whose rates are a black box of
one input each. Four chains of 1,000 draws. Evaluations of the whole model count, those of tuning too; errors are those
of the worst parameter, in posterior standard deviations, beside NUTS on the model with gradients. Some forty minutes.
"""

import logging
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

import pymc_kernel as pk
from benchmarks import harness
from benchmarks.learned_parts import DRAWS, STUCK, moments, one_operator, own_operators, sensor
from benchmarks.posteriors import posteriordb

COUNTS = "gp_pois_regr-gp_pois_regr"


def counts(seed):
    """Return the Gaussian process with counts, whose rates a black box gives, and the same with gradients."""
    data = posteriordb.data_of("gp_pois_regr")
    squared = np.subtract.outer(data["x"], data["x"]).astype(float) ** 2

    def model(rate):
        with pm.Model() as made:
            rho, alpha = pm.Gamma("rho", 25, 4), pm.HalfNormal("alpha", 2)
            raw = pm.Normal("f_tilde", shape=11)
            covariance = alpha**2 * pt.exp(-0.5 * squared / rho**2) + 1e-10 * np.eye(11)
            pm.Poisson("k", rate(pt.linalg.cholesky(covariance) @ raw), observed=data["k"])
        return made

    return model(wrap_py([pt.dvector], [pt.dvector])(np.exp)), model(pt.exp)


TARGETS = {
    "12 subjects, 43 parameters, matrix": one_operator(12, "matrix"),
    "12 subjects, 43 parameters, an operator each": own_operators,
    "30 subjects, 97 parameters": one_operator(30, "matrix"),
    "sensor in a regression, 34 parameters": sensor,
    "Gaussian process with counts, 13 parameters": counts,
}
ROWS = harness.Rows(harness.ROWS / "learned_chains.jsonl", lambda row: (row["target"], row["seed"]))
HEADER = (
    "model", "runs", "R-hat", "worst", "effective draws per 1,000 evaluations", "least", "accepted", "means off",
    "worst", "spreads off", "worst", "said",
)  # fmt: skip
TABLE = harness.Table("learned-chains", HEADER, [(name,) for name in TARGETS])


def one_run(target, seed):
    """Return a row."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    unknown, known = TARGETS[target](seed)
    names = [v.name for v in unknown.free_RVs]
    settings = {"random_seed": seed, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = pk.sample_khmc(model=unknown, **settings)
        said = harness.warned_at(__file__, said)
    stats = idata["sample_stats"]
    evaluations = int(stats["evaluations"].sum()) + stats.attrs["tuning_evaluations"]
    mean, sd, variance, rhat = moments(idata, names)
    true_mean, true_sd, true_variance, _ = moments(pm.sample(model=known, **DRAWS, random_seed=seed + 1), names)
    off = np.abs((mean - true_mean) / true_sd)
    return {
        "target": target, "seed": seed, "rhat": rhat, "worth": 1000.0 / variance.max() / evaluations,
        "accepted": float(stats["accept"].mean()), "mean": float(off.max()),
        "certain": float((off - 2.0 * np.sqrt(variance + true_variance)).max()),
        "spread": float(np.abs(sd / true_sd - 1.0).max()), "said": bool(said), "evaluations": evaluations,
    }  # fmt: skip


def cells(rows):
    """Return a row of the table."""
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key != "target"}
    said = (column["said"] | (column["rhat"] > STUCK)).sum()
    numbers = [len(rows), f"{np.median(column['rhat']):.3f}", f"{column['rhat'].max():.3f}"]
    numbers += [f"{np.median(column['worth']):.0f}", f"{column['worth'].min():.0f}"]
    numbers.append(f"{np.median(column['accepted']):.2f}")
    for key in ("mean", "spread"):
        numbers += [f"{np.median(column[key]):.2f}", f"{column[key].max():.2f}"]
    return [*numbers, said]


def main(targets=tuple(TARGETS), first_seed=5000, repetitions=3, again=False, jobs=2):
    tasks = [(t, s) for s in range(first_seed, first_seed + repetitions) for t in targets]
    rows = ROWS.complete(one_run, tasks, lambda row: f"{row['rhat']:.3f}, {row['worth']:.0f}", again, jobs)
    print(TABLE.write_by_name(rows, "target", cells))


if __name__ == "__main__":
    harness.run(main)
