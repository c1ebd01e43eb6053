"""Posteriors from a few hundred evaluations: how far draws of a surrogate are from the posterior, and what they say.

Distance: total variation between marginal distributions (kernel density estimates of 4,000 draws and of 20,000 of the
truth), mean over the parameters; two exact samples of these sizes have .02. Truth: tempered particles on the density
itself; for two posteriors of posteriordb, too, whose models the zoo checks against the reference draws.
``pk.sample_surrogate`` has at most 50 (d + 2) evaluations and ends by itself. "stated" is the distance between the
joint distributions as it estimates it; "said" that it gives a warning. "Off": the furthest of the 5, 50 and 95 %
quantiles of all parameters, in posterior standard deviations. A run is silent where the distance is above .2, or a
quantile more than .25 off beyond two Monte Carlo errors, and nothing is said; it cries wolf where the distance is at
most .2, all quantiles are within .25, and something is said.

Families of Acerbi (2018, 2020): lumpy (twelve normals), Rosenbrock-Gaussian (two Rosenbrock functions, one in two or
three dimensions, normals for the rest), cigar (axes ten to one, rotated), Student (2.5 to 2 + d / 2 degrees of
freedom), each with a wide normal prior, from which runs begin. Each likelihood is a black box of all parameters that
returns one number. Noise: of standard deviation one, three times as many evaluations.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor import wrap_py
from scipy.special import logsumexp
from scipy.stats import gaussian_kde

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.posteriors import posteriordb
from pymc_kernel.plugin.emulation.model_graph import with_prior_alone
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds import sample_particles

NUM_DRAWS, NUM_TRUE = 4000, 20_000
BAD, FAR = 0.2, 0.25  # distance, and standard deviations that a quantile is off, of a run that must warn
QUANTILES = (0.05, 0.5, 0.95)
BUDGETS = (50, 100)  # times d + 2, for rivals that spend what they are given
HEADER = (
    "posterior", "d", "runs", "evaluations", "most", "distance", "largest", "stated", "off", "furthest", "said",
    "silent", "wolf", "s",
)  # fmt: skip


@dataclass(frozen=True)
class NormalPrior:
    """Independent normal distributions."""

    mean: float
    spread: float
    num_dims: int
    is_proper = True

    def draw(self, rng, size):
        """Return draws (size, d)."""
        return rng.normal(self.mean, self.spread, (size, self.num_dims))

    def log_density(self, x):
        """Return log densities (n,)."""
        constant = self.num_dims * np.log(self.spread * np.sqrt(2.0 * np.pi))
        return -0.5 * (((x - self.mean) / self.spread) ** 2).sum(axis=1) - constant


@dataclass(frozen=True)
class Costly:
    """A prior, and a log likelihood of many places (n, d)."""

    num_dims: int
    prior: object
    log_likelihood: Callable


def lumpy(d):
    """Return a mixture of twelve normals in a unit cube."""
    rng = np.random.default_rng(10 * d)
    means, spreads = rng.uniform(0.0, 1.0, (12, d)), rng.uniform(0.2, 0.6, (12, d))
    logs = np.log(rng.dirichlet(np.ones(12))) - np.log(spreads).sum(axis=1)

    def log_likelihood(x):
        terms = [w - 0.5 * (((x - m) / s) ** 2).sum(axis=1) for w, m, s in zip(logs, means, spreads, strict=True)]
        return logsumexp(terms, axis=0)

    return Costly(d, NormalPrior(0.5, 2.0, d), log_likelihood)


def rosenbrock(d):
    """Return Rosenbrock functions of pairs, normal in the rest."""
    pairs = min(2, max(1, d // 2 - 1))

    def log_likelihood(x):
        total = -0.5 * (x[:, 2 * pairs :] ** 2).sum(axis=1)
        for i in range(0, 2 * pairs, 2):
            total = total - (x[:, i] ** 2 - x[:, i + 1]) ** 2 - (x[:, i] - 1.0) ** 2 / 100.0
        return total

    return Costly(d, NormalPrior(0.0, 3.0, d), log_likelihood)


def cigar(d):
    """Return a normal distribution, ten times as long as wide."""
    rotation = np.linalg.qr(np.random.default_rng(10 * d).standard_normal((d, d)))[0]
    scales = np.array([1.0] + [10.0] * (d - 1))
    return Costly(d, NormalPrior(0.0, 3.0, d), lambda x: -0.5 * ((x @ rotation * scales) ** 2).sum(axis=1))


def student(d):
    """Return independent Student distributions."""
    freedom = np.linspace(2.5, 2.0 + d / 2.0, d)
    return Costly(
        d,
        NormalPrior(0.0, 10.0, d),
        lambda x: (-0.5 * (freedom + 1.0) * np.log1p(x**2 / freedom)).sum(axis=1),
    )


def banana(d):
    """Return B(.1, 25) of Haario et al. (1999)."""

    def log_likelihood(x):
        straight = x[:, 1] - 0.1 * (x[:, 0] ** 2 - 25.0)
        return -0.5 * (x[:, 0] ** 2 / 25.0 + straight**2 + (x[:, 2:] ** 2).sum(axis=1))

    return Costly(d, NormalPrior(0.0, 10.0, d), log_likelihood)


def logistic(d):
    """Return a logistic regression of 200 cases on correlated covariates."""
    rng = np.random.default_rng(1)
    design = rng.standard_normal((200, d)) @ (np.eye(d) + 0.5)
    design[:, 0] = 1.0
    design /= design.std(axis=0).clip(0.5)
    signs = np.where(rng.random(200) < 1.0 / (1.0 + np.exp(-design @ rng.standard_normal(d))), 1.0, -1.0)
    return Costly(d, NormalPrior(0.0, 5.0, d), lambda x: -np.logaddexp(0.0, -signs * (x @ design.T)).sum(axis=1))


def funnel(d):
    """Return a funnel: the log spread of the others is a normal variable."""

    def log_likelihood(x):
        return -0.5 * x[:, 0] ** 2 - 0.5 * (x[:, 1:] ** 2 * np.exp(-x[:, :1]) + x[:, :1]).sum(axis=1)

    return Costly(d, NormalPrior(0.0, 3.0, d), log_likelihood)


def two_modes(d):
    """Return two normals five standard deviations apart, one with twice the weight of the other."""

    def log_likelihood(x):
        parts = [-0.5 * ((x - c) ** 2).sum(axis=1) for c in (2.5 / np.sqrt(d), -2.5 / np.sqrt(d))]
        return np.logaddexp(np.log(2.0) + parts[0], parts[1])

    return Costly(d, NormalPrior(0.0, 3.0, d), log_likelihood)


def log_gamma(d):
    """Return logarithms of gamma variables of shape one half: long tails on one side."""
    return Costly(d, NormalPrior(0.0, 5.0, d), lambda x: (0.5 * x - np.exp(np.minimum(x, 300.0))).sum(axis=1))


def of_posteriordb(name):
    """Return a posterior of posteriordb, on the unconstrained scale."""
    model = posteriordb.MODELS[name]()
    density = compile_particle_density(model, "this benchmark")
    prior = ModelPrior(model)
    d = prior.draw(np.random.default_rng(0), 2).shape[1]
    return Costly(d, prior, lambda x: density(x)[1])


TARGETS = {
    **{f"lumpy {d}": (lumpy, d) for d in (2, 4, 6, 8, 10)},
    **{f"Rosenbrock {d}": (rosenbrock, d) for d in (2, 4, 6, 8, 10)},
    **{f"cigar {d}": (cigar, d) for d in (2, 4, 6, 8, 10)},
    **{f"Student {d}": (student, d) for d in (2, 4, 6, 8, 10)},
    "hares and lynx": (of_posteriordb, "hudson_lynx_hare-lotka_volterra"),
    "absorption of a drug": (of_posteriordb, "one_comp_mm_elim_abs-one_comp_mm_elim_abs"),
    "logistic regression": (logistic, 10),
    "banana": (banana, 6),
    "funnel": (funnel, 3),
    "two modes": (two_modes, 4),
    "log gamma": (log_gamma, 5),
}
_NOISY = ("lumpy 2", "Rosenbrock 4", "Student 6", "logistic regression", "hares and lynx")
KEYS = [(name, noise) for noise in (0.0, 1.0) for name in TARGETS if noise == 0.0 or name in _NOISY]
ROWS = harness.Rows(harness.ROWS / "few_evaluations.jsonl", lambda row: (row["name"], row["noise"], row["seed"]))
TABLE = harness.Table("few-evaluations", HEADER)


@cache
def target(name) -> Costly:
    """Return the target of this name."""
    make, argument = TARGETS[name]
    return make(argument)


@cache
def truth(name) -> tuple[np.ndarray, float]:
    """Return draws from the posterior, and its log evidence; kept in a file, for the next process."""
    path = harness.BUILD / "few_evaluations" / f"{name.replace(' ', '_')}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        costly = target(name)
        draws = sample_particles(np.random.default_rng(0), costly.prior, costly.log_likelihood, NUM_TRUE)
        np.savez(path, draws=draws.positions, log_evidence=draws.log_evidence)
    stored = np.load(path)
    return stored["draws"], float(stored["log_evidence"])


def distance(draws, exact):
    """Return the mean total variation distance between marginal distributions."""
    return float(np.mean(distances(draws, exact)))


def distances(draws, exact):
    """Return the total variation distance of each marginal distribution (d,)."""
    found = []
    for one, other in zip(draws.T, exact.T, strict=True):
        low, high = np.quantile(np.concatenate([one, other]), [0.0005, 0.9995])
        edge = 0.1 * (high - low)
        grid = np.linspace(low - edge, high + edge, 400)
        densities = [gaussian_kde(x[(x > low - edge) & (x < high + edge)])(grid) for x in (one, other)]
        found.append(0.5 * np.abs(densities[0] - densities[1]).sum() * (grid[1] - grid[0]))
    return found


def quantile_errors(draws, exact):
    """Return how far (standard deviations) the furthest quantile is off, and how far beyond two Monte Carlo errors."""
    off = np.empty((len(QUANTILES), exact.shape[1]))
    error = np.empty_like(off)
    for row, error_row, p in zip(off, error, QUANTILES, strict=True):
        row[:] = np.abs(np.quantile(draws, p, axis=(0, 1)) - np.quantile(exact, p, axis=0)) / exact.std(axis=0)
        of_each = [az.mcse(x, method="quantile", prob=p) for x in np.moveaxis(draws, 2, 0)]
        error_row[:] = np.array(of_each, float).ravel() / exact.std(axis=0)
    return float(off.max()), float((off - 2.0 * error).max())


def model_of(name, noise):
    """Return the model of a target: its prior, and its log likelihood as a black box, or as estimates of it."""
    make, argument = TARGETS[name]
    costly = target(name)
    if make is of_posteriordb and not noise:
        return posteriordb.MODELS[argument]()
    if make is of_posteriordb:
        model, values = with_prior_alone(posteriordb.MODELS[argument]())
        x = pt.concatenate([v.ravel() for v in values])
    else:
        with pm.Model() as model:
            x = pm.Normal("x", costly.prior.mean, costly.prior.spread, shape=costly.num_dims)
    with model:
        if noise:

            def estimate(rng, x, _):
                return costly.log_likelihood(x[None])[0] + noise * (rng.standard_normal() - 0.5 * noise)

            pk.EstimatedLikelihood("estimates", estimate, x, observed=0.0)
        else:
            box = wrap_py([pt.dvector], [pt.dscalar])(lambda x: np.asarray(costly.log_likelihood(x[None])[0]))
            pm.Potential("log_likelihood", box(x))
    return model


def run(name, noise, seed, most, tolerance=None):
    """Return what ``sample_surrogate`` finds with at most so many evaluations."""
    model, (exact, _) = model_of(name, noise), truth(name)
    settings = {"evaluations": most, "random_seed": seed, "progressbar": False}
    settings |= {} if tolerance is None else {"tolerance": tolerance}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        idata, seconds = measures.timed(lambda: pk.sample_surrogate(model=model, **settings))
    draws = pk.unconstrained_draws(idata, model)
    stats = idata["sample_stats"]
    off, surely_off = quantile_errors(draws, exact)
    is_stuck = measures.largest_rhat(draws) > 1.05  # PyMC says so
    return {
        "evaluations": int(stats["num_evaluations"]),
        "distance": distance(draws.reshape(-1, draws.shape[2]), exact),
        "stated": float(stats["distance"]),
        "off": off,
        "surely_off": surely_off,
        "said": is_stuck or bool(measures.said_by_emulation(caught)),
        "seconds": seconds,
    }


def measured(name, noise, seed):
    """Return the row of a run."""
    d = target(name).num_dims
    most = min(BUDGETS) * (d + 2) * (3 if noise else 1)
    return {"name": name, "noise": noise, "seed": seed, "d": d, "most": most} | run(name, noise, seed, most)


def cells(rows):
    """Return the row of the table for runs on one target."""
    column = {
        key: np.array([row[key] for row in rows])
        for key in ("evaluations", "distance", "stated", "off", "surely_off", "said", "seconds")
    }
    distances, said, off = column["distance"], column["said"], column["off"]
    must_warn = (distances > BAD) | (column["surely_off"] > FAR)
    return [
        rows[0]["name"] + (", noise" if rows[0]["noise"] else ""), rows[0]["d"], len(rows),
        f"{np.median(column['evaluations']):.0f}", rows[0]["most"], f"{np.median(distances):.3f}",
        f"{distances.max():.3f}", f"{np.median(column['stated']):.2f}", f"{np.median(off):.2f}", f"{off.max():.2f}",
        int(said.sum()), int((must_warn & ~said).sum()), int(((distances <= BAD) & (off <= FAR) & said).sum()),
        f"{np.median(column['seconds']):.0f}",
    ]  # fmt: skip


def main(names=tuple(TARGETS), noise=(0.0, 1.0), first_seed=3000, repetitions=2, jobs=1, again=False):
    """Measure what is asked for and has no row yet; write the table, largest distances first."""
    seeds = range(first_seed, first_seed + repetitions)
    wanted = [(n, z, s) for s in seeds for n, z in KEYS if n in names and z in noise]
    for name in dict.fromkeys(n for n, _, _ in wanted):
        truth(name)

    def told(row):
        return f"{row['distance']:.3f} after {row['evaluations']}, stated {row['stated']:.2f}, said {row['said']}"

    rows = ROWS.complete(measured, wanted, told, again, jobs)
    groups = [[row for row in rows if (row["name"], row["noise"]) == key] for key in KEYS]
    table = sorted((cells(group) for group in groups if group), key=lambda row: -float(row[6]))
    runs, silent, wolf = (sum(int(row[HEADER.index(name)]) for row in table) for name in ("runs", "silent", "wolf"))
    of_runs = f"Of {runs} runs {silent} were wrong in silence, and {wolf} cried wolf."
    note = f"Medians over runs, largest distance first. {of_runs}"
    print(TABLE.write(table, note))


if __name__ == "__main__":
    harness.run(main)
