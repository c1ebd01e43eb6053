"""How fast the scores are fitted and evaluated, next to a straightforward NumPy version of the same formula.

The NumPy versions hold all pairwise differences in an array (n, m, d) and sum over it, as one would write the
formulas down first. Both run in the same process, in turn; medians of repeats.
"""

import numpy as np

from benchmarks import harness, measures
from benchmarks.trajectories import leapfrog
from pymc_kernel import kernels as K
from pymc_kernel import scores as S
from pymc_kernel.scores.expansion import rows_value_and_score

NUM_DIMS = 8
TABLE = harness.Table("scores", measures.SPEED_HEADER)
LENGTH_SCALE, REGULARIZATION = 3.0, 1e-3


def numpy_lite(x):
    """Return the coefficients of the lite estimator, uniform base measure, L2 penalty."""
    n, d = x.shape
    difference = x[:, None] - x
    gram = np.exp(-0.5 * (difference**2).sum(axis=2) / LENGTH_SCALE**2)
    gradients = -difference / LENGTH_SCALE**2 * gram[:, :, None]  # (point, basis, d)
    laplacians = gram * ((difference**2).sum(axis=2) / LENGTH_SCALE**4 - d / LENGTH_SCALE**2)
    curvature = np.einsum("ajk,aik->ji", gradients, gradients, optimize=True) / n
    return np.linalg.solve(curvature + REGULARIZATION * np.eye(n), -laplacians.mean(axis=0))


def numpy_score(point, x, coefficients):
    """Return the score at one point."""
    difference = point - x
    values = np.exp(-0.5 * (difference**2).sum(axis=1) / LENGTH_SCALE**2)
    return -(coefficients * values) @ difference / LENGTH_SCALE**2


def numpy_trajectory(q, p, step_size, num_steps, x, coefficients):
    """Return the end of a leapfrog trajectory."""
    q, p = q.copy(), p.copy()
    p += 0.5 * step_size * numpy_score(q, x, coefficients)
    for step in range(num_steps):
        q += step_size * p
        p += (1.0 if step < num_steps - 1 else 0.5) * step_size * numpy_score(q, x, coefficients)
    return q, p


def main():
    """Measure, print and write the table."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1000, NUM_DIMS))
    kernel = K.Gaussian(LENGTH_SCALE)
    lite = S.Lite(kernel, regularization=REGULARIZATION, base="uniform")
    fitted, coefficients = lite.fit(x), numpy_lite(x)
    assert np.allclose(fitted.score(x[:5]), [numpy_score(p, x, coefficients) for p in x[:5]], rtol=1e-3, atol=1e-3)
    points, momentum = rng.standard_normal((1000, NUM_DIMS)), rng.standard_normal(NUM_DIMS)
    ours, plain = fitted.expansion, (x, coefficients)
    time, row = measures.median_time, measures.speed_row
    values, scores = np.empty(len(points)), np.empty_like(points)
    at_point = time(lambda: rows_value_and_score(points, ours, 0, len(points), values, scores), 7) / len(points)
    plain_at_point = time(lambda: numpy_score(points[0], *plain), 200)
    along = time(lambda: leapfrog(points[0], momentum, 0.1, 20, ours), 200)
    plain_along = time(lambda: numpy_trajectory(points[0], momentum, 0.1, 20, *plain), 50)
    rows = [
        row("lite, fit, n = 1000, d = 8", time(lambda: lite.fit(x), 7), time(lambda: numpy_lite(x), 3), 0.15),
        row("its score at one point", at_point, plain_at_point, 15e-6),
        row("a trajectory of 20 steps", along, plain_along, 400e-6),
    ]
    nystrom = S.Nystrom(kernel, num_basis=100)
    for n in (2500, 5000, 10_000):
        sample = rng.standard_normal((n, NUM_DIMS))
        rows.append(row(f"Nystroem, fit, n = {n}, m = 100", time(lambda s=sample: nystrom.fit(s), 3)))
    print(TABLE.write(rows))


if __name__ == "__main__":
    harness.run(main)
