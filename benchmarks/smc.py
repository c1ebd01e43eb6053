"""Kernel SMC: a strongly twisted banana, the thesis's protocol, Glass, and particle updates a second.

The bridge leads from N(0, 50^2 I) to B(0.1, 100) in eight dimensions, 1,000 particles. The maximum mean discrepancy to
the exact distribution is that of the kernel (1 + x'y / d)^3 on coordinates scaled by their standard deviations, which
compares all mixed moments up to the third; its features are written out, so the exact one enters through 400,000 draws
of it. The true evidence is known.
"""

import math
from collections import Counter
from functools import cache, partial
from itertools import combinations_with_replacement

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.gradient_free import CountedDensity
from benchmarks.posteriors import ZOO
from benchmarks.targets import banana
from case_studies.glass import glass_model
from pymc_kernel import smc
from pymc_kernel.mcmc import kameleon

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
        evaluations = NUM_PARTICLES + sum(info.evaluations for info in history)
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
KAMELEON = smc.Kameleon()
METHODS = {
    "exact draws": lambda seed: (TARGET.sample(np.random.default_rng([seed, 3]), NUM_PARTICLES), LOG_EVIDENCE, 0),
    "pm.smc IMH": by_pymc(pm.smc.kernels.IMH),
    "pm.smc MH": by_pymc(pm.smc.kernels.MH),
    "plain walk, 20 moves": by_arrays(smc.Config(smc.Walk(learn_covariance=False, learn_scale=False), **TWENTY)),
    "pk.ASMC, 20 moves": by_arrays(smc.Config(smc.Walk(), **TWENTY)),
    "pk.KASMC, 20 moves": by_arrays(smc.Config(KAMELEON, **TWENTY)),
    "pk.KernelHMCSMC": by_arrays(smc.Config()),
}
# The thesis ends with the last stage.
_FIXED = {"schedule": THESIS_SCHEDULE, "min_moves": 1, "max_moves": 1, "importance": False}
_ALL = smc.Kameleon(kameleon.Config(num_basis=NUM_PARTICLES, gamma=0.2, whiten=False), learning_rate=0.1)
THESIS = {
    "plain walk": by_arrays(smc.Config(smc.Walk(learn_covariance=False, learn_scale=False), **_FIXED)),
    "ASMC": by_arrays(smc.Config(smc.Walk(learning_rate=0.1), **_FIXED)),
    "KASMC": by_arrays(smc.Config(_ALL, **_FIXED)),
    "KASMC, our default": by_arrays(smc.Config(KAMELEON, **_FIXED)),
    "KernelHMCSMC": by_arrays(smc.Config(**_FIXED)),
}


BANANAS = {"banana": METHODS, "thesis": THESIS}
HEADER = ("method", "MMD", "RMSE of log evidence", "evaluations", "seconds")


def one_run(part, name, seed):
    """Return discrepancy, error of the log evidence, evaluations and seconds of one run."""
    (draws, evidence, evaluations), seconds = measures.timed(BANANAS[part][name], seed)
    return discrepancy(draws), evidence - LOG_EVIDENCE, evaluations, seconds


def cells(runs):
    """Return what stands behind the method's name; exact draws have no evidence to be wrong."""
    discrepancies, errors, evaluations, seconds = np.array(runs).T
    evidence = f"{math.sqrt((errors**2).mean()):.3f}" if errors.any() else None
    return measures.plus_minus(discrepancies), evidence, f"{evaluations.mean():.0f}", f"{seconds.mean():.1f}"


# -- Glass --------------------------------------------------------------------------------------------------

GLASS = {"ASMC": pk.ASMC, "KASMC": pk.KASMC, "KernelHMCSMC": pk.KernelHMCSMC}
GLASS_PARTICLES = (25, 50, 100)
# KernelHMCSMC learns from halves of the particles; twelve collapse in nine dimensions, which it says.
GLASS_KEYS = [(name, n) for name in GLASS for n in GLASS_PARTICLES if (name, n) != ("KernelHMCSMC", 25)]
GLASS_TABLE = harness.Table("smc-glass", ("kernel", "particles", "mean log evidence", "variance"), GLASS_KEYS)


def one_glass_run(name, num_particles, seed):
    """Return the log evidence: 20 temperatures, one move each."""
    temperatures = {"schedule": np.linspace(0.05, 1.0, 20), "min_moves": 1, "max_moves": 1}
    settings = {"importance": False, "chains": 1, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    with glass_model():
        idata = pk.sample_smc(num_particles, GLASS[name], random_seed=seed, **settings, **temperatures)
    return float(idata["smc_stats"]["log_evidence"].values[0])


def glass_cells(evidences):
    """Return mean and variance of the log evidence."""
    variance = np.var(evidences, ddof=1)
    error = variance * math.sqrt(2.0 / (len(evidences) - 1))
    return f"{np.mean(evidences):.2f}", f"{variance:.3f} ± {error:.3f}"


# -- speed --------------------------------------------------------------------------------------------------

SPEED = {
    "pm.smc MH": pm.smc.kernels.MH,
    "pk.ASMC": pk.ASMC,
    "pk.KASMC, 1,000 basis points": pk.KASMC,
    "pk.KASMC, 100 basis points": partial(pk.KASMC, num_basis=100),
    "pk.KernelHMCSMC": pk.KernelHMCSMC,
}
SPEED_TABLE = harness.Table("smc-speed", ("kernel", "particle updates / s", "ratio"))


def updates(made):
    """Return how many particles the stages of a run moved, from a fresh start."""
    made.initialize(None, np.random.default_rng(1))
    moved = 0
    while made.beta < 1:
        made.update_beta_and_weights()
        made.step()
        moved += made.draws * (made.n_steps - 1 if hasattr(made, "n_steps") else made._info.moves)
    return moved


def stage_speed(name):
    """Return particle updates a second on the eight schools, compilation left out; print them."""
    made = SPEED[name](draws=2000, model=ZOO["eight_schools"].make(), random_seed=1)
    runs = [measures.timed(updates, made) for _ in range(3)]
    rate = float(np.median([moved / seconds for moved, seconds in runs]))
    print(name, f"{rate:,.0f}", flush=True)
    return rate


def main(
    repetitions=30,
    parts=("speed", *BANANAS, "glass"),
    methods=(*METHODS, *THESIS),
    glass_particles=GLASS_PARTICLES,
    jobs=2,
):
    if "speed" in parts:
        rates = list(harness.results(stage_speed, [(name,) for name in SPEED], jobs=1))
        SPEED_TABLE.write([[n, f"{rate:,.0f}", f"{rate / rates[0]:.1f}"] for n, rate in zip(SPEED, rates, strict=True)])
    for part in [part for part in BANANAS if part in parts]:
        table = harness.Table(f"smc-{part}", HEADER, [(name,) for name in BANANAS[part]])
        note = f"{repetitions} runs of {NUM_PARTICLES} particles."
        chosen = [key for key in table.keys if key[0] in methods]
        table.fill(partial(one_run, part), cells, repetitions, note, chosen, jobs)
    if "glass" in parts:
        runs = max(2, repetitions * 5 // 3)
        note = f"{runs} runs, 20 temperatures, one move at each."
        chosen = [key for key in GLASS_KEYS if key[0] in methods and key[1] in glass_particles]
        GLASS_TABLE.fill(one_glass_run, glass_cells, runs, note, chosen, jobs)


if __name__ == "__main__":
    harness.run(main)
