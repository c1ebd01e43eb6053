"""Kernel Bayes' rule by the letter of its sources, on the Gaussian problem of `kbr_gaussian`.

Three tables, for three figures whose settings are not those that the package chooses by itself: figure 1 of Xu et al.
(2022), all regularizations .2; figure 2 of Fukumizu, Song and Gretton (2013), bandwidths cross-validated for their rule
and for density estimates; and their figure 3, accuracy against seconds beside the conditional mean and rejection ABC.
"""

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from benchmarks import harness, measures
from benchmarks.kbr_gaussian import DIMENSIONS, NUM_TEST, SIGNALS, exact, gaussian_problem
from pymc_kernel.embeddings import ConditionalMean, OriginalBayesRule
from pymc_kernel.kernels import Gaussian, median_distance

FIXED = 0.2  # eta and lambda of Xu et al.
FACTORS = 2.0 ** np.arange(-2, 4)  # of the median distance; the source does not print its grid
FOLDS = 10
WIDTHS = 2.0 * np.arange(1, 11)  # of density estimates, as in the source
WHOLE = {"num_basis": 10_000}  # factors exact up to the tolerance


def problem_of(signal, d, seed):
    """Return training pairs, draws of the prior, observations, true posterior means, and the true density ratio."""
    rng = np.random.default_rng([seed, d])
    z, x, prior, problem = gaussian_problem(d, signal, rng)
    observed = rng.standard_normal((NUM_TEST, d)) @ np.linalg.cholesky(problem[3]).T
    # The prior has half the covariance of the training latents.
    log_ratio = 0.5 * d * np.log(2.0) - 0.5 * np.einsum("ij,jk,ik->i", z, np.linalg.inv(2.0 * problem[2]), z)
    return z, x, prior, observed, exact(problem, observed)[0], np.exp(log_ratio)


def squared_error(estimate, truth):
    """Return the mean squared distance."""
    return float(((estimate - truth) ** 2).sum(axis=1).mean())


def three(values):
    """Return a mean with three digits."""
    return f"{np.mean(values):.3g}"


# -- Xu et al., figure 1 ---------------------------------------------------------------------------------


def importance_weights(gram, across, ratio, regularization):
    """Return the weights (n, m) of algorithm 1, step 3."""
    root = np.sqrt(ratio)
    matrix = root[:, None] * gram * root
    matrix.flat[:: len(root) + 1] += len(root) * regularization
    return root[:, None] * cho_solve(cho_factor(matrix), root[:, None] * across)


def fixed_run(signal, d, seed):
    """Return the errors of the rules of figure 1 by name."""
    z, x, prior, observed, truth, true_ratio = problem_of(signal, d, seed)
    kernel_x, kernel_z, n = Gaussian(median_distance(x)), Gaussian(median_distance(z)), len(z)
    common = {"observed_kernel": kernel_x, "latent_kernel": kernel_z, **WHOLE}
    common |= {"ratio_regularization": FIXED}
    signed = n * np.linalg.solve(kernel_z(z) + n * FIXED * np.eye(n), kernel_z(z, prior).mean(axis=1))
    gram, across = kernel_x(x), kernel_x(x, observed)

    def original(delta):
        return OriginalBayesRule(**common, regularization=delta).fit(z, x, prior, rng=0).weights(observed) @ z

    found = {
        "original, equation 2 as printed": original(FIXED / n**2),
        "original, weights divided by n": original(FIXED),
        "importance": importance_weights(gram, across, np.maximum(signed, 0.0), FIXED).T @ z,
        "importance, true ratio": importance_weights(gram, across, true_ratio, FIXED).T @ z,
    }
    return {name: squared_error(estimate, truth) for name, estimate in found.items()}


def fixed(runs, jobs):
    """Run all dimensions; write the table."""
    rows, keys = {}, [(signal, d) for signal in SIGNALS for d in DIMENSIONS]
    for key, found in harness.grouped(fixed_run, keys, runs, jobs):
        for name in found[0]:
            rows.setdefault(name, []).append(three([f[name] for f in found]))
        print(*key, {name: row[-1] for name, row in rows.items()}, flush=True)
    table = harness.Table("kbr-fixed", ["", *(f"{signal}, d = {d}" for signal, d in keys)])
    table.write([[name, *row] for name, row in rows.items()], f"{runs} runs, n = l = 200, eta = lambda = {FIXED}.")


# -- Fukumizu et al., figure 2 ---------------------------------------------------------------------------


def figure_1(gram_z, above, gram_x, across, epsilon):
    """Return the weights (n, m) of figure 1 as printed, delta = 2 epsilon; ``above`` (n,) is the prior's mean."""
    n = len(gram_z)
    signed = n * np.linalg.solve(gram_z + n * epsilon * np.eye(n), above)
    weighted = signed[:, None] * gram_x
    return weighted @ np.linalg.solve(weighted @ weighted + 2.0 * epsilon * np.eye(n), signed[:, None] * across)


def criterion(gram_z, gram_x, epsilon, folds):
    """Return the K-fold criterion of section 4.2: posteriors averaged over data against the marginal."""
    total = 0.0
    for held in folds:
        kept = np.setdiff1d(np.arange(len(gram_z)), held)
        inner = gram_z[np.ix_(kept, kept)]
        weights = figure_1(inner, inner.mean(axis=1), gram_x[np.ix_(kept, kept)], gram_x[np.ix_(kept, held)], epsilon)
        mean = weights.mean(axis=1)
        own, across = gram_z[np.ix_(held, held)].mean(), gram_z[np.ix_(kept, held)].mean(axis=1)
        total += mean @ inner @ mean - 2.0 * mean @ across + own
    return total


def chosen_scales(z, x, epsilon, rng):
    """Return the length scales for z and x: the first with the other at the median distance, then the second."""
    squared_z, squared_x = cdist(z, z, "sqeuclidean"), cdist(x, x, "sqeuclidean")
    medians = median_distance(z), median_distance(x)
    folds = np.array_split(rng.permutation(len(z)), FOLDS)

    def gram(squared, scale):
        return np.exp(-0.5 * squared / scale**2)

    middle = gram(squared_x, medians[1])
    scale_z = medians[0] * min(
        FACTORS, key=lambda f: criterion(gram(squared_z, f * medians[0]), middle, epsilon, folds)
    )
    latent = gram(squared_z, scale_z)
    scale_x = medians[1] * min(
        FACTORS, key=lambda f: criterion(latent, gram(squared_x, f * medians[1]), epsilon, folds)
    )
    return scale_z, scale_x


def density_means(z, x, prior, observed, width):
    """Return posterior means by importance weights from density estimates of one width."""
    at = -0.5 * cdist(prior, z, "sqeuclidean") / width**2
    at = np.exp(at - at.max(axis=1, keepdims=True))
    seen = -0.5 * cdist(observed, x, "sqeuclidean") / width**2
    likelihood = np.exp(seen - seen.max(axis=1, keepdims=True)) @ (at / at.sum(axis=1, keepdims=True)).T
    return likelihood @ prior / np.maximum(likelihood.sum(axis=1, keepdims=True), np.finfo(float).tiny)


def least_squares_score(pairs, width):
    """Return the least-squares cross-validation score of a density estimate (Rudemo 1982; Bowman 1984)."""
    n, d = pairs.shape
    squared = cdist(pairs, pairs, "sqeuclidean") / width**2
    overlap = (4.0 * np.pi) ** (-0.5 * d) * np.exp(-0.25 * squared).mean()
    left_out = (np.exp(-0.5 * squared).sum() - n) / (n * (n - 1.0)) * (2.0 * np.pi) ** (-0.5 * d)
    return (overlap - 2.0 * left_out) * width**-d


def bandwidth_run(d, seed):
    """Return the errors of the rule with both bandwidths, and of density estimates with all and with the chosen."""
    z, x, prior, observed, truth, _ = problem_of("strong", d, seed)
    epsilon, rng = 0.01 / len(z), np.random.default_rng(seed)
    out = {}
    scales = {"median": (median_distance(z), median_distance(x)), "10 folds": chosen_scales(z, x, epsilon, rng)}
    for name, (scale_z, scale_x) in scales.items():
        kernel_z, kernel_x = Gaussian(scale_z), Gaussian(scale_x)
        weights = figure_1(kernel_z(z), kernel_z(z, prior).mean(axis=1), kernel_x(x), kernel_x(x, observed), epsilon)
        out[name] = squared_error(weights.T @ z, truth)
    out["widths"] = [squared_error(density_means(z, x, prior, observed, h), truth) for h in WIDTHS]
    pairs = np.hstack([z, x])
    out["cross-validated"] = out["widths"][int(np.argmin([least_squares_score(pairs, h) for h in WIDTHS]))]
    out["prior"] = squared_error(np.zeros_like(truth), truth)
    return out


BANDWIDTHS = (
    "rule, median",
    "rule, 10 folds",
    "density estimates, least squares",
    "density estimates, best",
    "prior mean",
)
BANDWIDTH_TABLE = harness.Table("kbr-bandwidths", ("d", *BANDWIDTHS), [(d,) for d in DIMENSIONS])


def bandwidth_cells(runs):
    """Return what stands behind the dimension."""
    best = np.mean([run["widths"] for run in runs], axis=0).min()
    columns = [[run[name] for run in runs] for name in ("median", "10 folds", "cross-validated")]
    return *map(three, columns), three(best), three([run["prior"] for run in runs])


# -- Fukumizu et al., figure 3 ---------------------------------------------------------------------------


def at_median(points):
    """Return a Gaussian kernel as wide as the median distance of at most 1,000 points."""
    return Gaussian(median_distance(points[:1000]))


def by_rule(z, x, observed):
    """Return means by figure 1, the pairs drawn from the prior."""
    n = len(z)
    kernels = {"observed_kernel": at_median(x), "latent_kernel": at_median(z)}
    rule = OriginalBayesRule(**kernels, **WHOLE, ratio_regularization=0.01 / n, regularization=0.02 / n**3)
    return rule.fit(z, x, z, rng=0).weights(observed) @ z


def by_conditional(z, x, observed):
    """Return means by equation 19."""
    mean = ConditionalMean(at_median(x), at_median(z), regularization=0.01 / np.sqrt(len(z)), num_basis=10_000)
    return mean.fit(x, z, rng=0).condition(observed).mean()


def by_rejection(z, x, observed, kept=200):
    """Return means of the draws whose data are nearest to the observation."""
    squared = cdist(observed, x, "sqeuclidean")
    return np.stack([z[row].mean(axis=0) for row in np.argpartition(squared, kept, axis=1)[:, :kept]])


TIMED = {"figure 1": by_rule, "conditional mean": by_conditional, "rejection": by_rejection}
TIMED_SIZES = {"figure 1": (200, 600, 2000), "conditional mean": (200, 600, 2000), "rejection": (10**4, 10**5, 10**6)}
TIME_TABLE = harness.Table(
    "kbr-time",
    ("d", "method", "pairs", "squared error", "prior mean", "seconds"),
    [(d, method, n) for d in (2, 6) for method in TIMED for n in TIMED_SIZES[method]],
)


def timed_run(d, method, n, seed):
    """Return the errors of the method and of the prior's mean, and the seconds for 10 observations."""
    rng = np.random.default_rng([seed, d, 3])
    slope, noise, prior, marginal = gaussian_problem(d, "strong", rng)[3]
    observed = rng.standard_normal((10, d)) @ np.linalg.cholesky(marginal).T
    truth = exact((slope, noise, prior, marginal), observed)[0]

    def simulated():
        z = rng.standard_normal((n, d)) @ np.linalg.cholesky(prior).T
        x = 1.0 + z @ slope.T + rng.standard_normal((n, d)) @ np.linalg.cholesky(noise).T
        return TIMED[method](z, x, observed)

    found, seconds = measures.timed(simulated)
    return squared_error(found, truth), squared_error(np.zeros_like(truth), truth), seconds


def time_cells(runs):
    """Return what stands behind method and size."""
    error, prior, seconds = np.array(runs).T
    return three(error), three(prior), f"{np.median(seconds):.3f}"


def main(runs=30, parts=("fixed", "bandwidths", "time"), jobs=2):
    few = max(2, runs // 3)
    if "fixed" in parts:
        fixed(runs, jobs)
    if "bandwidths" in parts:
        note = f"{runs} runs, n = l = 200, strong signal, epsilon = .01 / n, delta = 2 epsilon."
        BANDWIDTH_TABLE.fill(bandwidth_run, bandwidth_cells, runs, note, jobs=jobs)
    if "time" in parts:
        note = f"{few} runs of 10 observations, strong signal; medians of seconds, one process."
        TIME_TABLE.fill(timed_run, time_cells, few, note, jobs=1)


if __name__ == "__main__":
    harness.run(main)
