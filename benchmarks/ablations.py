"""Which mechanisms earn their lines: outcomes with and without each of them, on problems that a seed draws.

A part of the package is a function of its own in ``PARTS``. Each of its mechanisms is one patch: a name of a module,
and what stands in its place when the mechanism is off. With and without run on the same problems; a mechanism that does
not help by two standard errors of the difference in some row goes. Seeds below 1,000 are for development.

``stein``: exact draws from a distribution whose scores are known, the same draws with a fault, and how often a test of
all coordinates at 5 % rejects them. Families: correlated normals, tails on one side, Student t, scales that depend on
another coordinate (one for many, one for each, both), bananas, close mixtures. Faults: a tail cut off, a spread or a
place a little wrong, a dependence lost.
"""

import contextlib
from unittest import mock

import numpy as np

from benchmarks import harness
from pymc_kernel import stein

# -- Stein: draws to be judged ---------------------------------------------------------------------------


def _mixed(rng, draws, scores):
    """Return draws and scores after a random linear map that leaves coordinates recognizable."""
    d = draws.shape[1]
    matrix = np.diag(np.exp(rng.normal(size=d))) @ (np.eye(d) + rng.uniform(0.0, 0.5) * rng.normal(size=(d, d)) / d)
    return draws @ matrix.T, scores @ np.linalg.inv(matrix)


def _normal(rng, n):
    draws = rng.standard_normal((n, rng.integers(1, 9)))
    return _mixed(rng, draws, -draws)


def _skew(rng, n):
    """Return logarithms of gamma variables."""
    shapes, signs = rng.uniform(0.3, 4.0, size=rng.integers(1, 7)), rng.choice([-1.0, 1.0])
    gammas = np.maximum(rng.gamma(shapes, size=(n, len(shapes))), 1e-200)
    return _mixed(rng, signs * np.log(gammas), signs * (shapes - gammas))


def _heavy(rng, n):
    d, degrees = rng.integers(1, 7), rng.uniform(3.0, 10.0)
    draws = rng.standard_normal((n, d)) / np.sqrt(rng.chisquare(degrees, size=(n, 1)) / degrees)
    return _mixed(rng, draws, -(degrees + d) * draws / (degrees + (draws**2).sum(axis=1, keepdims=True)))


def _funnel(rng, n):
    """Return a log scale, a mean and effects around it with that scale."""
    spread, k = rng.uniform(0.3, 2.0), rng.integers(2, 9)
    log_scale, mean = spread * rng.standard_normal((n, 1)), rng.standard_normal((n, 1))
    unit = rng.standard_normal((n, k))
    pull = -unit / np.exp(log_scale)
    down = -log_scale / spread**2 + (unit**2 - 1.0).sum(axis=1, keepdims=True)
    draws = np.hstack([log_scale, mean, mean + np.exp(log_scale) * unit])
    return draws, np.hstack([down, -mean - pull.sum(axis=1, keepdims=True), pull])


def _horseshoe(rng, n):
    """Return coefficients with a log scale each, around a common one."""
    k, spread, common = rng.integers(1, 5), rng.uniform(0.3, 1.6), rng.uniform(0.0, 1.2)
    top = common * rng.standard_normal((n, 1))
    off, unit = spread * rng.standard_normal((n, k)), rng.standard_normal((n, k))
    logs = top + off
    down = -off / spread**2 + unit**2 - 1.0
    draws, scores = [logs, np.exp(logs) * unit], [down, -unit / np.exp(logs)]
    if common > 0.2:
        draws.append(top)
        scores.append((off / spread**2).sum(axis=1, keepdims=True) - top / common**2)
    return np.hstack(draws), np.hstack(scores)


def _banana(rng, n):
    bend, d = rng.uniform(0.1, 0.8), rng.integers(2, 6)
    unit = rng.standard_normal((n, d))
    draws, scores = unit.copy(), -unit
    draws[:, 1] += bend * (unit[:, 0] ** 2 - 1.0)
    scores[:, 0] -= 2.0 * bend * unit[:, 0] * scores[:, 1]
    return draws, scores


def _mixture(rng, n):
    d, weight = rng.integers(1, 6), rng.uniform(0.2, 0.8)
    apart = rng.uniform(1.0, 2.5) * np.eye(d)[0]
    draws = rng.standard_normal((n, d)) + np.where(rng.random((n, 1)) < weight, apart, -apart)
    upper = 1.0 / (1.0 + (1.0 / weight - 1.0) * np.exp(-2.0 * draws @ apart))[:, None]
    return _mixed(rng, draws, upper * apart - (1.0 - upper) * apart - draws)


FAMILIES = {f.__name__[1:]: f for f in (_normal, _skew, _heavy, _funnel, _horseshoe, _banana, _mixture)}


def _cut(rng, draws, scores):
    column, share = draws[:, rng.integers(draws.shape[1])], rng.uniform(0.03, 0.15)
    kept = column > np.quantile(column, share) if rng.random() < 0.5 else column < np.quantile(column, 1.0 - share)
    return draws[kept], scores[kept]


def stein_problem(family: str, seed: int):
    """Return exact draws and their scores, and the same with one fault."""
    rng = np.random.default_rng([seed, list(FAMILIES).index(family)])
    n = int(rng.integers(300, 1001))
    draws, scores = FAMILIES[family](rng, n)
    k, size = rng.integers(draws.shape[1]), rng.choice([-1.0, 1.0]) * rng.uniform(0.08, 0.2)
    kind = rng.integers(4 if draws.shape[1] > 1 else 3)
    if kind == 0:
        return (draws, scores), _cut(rng, draws, scores)
    moved, pulled = draws.copy(), scores.copy()
    if kind == 1:
        moved[:, k] += size * (draws[:, k] - draws[:, k].mean())
    elif kind == 2:
        moved[:, k] += 1.5 * size * draws[:, k].std()
    else:  # scores of these draws would be others; those of the old place are wrong in the same way
        rows = rng.permutation(n)[: int(rng.uniform(0.2, 0.6) * n)]
        moved[rows, k] = moved[np.roll(rows, 1), k]
    return (draws, scores), (moved, pulled)


#: Mechanism -> what stands in place of names of modules when it is off.
STEIN = {
    "straightening": {"draws.straighten": lambda draws, scores: (draws, scores)},
    "margins": {"draws.normal_margins": lambda draws, scores: (draws, scores)},
}


def stein_outcome(family, name, seed):
    """Return whether a test rejects the right draws and the wrong ones, with the mechanism and without it."""
    settings = {"thin": 1, "flip_probability": 0.5, "num_replicates": 200, "coordinates": True}
    right, wrong = stein_problem(family, seed)
    found = []
    for patches in ({}, STEIN[name]):
        with contextlib.ExitStack() as stack:
            for target, other in patches.items():
                stack.enter_context(mock.patch(f"pymc_kernel.stein.{target}", other))
            found.append([stein.ksd_test(*one, **settings).p_value <= 0.05 for one in (right, wrong)])
    return np.array(found, dtype=float)


def stein_rows(first, repetitions, jobs):
    """Yield rows: of wrong draws by family, how many are rejected; of right ones of all families, how many are."""
    for name in STEIN:
        all_found = []
        for family in FAMILIES:
            seeds = range(first, first + repetitions)
            found = np.array(list(harness.results(stein_outcome, [(family, name, s) for s in seeds], jobs)))
            all_found.append(found)
            yield _row(name, f"wrong draws, {family}", found[:, :, 1])
        yield _row(name, "right draws", np.concatenate(all_found)[:, :, 0])


def _row(name, problems, outcomes):
    """Return a row from outcomes (n, 2), with and without, of the same problems."""
    n, (on, off) = len(outcomes), outcomes.mean(axis=0)
    error = (outcomes[:, 0] - outcomes[:, 1]).std(ddof=1) / np.sqrt(n)
    return [name, problems, n, f"{on:.2f}", f"{off:.2f}", f"{on - off:+.2f}", f"{error:.2f}"]


#: Part of the package -> mechanisms, problems, and the function of first seed, repetitions and jobs that yields rows.
PARTS = {"stein": (STEIN, (*(f"wrong draws, {family}" for family in FAMILIES), "right draws"), stein_rows)}
TABLE = harness.Table(
    "ablations",
    ("mechanism", "problems", "n", "with", "without", "difference", "standard error"),
    [(name, problem) for names, problems, _ in PARTS.values() for name in names for problem in problems],
)


def main(parts=("stein",), first=1000, repetitions=40, jobs=2):
    """Print the rows of the parts, and write them to the table."""
    for part in parts:
        rows = []
        for row in PARTS[part][2](first, repetitions, jobs):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
        TABLE.write(rows)


if __name__ == "__main__":
    harness.run(main)
