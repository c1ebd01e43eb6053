# %% [markdown]
# # Which period? A star that two planets pull
#
# The star K2-24 moves toward us and away by some meters a second, as its planets pull it. Thirty-two velocities over a
# hundred days (Petigura et al. 2016, the data of RadVel's example) are few: one orbit explains them by several periods,
# and a sampler that has found one of these stays there. The two planets are known from elsewhere, since they pass in
# front of the star, every 20.885 and 42.363 days.
#
# An orbit is a black box: Kepler's equation is solved by Newton's method. First the period of a single orbit is
# unknown, from five to a hundred days, and `pk.sample_smc` weighs the modes. The exact weights are known: given period,
# eccentricity, phase and jitter, the velocities are linear in what is left, and ten million draws of the prior of these
# are weighed (Price-Whelan et al. 2017). Then the periods and times of both planets are those of the passages, their
# eccentricities are unknown, and `pk.emulate` learns the orbits from a few runs: the masses are compared with the
# published ones.

# %%
import logging
import math
from functools import partial
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py

import pymc_kernel as pk
from benchmarks import harness, measures

HERE = Path(__file__).parent
SHORTEST, LONGEST = 5.0, 100.0  # days
EDGES = np.array([SHORTEST, 10.0, 16.0, 28.0, 60.0, LONGEST])  # between the modes
WIDTH = 10.0  # meters a second, of the priors of velocities
JITTER = 3.0  # meters a second, what the star and the instrument add to the stated errors
ECCENTRICITY = 0.867, 3.03  # of a beta distribution (Kipping 2013)
PRIOR_DRAWS = 10_000_000
PASSAGES = {"b": (20.885258, 2072.79438), "c": (42.363011, 2082.62516)}  # period in days, and a time of passage
PUBLISHED = {"b": (21.0, 5.4), "c": (27.0, 6.9)}  # masses of the Earth (Petigura et al. 2016)
SUN = 1.12  # mass of the star in that of the Sun
MODES = [f"{a:g} to {b:g} days" for a, b in pairwise(EDGES)]
HEADER = ("sampler", "s", *MODES, "log evidence", "its spread over chains")


def load():
    """Return days since the first, velocities and their errors (32,), in meters a second, and the first day."""
    day, velocity, error = np.genfromtxt(HERE / "data" / "k2_24.csv", delimiter=",", skip_header=1).T
    return day - day[0], velocity, error, day[0]


# %% [markdown]
# ## An orbit


# %%
@numba.njit
def place(mean_anomaly, eccentricity):
    """Return cosine and sine of the true anomaly, by Kepler's equation."""
    mean_anomaly -= 2.0 * math.pi * math.floor(mean_anomaly / (2.0 * math.pi))
    angle = mean_anomaly + eccentricity * math.sin(mean_anomaly)
    for _ in range(50):
        step = (angle - eccentricity * math.sin(angle) - mean_anomaly) / (1.0 - eccentricity * math.cos(angle))
        angle -= step
        if abs(step) < 1e-12:
            break
    distance = 1.0 - eccentricity * math.cos(angle)
    return (
        (math.cos(angle) - eccentricity) / distance,
        math.sqrt(1.0 - eccentricity**2) * math.sin(angle) / distance,
    )


@numba.njit
def orbit(days, period, eccentricity, phase):
    """Return the velocities (2, n) that one unit of each component of the amplitude makes."""
    out = np.empty((2, len(days)))
    for i in range(len(days)):
        cosine, sine = place(2.0 * math.pi * days[i] / period - phase, eccentricity)
        out[0, i], out[1, i] = cosine + eccentricity, -sine
    return out


# %% [markdown]
# ## One orbit of unknown period


# %%
def one_orbit(days, velocity, error):
    """Return the model of a single orbit, whose velocities are a black box."""

    def orbit_of_star(period, eccentricity, phase):
        return orbit(days, period, eccentricity, phase)

    columns = wrap_py([pt.dscalar] * 3, [pt.dmatrix])(orbit_of_star)
    with pm.Model() as model:
        log_period = pm.Uniform("log_period", math.log(SHORTEST), math.log(LONGEST))
        eccentricity = pm.Beta("eccentricity", *ECCENTRICITY)
        direction = pm.Normal("direction", shape=2)  # its angle is uniform, without an end
        amplitude = pm.Normal("amplitude", sigma=WIDTH, shape=2)
        offset = pm.Normal("offset", sigma=WIDTH)
        jitter = pm.HalfNormal("jitter", JITTER)
        unit = columns(pt.exp(log_period), eccentricity, pt.arctan2(direction[1], direction[0]))
        pm.Normal("velocity", offset + amplitude @ unit, pt.sqrt(jitter**2 + error**2), observed=velocity)
    return model


@numba.njit
def log_marginals(days, velocity, error, period, eccentricity, phase, jitter):
    """Return log likelihoods (n,) of draws, integrated over amplitude and offset, which are normal."""
    out = np.empty(len(period))
    for i in range(len(period)):
        unit = orbit(days, period[i], eccentricity[i], phase[i])
        precision, pull, total = np.eye(3) / WIDTH**2, np.zeros(3), 0.0
        for j in range(len(days)):
            row, weight = np.array([unit[0, j], unit[1, j], 1.0]), 1.0 / (error[j] ** 2 + jitter[i] ** 2)
            precision += weight * np.outer(row, row)
            pull += weight * velocity[j] * row
            total += weight * velocity[j] ** 2 - math.log(weight / (2.0 * math.pi))
        out[i] = 0.5 * (pull @ np.linalg.solve(precision, pull) - total - math.log(np.linalg.det(precision)))
    return out - 3.0 * math.log(WIDTH)


def exact_periods(data, size, rng):
    """Return draws of the prior of the period (n,), their weights, and the log evidence."""
    period = np.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST), size))
    others = rng.beta(*ECCENTRICITY, size), rng.uniform(0.0, 2.0 * math.pi, size), np.abs(rng.normal(0.0, JITTER, size))
    log_weights = log_marginals(*data, period, *others)
    weights = np.exp(log_weights - log_weights.max())
    return period, weights / weights.sum(), float(log_weights.max() + np.log(weights.mean()))


def shares(period, weights=None):
    """Return the share of each mode, in percent."""
    counts, _ = np.histogram(period, EDGES, weights=weights)
    return [f"{100.0 * c / counts.sum():.1f} %" for c in counts]


# %% [markdown]
# ## Two planets whose passages are known


# %%
def of_planet(days, period, passage):
    """Return a black box of the components of the root of the eccentricity: velocities (n,) of unit size."""

    def velocities(of_sine, of_cosine):
        eccentricity, angle = min(math.hypot(of_sine, of_cosine) ** 2, 0.99), math.atan2(of_sine, of_cosine)
        # At the passage the planet is between us and the star: its true anomaly is a quarter turn less the angle.
        ratio = math.sqrt((1.0 - eccentricity) / (1.0 + eccentricity))
        eccentric = 2.0 * math.atan(ratio * math.tan(0.5 * (0.5 * math.pi - angle)))
        mean_anomaly = eccentric - eccentricity * math.sin(eccentric)
        phase = 2.0 * math.pi * passage / period - mean_anomaly
        return np.array([math.cos(angle), math.sin(angle)]) @ orbit(days, period, eccentricity, phase)

    return wrap_py([pt.dscalar] * 2, [pt.dvector])(velocities)


def two_planets(days, velocity, error, first_day):
    """Return the model of both planets, each with a black box of eccentricity and direction of its orbit."""
    with pm.Model() as model:
        offset = pm.Normal("offset", sigma=WIDTH)
        trend = pm.Normal("trend", sigma=1.0)  # in a day
        jitter = pm.HalfNormal("jitter", JITTER)
        total = offset + trend * (days - days.mean())
        for name, (period, passage) in PASSAGES.items():
            size = pm.HalfNormal(f"size_{name}", WIDTH)
            # Components of the root of a small eccentricity, as between planets so near to each other.
            parts = pm.Normal(f"eccentric_{name}", sigma=0.2, shape=2)
            total = total + size * of_planet(days, period, passage - first_day)(parts[0], parts[1])
            eccentricity = (parts**2).sum()
            pm.Deterministic(f"mass_{name}", size * pt.sqrt(1.0 - eccentricity**2) * mass_of_one(period))
        pm.Normal("velocity", total, pt.sqrt(jitter**2 + error**2), observed=velocity)
    return model


def mass_of_one(period):
    """Return the mass, in that of the Earth, of a planet that moves its star by a meter a second."""
    return 317.83 / 28.4329 * SUN ** (2.0 / 3.0) * (period / 365.25) ** (1.0 / 3.0)


# %% [markdown]
# ## Both, in numbers and in a picture


# %%
def picture(periods, exact, data, idata):
    """Draw the period of one orbit, and velocities of two."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    bins = np.geomspace(SHORTEST, LONGEST, 80)
    left.hist(exact[0], bins, weights=exact[1], color="0.8", label="exact")
    left.hist(periods, bins, weights=np.full(periods.size, 1.0 / periods.size), histtype="step", label="pk.sample_smc")
    for name, (period, _) in PASSAGES.items():
        left.axvline(period, color="C3", linestyle=":", label="passages" if name == "b" else None)
    left.set(xscale="log", xlabel="period of a single orbit (days)", ylabel="share")
    left.legend(frameon=False)
    days, velocity, error = data
    right.errorbar(days, velocity, error, fmt="o", color="black", markersize=3)
    low, middle, high = np.quantile(idata["posterior_predictive"]["velocity"].values, [0.05, 0.5, 0.95], axis=(0, 1))
    right.vlines(days, low, high, color="C0", alpha=0.4, linewidth=4)
    right.plot(days, middle, "_", color="C0")
    right.set(xlabel="days", ylabel="velocity (m/s)")
    figure.savefig(HERE / "figures" / "orbit.png", dpi=100)
    plt.close(figure)


def by_one_orbit(data, quick):
    """Return rows of the table, and the periods (n,) of the last sampler."""
    model, rows = one_orbit(*data), []
    few, many = (100, 200) if quick else (2000, 8000)
    samplers = {
        f"pk.sample_smc, ASMC, {few:,} particles a chain": partial(pk.sample_smc, few, pk.ASMC),
        f"pm.sample_smc, {many:,} particles a chain": partial(pm.sample_smc, many),
        f"pk.sample_smc, ASMC, {many:,} particles a chain": partial(pk.sample_smc, many, pk.ASMC),
    }
    for name, sampler in samplers.items():
        idata, seconds = measures.timed(
            partial(sampler, chains=4, cores=1, model=model, random_seed=1, progressbar=False)
        )
        periods = np.exp(idata["posterior"]["log_period"].values)
        if "smc_stats" in idata.children:
            evidence = idata["smc_stats"]["log_evidence"].values
        else:
            evidence = [stages[-1] for stages in idata["sample_stats"]["log_marginal_likelihood"].values]
        rows.append([name, f"{seconds:.0f}", *shares(periods), f"{np.mean(evidence):.2f}", f"{np.std(evidence):.2f}"])
    return rows, periods.ravel()


def by_two_planets(data, first_day, quick):
    """Return rows of the second table, the evaluations, and draws with predictions."""
    emulated = pk.emulate(two_planets(*data, first_day), random_seed=1, progressbar=False)
    length = {"draws": 100, "tune": 200, "chains": 2} if quick else {"draws": 1000, "tune": 1000, "chains": 4}
    with emulated:
        idata = pm.sample(**length, target_accept=0.95, random_seed=1, progressbar=False)
        pm.sample_posterior_predictive(idata, extend_inferencedata=True, random_seed=1, progressbar=False)
    rows = []
    for name, (mass, error) in PUBLISHED.items():
        found = idata["posterior"][f"mass_{name}"].values
        rows.append([f"mass of {name}", f"{mass:.1f} ± {error:.1f}", f"{found.mean():.1f} ± {found.std():.1f}"])
    return rows, emulated.emulation, idata


def main(quick=False):
    """Sample both models, write the tables and the picture; ``quick`` takes few draws and writes nothing."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    *data, first_day = load()
    exact = exact_periods(data, 10_000 if quick else PRIOR_DRAWS, np.random.default_rng(1))
    rows, periods = by_one_orbit(data, quick)
    rows.append([f"exact: {len(exact[0]):,} draws of the prior", "", *shares(*exact[:2]), f"{exact[2]:.2f}", ""])
    masses, emulation, idata = by_two_planets(data, first_day, quick)
    print(*rows, *masses, sep="\n")
    if quick:
        return
    harness.Table("orbit", HEADER).write(rows)
    note = (
        f"Two planets by `pk.emulate`, {emulation.num_evaluations} evaluations, distance {emulation.distance:.3f}; "
        "masses in that of the Earth, published ones for orbits that are circles."
    )
    harness.Table("orbit-masses", ("", "published", "here")).write(masses, note)
    picture(periods, exact, data, idata)


# %%
if __name__ == "__main__":
    harness.run(main)
