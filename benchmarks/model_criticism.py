"""Does a Gaussian-process regression predict what was held out? Sunspots, by the Stein test and by MMD.

A process with an exponentiated quadratic kernel and normal noise is fitted to nine tenths of the yearly sunspot numbers
by maximum marginal likelihood; the others are tested against its predictive distributions. The Stein test needs the
scores alone: standardized residuals against the standard normal. The alternative of Lloyd and Ghahramani (2015)
compares the points with replicates drawn from the predictive distribution by MMD, and needs many of them (thesis,
section 8.3.3). As a control of both, the same on data drawn from the fitted process.
"""

import numpy as np
import statsmodels.datasets.sunspots
from matplotlib.figure import Figure
from scipy import optimize
from scipy.linalg import cho_factor, cho_solve

from benchmarks import harness
from pymc_kernel import kernels as K
from pymc_kernel import stein

HELD_OUT = 0.1
REPLICATES = 500
HEADER = ("data", "Stein, median p", "p < 0.05", "MMD, median p", "p < 0.05")
TABLE = harness.Table("criticism", HEADER)


def covariance(x, y, log_parameters):
    """Return the kernel of the process, log length scale and log standard deviation given."""
    length_scale, spread = np.exp(log_parameters[:2])
    return spread**2 * K.Gaussian(length_scale)(x[:, None], y[:, None])


def negative_evidence(log_parameters, x, y):
    """Return minus the log marginal likelihood; parameters: length scale, spread, noise."""
    matrix = covariance(x, x, log_parameters) + np.exp(2 * log_parameters[2]) * np.eye(len(x))
    factor = np.linalg.cholesky(matrix + 1e-9 * np.eye(len(x)))
    solved = np.linalg.solve(factor, y)
    return 0.5 * solved @ solved + np.log(np.diag(factor)).sum()


def predict(parameters, x, y, places):
    """Return predictive mean and covariance, noise included."""
    noise = np.exp(2 * parameters[2])
    factor = cho_factor(covariance(x, x, parameters) + noise * np.eye(len(x)))
    across = covariance(places, x, parameters)
    mean = across @ cho_solve(factor, y)
    return mean, covariance(places, places, parameters) - across @ cho_solve(factor, across.T) + noise * np.eye(
        len(places)
    )


def fit(x, y):
    """Return the parameters of the largest marginal likelihood, the level of ``y`` taken off."""
    start = np.log([3.0, y.std(), 0.3 * y.std()])
    bounds = [(np.log(0.3), np.log(50.0)), (None, None), (np.log(0.01 * y.std()), None)]
    return optimize.minimize(negative_evidence, start, (x, y - y.mean()), method="L-BFGS-B", bounds=bounds).x


def judge(x, y, rng):
    """Return the p-values of both tests for one partition."""
    held = rng.permutation(len(x)) < HELD_OUT * len(x)
    level, parameters = y[~held].mean(), fit(x[~held], y[~held])
    mean, predictive = predict(parameters, x[~held], y[~held] - level, x[held])
    # Residuals of the joint distribution, independent and standard normal if the model is right.
    factor = np.linalg.cholesky(predictive)
    residuals = np.linalg.solve(factor, y[held] - level - mean)
    p_stein = stein.ksd_test(
        residuals, -residuals, thin=1, flip_probability=0.5, how="none", num_replicates=2000, rng=rng
    ).p_value
    # MMD between (x, y) and (x, y'), y' drawn from the model, against MMD of two such draws.
    replicates = level + mean + rng.standard_normal((2 * REPLICATES + 1, held.sum())) @ factor.T
    scale = np.array([x.std(), y.std()])

    def points(values):
        return np.column_stack([x[held], values]) / scale

    first = points(replicates[0])
    kernel = K.Gaussian("median").resolve(np.concatenate([points(y[held]), first]))
    observed = np.mean([stein.mmd_squared(points(y[held]), points(r), kernel) for r in replicates[1:51]])
    null = [
        np.mean([stein.mmd_squared(points(one), points(r), kernel) for r in replicates[1:51]])
        for one in replicates[51 : 51 + 200]
    ]
    p_mmd = (1 + np.sum(np.array(null) >= observed)) / (1 + len(null))
    return p_stein, p_mmd, parameters


def sunspots():
    """Return years and their numbers of sunspots."""
    data = statsmodels.datasets.sunspots.load_pandas().data
    return data["YEAR"].to_numpy(float), data["SUNACTIVITY"].to_numpy(float)


def picture():
    """Save the fitted process with what it has seen and what was held out."""
    years, numbers = sunspots()
    held = np.random.default_rng(3).permutation(len(years)) < HELD_OUT * len(years)
    level, places = numbers[~held].mean(), np.linspace(years[0], years[-1], 1500)
    parameters = fit(years[~held], numbers[~held])
    mean, predictive = predict(parameters, years[~held], numbers[~held] - level, places)
    width = 1.96 * np.sqrt(np.diag(predictive))
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.fill_between(places, level + mean - width, level + mean + width, alpha=0.3, label="95 % predictive interval")
    axis.plot(places, level + mean, linewidth=1, label="Gaussian process")
    axis.plot(years[~held], numbers[~held], "k.", markersize=3, label="fitted to")
    axis.plot(years[held], numbers[held], "C1o", markersize=4, label="held out")
    axis.set(xlabel="year", ylabel="sunspots")
    axis.legend(fontsize=8, ncols=4, loc="upper left")
    axis.set_ylim(top=1.25 * numbers.max())
    figure.savefig(harness.FIGURES / "model_criticism.png", dpi=90)


def main(partitions=30):
    """Run all, print and write the table, draw the picture."""
    picture()
    years, numbers = sunspots()
    rng = np.random.default_rng(3)
    found = {"sunspots": [], "drawn from the fitted process": []}
    for _ in range(partitions):
        *p_values, parameters = judge(years, numbers, rng)
        found["sunspots"].append(p_values)
        matrix = covariance(years, years, parameters) + np.exp(2 * parameters[2]) * np.eye(len(years))
        drawn = numbers.mean() + np.linalg.cholesky(matrix) @ rng.standard_normal(len(years))
        found["drawn from the fitted process"].append(judge(years, drawn, rng)[:2])
    rows = []
    for name, p_values in found.items():
        medians, rejected = np.median(p_values, axis=0), (np.array(p_values) < 0.05).mean(axis=0)
        rows.append([name, f"{medians[0]:.3f}", f"{rejected[0]:.2f}", f"{medians[1]:.3f}", f"{rejected[1]:.2f}"])
        print(*rows[-1], flush=True)
    TABLE.write(rows, f"{partitions} random partitions of {len(years)} years, a tenth held out.")


if __name__ == "__main__":
    harness.run(main)
