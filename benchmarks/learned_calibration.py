"""Whether posteriors by ``pk.sample_likelihood_free`` are calibrated, and whether its warnings tell right from wrong.

Simulation-based calibration on three simulators: parameters come from the prior and data from the simulator at them, so
90 % intervals hold 90 % of them where posteriors are right. On three more the data are fixed, and say little. Seeds
from 1,000 on. A row is kept in ``benchmarks/rows`` as it is finished, and not run again.

A posterior is right if no mean is more than half a posterior standard deviation off. The truth is a fine grid; for the
predators, whose likelihood nobody knows, a fit to five times as many simulations, all of them where the posterior is.
"""

import time
import warnings
from collections.abc import Callable
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pymc as pm
from numba import njit
from scipy import stats
from scipy.special import ndtri

import pymc_kernel as pk
from benchmarks import harness
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds import LocalLikelihood, sample_particles

ROWS = harness.Rows(harness.ROWS / "learned_calibration.jsonl", lambda row: tuple(row["key"]))
BUDGET, MORE = 1_000, 5_000
CHAINS, DRAWS = 4, 500
FIRST = 1_000  # seed
HALF = 0.5  # posterior standard deviations, beyond which a mean is wrong
GRID, WIDTH = 241, 7.0
HEADER = (
    "simulator", "data sets", "in 90 % intervals", "largest error of a mean", "error / its standard error",
    "right: warned", "wrong: warned", "cpu s",
)  # fmt: skip
NOTE = (
    f"{BUDGET} simulations. Largest error: of a data set, in standard deviations of the true posterior; median and "
    "largest over data sets. Error / standard error: root mean squares of errors and of predictions, `learning_error`, "
    "that of the predators with the error of their truth. Right: no mean more than half a standard deviation off. "
    "Intervals of fixed data say nothing of calibration."
)


class Simulator(NamedTuple):
    """Summaries of a simulation, with standard normal parameters times ``scales``."""

    scales: tuple[float, ...]
    simulate: Callable
    """Takes a generator and parameters (d,); returns summaries (q,)."""
    log_density: Callable | None = None
    """Takes parameters (n, d) and summaries (q,); returns (n,)."""
    observed: tuple[float, ...] | None = None
    """Fixed data."""


TIMES = np.array([-1.0, 0.0, 1.0])


def counts(rng, theta):
    """Return three counts whose log means lie on a line."""
    return rng.poisson(np.exp(1.0 + theta[0] + theta[1] * TIMES)).astype(float)


def counts_density(theta, seen):
    return stats.poisson(np.exp(1.0 + theta[:, :1] + theta[:, 1:] * TIMES)).logpmf(seen).sum(axis=1)


def gamma_values(rng, theta, number=3):
    """Return gamma variables with unknown log mean and log shape."""
    shape = np.exp(theta[1])
    return np.exp(theta[0]) * rng.gamma(shape, 1.0 / shape, number)


def gamma_density(theta, seen):
    shape = np.exp(theta[:, 1:])
    return stats.gamma(shape, scale=np.exp(theta[:, :1]) / shape).logpdf(seen).sum(axis=1)


def events(rng, theta):
    """Return how many of thirty happened."""
    return np.array([float(rng.binomial(30, 1.0 / (1.0 + np.exp(-theta[0]))))])


def events_density(theta, seen):
    return stats.binom(30, 1.0 / (1.0 + np.exp(-theta[:, 0]))).logpmf(seen[0])


PEOPLE = 50


def epidemic(rng, theta):
    """Return how many others one infected person and those after it infect, in chains of generations (Reed, Frost)."""
    escape, well, ill, total = np.exp(-np.exp(theta[0]) / PEOPLE), PEOPLE - 1, 1, 0
    while ill:
        ill = rng.binomial(well, 1.0 - escape**ill)
        well, total = well - ill, total + ill
    return np.array([float(total)])


def epidemic_density(theta, seen):
    """Return exact log probabilities: a step of the generations moves mass among numbers of well and ill."""
    out = []
    for escape in np.exp(-np.exp(theta[:, 0]) / PEOPLE):
        mass, total = {(PEOPLE - 1, 1): 1.0}, 0.0
        while mass:
            after = {}
            for (well, ill), share in mass.items():
                number = np.arange(int(seen[0]) - (PEOPLE - 1 - well) + 1)
                for new, chance in zip(number, stats.binom(well, 1.0 - escape**ill).pmf(number), strict=True):
                    if new:
                        after[well - new, new] = after.get((well - new, new), 0.0) + share * chance
                    elif PEOPLE - 1 - well == seen[0]:
                        total += share * chance
            mass = after
        out.append(total)
    with np.errstate(divide="ignore"):
        return np.log(out)


@njit
def predators_and_prey(seed, birth, meeting, death, out):
    """Simulate numbers at each time by Gillespie's algorithm; return whether they stayed bounded."""
    np.random.seed(seed)  # noqa: NPY002 - the generator that Numba compiles
    prey, predators, time_now, row = 50, 100, 0.0, 0
    for _ in range(200_000):
        rates = birth * prey, meeting * prey * predators, death * predators
        total = rates[0] + rates[1] + rates[2]
        step = np.random.exponential(1.0 / total) if total > 0.0 else 1e9  # noqa: NPY002
        while row < len(out) and time_now + step > row:
            out[row, 0], out[row, 1] = prey, predators
            row += 1
        if row == len(out):
            return True
        if prey > 20_000:
            return False
        time_now += step
        which = np.random.random() * total  # noqa: NPY002
        if which < rates[0]:
            prey += 1
        elif which < rates[0] + rates[1]:
            prey, predators = prey - 1, predators + 1
        else:
            predators -= 1
    return False


def predators(rng, theta):
    """Return nine summaries of 26 times: means, spreads, correlations with what was before, and with each other."""
    numbers = np.zeros((26, 2))
    rates = np.array([0.5, 0.0025, 0.3]) * np.exp(theta)
    if not predators_and_prey(int(rng.integers(2**31)), *rates, numbers):
        return np.full(9, np.nan)
    logs = np.log1p(numbers)
    means, spreads = logs.mean(axis=0), logs.std(axis=0)
    z = (logs - means) / np.maximum(spreads, 1e-3)
    lags = [(z[lag:, j] * z[:-lag, j]).mean() for j in (0, 1) for lag in (1, 2)]
    return np.concatenate([means, np.log(spreads + 0.01), lags, [(z[:, 0] * z[:, 1]).mean()]])


SIMULATORS = {
    "counts": Simulator((1.0, 0.7), counts, counts_density),
    "gamma": Simulator((1.0, 0.7), gamma_values, gamma_density),
    "predators": Simulator((0.5, 0.5, 0.5), predators),
    "none of 30": Simulator((1.5,), events, events_density, (0.0,)),
    "one gamma value": Simulator((1.0, 1.0), lambda rng, theta: gamma_values(rng, theta, 1), gamma_density, (0.3,)),
    "an epidemic of 3": Simulator((1.0,), epidemic, epidemic_density, (3.0,)),
}
TABLE = harness.Table("learned-calibration", HEADER, [(name,) for name in SIMULATORS])


def data_of(simulator, number):
    """Return parameters (d,) and data (q,), simulated at them or fixed."""
    rng = np.random.default_rng([number, 77])
    while True:
        theta = rng.normal(0.0, simulator.scales)
        seen = simulator.simulate(rng, theta)
        if np.isfinite(seen).all():
            return theta, seen if simulator.observed is None else np.array(simulator.observed)


def model_of(simulator, seen):
    """Return the model, with one vector of parameters."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, simulator.scales)
        pm.Simulator("y", lambda rng, theta, size: simulator.simulate(rng, theta), theta, observed=seen)
    return model


@cache
def grid_of(scales):
    """Return places on a grid (n, d) that spans five prior standard deviations to each side."""
    sides = np.meshgrid(*[np.linspace(-5.0 * s, 5.0 * s, GRID) for s in scales], indexing="ij")
    return np.stack(sides, axis=-1).reshape(-1, len(scales))


def by_grid(simulator, seen):
    """Return means and standard deviations (d,) of the posterior, by a grid and a finer one where it is."""
    scales, grid = np.array(simulator.scales), grid_of(simulator.scales)
    for _ in range(2):
        with np.errstate(all="ignore"):
            values = simulator.log_density(grid, seen) - 0.5 * ((grid / scales) ** 2).sum(axis=1)
        weights = np.exp(values - np.nanmax(values))
        weights = np.nan_to_num(weights) / np.nansum(weights)
        mean = weights @ grid
        spread = np.sqrt(weights @ (grid - mean) ** 2)
        grid = mean + grid_of((WIDTH / 5.0,) * len(scales)) * spread
    return mean, spread


def by_more(simulator, seen, model, likelihood, rng):
    """Return means, standard deviations and standard errors (d,), by many simulations around the posterior."""
    prior = ModelPrior(model)
    places = sample_particles(rng, prior, likelihood, MORE, 0.6).positions
    summaries = np.array([simulator.simulate(rng, theta) for theta in places])
    local = LocalLikelihood(pk.likelihood_free.LearnedLikelihood().fit(places, summaries, rng), seen, None)
    draws = sample_particles(rng, prior, local, 2000)
    means = []
    for replicate in local.replicates():
        weights = np.exp(np.clip(replicate(draws.positions) - draws.log_likelihood, -30.0, 30.0))
        means.append(weights @ draws.positions / weights.sum())
    return draws.positions.mean(axis=0), draws.positions.std(axis=0), np.std(means, axis=0, ddof=1)


def run(name, number):
    """Return the row of one data set: ranks of its parameters, errors, warnings, seconds."""
    simulator = SIMULATORS[name]
    theta, seen = data_of(simulator, number)
    model = model_of(simulator, seen)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        begun = time.process_time()
        settings = {"num_simulations": BUDGET, "random_seed": number, "progressbar": False, "chains": CHAINS}
        found, likelihood = pk.sample_likelihood_free(DRAWS, model=model, return_fitted=True, **settings)
        seconds = time.process_time() - begun
    draws = found["posterior"]["theta"].values.reshape(-1, theta.size)
    error = np.zeros(theta.size)
    if simulator.log_density is None:
        mean, spread, error = by_more(simulator, seen, model, likelihood, np.random.default_rng(number))
    else:
        mean, spread = by_grid(simulator, seen)
    words = [str(w.message).split("should not be trusted: ")[1] for w in said if "not be trusted" in str(w.message)]
    return {
        "key": [name, number],
        "ranks": (draws < theta).mean(axis=0).tolist(),
        "off": ((draws.mean(axis=0) - mean) / spread).tolist(),
        "spread": (draws.std(axis=0) / spread).tolist(),
        "truth_error": (error / spread).tolist(),
        "learning_error": float(found["sample_stats"]["learning_error"]),
        "said": words,
        "seconds": seconds,
    }


def cells(name, rows):
    """Return a row of the table."""
    inside = np.array([(np.abs(np.array(row["ranks"]) - 0.5) <= 0.45).mean() for row in rows])
    off = np.array([np.abs(row["off"]).max() for row in rows])
    said = np.array([bool(row["said"]) for row in rows])
    error = np.sqrt([np.mean(np.square(row["truth_error"])) for row in rows])
    # The largest standard error of a mean is of the learned posterior's spread.
    predicted = [np.hypot(row["learning_error"] * np.max(row["spread"]), e) for row, e in zip(rows, error, strict=True)]
    ratio = np.sqrt(np.mean(off**2) / np.mean(np.square(predicted)))
    rates = [f"{said[which].sum()} of {which.sum()}" for which in (off <= HALF, off > HALF)]
    coverage = f"{inside.mean():.3f} ({inside.std() / np.sqrt(len(inside)):.3f})"
    errors, seconds = f"{np.median(off):.2f}, {off.max():.2f}", f"{np.mean([row['seconds'] for row in rows]):.0f}"
    is_fixed = SIMULATORS[name].observed is not None
    return [name, len(rows), None if is_fixed else coverage, errors, f"{ratio:.2f}", *rates, seconds]


def errors_of_truth(rows):
    """Return what parameters that were drawn say of the truth, whose own error is otherwise unknown, in words.

    Given the data, parameters lie around the true mean, and their distance from it is uncorrelated with any function of
    the data and the simulations, such as the error of a learned mean. So the mean product of both distances, measured
    from a wrong truth, is the mean square of the latter's error.
    """
    off, spread = (np.array([row[key] for row in rows]) for key in ("off", "spread"))
    ranks = np.clip([row["ranks"] for row in rows], 0.5 / (CHAINS * DRAWS), 1.0 - 0.5 / (CHAINS * DRAWS))
    from_learned = ndtri(ranks) * spread
    products = (off * (from_learned + off)).mean(axis=1)
    error = products.std(ddof=1) / np.sqrt(len(products))
    squares = [(values**2).mean() for values in (from_learned, from_learned + off, off)]
    return (
        "Mean squares for the predators, in standard deviations of their truth: parameters around the learned means "
        f"{squares[0]:.2f}, around the truth {squares[1]:.2f}, differences of the two {squares[2]:.2f}, of which the "
        f"truth's own error is {products.mean():.2f} ({error:.2f}): which of these answers are right is not known well."
    )


def main(number=30, simulators=tuple(SIMULATORS), again=False):
    wanted = [(name, FIRST + i) for i, name in product(range(number), simulators)]
    rows = ROWS.complete(run, wanted, lambda row: f"{np.round(row['off'], 2)} {row['said']}", again)
    groups = {}
    for row in rows:
        groups.setdefault(row["key"][0], []).append(row)
    below = errors_of_truth(groups["predators"]) if "predators" in groups else ""
    TABLE.write([cells(name, groups[name]) for name in SIMULATORS if name in groups], NOTE, below)


if __name__ == "__main__":
    harness.run(main)
