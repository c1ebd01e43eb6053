"""The banana that tests of invariance draw from, and whether points are draws of it."""

from scipy import stats

from benchmarks.targets import banana

BANANA = banana(0.1, 25.0, num_dims=2)


def worst_p_value(points):
    """Return the smallest p-value of three tests of points (n, 2): level, first coordinate, second one unbent."""
    straight = points[:, 1] - 0.1 * (points[:, 0] ** 2 - 25.0)
    return min(
        stats.kstest(BANANA.level(points), stats.chi2(2).cdf).pvalue,
        stats.kstest(points[:, 0], stats.norm(0, 5.0).cdf).pvalue,
        stats.kstest(straight, stats.norm().cdf).pvalue,
    )
