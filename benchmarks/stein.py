"""How fast Stein discrepancies, their tests and Stein thinning are, next to plain NumPy in the same process.

The NumPy versions hold the arrays that the formulas suggest: all differences (n, n, d) in blocks of 500 rows, the
whole kernel for the bootstrap, one row of the kernel a step for thinning. Rows "by cdist" compare with the quick way
with SciPy: squared distances by ``cdist``, all else by products of matrices, in the same blocks. Rows "on one core"
are on one, with the statistic for both ways. Medians of repeats.
"""

import contextlib
import os
import resource

import numpy as np
import pymc as pm
import xarray as xr
from scipy.spatial.distance import cdist

import pymc_kernel as pk
from benchmarks import harness, measures
from pymc_kernel import stein
from pymc_kernel.plugin.model.log_density import compile_scores

NUM_DIMS = 10
TABLE = harness.Table("stein", measures.SPEED_HEADER)


def numpy_rows(x, s, rows):
    """Return the Stein kernel of the inverse multiquadric, length scale one, for some rows."""
    difference = x[rows, None] - x
    value = 1.0 / np.sqrt(1.0 + (difference**2).sum(axis=2))
    slope, curvature = -0.5 * value**3, 0.75 * value**5
    across = ((s - s[rows, None]) * difference).sum(axis=2)
    squared = (difference**2).sum(axis=2)
    return value * (s[rows] @ s.T) + 2.0 * slope * (across - x.shape[1]) - 4.0 * curvature * squared


def numpy_ksd(x, s):
    """Return the squared discrepancy."""
    return sum(numpy_rows(x, s, slice(a, a + 500)).sum() for a in range(0, len(x), 500)) / len(x) ** 2


def cdist_ksd(x, s):
    """Return the squared discrepancy by products of matrices: sum (b - a) (x - y) = b x - b y - a x + a y."""
    d, own, total = x.shape[1], (x * s).sum(axis=1), 0.0
    for start in range(0, len(x), 500):
        rows = slice(start, start + 500)
        squared = cdist(x[rows], x, "sqeuclidean")
        value = 1.0 / np.sqrt(1.0 + squared)
        across = x[rows] @ s.T + s[rows] @ x.T - own - own[rows, None] - d
        third = value**3
        total += (value * (s[rows] @ s.T) - third * across - 3.0 * third * value**2 * squared).sum()
    return total / len(x) ** 2


@contextlib.contextmanager
def one_core():
    """Have all that this process does done by one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def numpy_bootstrap(x, s, signs):
    """Return the quadratic forms of the sign vectors."""
    matrix = np.concatenate([numpy_rows(x, s, slice(a, a + 500)) for a in range(0, len(x), 500)])
    return (signs * (matrix @ signs)).sum(axis=0)


def numpy_thin(x, s, num_points):
    """Return the indices of Stein thinning."""
    objective = 0.5 * ((s**2).sum(axis=1) + x.shape[1])
    chosen = []
    for _ in range(num_points):
        chosen.append(int(np.argmin(objective)))
        objective = objective + numpy_rows(x, s, slice(chosen[-1], chosen[-1] + 1))[0]
    return chosen


def one_core_rows(rng):
    """Return rows on the discrepancy of 5,000 draws on one core, of several dimensions and kernels."""
    time, row, rows = measures.median_time, measures.speed_row, []
    kernels = pk.kernels.Gaussian(2.0), pk.kernels.Matern52(2.0), pk.kernels.RationalQuadratic(2.0, alpha=0.7)
    with one_core():
        for d, wanted in ((2, 0.0065), (10, 0.012), (50, None)):
            x = rng.standard_normal((5000, d))
            assert abs(stein.ksd_squared(x, -x, how="none") / cdist_ksd(x, -x) - 1.0) < 1e-9
            ours = time(lambda x=x: stein.ksd_squared(x, -x, how="none"), 15)
            rows.append(
                row(f"KSD, d = {d}, on one core, by cdist", ours, time(lambda x=x: cdist_ksd(x, -x), 3), wanted)
            )
        x = rng.standard_normal((5000, NUM_DIMS))
        for kernel in kernels:
            taken = time(lambda kernel=kernel: stein.ksd_squared(x, -x, kernel, how="none"), 7)
            rows.append(row(f"KSD, {type(kernel).__name__}, d = 10, on one core", taken, None, 0.018))
    return rows


def summary_rows():
    """Return rows on scores and the summary of 4,000 draws of a model with 20 parameters."""
    rng = np.random.default_rng(1)
    covariates = rng.standard_normal((200, 18))
    with pm.Model() as model:
        spread = pm.HalfNormal("spread")
        weights = pm.Normal("weights", 0.0, spread, shape=18)
        level = pm.Normal("level")
        pm.Bernoulli("y", logit_p=level + covariates @ weights, observed=rng.integers(0, 2, 200))
    draws = {
        "spread": rng.gamma(4.0, 0.1, (4, 1000)),
        "weights": 0.3 * rng.standard_normal((4, 1000, 18)),
        "level": 0.3 * rng.standard_normal((4, 1000)),
    }
    arrays = {n: xr.DataArray(v, dims=["chain", "draw", "weight"][: v.ndim]) for n, v in draws.items()}
    tree = xr.DataTree.from_dict({"posterior": xr.Dataset(arrays)})
    scores = compile_scores(model)
    values = [np.log(draws["spread"]).ravel(), draws["weights"].reshape(-1, 18), draws["level"].ravel()]
    first = measures.timed(lambda: pk.summary(tree, model=model))[1]
    row, again = measures.speed_row, measures.median_time(lambda: pk.summary(tree, model=model), 3)
    return [
        row("scores of 4,000 draws, 20 parameters", measures.median_time(lambda: scores(values), 10), None, 0.1),
        row("pk.summary of them", again, None, 0.7),
        row("pk.summary, first call in a process", first, None, 1.5),
    ]


def discrepancy_rows(rng):
    """Return rows on the discrepancy and its bootstrap."""
    time, row = measures.median_time, measures.speed_row
    x = rng.standard_normal((5000, NUM_DIMS))
    s = -x + 0.1 * rng.standard_normal(x.shape)
    assert abs(stein.ksd_squared(x, s, how="none") / numpy_ksd(x, s) - 1.0) < 1e-10
    signs = stein.goodness_of_fit.sign_processes(rng, (5000,), 1000, 0.5)
    forms, prepared = stein.goodness_of_fit.quadratic_forms, stein.tiles.prepare(x, s, stein.default_kernel())
    ours = time(lambda: stein.ksd_squared(x, s, how="none"), 15), time(lambda: forms(prepared, signs), 5)
    plain = time(lambda: numpy_ksd(x, s), 3), time(lambda: numpy_bootstrap(x, s, signs.astype(float)), 2)
    names = "KSD, n = 5,000, d = 10", "wild bootstrap, n = 5,000, 1,000 replicates"
    rows = [row(*cells) for cells in zip(names, ours, plain, (0.012, 0.5), strict=True)]
    for n, d in ((2500, 10), (10_000, 10), (20_000, 10), (5000, 2), (5000, 50)):
        y = rng.standard_normal((n, d))
        rows.append(row(f"KSD, n = {n:,}, d = {d}", time(lambda y=y: stein.ksd_squared(y, -y, how="none"), 5)))
    for replicates in (100, 3000):
        w = stein.goodness_of_fit.sign_processes(rng, (5000,), replicates, 0.5)
        taken = time(lambda w=w: forms(prepared, w), 3)
        rows.append(row(f"wild bootstrap, n = 5,000, {replicates:,} replicates", taken))
    return rows


def main():
    """Measure, print and write the table."""
    rng = np.random.default_rng(0)
    time, row, thin = measures.median_time, measures.speed_row, stein.stein_thin
    rows = discrepancy_rows(rng)
    small, large = rng.standard_normal((10_000, NUM_DIMS)), rng.standard_normal((100_000, NUM_DIMS))
    assert thin(small, -small, 100, how="none").tolist() == numpy_thin(small, -small, 100)
    ours, plain = time(lambda: thin(small, -small, 100, how="none"), 9), time(lambda: numpy_thin(small, -small, 100), 3)
    rows += one_core_rows(rng)
    rows.append(row("Stein thinning, 10,000 to 100", ours, plain, 0.006))
    rows.append(row("Stein thinning, 100,000 to 1,000", time(lambda: thin(large, -large, 1000), 2), None, 0.8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows.append(row("KSD, n = 100,000, d = 10", measures.timed(stein.ksd_squared, large, -large)[1], None, 6.0))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    below = f"The peak of memory grew by {grown:.0f} MB during the KSD of 100,000 draws."
    print(TABLE.write(rows + summary_rows(), below=below))


if __name__ == "__main__":
    harness.run(main)
