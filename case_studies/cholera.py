# %% [markdown]
# # Cholera in Dacca: fifty years of deaths, and a likelihood by particles
#
# Each month from 1891 to 1940 has its number of deaths. People are susceptible, infected or immune; they are infected
# by each other and from a reservoir in the water, both of which follow the season, and how much they infect each other
# varies at random (King et al. 2008, the model with a seasonal reservoir). The likelihood of such a model is estimated
# by a particle filter: unbiased, half a second each, with a noise of one and a half nats. Published are the parameters
# of the largest likelihood and estimates of it.
#
# `pk.EstimatedLikelihood` makes the filter a part of a PyMC model, and `pk.sample_surrogate` learns six of its
# parameters from some hundred estimates. The seasons are kept where they were published.

# %%
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
from scipy.interpolate import BSpline

import pymc_kernel as pk
from benchmarks import harness

HERE = Path(__file__).parent
# End of each month, deaths, population and its growth a year (smoothed census): the data set `dacca` of the packages
# pomp and pypomp (1.1.0), provided there by M. J. Bouma.
YEARS, DEATHS, POPULATION, GROWTH = np.loadtxt(HERE / "data" / "cholera.csv", delimiter=",", skiprows=1).T
STEPS = 20  # of Euler and Maruyama a month, as in the source
STEP = 1.0 / (12 * STEPS)  # years
FIRST_YEAR, MIDDLE_YEAR = 1891.0, 1916.08
DEATH_RATE = 0.02  # a year, of other causes
TRANSMISSION = np.array([0.747, 6.38, -3.44, 4.23, 3.33, 4.55])  # logarithms, by season
RESERVOIR = np.log([0.184, 0.0786, 0.0584, 0.00917, 0.000208, 0.0124])
FIRST_STATE = np.array([0.621, 0.378, 0.000843, 0.000972, 1.16e-7])  # susceptible, infected, three stages of immunity
PUBLISHED = {  # of the largest likelihood
    "recovery": 20.8, "waning": 19.1, "mortality": 0.06, "variation": 3.13, "error": 0.23, "trend": -0.00498,
}  # fmt: skip
PUBLISHED_LOG_LIKELIHOOD = -3747.7  # there, the sum of the monthly estimates that pypomp holds
FLOOR = 1e-18  # of a month's density, as in the source


# %% [markdown]
# ## The particle filter


# %%
def seasons(years):
    """Return six periodic cubic splines of the season, (n, 6)."""
    basis = BSpline.design_matrix(np.mod(years - 0.25, 1.0), np.arange(-3, 10) / 6.0, 3).toarray()
    return basis[:, :6] + np.pad(basis[:, 6:], ((0, 0), (0, 3)))


TIMES = FIRST_YEAR + STEP * np.arange(STEPS * YEARS.size)
SEASONS = seasons(TIMES)
PEOPLE = np.interp(TIMES, YEARS, POPULATION)
MORE_PEOPLE = np.interp(TIMES, YEARS, GROWTH)
FROM_WATER = np.exp(SEASONS @ RESERVOIR)


@numba.njit(cache=True, fastmath=True)
def filtered(rng, rates, direct, from_water, people, more_people, deaths, first, num_particles):
    """Return an estimate of the log likelihood."""
    recovery, waning, mortality, variation, error = rates
    wane = 3.0 * waning  # from each of three stages
    state, following = np.empty((5, num_particles)), np.empty((5, num_particles))
    died, weights = np.empty(num_particles), np.empty(num_particles)
    for j in range(5):
        state[j] = first[j]
    log_likelihood, k = 0.0, 0
    for month in range(deaths.size):
        died[:] = 0.0
        is_lost = np.zeros(num_particles)
        for _ in range(STEPS):
            births = more_people[k] + DEATH_RATE * people[k]
            for i in range(num_particles):
                s, infected, one, two, three = state[0, i], state[1, i], state[2, i], state[3, i], state[4, i]
                force = direct[k] + variation * rng.standard_normal() / math.sqrt(STEP)
                new = (from_water[k] + force * infected / people[k]) * s
                s += (births - new - DEATH_RATE * s + wane * three) * STEP
                fewer = (mortality + DEATH_RATE + recovery) * infected
                is_lost[i] += s < 0.0 or infected + (new - fewer) * STEP < 0.0
                died[i] += mortality * infected * STEP
                state[0, i] = max(s, 0.0)
                state[1, i] = max(infected + (new - fewer) * STEP, 0.0)
                state[2, i] = max(one + (recovery * infected - (wane + DEATH_RATE) * one) * STEP, 0.0)
                state[3, i] = max(two + (wane * one - (wane + DEATH_RATE) * two) * STEP, 0.0)
                state[4, i] = max(three + (wane * two - (wane + DEATH_RATE) * three) * STEP, 0.0)
            k += 1
        total = 0.0
        for i in range(num_particles):
            sd = error * died[i] + FLOOR
            z = (deaths[month] - died[i]) / sd
            density = math.exp(-0.5 * z * z) / (sd * math.sqrt(2.0 * math.pi))
            weights[i] = FLOOR if is_lost[i] else density + FLOOR
            total += weights[i]
        log_likelihood += math.log(total / num_particles)
        below, source, offset = weights[0], 0, rng.random()
        for i in range(num_particles):  # systematic resampling
            while below < (i + offset) * total / num_particles and source < num_particles - 1:
                source += 1
                below += weights[source]
            for j in range(5):
                following[j, i] = state[j, source]
        state, following = following, state
    return log_likelihood


def log_estimate(rng, recovery, waning, mortality, variation, error, trend, observed, num_particles=1000):
    """Return an estimate of the log likelihood of the deaths."""
    direct = np.exp(trend * (TIMES - MIDDLE_YEAR) + SEASONS @ TRANSMISSION)
    rates = tuple(float(rate) for rate in (recovery, waning, mortality, variation, error))
    first = FIRST_STATE / FIRST_STATE.sum() * POPULATION[0]
    return filtered(rng, rates, direct, FROM_WATER, PEOPLE, MORE_PEOPLE, observed, first, num_particles)


# %% [markdown]
# ## Is it the published model?


# %%
def at_published(estimates=12, seed=0):
    """Return the mean estimate of the likelihood, in logs, at the published parameters, and the estimates' spread."""
    rng = np.random.default_rng(seed)
    values = [log_estimate(rng, **PUBLISHED, observed=DEATHS) for _ in range(estimates)]
    return float(np.logaddexp.reduce(values) - math.log(estimates)), float(np.std(values))


# %% [markdown]
# ## The posterior


# %%
def cholera():
    """Return the model; priors are wide, around round numbers."""
    with pm.Model() as model:
        recovery = pm.LogNormal("recovery", math.log(20.0), 1.0)  # a year
        waning = pm.LogNormal("waning", math.log(10.0), 1.0)  # a year
        mortality = pm.LogNormal("mortality", math.log(0.1), 1.0)  # a year
        variation = pm.LogNormal("variation", math.log(3.0), 1.0)
        error = pm.LogNormal("error", math.log(0.3), 1.0)  # as a share of the deaths
        trend = pm.Normal("trend", 0.0, 0.02)  # a year
        parameters = recovery, waning, mortality, variation, error, trend
        pk.EstimatedLikelihood("deaths", log_estimate, *parameters, observed=DEATHS)
    return model


def sampled(evaluations, seed, workers):
    """Return draws from so many estimates of the likelihood."""
    with cholera():
        return pk.sample_surrogate(
            2000, evaluations=evaluations, start=PUBLISHED, executor=workers, random_seed=seed, progressbar=False
        )


def picture(runs):
    """Save the marginals of all runs, and the published values."""
    figure, axes = plt.subplots(2, 3, figsize=(9, 5), layout="constrained")
    for axis, (name, published) in zip(axes.flat, PUBLISHED.items(), strict=True):
        for seed, idata in runs.items():
            draws = idata["posterior"][name].values.ravel()
            axis.hist(draws, bins=60, density=True, histtype="step", label=f"seed {seed}")
        axis.axvline(published, color="black", linestyle=":", label="published optimum")
        axis.set(xlabel=name, yticks=[])
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figure.savefig(HERE / "figures" / "cholera.png", dpi=100)
    plt.close(figure)


HEADER = ("parameter", "published optimum", "mean", "sd", "5 %", "95 %", "mean of a second run")
TABLE = harness.Table("cholera", HEADER)


# %%
def main(evaluations=600, seeds=(1, 2), workers=2):
    """Compare the likelihood with the published one, sample twice, write the table and the picture."""
    found, noise = at_published()
    words = f"Log likelihood at the published optimum: {found:.1f}, from estimates that vary by {noise:.1f}; published "
    words += f"{PUBLISHED_LOG_LIKELIHOOD}."
    print(words, flush=True)
    runs = {}
    for seed in seeds:
        runs[seed] = sampled(evaluations, seed, workers)
        stats = runs[seed]["sample_stats"]
        print(seed, stats["num_evaluations"].item(), f"estimates, distance {stats['distance'].item():.2f}", flush=True)
    rows = []
    for name, published in PUBLISHED.items():
        first, second = (runs[s]["posterior"][name].values.ravel() for s in (seeds[0], seeds[-1]))
        low, high = np.quantile(first, [0.05, 0.95])
        rows.append([name, published, *(f"{x:.3g}" for x in (first.mean(), first.std(), low, high, second.mean()))])
    distances = ", ".join(f"{run['sample_stats']['distance'].item():.2f}" for run in runs.values())
    print(TABLE.write(rows, f"{words} Distance stated by each run: {distances}."))
    picture(runs)


# %%
if __name__ == "__main__":
    harness.run(main)
