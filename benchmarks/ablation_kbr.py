"""Kernel Bayes' rule and rejection with and without each of their parts, on simulators that nobody has tuned on.

Problems are drawn by seed (`simulated_problems` and two families of this file), their posteriors known. Each mechanism
is one patch, as in `ablations`: with and without run on the same simulations, and what does not help by two standard
errors somewhere goes. Measured are the largest error of a mean, in posterior standard deviations, of the logarithm of
a standard deviation and of five quantiles, and the energy distance of the joint draws, all four compared by their
logarithms; then the shares of draws beside the posterior (where its density is as low as for one in a hundred of its
own draws), of right answers and of silent ones. Right is an answer whose means are within .3 posterior standard
deviations and whose spreads are within 35 %; silent one that is neither right nor spoken of by the second opinion.

The last table says how often each warning speaks; an answer is wrong there also where more than 16 % of its draws lie
beside the posterior. Seeds from 1,000 on are for these tables alone.
"""

import contextlib
import warnings
from functools import partial
from unittest import mock

import numpy as np
from scipy.spatial.distance import cdist
from scipy.stats import nbinom

from benchmarks import harness
from benchmarks.few_evaluations import NormalPrior
from benchmarks.simulated_problems import FAMILIES, Problem, exact_draws, problem_of
from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.kernel_mean import resample, smoothed_draws
from pymc_kernel.embeddings.ridge import least_error
from pymc_kernel.kernels.points import robust_scales
from pymc_kernel.likelihood_free import LearnedLikelihood, regression_adjusted, rejection
from pymc_kernel.plugin.simulation.trust import (
    NUM_REPLICATES,
    Weighted,
    errors_of_learning,
    findings,
    second_opinion,
)

NUM_DRAWS, NUM_SIMULATIONS = 4000, 5000
SIZES = {"sample_kbr": (2000, 5000), "sample_abc": (10_000,)}
_PROBABILITIES = (0.05, 0.25, 0.5, 0.75, 0.95)
_WRONG_MEAN, _WRONG_LOG_SPREAD = 0.3, 0.3
_LEAST_LIKELY = 0.01
_MUCH_BESIDE = 0.16  # share of draws that a shift of a normal distribution by .4 moves


# -- two families more -----------------------------------------------------------------------------------------------


def crescents(rng):
    """Two thin crescents, as the two moons of the community's benchmark, of a radius and a width of their own."""
    radius, width = rng.uniform(0.3, 0.6), rng.uniform(0.03, 0.08)

    def centers(z):
        return np.stack([-np.abs(z.sum(axis=1)), z[:, 1] - z[:, 0]], axis=1) / np.sqrt(2.0)

    def simulate(rng, z):
        angle, length = rng.uniform(-0.5 * np.pi, 0.5 * np.pi, len(z)), rng.normal(radius, width, len(z))
        return centers(z) + length[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)

    def log_likelihood(z, x):
        apart = x - centers(z)
        length = np.maximum(np.hypot(*apart.T), 1e-12)
        return np.where(apart[:, 0] > 0.0, -0.5 * ((length - radius) / width) ** 2 - np.log(length), -np.inf)

    return Problem(2, simulate, log_likelihood)


def branching(rng):
    """Five generations of a population whose members have overdispersed numbers of children; it may die out."""
    first = int(rng.integers(3, 15))

    def settings(z):
        return np.exp(0.5 * z[:, 0]), np.exp(z[:, 1])

    def simulate(rng, z):
        (mean, shape), counts, here = settings(z), [], np.full(len(z), first)
        for _ in range(5):
            alive = here > 0
            rate = mean[alive] * here[alive]
            here = here.copy()
            here[alive] = rng.negative_binomial(
                shape[alive] * here[alive], shape[alive] * here[alive] / (shape[alive] * here[alive] + rate)
            )
            counts.append(here)
        return np.stack(counts, axis=1).astype(float)

    def log_likelihood(z, x):
        mean, shape = settings(z)
        before, total = first, 0.0
        for now in x:
            if before > 0:
                total = total + nbinom.logpmf(now, shape * before, shape / (shape + mean))
            before = now
        return total + np.zeros(len(z))

    return Problem(2, simulate, log_likelihood)


ALL = FAMILIES | {family.__name__: family for family in (crescents, branching)}
GROUPS = {
    "counts": ("counts", "proportions", "useless", "branching"),
    "thin or bent": ("bends", "growth", "modes", "edge", "crescents"),
    "others": ("linear", "gamma_sample", "autoregression", "heavy_tails"),
}


# -- mechanisms ------------------------------------------------------------------------------------------------------


def _nearest_by(columns):
    """Return ``FittedRule.nearest`` by the data alone, or by posterior means alone."""

    def nearest(self, observed, size, rng):
        if columns == "data":
            apart = self.features.scaled(self.observed) - self.features.scaled(observed)
        else:
            apart = (self.latent - self.residuals - self.mean(observed)) / self.residuals.std(axis=0)
        order = rng.permutation(len(apart))
        return order[np.argsort((apart[order] ** 2).sum(axis=1), kind="stable")[:size]]

    return nearest


def _near_at_once(self, observed, rng):
    """Return the rule of the points that ``near`` ends with, chosen by the first rule."""
    size = len(self.latent)
    while size // 2 >= 3 * self.settings.num_basis:
        size //= 2
    inside = self.nearest(observed, size, rng)
    return self.settings.fit(self.latent[inside], self.observed[inside], rng=rng)


def _alike(self, rows):
    return np.full(rows.shape, 1.0 / rows.shape[1])


def _rule_of_thumb(points, weights):
    """Return one width (Silverman 1986, equation 4.14) for all points."""
    n, d = len(points), points.shape[1]
    return np.full(n, (4.0 / (d + 2.0) * (weights @ weights)) ** (1.0 / (d + 4.0)))


def _left_in(self):
    """Return residuals that know their own parameter."""
    centered = self.latent - self.fallback
    return centered - self.path.coefficients(self.path.projected @ self.path.vectors.T, self.regularization) @ centered


_EMBEDDINGS = "pymc_kernel.embeddings"
_WIDTHS, _RULE = f"{_EMBEDDINGS}.kernel_mean._leave_one_out_widths", f"{_EMBEDDINGS}.fitted_rule.FittedRule"
#: Mechanism -> what stands in place of names when it is off.
MECHANISMS = {
    "linear part of the kernel": {f"{_EMBEDDINGS}.fitted_rule.Sum": lambda kernels: kernels[0]},
    "observations clipped": {f"{_EMBEDDINGS}.fitted_rule.MAX_SCALED_DISTANCE": np.inf},
    "evidence, not leaving one out": {f"{_EMBEDDINGS}.bayes_rule.most_evidence": least_error},
    "fit near the data": {f"{_RULE}.near": lambda self, observed, rng: self},
    "choice of the fit": {f"{_RULE}.normal_score": lambda self, cases: -len(self.latent)},
    "halved again and again": {f"{_RULE}.near": _near_at_once},
    "nearest by means, too": {f"{_RULE}.nearest": _nearest_by("data")},
    "nearest by data, too": {f"{_RULE}.nearest": _nearest_by("means")},
    "weights of residuals": {f"{_RULE}._shares": _alike},
    "residuals that leave one out": {f"{_RULE}.residuals": property(_left_in)},
    "a width for each point": {_WIDTHS: _rule_of_thumb},
    "smoothing": {_WIDTHS: lambda points, weights: np.zeros(len(points))},
}
#: The same of rejection: the share that is kept, and whether it is adjusted by regression.
REJECTION = {"rejection as it is": (0.03, True), "rejection, a hundredth": (0.01, True), "adjustment": (0.03, False)}
MEASURES = ("mean", "spread", "quantiles", "joint", "beside", "wrong", "silent")
_NUM_LOGARITHMIC = 4


def is_wrong(draws, exact):
    """Return whether a mean or a spread is off."""
    shift = np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    return bool(
        (shift > _WRONG_MEAN).any() or (np.abs(np.log(draws.std(axis=0) / exact.std(axis=0))) > _WRONG_LOG_SPREAD).any()
    )


def energy_distance(one, other):
    """Return the energy distance of two samples (Szekely and Rizzo 2004)."""
    return np.sqrt(2.0 * cdist(one, other).mean() - cdist(one, one).mean() - cdist(other, other).mean())


def measures(draws, exact, problem, observed, is_said):
    """Return the measures of one answer: all are the smaller the better."""
    spread = exact.std(axis=0)
    shift = np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / spread
    apart = np.quantile(draws, _PROBABILITIES, axis=0) - np.quantile(exact, _PROBABILITIES, axis=0)
    errors = shift.max(), np.abs(np.log(draws.std(axis=0) / spread)).max(), (np.abs(apart) / spread).max()
    joint = energy_distance(draws[::4] / spread, exact[:: len(exact) // 1000] / spread)
    beside, wrong = beside_posterior(draws, exact, problem, observed), is_wrong(draws, exact)
    return np.array([*np.log(errors), np.log(joint), beside, wrong, wrong and not is_said], dtype=float)


def beside_posterior(draws, exact, problem, observed):
    """Return the share of draws where the posterior is as low as for one in a hundred of its own, beyond these."""

    def log_density(z):
        return problem.log_likelihood(z, observed) - 0.5 * (z**2).sum(axis=1)

    return (log_density(draws) < np.quantile(log_density(exact), _LEAST_LIKELY)).mean() - _LEAST_LIKELY


def one_answer(latent, data, observed, seed):
    """Return posterior and draws as ``sample_kbr`` makes them, but for the bootstrap."""
    rng = np.random.default_rng(seed)
    rule = KernelBayesRule().fit(latent, data, rng=rng)
    (posterior,) = rule.near(observed, rng).posteriors(observed)
    return posterior, smoothed_draws(posterior.points, posterior.weights, NUM_DRAWS, rng)


def mechanisms_run(family, seed):
    """Return the measures (mechanisms + 1, measures), the first of the rule as it is."""
    problem, *simulated, observed = problem_of(family, seed, max(SIZES["sample_abc"]), ALL)
    latent, data = (rows[:NUM_SIMULATIONS] for rows in simulated)
    exact = exact_draws(problem, observed, np.random.default_rng(seed))
    likelihood, found = [], []

    class Kept(LearnedLikelihood):
        def fit(self, *given):
            likelihood.extend([] if likelihood else [super().fit(*given)])
            return likelihood[0]

    for patches in ({}, *MECHANISMS.values()):
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for target, other in patches.items():
                stack.enter_context(mock.patch(target, other))
            stack.enter_context(mock.patch("pymc_kernel.plugin.simulation.trust.LearnedLikelihood", Kept))
            posterior, draws = one_answer(latent, data, observed, seed)
            prior, anew = partial(NormalPrior, 0.0, 1.0, problem.width), np.random.default_rng(seed)
            said = second_opinion(posterior, latent, data, observed, prior, anew).words(np.zeros((4, 1)))
        found.append(measures(draws, exact, problem, observed, bool(said)))
    for quantile, adjust in REJECTION.values():
        answer, _ = rejected(*simulated, observed, quantile, adjust)
        draws = answer.points[resample(answer.weights, NUM_DRAWS, np.random.default_rng(seed))]
        found.append(measures(draws, exact, problem, observed, False))
    return np.array(found)


def differences(tasks, found, names, bases):
    """Yield rows by group of families: ``found`` (tasks, names, measures) of bases, and what it is more of others."""
    for k, name in enumerate(names):
        for group, members in GROUPS.items():
            inside = np.array([family in members for family, _ in tasks])
            if inside.sum() < 2:
                continue
            values = found[inside, k] - (0.0 if k == bases[k] else found[inside, bases[k]])
            means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
            if k == bases[k]:
                means[:_NUM_LOGARITHMIC] = np.exp(means[:_NUM_LOGARITHMIC])
                cells = [f"{mean:.3f}" for mean in means]
            else:
                cells = [f"{mean:+.3f} ({error:.3f})" for mean, error in zip(means, errors, strict=True)]
            yield [name, group, len(values), *cells]


def mechanisms(marker, function, names, bases, note, tasks, jobs):
    """Run all problems; write the table."""
    found = []
    for task, one in zip(tasks, harness.results(function, tasks, jobs), strict=True):
        found.append(one)
        print(*task, flush=True)
    rows = list(differences(tasks, np.array(found), names, bases))
    for row in rows:
        print(*row, sep=" | ", flush=True)
    families, seeds = {family for family, _ in tasks}, sorted({seed for _, seed in tasks})
    note = (
        f"{len(seeds)} problems of each of {len(families)} families, seeds from {seeds[0]:,} on; "
        f"{note} Below the first rows: how much more without the mechanism, with its standard error; of the first four "
        "columns natural logarithms."
    )
    harness.Table(marker, ["without", "families", "n", *MEASURES]).write(rows, note)


def rejected(latent, data, observed, quantile, adjust=True):
    """Return accepted parameters and weights, as ``sample_abc`` does, and a function that fits them anew."""
    spread = robust_scales(data)[1]
    accepted = rejection(data / spread, observed / spread, quantile)
    inside = accepted.index

    def fit(factors):
        weights = accepted.weights * factors / (accepted.weights @ factors)
        moved = regression_adjusted(latent[inside], data[inside] / spread, observed / spread, weights)
        return Weighted(moved if adjust else latent[inside], weights)

    return fit(np.ones(len(inside))), fit


def warned_run(method, size, family, first, seed):
    """Return whether the answer is wrong, and what each warning says."""
    problem, latent, data, observed = problem_of(family, first + seed, size, ALL)
    exact, rng = exact_draws(problem, observed, np.random.default_rng(seed)), np.random.default_rng(seed)
    if method == "sample_kbr":
        near = KernelBayesRule().fit(latent, data, rng=rng).near(observed, rng)
        (posterior,) = near.posteriors(observed)
        factors = rng.standard_exponential((NUM_REPLICATES, len(near.latent)))
        replicates = [near.refitted(row).posteriors(observed)[0] for row in factors]
    else:
        posterior, fit = rejected(latent, data, observed, 0.03)
        replicates = [fit(row) for row in rng.standard_exponential((NUM_REPLICATES, len(posterior.weights)))]
    drawn = [smoothed_draws(one.points, one.weights, 1000, rng) for one in replicates[:4]]
    effective, of_fits = 1.0 / (posterior.weights**2).sum(), errors_of_learning(posterior, replicates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        opinion = second_opinion(posterior, latent, data, observed, partial(NormalPrior, 0.0, 1.0, problem.width), rng)

    def alone(*rows):
        kept = np.isin(np.arange(4), rows)[:, None]
        return opinion._replace(differences=np.where(kept, opinion.differences, 0.0), outside=0.0).words(of_fits)

    said = {
        "error of learning": findings(1.0, effective, of_fits[0].max(), []),
        "second opinion": opinion.words(of_fits),
        "its means and spreads alone": alone(0, 1),
        "its quantiles alone": alone(2, 3),
        "its share of the draws alone": opinion._replace(differences=0.0 * opinion.differences).words(of_fits),
    }
    said["either"] = said["error of learning"] or said["second opinion"]
    drawn = np.concatenate(drawn)
    off = is_wrong(drawn, exact) or beside_posterior(drawn, exact, problem, observed) > _MUCH_BESIDE
    print(family, first + seed, off, [name for name, words in said.items() if words], flush=True)
    return off, {name: bool(words) for name, words in said.items()}


def warned(runs, families, first, jobs):
    """Run all methods; write the table."""
    rows = []
    for method, sizes in SIZES.items():
        for size in sizes:
            found = harness.grouped(warned_run, [(method, size, family, first) for family in families], runs, jobs)
            all_runs = [one for _, group in found for one in group]
            right, wrong = ([said for is_off, said in all_runs if is_off == which] for which in (False, True))
            for name in all_runs[0][1]:
                rates = [f"{sum(said[name] for said in part)} of {len(part)}" for part in (right, wrong)]
                rows.append([method, f"{size:,}", name, *rates])
                print(*rows[-1], flush=True)
    header = ["method", "simulations", "warning", "of right answers", "of wrong ones"]
    note = f"{runs} problems of each of {len(families)} families, seeds from {first:,} on; said of how many."
    harness.Table("kbr-warnings", header).write(rows, note)


def main(runs=12, parts=("mechanisms", "warnings"), families=tuple(ALL), first=1000, jobs=1):
    tasks = [(family, seed) for seed in range(first, first + runs) for family in families]
    if "mechanisms" in parts:
        names = ["as it is", *MECHANISMS, *REJECTION]
        bases = [0] * (1 + len(MECHANISMS)) + [1 + len(MECHANISMS)] * len(REJECTION)
        note = f"{NUM_SIMULATIONS:,} simulations, rejection {max(SIZES['sample_abc']):,}."
        mechanisms("kbr-ablation", mechanisms_run, names, bases, note, tasks, jobs)
    if "warnings" in parts:
        warned(runs, families, first, jobs)


if __name__ == "__main__":
    harness.run(main)
