"""Posteriors from a few hundred evaluations: how far draws of a surrogate are from the posterior, and what they say.

Distance: total variation between marginal distributions (kernel density estimates of 4,000 draws and of 20,000 of the
truth), mean over the parameters; two exact samples of these sizes have .02. Truth: tempered particles on the density
itself; for two posteriors of posteriordb, too, whose models the zoo checks against the reference draws. "said" is the
distance between the joint distributions as ``sample_surrogate`` estimates it; it warns where that is above .05 by more
than its error. A run is silent where the distance is above .2 and nothing is said, and cries wolf where it is at most
.1 and a warning is given.

Families of Acerbi (2018, 2020): lumpy (twelve normals), Rosenbrock-Gaussian (two Rosenbrock functions, one in two or
three dimensions, normals for the rest), cigar (axes ten to one, rotated), Student (2.5 to 2 + d / 2 degrees of
freedom), each with a wide normal prior, from which runs begin. Noise: of standard deviation one, three times as many
evaluations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import logsumexp
from scipy.stats import gaussian_kde

from benchmarks import harness, measures
from benchmarks.posteriors import posteriordb
from pymc_kernel.plugin.emulation.emulate import TOLERANCE
from pymc_kernel.plugin.model.particle_density import compile_particle_density
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds import ActiveLearning, ParticleSampler

SEEDS, NUM_DRAWS, NUM_TRUE = 5, 4000, 20_000
BAD, GOOD = 0.2, 0.1  # distances: of a run that must warn; of one that had better not
BUDGETS = (50, 100)  # times d + 2
HEADER = [
    "posterior",
    "d",
    "evaluations",
    "runs",
    "distance",
    "largest",
    "log evidence off",
    "said",
    "silent",
    "wolf",
    "s",
]


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
        sampler = ParticleSampler(NUM_TRUE, max_moves=200)
        draws = sampler.sample(np.random.default_rng(0), costly.prior, costly.log_likelihood)
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


def measured(name, noise, seed):
    """Return the row of a run, judged at both budgets."""
    d = target(name).num_dims
    counts = [budget * (d + 2) * (3 if noise else 1) for budget in BUDGETS]
    at = {str(budget): found for budget, found in zip(BUDGETS, run(name, noise, seed, counts), strict=True)}
    return {"name": name, "noise": noise, "seed": seed, "d": d, "at": at}


def run(name, noise, seed, counts):
    """Yield what is found after each of these numbers of evaluations."""
    costly, (exact, log_evidence) = target(name), truth(name)
    d, rng, own = costly.num_dims, np.random.default_rng(seed), np.random.default_rng([seed, 1])
    config, seconds = ActiveLearning(noisy=noise > 0.0), 0.0
    state = config.init(costly.prior, costly.prior.draw(rng, 2 * d + 6))
    for most in counts:
        while len(state.positions) < most:
            places = state.proposed[: most - len(state.positions)]
            values = costly.log_likelihood(places) + noise * own.standard_normal(len(places))
            state, taken = measures.timed(_next, config, rng, state, values)
            seconds += taken
        drawn = config.sample(rng, state, NUM_DRAWS)
        told = config.distance(state, drawn)
        said = told.total_variation
        is_near = said - told.error <= TOLERANCE
        yield {
            "evaluations": most,
            "distance": distance(drawn.positions, exact),
            "evidence": drawn.log_evidence - log_evidence,
            "joint": None if np.isnan(said) else said,
            "warned": bool(state.is_climbing or not is_near),
            "seconds": seconds,
        }


def _next(config, rng, state, values):
    return config.propose(rng, config.update(rng, state, values))


def cells(rows, budget):
    """Return the row of the table for runs on one target, at one budget."""
    at = [row["at"][str(budget)] for row in rows]
    distances = np.array([a["distance"] for a in at])
    warned = np.array([a["warned"] for a in at])
    said = np.median([1.0 if a["joint"] is None else a["joint"] for a in at])
    return [
        rows[0]["name"] + (", noise" if rows[0]["noise"] else ""),
        rows[0]["d"],
        at[0]["evaluations"],
        len(rows),
        f"{np.median(distances):.3f}",
        f"{distances.max():.3f}",
        f"{np.median(np.abs([a['evidence'] for a in at])):.2f}",
        f"{said:.2f}",
        int(((distances > BAD) & ~warned).sum()),
        int(((distances <= GOOD) & warned).sum()),
        f"{np.median([a['seconds'] for a in at]):.0f}",
    ]


def written(new):
    """Write the table, largest distances first, of two rows on one thing that of more runs; return the text."""
    before = harness.rows_between(harness.RESULTS, TABLE.marker)
    rows = harness.with_most_runs(new, before, key=lambda row: (row[0], row[2]), runs=lambda row: int(row[3]))
    rows.sort(key=lambda row: -float(row[4]))
    runs, silent, wolf = (sum(int(row[HEADER.index(name)]) for row in rows) for name in ("runs", "silent", "wolf"))
    note = (
        f"Medians over runs; s: the method's own time. Of {runs} results {silent} were above {BAD} in silence, and "
        f"{wolf} cried wolf."
    )
    return TABLE.write(rows, note)


def main(names=tuple(TARGETS), noise=(0.0, 1.0), seeds=SEEDS, jobs=1, again=False):
    """Measure what is asked for and has no row yet; write the table, largest distances first."""
    wanted = [(n, z, s) for s in range(seeds) for n, z in KEYS if n in names and z in noise]
    for name in dict.fromkeys(n for n, _, _ in wanted):
        truth(name)

    def told(row):
        return ", ".join(f"{k}: {a['distance']:.3f} said {a['joint']}" for k, a in row["at"].items())

    rows = ROWS.complete(measured, wanted, told, again, jobs)
    groups = [[row for row in rows if (row["name"], row["noise"]) == key] for key in KEYS]
    new = [cells(group, budget) for group in groups if group for budget in BUDGETS]
    print(written(new))


if __name__ == "__main__":
    harness.run(main)
