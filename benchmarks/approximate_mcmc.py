"""The step size of stochastic-gradient Langevin dynamics, ADVI and Laplace, judged by the Stein discrepancy.

theta_1 ~ N(0, 10), theta_2 ~ N(0, 1), x_i ~ N(theta_1, 4) / 2 + N(theta_1 + theta_2, 4) / 2: 400 data from (0, 1),
which leaves modes near (0, 1) and (1, -1) (Welling and Teh 2011; thesis, section 8.3.4). Langevin steps with gradients
on some of the data have a bias that grows with the step size, and a variance that falls with it. The truth is a
quadrature.

Reported for each step size, medians over chains: smallest bulk ESS, KSD, error-implied error of marginal quantiles
(root mean square of the share below the true 0.1, ..., 0.9 quantiles), share of p-values below 0.05.
"""

import warnings
from functools import cache

import numba
import numpy as np
import pymc as pm
from scipy.special import logsumexp

import pymc_kernel as pk
from benchmarks import harness, measures, zoo_draws
from benchmarks.posteriors import ZOO
from pymc_kernel import stein

STEPS = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
NUM_DATA, BATCH, ITERATIONS, KEPT = 400, 80, 40_000, 1000
MODES = np.array([[0.0, 1.0], [1.0, -1.0]])  # of the posterior, nearly
VARIANCES = np.array([10.0, 1.0, 4.0])  # of the prior of theta_1, theta_2, and of the data


def make_data():
    """Return the data."""
    rng = np.random.default_rng(0)
    return np.where(rng.random(NUM_DATA) < 0.5, 0.0, 1.0) + np.sqrt(VARIANCES[2]) * rng.standard_normal(NUM_DATA)


@numba.njit(cache=True)
def gradient(theta, data, weight, out):
    """Write the gradient of the log posterior, the likelihood of ``data`` weighted."""
    out[0], out[1] = -theta[0] / 10.0, -theta[1]
    for x in data:
        first, second = x - theta[0], x - theta[0] - theta[1]
        chance = 1.0 / (1.0 + np.exp((second * second - first * first) / 8.0))  # of the second component
        out[0] += weight * ((1.0 - chance) * first + chance * second) / 4.0
        out[1] += weight * chance * second / 4.0


@numba.njit(cache=True)
def langevin(step, data, batches, noise, start, every, out):
    """Write every ``every``-th state of stochastic-gradient Langevin dynamics."""
    theta, slope = start.copy(), np.empty(2)
    weight = data.size / batches.shape[1]
    for t in range(batches.shape[0]):
        gradient(theta, data[batches[t]], weight, slope)
        for i in range(2):
            theta[i] += 0.5 * step * slope[i] + np.sqrt(step) * noise[t, i]
        if t % every == 0:
            out[t // every] = theta


@numba.njit(cache=True)
def all_scores(draws, data):
    """Return scores of the exact posterior."""
    out = np.empty_like(draws)
    for i in range(len(draws)):
        gradient(draws[i], data, 1.0, out[i])
    return out


@cache
def true_quantiles():
    """Return the 0.1, ..., 0.9 quantiles of both marginals by quadrature, (9, 2)."""
    data = make_data()
    first, second = np.linspace(-2, 3, 401), np.linspace(-4, 4, 401)
    a, b = np.meshgrid(first, second, indexing="ij")
    log_density = -(a**2) / 20.0 - b**2 / 2.0
    for x in data:
        log_density += np.logaddexp(-((x - a) ** 2) / 8.0, -((x - a - b) ** 2) / 8.0)
    weights = np.exp(log_density - logsumexp(log_density))
    columns = []
    for grid, marginal in ((first, weights.sum(axis=1)), (second, weights.sum(axis=0))):
        columns.append(np.interp(measures.PROBABILITIES, np.cumsum(marginal), grid))
    return np.stack(columns, axis=1)


def one_chain(step, seed):
    """Return measures of one chain of Langevin dynamics."""
    rng = np.random.default_rng([seed, 5])
    data = make_data()
    batches = rng.integers(0, NUM_DATA, (ITERATIONS, BATCH))
    draws = np.empty((KEPT, 2))
    langevin(step, data, batches, rng.standard_normal((ITERATIONS, 2)), MODES[seed % 2], ITERATIONS // KEPT, draws)
    scores = all_scores(draws, data)
    test = stein.ksd_test(draws, scores, num_replicates=500, rng=rng)
    z, s = (draws - [0.5, 0.0]) / [0.5, 1.0], scores * [0.5, 1.0]  # the same scale for every chain
    shares = measures.share_below(draws, true_quantiles())
    return (
        measures.smallest_bulk_ess(draws[None]),
        np.sqrt(stein.ksd_squared(z, s, how="none")),
        measures.quantile_error(shares),
        test.p_value,
    )


def langevin_cells(chains):
    """Return what stands behind the step size."""
    ess, ksd, error, _ = np.median(chains, axis=0)
    rejected = np.mean([p < 0.05 for *_, p in chains])
    return f"{ess:.0f}", f"{ksd:.3f}", f"{error:.3f}", f"{rejected:.2f}"


def langevin_table(chains, jobs):
    """Return the table on step sizes, and draw it."""
    found = {step: group for (step,), group in harness.grouped(one_chain, [(step,) for step in STEPS], chains, jobs)}
    medians = np.array([np.median(group, axis=0) for group in found.values()])
    titles = ("bulk ESS", "KSD", "error of quantiles")
    curves = {title: {title: medians[:, column]} for column, title in enumerate(titles)}
    harness.draw_curves("langevin_step_size", STEPS, curves, xlabel="step size", xscale="log")
    rows = [[f"{step:g}", *langevin_cells(group)] for step, group in found.items()]
    return harness.markdown_table(["step size", *titles, "p < 0.05"], rows)


def fit_row(name, run, model):
    """Return the row of a fit."""
    report = pk.ksd_test(run, model=model)
    shares = report.table()["ksd_share"]
    worst = f"{shares.idxmax()} ({shares.max():.2f})"
    return [name, f"{report.ksd:.3f}", f"{report.test.normal_ksd:.3f}", f"{report.p_value:.3f}", worst]


def fits_table():
    """Return the table on NUTS, ADVI and Laplace."""
    seeded = {"random_seed": 1, "progressbar": False}
    laplace = zoo_draws.approximate("laplace", "eight_schools", 2, 2000)  # before the model is in context
    with ZOO["eight_schools"].make() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = {
            "NUTS": pm.sample(1000, chains=4, cores=2, target_accept=0.95, **seeded),
            "ADVI": pm.fit(30_000, **seeded).sample(2000, random_seed=1),
            "full-rank ADVI": pm.fit(30_000, method="fullrank_advi", **seeded).sample(2000, random_seed=1),
            "Laplace": laplace,
        }
        rows = [fit_row(name, run, model) for name, run in runs.items()]
    return harness.markdown_table(["fit", "KSD", "of normal draws", "p", "largest share"], rows)


def main(chains=20, jobs=2):
    """Run both studies, write their tables."""
    text = (
        f"Stochastic-gradient Langevin, {chains} chains, {ITERATIONS:,} steps on {BATCH} of {NUM_DATA} data, of which "
        f"{KEPT:,} are kept:\n\n{langevin_table(chains, jobs)}\n\n"
        f"Fits of the eight schools, each standardized by its own draws:\n\n{fits_table()}"
    )
    print(text)
    harness.write_results("approximate", text)


if __name__ == "__main__":
    harness.run(main)
