"""Kernel SMC: a strongly twisted banana, the thesis's protocol, Glass, and particle updates a second.

The bridge leads from N(0, 50^2 I) to B(0.1, 100) in eight dimensions, 1,000 particles. The maximum mean discrepancy to
the exact law is that of the kernel (1 + x'y / d)^3 on coordinates scaled by their standard deviations, which compares
all mixed moments up to the third; its features are written out, so the exact law enters through 400,000 draws of it.
The true evidence is known.

Run: python -m benchmarks.smc [--repetitions 30] [--parts banana thesis glass speed] [--methods KASMC]
Parts and rows that are not run stay as they were.
"""

import argparse
import math
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
import pymc as pm
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from benchmarks.gradient_free import CountedDensity
from benchmarks.targets import banana
from case_studies.glass import glass_model
from pymc_kernel import smc
from pymc_kernel.mcmc import kameleon

HERE = Path(__file__).parent
TARGET, WIDE, NUM_PARTICLES = banana(0.1, 100.0), 50.0, 1000
D = TARGET.num_dims
LOG_EVIDENCE = 0.5 * D * math.log(2.0 * math.pi) + math.log(10.0)
THESIS_SCHEDULE = tuple(np.geomspace(1e-4, 1.0, 20))


# -- the discrepancy ----------------------------------------------------------------------------------------


@cache
def _monomials():
    """Return index triples into (1, x) and the weights with which their products span (1 + x'y / d)^3."""
    triples = list(combinations_with_replacement(range(D + 1), 3))
    counts = [math.factorial(3) / math.prod(math.factorial(c) for c in Counter(t).values()) for t in triples]
    weights = [math.sqrt(c) * D ** (-0.5 * sum(i > 0 for i in t)) for c, t in zip(counts, triples, strict=True)]
    return triples, np.array(weights)


def _mean_features(draws, spread):
    padded = np.hstack([np.ones((len(draws), 1)), draws / spread])
    triples, weights = _monomials()
    return weights * np.array([(padded[:, i] * padded[:, j] * padded[:, k]).mean() for i, j, k in triples])


@cache
def _exact():
    draws = TARGET.sample(np.random.default_rng(2), 400_000)
    spread = draws.std(axis=0)
    return _mean_features(draws, spread), spread


def discrepancy(draws):
    """Return the maximum mean discrepancy of draws (n, d) to the target."""
    features, spread = _exact()
    return float(np.linalg.norm(_mean_features(draws, spread) - features))


# -- the bridge ---------------------------------------------------------------------------------------------


def log_prior(positions):
    """Return the log density of N(0, 50^2 I)."""
    return -0.5 * (positions**2).sum(axis=1) / WIDE**2 - D * math.log(WIDE * math.sqrt(2.0 * math.pi))


def evaluate(positions):
    """Return log prior and log likelihood, whose product is the banana."""
    prior = log_prior(positions)
    return prior, -0.5 * TARGET.level(positions) - prior


def by_arrays(config):
    """Return a function of a seed: final particles, log evidence, evaluations."""

    def run(seed):
        rng = np.random.default_rng([seed, 18])
        start = WIDE * rng.standard_normal((NUM_PARTICLES, D))
        state, history = smc.sample(rng, smc.Evaluated(start, *evaluate(start)), evaluate, config)
        evaluations = NUM_PARTICLES + sum(info.num_evaluations for info in history)
        return state.particles.positions, state.log_evidence, evaluations

    return run


def by_pymc(kernel):
    """Return the same by a kernel of PyMC."""

    def run(seed):
        density = CountedDensity(lambda x: evaluate(x[None])[1][0])
        with pm.Model():
            x = pm.Normal("x", 0.0, WIDE, shape=D)
            pm.Potential("bridge", density(x))
            # A black box runs faster outside of compiled code.
            idata = pm.sample_smc(
                NUM_PARTICLES, kernel=kernel, chains=1, cores=1, random_seed=seed, progressbar=False,
                compute_convergence_checks=False, compile_kwargs={"mode": "FAST_COMPILE"},
            )  # fmt: skip
        evidence = float(idata["sample_stats"]["log_marginal_likelihood"].values.ravel()[-1])
        return idata["posterior"]["x"].values[0], evidence, density.calls

    return run


TWENTY = {"min_moves": 20, "max_moves": 20}
KAMELEON = smc.Kameleon(kameleon.Config(whiten="local"))  # the default of pk.KASMC
METHODS = {
    "exact draws": lambda seed: (TARGET.sample(np.random.default_rng([seed, 3]), NUM_PARTICLES), LOG_EVIDENCE, 0),
    "pm.smc IMH": by_pymc(pm.smc.kernels.IMH),
    "pm.smc MH": by_pymc(pm.smc.kernels.MH),
    "pk.RWSMC, 20 moves": by_arrays(smc.Config(smc.Walk(learn_covariance=False, learn_scale=False), **TWENTY)),
    "pk.ASMC, 20 moves": by_arrays(smc.Config(smc.Walk(), **TWENTY)),
    "pk.KASMC, 20 moves": by_arrays(smc.Config(KAMELEON, **TWENTY)),
    "pk.KernelHMCSMC": by_arrays(smc.Config()),
}
_FIXED = {"schedule": THESIS_SCHEDULE, "min_moves": 1, "max_moves": 1, "waste_free": False}
_ALL = smc.Kameleon(kameleon.Config(subsample_size=NUM_PARTICLES, gamma=0.2, whiten=False), learning_rate=0.1)
THESIS = {
    "RWSMC": by_arrays(smc.Config(smc.Walk(learn_covariance=False, learn_scale=False), **_FIXED)),
    "ASMC": by_arrays(smc.Config(smc.Walk(learning_rate=0.1), **_FIXED)),
    "KASMC": by_arrays(smc.Config(_ALL, **_FIXED)),
    "KASMC, our default": by_arrays(smc.Config(KAMELEON, **_FIXED)),
    "KernelHMCSMC": by_arrays(smc.Config(**_FIXED)),
}


def one_run(task):
    """Return discrepancy, error of the log evidence, evaluations and seconds of one run."""
    table, name, seed = task
    with threadpool_limits(1):
        begun = time.perf_counter()
        draws, evidence, evaluations = (METHODS if table == "banana" else THESIS)[name](seed)
        seconds = time.perf_counter() - begun
    return discrepancy(draws), evidence - LOG_EVIDENCE, evaluations, seconds


def bananas(part, repetitions, pool, names=None):
    """Write one of the two tables of the banana, or the rows with these names."""
    methods, marker = (METHODS, "smc-banana") if part == "banana" else (THESIS, "smc-thesis")
    rows = []
    for name in methods if names is None else [m for m in methods if m in names]:
        found = np.array(list(pool.map(one_run, [(part, name, seed) for seed in range(repetitions)])))
        mean, error = found.mean(axis=0), found[:, 0].std(ddof=1) / math.sqrt(repetitions)
        evidence = "" if name == "exact draws" else f"{math.sqrt((found[:, 1] ** 2).mean()):.3f}"
        rows.append([name, f"{mean[0]:.3f} ± {error:.3f}", evidence, f"{mean[2]:.0f}", f"{mean[3]:.1f}"])
        print(*rows[-1], flush=True)
        header = ["method", "MMD", "RMSE of log evidence", "evaluations", "seconds"]
        note = f"{repetitions} runs of {NUM_PARTICLES} particles.\n\n"
        table = measures.merge_rows(HERE / "RESULTS.md", marker, header, rows, [(m,) for m in methods])
        measures.write_between(HERE / "RESULTS.md", marker, note + table)


# -- Glass --------------------------------------------------------------------------------------------------

GLASS = {"ASMC": pk.ASMC, "KASMC": pk.KASMC, "KernelHMCSMC": pk.KernelHMCSMC}


def one_glass_run(task):
    """Return log evidence and evaluations: 100 particles, 20 temperatures, one move each."""
    name, seed = task
    with threadpool_limits(1, user_api="blas"), glass_model():
        idata = pk.sample_smc(
            100, GLASS[name], chains=1, cores=1, random_seed=seed, progressbar=False, compute_convergence_checks=False,
            schedule=np.linspace(0.05, 1.0, 20), min_moves=1, max_moves=1,
        )  # fmt: skip
    return float(idata["smc_stats"]["log_evidence"].values[0])


def glass(repetitions, pool):
    """Write the variance of the log evidence."""
    rows = []
    for name in GLASS:
        found = np.array(list(pool.map(one_glass_run, [(name, seed) for seed in range(repetitions)])))
        spread = found.var(ddof=1)
        error = spread * math.sqrt(2.0 / (repetitions - 1))
        rows.append([name, f"{found.mean():.2f}", f"{spread:.3f} ± {error:.3f}"])
        print(*rows[-1], flush=True)
    table = measures.markdown_table(["kernel", "mean log evidence", "variance"], rows)
    note = f"{repetitions} runs of 100 particles, 20 temperatures, one move at each.\n\n"
    measures.write_between(HERE / "RESULTS.md", "smc-glass", note + table)


# -- speed --------------------------------------------------------------------------------------------------


def schools():
    """Return a cheap model: eight schools."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0.0, 5.0), pm.HalfCauchy("tau", 5.0)
        eta = pm.Normal("eta", 0.0, 1.0, shape=8)
        spread = [15, 10, 16, 11, 9, 11, 10, 18]
        pm.Normal("y", mu + tau * eta, spread, observed=[28, 8, -3, 7, -1, 1, 18, 12])
    return model


def stage_speed(kernel):
    """Return particle updates a second in the stages, compilation and first evaluation left out."""
    made = kernel(draws=2000, model=schools(), random_seed=1)
    with threadpool_limits(1, user_api="blas"):
        rates = []
        for _ in range(3):
            made.initialize(None, np.random.default_rng(1))
            updates, begun = 0, time.perf_counter()
            while made.beta < 1:
                made.update_beta_and_weights()
                made.step()
                updates += made.draws * (made.n_steps - 1 if hasattr(made, "n_steps") else made._info.num_moves)
            rates.append(updates / (time.perf_counter() - begun))
    return float(np.median(rates))


def speed():
    """Write the table of updates a second."""
    kernels = {
        "pm.smc MH": pm.smc.kernels.MH,
        "pk.ASMC": pk.ASMC,
        "pk.KASMC, 1,000 basis points": pk.KASMC,
        "pk.KASMC, 100 basis points": lambda **kwargs: pk.KASMC(subsample_size=100, **kwargs),
        "pk.KernelHMCSMC": pk.KernelHMCSMC,
    }
    found = {name: stage_speed(kernel) for name, kernel in kernels.items()}
    rows = [[name, f"{rate:,.0f}", f"{rate / found['pm.smc MH']:.1f}"] for name, rate in found.items()]
    for row in rows:
        print(*row, flush=True)
    table = measures.markdown_table(["kernel", "particle updates / s", "ratio"], rows)
    measures.write_between(HERE / "RESULTS.md", "smc-speed", table)


def main():
    """Run all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--parts", nargs="*", default=["banana", "thesis", "glass", "speed"])
    parser.add_argument("--methods", nargs="*", help="rows of the two tables of the banana")
    arguments = parser.parse_args()
    if "speed" in arguments.parts:
        speed()
    with ProcessPoolExecutor(2) as pool:
        for part in ("banana", "thesis"):
            if part in arguments.parts:
                bananas(part, arguments.repetitions, pool, arguments.methods)
        if "glass" in arguments.parts:
            glass(max(2, arguments.repetitions * 5 // 3), pool)


if __name__ == "__main__":
    main()
