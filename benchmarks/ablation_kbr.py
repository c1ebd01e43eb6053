"""Kernel Bayes' rule and rejection with and without each of their parts, on simulators that nobody has tuned on.

Problems are drawn by seed (`simulated_problems`), their posteriors known. Distances are Wasserstein's between margins,
in posterior standard deviations, averaged over parameters: they count errors of mean, spread and quantiles alike. The
second table says how often the warnings speak: of answers whose means are within .3 posterior standard deviations and
whose spreads within 35 %, and of others. Seeds from 1,000 on are for these tables alone.
"""

import warnings

import numpy as np

from benchmarks import harness, measures
from benchmarks.simulated_problems import FAMILIES, exact_draws, problem_of
from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.embeddings.inputs import robust_scales
from pymc_kernel.embeddings.kernel_mean import resample, smoothed_draws
from pymc_kernel.likelihood_free import regression_adjusted, rejection
from pymc_kernel.plugin.simulation.trust import (
    NUM_REPLICATES,
    Weighted,
    findings,
    learning_errors,
    second_opinion,
)

NUM_DRAWS = 4000
SIZES = {"sample_kbr": (2000, 5000), "sample_abc": (10_000,)}
_QUANTILES = np.linspace(0.005, 0.995, 199)
_WRONG_MEAN, _WRONG_LOG_SPREAD = 0.3, 0.3


def distance(draws, exact):
    """Return Wasserstein's distance between margins, in exact standard deviations, averaged over parameters."""
    apart = np.quantile(draws, _QUANTILES, axis=0) - np.quantile(exact, _QUANTILES, axis=0)
    return float((np.abs(apart) / exact.std(axis=0)).mean())


def is_wrong(draws, exact):
    """Return whether a mean or a spread is off."""
    shift = np.abs(draws.mean(axis=0) - exact.mean(axis=0)) / exact.std(axis=0)
    return bool(
        (shift > _WRONG_MEAN).any() or (np.abs(np.log(draws.std(axis=0) / exact.std(axis=0))) > _WRONG_LOG_SPREAD).any()
    )


def halved(rule, nearest):
    """Return the last rule of ``FittedRule.near``, by other points: ``nearest`` (rule, size) -> indices (size,)."""
    while len(rule.latent) // 2 >= 3 * rule.settings.num_basis:
        inside = nearest(rule, len(rule.latent) // 2)
        rule = rule.settings.fit(rule.latent[inside], rule.observed[inside], rng=0)
    return rule


def one_width(posterior, rng):
    """Return draws smoothed by a normal distribution of half the rule of thumb (Silverman 1986, equation 4.14)."""
    points, weights = posterior.points, posterior.weights
    width = 0.5 * (4.0 / (points.shape[1] + 2.0) * (weights @ weights)) ** (1.0 / (points.shape[1] + 4.0))
    noise = rng.multivariate_normal(np.zeros(points.shape[1]), posterior.covariance(), NUM_DRAWS)
    mean = posterior.mean()
    return mean + np.sqrt(1.0 - width**2) * (points[resample(weights, NUM_DRAWS, rng)] - mean) + width * noise


def ablated(latent, data, observed, seed):
    """Return draws by name: as it is, and without one part each."""
    rng = np.random.default_rng(seed)
    rule = KernelBayesRule(scales=(0.5, 1.0, 2.0)).fit(latent, data, rng=rng)
    near = rule.near(observed, rng)
    (posterior,) = near.posteriors(observed)

    def by_observed(rule, size):
        scaled = rule.features.coordinates.scaled
        return np.argsort(((scaled(rule.observed) - scaled(observed)) ** 2).sum(axis=1), kind="stable")[:size]

    def drawn(rule):
        return rule.sample(observed, NUM_DRAWS, rng)[0]

    fit = near.refitted()
    alike = near.mean(observed)[0] + fit.residuals[rng.integers(len(fit.residuals), size=NUM_DRAWS)]
    return {
        "as it is": drawn(near),
        "fit to all simulations": drawn(rule),
        "fit to the nearest": drawn(halved(rule, lambda here, size: here.nearest(observed, size, rng))),
        "to the nearest, by the data alone": drawn(halved(rule, by_observed)),
        "residuals alike": alike,
        "one scale": drawn(KernelBayesRule().fit(latent, data, rng=rng).near(observed, rng)),
        "no smoothing": posterior.points[resample(posterior.weights, NUM_DRAWS, rng)],
        "one width, half the rule of thumb": one_width(posterior, rng),
        "nearest probability vector": rule.condition(observed).sample(NUM_DRAWS, rng),
    }


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


def ablation_run(family, first, seed):
    """Return the distance of each variant."""
    problem, latent, data, observed = problem_of(family, first + seed, max(SIZES["sample_abc"]))
    exact = exact_draws(problem, observed, np.random.default_rng(seed))
    size = max(SIZES["sample_kbr"])
    found = {
        name: distance(draws, exact) for name, draws in ablated(latent[:size], data[:size], observed, seed).items()
    }
    for name, quantile, adjust in (
        ("rejection", 0.03, True),
        ("rejection, a hundredth", 0.01, True),
        ("rejection, no adjustment", 0.03, False),
    ):
        answer, _ = rejected(latent, data, observed, quantile, adjust)
        found[name] = distance(answer.points[resample(answer.weights, NUM_DRAWS, np.random.default_rng(seed))], exact)
    return found


def ablation(runs, families, first, jobs):
    """Run all families; write the table."""
    rows, differences = {}, {}
    for _, group in harness.grouped(ablation_run, [(family, first) for family in families], runs, jobs):
        for name in group[0]:
            base = "rejection" if name.startswith("rejection") else "as it is"
            rows.setdefault(name, []).append(f"{np.mean([found[name] for found in group]):.2f}")
            differences.setdefault(name, []).extend(found[name] - found[base] for found in group)
        print({name: row[-1] for name, row in rows.items()}, flush=True)
    table = [[name, *row, measures.with_error(differences[name])] for name, row in rows.items()]
    header = ["", *(family.replace("_", " ") for family in families), "difference"]
    problems = f"{runs} problems of each family, seeds from {first:,} on"
    note = f"{problems}; 5,000 simulations, rejection 10,000. Distance, and how much more it is."
    harness.Table("kbr-ablation", header).write(table, note)


def warned_run(method, size, family, first, seed):
    """Return whether the answer is wrong, and what each warning says."""
    problem, latent, data, observed = problem_of(family, first + seed, size)
    exact, rng = exact_draws(problem, observed, np.random.default_rng(seed)), np.random.default_rng(seed)
    if method == "sample_kbr":
        near = KernelBayesRule(scales=(0.5, 1.0, 2.0)).fit(latent, data, rng=rng).near(observed, rng)
        (posterior,) = near.posteriors(observed)
        factors = rng.standard_exponential((NUM_REPLICATES, len(near.latent)))
        replicates = [near.posteriors(observed, row)[0] for row in factors]
    else:
        posterior, fit = rejected(latent, data, observed, 0.03)
        replicates = [fit(row) for row in rng.standard_exponential((NUM_REPLICATES, len(posterior.weights)))]
    drawn = [smoothed_draws(one.points, one.weights, 1000, rng) for one in replicates[:4]]
    effective, (error, _) = 1.0 / (posterior.weights**2).sum(), learning_errors(posterior, replicates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        opinion = second_opinion(posterior, latent, data, observed, rng)
    nothing = np.zeros_like(opinion.shift)
    said = {
        "error of learning": findings(1.0, effective, error, []),
        "second opinion": str(opinion),
        "its means and spreads alone": str(opinion._replace(outside=0.0)),
        "its share of the draws alone": str(opinion._replace(shift=nothing, spread=nothing + 1.0)),
    }
    said["either"] = said["error of learning"] or said["second opinion"]
    return is_wrong(np.concatenate(drawn), exact), {name: bool(words) for name, words in said.items()}


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


def main(runs=4, parts=("ablation", "warnings"), families=tuple(FAMILIES), first=1000, jobs=1):
    if "ablation" in parts:
        ablation(runs, families, first, jobs)
    if "warnings" in parts:
        warned(runs, families, first, jobs)


if __name__ == "__main__":
    harness.run(main)
