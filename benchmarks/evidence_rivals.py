"""Evidence and modes: nested samplers and flows beside the kernels of ``pm.sample_smc``.

Targets have a normal prior, a likelihood that is a function of one place, and an evidence that is known:

- the banana B(0.1, 100) in eight dimensions under N(0, 50^2 I) (``benchmarks.smc``),
- the sensor network with both sizes of its noise (``case_studies.sensors``; shares of the modes by quadrature),
- fresh ones, a mixture and a ring, which seeds from 1,000 on draw (``benchmarks/posteriors/drawn.py``).

Glass is left out: its likelihood is an unbiased estimate, for which nested samplers have no theory.

Rivals run by their defaults: nautilus (Lange 2023), 2,000 live points; dynesty (Speagle 2020), 500 live points, static
and dynamic, and static with its random walks in place of the uniform draws that it takes by default below ten
dimensions; pocoMC (Karamanis et al. 2022), 512 effective and 256 active particles. Their draws have weights, which
count in all errors. Kernels run as in ``benchmarks.smc``: one run of 1,000 particles, ``pk.KASMC`` and ``pk.ASMC`` with
20 moves at each temperature; "as many": as many particles as bring it to nautilus's evaluations. Every call of the
likelihood counts, for all alike.

A run that takes longer than ``--limit`` processor seconds is ended, and its row says so.

A rival that is not installed is left out, and its rows stay. Needs the extras: pip install -e '.[rivals-evidence]', and
'.[rivals-flows]' for pocoMC, which brings PyTorch.
"""

import importlib.util
import math
import platform
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version

import numpy as np
import pymc as pm
import pytensor
from scipy import stats

import pymc_kernel as pk
from benchmarks import harness
from benchmarks import smc as tempered
from benchmarks.gradient_free import CountedDensity
from benchmarks.posteriors.drawn import drawn
from case_studies import sensors

NUM_PARTICLES = tempered.NUM_PARTICLES


# -- targets ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Target:
    """A likelihood under a normal prior.

    Attributes
    ----------
    mean, spread : ndarray (d,)
        Of the prior.
    log_likelihood : callable
        (d,) -> float
    log_evidence : float
    errors : callable
        Draws (n, d) and their weights (n,), which sum to one -> deviations from the truth.
    """

    mean: np.ndarray
    spread: np.ndarray
    log_likelihood: Callable[[np.ndarray], float]
    log_evidence: float
    errors: Callable[[np.ndarray, np.ndarray], np.ndarray]

    @property
    def num_dims(self):
        return len(self.mean)


def off_moments(draws, weights, means, spreads):
    """Return how far means and standard deviations (2 d,) are off, in units of the true standard deviations."""
    found = weights @ draws
    spread = np.sqrt(weights @ (draws - found) ** 2)
    return np.concatenate([(found - means) / spreads, spread / spreads - 1.0])


def off_shares(draws, weights, shares):
    """Return how far the shares of the modes of the sensor network that matter are off."""
    found = np.bincount(sensors.sides(draws.reshape(-1, 3, 2)), weights=weights, minlength=8)
    return (found - shares)[shares > 0.01]


def of_model(model, log_evidence, errors):
    """Return the target of a model with one normal variable and potentials."""
    (variable,), (value,) = model.free_RVs, model.value_vars
    mean, spread = (np.broadcast_to(p.eval(), value.type.shape).ravel() for p in variable.owner.inputs[-2:])
    compiled = pytensor.function([value], model.potentiallogp)
    shape = value.type.shape
    return Target(mean, spread, lambda x: float(compiled(x.reshape(shape))), log_evidence, errors)


def banana():
    """Return the target of ``benchmarks.smc``."""
    d, wide = tempered.D, np.full(tempered.D, tempered.WIDE)
    spreads = np.ones(d)  # X_1 ~ N(0, 100), and X_2 + 0.1 (X_1^2 - 100) has variance 1 + 0.1^2 * 2 * 100^2
    spreads[:2] = 10.0, math.sqrt(201.0)
    errors = partial(off_moments, means=np.zeros(d), spreads=spreads)
    return Target(np.zeros(d), wide, lambda x: tempered.evaluate(x[None])[1][0], tempered.LOG_EVIDENCE, errors)


def network(noise):
    """Return the sensor network."""
    shares, log_evidence = sensors.exact(noise)
    return of_model(sensors.sensor_model(noise), log_evidence, partial(off_shares, shares=shares))


def fresh(family, seed):
    """Return what a seed draws."""
    made = drawn(family, seed)
    draws = made.exact["x"]
    errors = partial(off_moments, means=draws.mean(axis=0), spreads=draws.std(axis=0))
    return of_model(made.make(), made.log_evidence, errors)


TARGETS = {
    "banana": banana,
    "sensors": partial(network, sensors.NOISES["sensors"]),
    "sensors-variance": partial(network, sensors.NOISES["sensors-variance"]),
    **{f"{family} {seed}": partial(fresh, family, seed) for family in ("mixture", "ring") for seed in (1000, 1001)},
}


@lru_cache(maxsize=1)
def target_of(name):
    """Return a target; the last one is remembered, with its compiled likelihood."""
    return TARGETS[name]()


# -- methods ------------------------------------------------------------------------------------------------


def by_nautilus(density, target, seed, rows):
    """Return draws (n, d), log weights (n,) and the log evidence."""
    from nautilus import Sampler

    def from_cube(u):
        return target.mean + target.spread * stats.norm.ppf(u)

    sampler = Sampler(from_cube, density.at, n_dim=target.num_dims, seed=seed)
    sampler.run()
    draws, log_weights, _ = sampler.posterior()
    return draws, log_weights, sampler.log_z


def by_dynesty(density, target, seed, rows, *, dynamic=False, **settings):
    """Return the same."""
    import dynesty

    kind = dynesty.DynamicNestedSampler if dynamic else dynesty.NestedSampler

    def from_cube(u):
        return target.mean + target.spread * stats.norm.ppf(u)

    sampler = kind(density.at, from_cube, target.num_dims, rstate=np.random.default_rng(seed), **settings)
    sampler.run_nested(print_progress=False)
    found = sampler.results
    return found.samples, found.logwt - found.logz[-1], found.logz[-1]


def by_pocomc(density, target, seed, rows):
    """Return the same."""
    import pocomc

    prior = pocomc.Prior([stats.norm(m, s) for m, s in zip(target.mean, target.spread, strict=True)])
    sampler = pocomc.Sampler(prior=prior, likelihood=density.at, random_state=seed)
    sampler.run(progress=False)
    draws, weights, _, _ = sampler.posterior()
    with np.errstate(divide="ignore"):
        return draws, np.log(weights), sampler.evidence()[0]


def by_kernel(density, target, seed, rows, *, kernel, many=None, **settings):
    """Return the same of a kernel of ``pm.sample_smc``; all weights are equal."""
    num_particles = NUM_PARTICLES if many is None else as_many(rows, many)
    with pm.Model():
        x = pm.Normal("x", target.mean, target.spread, shape=target.num_dims)
        pm.Potential("likelihood", density(x))
        # A black box runs faster outside of compiled code.
        idata = pm.sample_smc(
            num_particles, kernel=kernel, chains=1, cores=1, random_seed=seed, progressbar=False,
            compute_convergence_checks=False, compile_kwargs={"mode": "FAST_COMPILE"}, **settings,
        )  # fmt: skip
    log_evidence = idata["sample_stats"]["log_marginal_likelihood"].values.ravel()[-1]
    draws = idata["posterior"]["x"].values[0]
    return draws, np.zeros(len(draws)), float(log_evidence)


def as_many(rows, method):
    """Return how many particles bring a method's evaluations to those of nautilus; the mean of the runs so far."""
    means = {name: [row["evaluations"] for row in rows if row["method"] == name] for name in (method, "nautilus")}
    return round(NUM_PARTICLES * np.mean(means["nautilus"]) / np.mean(means[method]))


OURS = "pk.KernelHMCSMC"
METHODS = {  # package, what it runs
    "nautilus": ("nautilus-sampler", by_nautilus),
    "dynesty": ("dynesty", by_dynesty),
    "dynesty, dynamic": ("dynesty", partial(by_dynesty, dynamic=True)),
    "dynesty, random walks": ("dynesty", partial(by_dynesty, sample="rwalk")),
    "pocoMC": ("pocomc", by_pocomc),
    "pm.smc IMH": ("pymc", partial(by_kernel, kernel=pm.smc.kernels.IMH)),
    "pk.ASMC, 20 moves": ("pymc_kernel", partial(by_kernel, kernel=pk.ASMC, **tempered.TWENTY)),
    "pk.KASMC, 20 moves": ("pymc_kernel", partial(by_kernel, kernel=pk.KASMC, **tempered.TWENTY)),
    OURS: ("pymc_kernel", partial(by_kernel, kernel=pk.KernelHMCSMC)),
    f"{OURS}, as many": ("pymc_kernel", partial(by_kernel, kernel=pk.KernelHMCSMC, many=OURS)),
}
MODULES = {"nautilus-sampler": "nautilus"}
RIVALS = ("nautilus", "dynesty", "dynesty, dynamic", "dynesty, random walks", "pocoMC")


class TooLong(Exception):
    """A run that is ended."""


def with_limit(log_likelihood, end):
    """Return the function, which raises once the processor's time is beyond ``end``."""

    def limited(x):
        if time.process_time() > end:
            raise TooLong
        return log_likelihood(x)

    return limited


def is_installed(method):
    """Return whether the package of a method can be imported."""
    package = METHODS[method][0]
    return importlib.util.find_spec(MODULES.get(package, package)) is not None


def measured(name, method, seed, limit):
    """Return the row of one run."""
    target, (package, run) = target_of(name), METHODS[method]
    rows = [row for row in ROWS.kept().values() if row["target"] == name]
    begun = time.process_time()
    density = CountedDensity(with_limit(target.log_likelihood, begun + limit))
    row = {"target": name, "method": method, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            draws, log_weights, log_evidence = run(density, target, seed, rows)
        except TooLong:
            row |= {"log_evidence_error": None, "errors": None, "effective": None}
        else:
            weights = np.exp(log_weights - log_weights.max())
            weights /= weights.sum()
            row |= {
                "log_evidence_error": float(log_evidence - target.log_evidence),
                "errors": np.round(target.errors(draws, weights), 5).tolist(),
                "effective": float(1.0 / (weights**2).sum()),
            }
    seconds = round(time.process_time() - begun, 2)
    versions = {"version": f"{package} {version(package)}", "python": platform.python_version()}
    return row | {"evaluations": density.calls, "seconds": seconds} | versions


# -- table --------------------------------------------------------------------------------------------------

ROWS = harness.Rows(harness.ROWS / "evidence_rivals.jsonl", lambda row: (row["target"], row["method"], row["seed"]))
HEADER = ("target", "d", "method", "version", "runs", "evaluations", "RMSE of log evidence", "mean error of it")
HEADER += ("error of shares or moments", "processor s")
TABLE = harness.Table("evidence-rivals", HEADER)


def rms(values):
    """Return the root of the mean of squares."""
    return float(np.sqrt(np.mean(np.square(values))))


def scaled(rows):
    """Return the error of the log evidence times the root of the evaluations: variances fall as one over those."""
    ended = [row for row in rows if row["errors"] is not None]
    if not ended:
        return math.inf
    return rms([r["log_evidence_error"] for r in ended]) * math.sqrt(np.mean([r["evaluations"] for r in ended]))


def behind(groups):
    """Return our error of the log evidence over the best rival's, at equal evaluations, and that rival's name.

    One run says too little of an error.
    """
    errors = {method: scaled(groups[method]) for method in RIVALS if len(groups.get(method, [])) > 1}
    if OURS not in groups or not errors:
        return 0.0, ""
    best = min(errors, key=errors.get)
    return scaled(groups[OURS]) / errors[best], best if errors[best] < math.inf else "none had an answer"


def cells(name, method, rows):
    """Return a row of the table."""
    ended = [row for row in rows if row["errors"] is not None]
    off = np.array([row["log_evidence_error"] for row in ended])
    versions = ", ".join(sorted({row["version"] for row in rows}))
    evaluations = f"{np.mean([row['evaluations'] for row in ended or rows]):,.0f}"
    told, runs = (f"no answer after {min(row['seconds'] for row in rows):.0f} processor s", "", ""), len(rows)
    if ended:
        told = f"{rms(off):.3f}", f"{off.mean():+.3f}", f"{rms([row['errors'] for row in ended]):.3f}"
        runs = len(rows) if len(ended) == len(rows) else f"{len(ended)}, {len(rows) - len(ended)} without an answer"
    seconds = f"{np.mean([row['seconds'] for row in rows]):.0f}"
    return [name, target_of(name).num_dims, method, versions, runs, evaluations, *told, seconds]


def main(targets=tuple(TARGETS), methods=tuple(METHODS), runs=5, limit=900, again=False):
    """Run what has no row yet, and write the table: the targets on which we are behind come first."""
    missing = [method for method in methods if not is_installed(method)]
    if missing:
        print(f"not installed, its rows stay: {', '.join(missing)}", flush=True)
    wanted = [
        (name, method, seed) for name in targets for method in methods for seed in range(runs) if method not in missing
    ]
    rows = ROWS.complete(
        partial(measured, limit=limit),
        wanted,
        lambda row: f"{row['log_evidence_error']} {row['evaluations']} {row['seconds']} s",
        again,
    )
    groups = {name: {} for name in TARGETS}
    for row in rows:
        groups[row["target"]].setdefault(row["method"], []).append(row)
    ratios = {name: behind(groups[name]) for name in TARGETS if groups[name]}
    ordered = sorted(ratios, key=lambda name: ratios[name][0], reverse=True)
    table = [cells(n, m, groups[n][m]) for n in ordered for m in METHODS if m in groups[n]]
    told = ", ".join(f"{name} {ratios[name][0]:.2g} ({ratios[name][1]})" for name in ordered if ratios[name][1])
    best = "the best rival's of two runs or more"
    if table:
        TABLE.write(table, f"Error of the log evidence by {OURS} over {best}, at equal evaluations: {told}.")


if __name__ == "__main__":
    harness.run(main)
