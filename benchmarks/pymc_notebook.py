"""PyMC's own example of a black box, Lotka-Volterra by SciPy's solver, in which DEMetropolis wins; ours beside it.

The notebook is "ODE Lotka-Volterra With Bayesian Inference in Multiple Ways" of PyMC's example gallery: hares and lynx
of 21 years, priors around the least-squares solution, normal errors, seven parameters. Its samplers run with its
numbers of draws, ours by default. Seconds are of the processor, compilation included; the effective size is that of the
worst parameter; errors are those of the worst parameter beside DEMetropolisZ with 8 chains of 100,000 draws, in
posterior standard deviations. Some forty minutes on one core.
"""

import logging
import time
import warnings

import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py
from scipy.integrate import odeint
from scipy.optimize import least_squares

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.learned_parts import STUCK
from benchmarks.posteriors import posteriordb

NAMES = ("alpha", "beta", "gamma", "delta", "xto", "yto")
PRIOR_SD = (0.1, 0.01, 0.1, 0.01, 1.0, 1.0)
GUESS = (0.52, 0.026, 0.84, 0.026, 34.0, 5.9)
LONG = "pm.DEMetropolisZ, 800,000 draws"
SETTINGS = {"cores": 1, "progressbar": False, "compute_convergence_checks": False}


@numba.njit(cache=True)
def _change(numbers, _, theta):
    hares, lynx = numbers
    return [hares * (theta[0] - theta[1] * lynx), lynx * (theta[3] * hares - theta[2])]


def example():
    """Return the model, and a list that grows by one with each call of the solver."""
    data, calls = posteriordb.data_of("hudson_lynx_hare"), []
    years = np.concatenate([[0.0], data["ts"]]).astype(float)
    pelts = np.vstack([data["y_init"], data["y"]])

    def solution(theta):
        calls.append(None)
        return odeint(_change, theta[4:], years, args=(theta,))

    center = least_squares(lambda theta: (pelts - solution(theta)).ravel(), GUESS).x
    with pm.Model() as model:
        theta = [
            pm.TruncatedNormal(name, c, sd, lower=0, initval=c)
            for name, c, sd in zip(NAMES, center, PRIOR_SD, strict=True)
        ]
        sigma = pm.HalfNormal("sigma", 10)
        numbers = wrap_py([pt.dvector], [pt.dmatrix])(solution)(pt.stack(theta))
        pm.Normal("Y_obs", numbers, sigma, observed=pelts)
    calls.clear()
    return model, calls


def _by_step(step, **settings):
    return lambda seed: pm.sample(step=step(), random_seed=seed, **SETTINGS, **settings)


def by_smc(seed):
    """Return particles of PyMC's SMC."""
    return pm.sample_smc(2000, random_seed=seed, **SETTINGS)


def by_emulation(seed):
    """Return draws by NUTS of the model whose solver was learned."""
    emulated = pk.emulate(random_seed=seed, progressbar=False)
    return pm.sample(model=emulated, random_seed=seed, **SETTINGS)


def by_khmc(seed):
    """Return exact draws along what was learned."""
    return pk.sample_khmc(random_seed=seed, **SETTINGS)


METHODS = {
    LONG: _by_step(pm.DEMetropolisZ, draws=100_000, tune=20_000, chains=8),
    "pm.Slice": _by_step(pm.Slice, draws=2000, tune=2000, chains=4),
    "pm.Metropolis": _by_step(pm.Metropolis, draws=5000, tune=5000, chains=4),
    "pm.DEMetropolisZ": _by_step(pm.DEMetropolisZ, draws=5000, tune=5000, chains=4),
    "pm.DEMetropolis": _by_step(pm.DEMetropolis, draws=6000, chains=8),
    "pm.sample_smc": by_smc,
    "pk.emulate, pm.sample": by_emulation,
    "pk.sample_khmc": by_khmc,
}
ROWS = harness.Rows(harness.ROWS / "pymc_notebook.jsonl", lambda row: (row["method"], row["seed"]))
HEADER = (
    "sampler", "runs", "effective draws a second", "least", "effective draws", "seconds", "calls of the solver",
    "R-hat", "means off", "worst", "spreads off", "worst", "said",
)  # fmt: skip
TABLE = harness.Table("pymc-notebook", HEADER, [(name,) for name in METHODS])


def one_run(method, seed):
    """Return a row."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    model, calls = example()
    start = time.process_time()
    with model, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = METHODS[method](seed)
    seconds = time.process_time() - start
    said = harness.warned_at(__file__, said)
    draws = np.stack([idata["posterior"][name].values for name in (*NAMES, "sigma")], axis=2)
    return {
        "method": method, "seed": seed, "seconds": seconds, "calls": len(calls),
        "size": measures.smallest_bulk_ess(draws), "rhat": measures.largest_rhat(draws),
        "means": draws.mean(axis=(0, 1)).tolist(), "spreads": draws.std(axis=(0, 1)).tolist(), "said": bool(said),
    }  # fmt: skip


def cells(rows, true_mean, true_sd):
    """Return a row of the table."""
    column = {key: np.array([row[key] for row in rows]) for key in rows[0] if key not in ("method", "seed")}
    speed = column["size"] / column["seconds"]
    numbers = [len(rows), f"{np.median(speed):.2f}", f"{speed.min():.2f}"]
    numbers += [f"{np.median(column[key]):.0f}" for key in ("size", "seconds", "calls")]
    numbers.append(f"{column['rhat'].max():.3f}")
    off = np.abs((column["means"] - true_mean) / true_sd).max(axis=1)
    spread = np.abs(column["spreads"] / true_sd - 1.0).max(axis=1)
    for errors in (off, spread):
        numbers += [f"{np.median(errors):.2f}", f"{errors.max():.2f}"]
    return [*numbers, (column["said"] | (column["rhat"] > STUCK)).sum()]


def main(methods=tuple(METHODS), first_seed=1000, repetitions=3, again=False, jobs=2):
    tasks = [(m, s) for s in range(first_seed, first_seed + repetitions) for m in methods if m != LONG]
    rows = ROWS.complete(
        one_run, [(LONG, first_seed), *tasks], lambda row: f"{row['size'] / row['seconds']:.2f}", again, jobs
    )
    long = next(row for row in rows if row["method"] == LONG)
    truth = np.array(long["means"]), np.array(long["spreads"])
    known = [(name, [r for r in rows if r["method"] == name]) for name in METHODS]
    print(TABLE.write([[name, *cells(own, *truth)] for name, own in known if own]))


if __name__ == "__main__":
    harness.run(main)
