"""How near is the approximate posterior of a bandwidth to the true one?

Expectation propagation against quadrature on a grid: an isotropic precision for claw data, a diagonal one for data of
three bivariate modes, with the source's prior (Filippone and Sanguinetti 2011, section 6.1.1, figures 2, 3 and 5).
"""

import math
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from scipy.special import logsumexp
from scipy.stats import gamma

from benchmarks import harness
from benchmarks.bandwidth import leave_one_out
from benchmarks.mixtures import CLAW, TRIMODAL
from pymc_kernel.density import BayesianKDE

PRIOR_SHAPE, PRIOR_RATE = 1.0, 0.01
NUM_NODES = {1: 600, 2: 100}  # of the grid, for each precision
WIDTH = 10.0  # standard deviations of the approximation on both sides, on the logarithmic scale
MOST_AT_EDGE = 1e-6  # probability


class Case(NamedTuple):
    """Data and the structure of their precision."""

    target: object
    structure: str

    def data(self, n, seed):
        return self.target.sample(np.random.default_rng([seed, n]), n)

    def approximated(self, x):
        """Return the fit with the source's prior."""
        return BayesianKDE(self.structure, prior_shape=PRIOR_SHAPE, prior_rate=PRIOR_RATE).fit(x)


CLAW_CASE, TRIMODAL_CASE = Case(CLAW, "isotropic"), Case(TRIMODAL, "diagonal")
CASES = {
    ("claw, isotropic", 50): CLAW_CASE,
    ("claw, isotropic", 500): CLAW_CASE,
    ("trimodal, diagonal", 200): TRIMODAL_CASE,
}
HEADER = ("data", "n", "mean, ratio", "standard deviation, ratio", "log evidence, difference")
TABLE = harness.Table("bandwidth-posterior", HEADER, list(CASES))


class Exact(NamedTuple):
    """The posterior on a grid of precisions."""

    nodes: tuple  # of ndarray (g,): precisions, one axis for each
    weights: np.ndarray  # (g,) or (g, g): probabilities
    log_evidence: float

    def mean_and_sd(self, axis):
        """Return the moments of one precision."""
        marginal = self.weights.sum(axis=tuple(k for k in range(self.weights.ndim) if k != axis))
        mean = marginal @ self.nodes[axis]
        return mean, math.sqrt(marginal @ (self.nodes[axis] - mean) ** 2)


def by_quadrature(x, posterior):
    """Return the true posterior on a grid around an approximation: trapezoids on the logarithmic scale."""
    count = len(posterior.shape)
    spread = WIDTH / np.sqrt(posterior.shape)
    center = np.log(posterior.shape / posterior.rate)
    logs = [np.linspace(c - s, c + s, NUM_NODES[count]) for c, s in zip(center, spread, strict=True)]
    grid = np.stack(np.meshgrid(*logs, indexing="ij"), axis=-1).reshape(-1, count)
    likelihood = np.array([leave_one_out(x, np.diag(np.exp(0.5 * row[posterior.groups]))) for row in grid])
    prior = PRIOR_SHAPE * math.log(PRIOR_RATE) - math.lgamma(PRIOR_SHAPE)
    values = likelihood + (prior + PRIOR_SHAPE * grid - PRIOR_RATE * np.exp(grid)).sum(axis=1)  # d(precision) is in it
    cell = sum(math.log(nodes[1] - nodes[0]) for nodes in logs)
    total = logsumexp(values)
    weights = np.exp(values - total).reshape([len(nodes) for nodes in logs])
    if max(weights[edge].sum() for edge in (0, -1, (..., 0), (..., -1))) > MOST_AT_EDGE:
        raise RuntimeError("The grid does not cover the posterior: take a larger WIDTH.")
    return Exact(tuple(np.exp(nodes) for nodes in logs), weights, float(total + cell))


def one_run(name, n, seed):
    """Return ratios of means and standard deviations, one for each precision, and the difference of the evidence."""
    case = CASES[name, n]
    x = case.data(n, seed)
    fit = case.approximated(x)
    exact = by_quadrature(x, fit.posterior)
    shape, rate = fit.posterior.shape, fit.posterior.rate
    moments = np.array([exact.mean_and_sd(k) for k in range(len(shape))])
    return shape / rate / moments[:, 0], np.sqrt(shape) / rate / moments[:, 1], fit.log_evidence - exact.log_evidence


def cells(runs):
    """Return what stands behind data and n: mean and standard deviation over data sets and precisions."""
    columns = [np.concatenate([np.atleast_1d(run[k]) for run in runs]) for k in range(3)]
    return [f"{column.mean():.3f} ± {column.std(ddof=1):.3f}" for column in columns]


def picture():
    """Save the posteriors and the estimates of one data set of each kind, as in figures 2 and 3."""
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    axes = figure.subplots(2, 2)
    _draw_claw(*axes[:, 0])
    _draw_trimodal(*axes[:, 1])
    figure.savefig(harness.FIGURES / "bandwidth_posterior.png", dpi=90)


def _draw_claw(above, below):
    """Draw both posteriors of the precision, and the estimate with the band of the bandwidth."""
    x = CLAW_CASE.data(50, 0)
    fit = CLAW_CASE.approximated(x)
    exact = by_quadrature(x, fit.posterior)
    precisions, approximation = exact.nodes[0], gamma(fit.posterior.shape[0], scale=1.0 / fit.posterior.rate[0])
    above.plot(precisions, exact.weights / np.gradient(precisions), "k", label="true posterior")
    above.plot(precisions, approximation.pdf(precisions), "C1--", label="expectation propagation")
    above.set(xlabel="precision of the kernel", ylabel="density", title="50 claw points")
    above.set_xlim(0.0, approximation.ppf(0.9999))
    above.legend(frameon=False)
    grid = np.linspace(-3.5, 3.5, 400)
    below.fill_between(grid, *fit.interval(grid, rng=0), color="C1", alpha=0.3, label="90 % band of the bandwidth")
    below.plot(grid, np.exp(fit.log_density(grid)), "C1", label="at the mean precision")
    below.plot(grid, CLAW.density(grid), "k:", label="truth")
    below.set(xlabel="x", ylabel="density", ylim=(0.0, 1.0))
    below.legend(loc="upper right", frameon=False)


def _draw_trimodal(above, below):
    """Draw draws of the approximation with contours of the true posterior, and contours of the estimate with data."""
    x = TRIMODAL_CASE.data(200, 0)
    fit = TRIMODAL_CASE.approximated(x)
    exact = by_quadrature(x, fit.posterior)
    draws = np.diagonal(fit.posterior.sample(np.random.default_rng(0), 4000), axis1=1, axis2=2)
    density = exact.weights / np.outer(*(np.gradient(nodes) for nodes in exact.nodes))
    above.scatter(*draws.T, s=2, color="C1", alpha=0.4, label="expectation propagation, draws")
    above.contour(*exact.nodes, density.T, colors="k", levels=6, linewidths=1)
    above.plot([], [], "k", label="true posterior")
    low, high = np.quantile(draws, [0.0005, 0.9995], axis=0)
    above.set(xlim=(low[0], high[0]), ylim=(low[1], 1.3 * high[1]), title="200 points of three modes")
    above.set(xlabel="precision along the first axis", ylabel="along the second axis")
    above.legend(loc="upper right", markerscale=6, frameon=False)
    nodes = np.linspace(-3.5, 3.5, 100)
    places = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    below.contour(nodes, nodes, np.exp(fit.log_density(places)).reshape(100, 100).T, colors="C1", levels=8)
    below.plot(*x.T, "k.", markersize=3)
    below.set(xlabel="x1", ylabel="x2")


def main(repetitions=20, jobs=2):
    TABLE.fill(one_run, cells, repetitions, f"{repetitions} data sets each.", jobs=jobs)
    picture()


if __name__ == "__main__":
    harness.run(main)
