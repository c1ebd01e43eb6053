"""What a draw costs beside the likelihood, what the import costs, and how long the first draw takes.

The likelihood of the model is an 8-dimensional normal density; its own time, measured in the same run, is taken off.
PyMC's mapping between points and vectors is outside of what is timed. The straightforward NumPy version evaluates the
same two proposal densities with the textbook formula.
"""

import subprocess
import sys
import time

import numpy as np
import pymc as pm
from pymc.blocking import DictToArrayBijection

import pymc_kernel as pk
from benchmarks import harness

NUM_DIMS = 8
HEADER = ("step", "n", "µs a draw", "µs a tuning draw", "plain NumPy, µs", "likelihood, µs")
TABLE = harness.Table("overhead", HEADER)


def model():
    """Return a cheap model of eight parameters."""
    with pm.Model() as made:
        pm.Normal("x", shape=NUM_DIMS)
    return made


def timed_step(make_step, tune, draws=4000, repeats=5):
    """Return microseconds a draw after tuning, and while tuning, without the likelihood: medians of repeats."""
    made = model()
    with made:
        step = make_step()
    step._now = ()
    q = DictToArrayBijection.map({v: made.initial_point()[v] for v in step.var_names})
    step.setup_chain(np.random.default_rng(1), 400, 0)
    for _ in range(400):  # compiled code is read from disk here
        q, _ = step.astep(q)
    step.setup_chain(np.random.default_rng(1), tune, draws)
    begun = time.perf_counter()
    for _ in range(tune):
        q, _ = step.astep(q)
    tuning = (time.perf_counter() - begun) / tune
    step.stop_tuning()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        for _ in range(draws):
            q, _ = step.astep(q)
        drawn = time.perf_counter()
        for _ in range(draws):
            step.density(q.data)
        taken.append((drawn - begun - (time.perf_counter() - drawn)) / draws)
    likelihood = (time.perf_counter() - drawn) / draws
    return 1e6 * np.median(taken), 1e6 * (tuning - likelihood), 1e6 * likelihood


def numpy_draw(num_points, repeats=200):
    """Return microseconds of both proposal densities in plain NumPy, n points in 8 dimensions."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(num_points, NUM_DIMS))

    def factor(x):
        difference = x - points
        weights = np.exp(-0.5 * (difference**2).sum(axis=1))
        columns = (-2.0 * weights[:, None] * difference).T
        centered = columns - columns.mean(axis=1, keepdims=True)
        return np.linalg.cholesky(0.04 * np.eye(NUM_DIMS) + centered @ centered.T)

    x = np.zeros(NUM_DIMS)
    begun = time.perf_counter()
    for _ in range(repeats):
        forward = factor(x)
        move = forward @ rng.standard_normal(NUM_DIMS)
        backward = factor(x + move)
        for f in (forward, backward):
            np.log(np.diag(f)).sum() - 0.5 * (np.linalg.solve(f, move) ** 2).sum()
    return 1e6 * (time.perf_counter() - begun) / repeats


def seconds_of(code):
    """Return the time that a fresh interpreter says the code took."""
    program = f"import time; t = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(run.stdout.split()[-1])


FIRST_DRAW = """
import numpy as np, pymc as pm, pymc_kernel as pk
with pm.Model() as model:
    pm.Normal("x", shape=8)
    step = pk.KAMH()
step.setup_chain(np.random.default_rng(0), 300, 10)
point = model.initial_point()
t = time.perf_counter()
for _ in range(300):
    point, _ = step.step(point)
"""


def main():
    """Measure all, print and write the tables."""
    after, tuning, likelihood = timed_step(pk.AdaptiveMetropolis, 4000)
    rows = [["pk.AdaptiveMetropolis", None, f"{after:.1f}", f"{tuning:.1f}", None, f"{likelihood:.1f}"]]
    for n in (250, 500, 1000, 2000, 4000):
        after, tuning, likelihood = timed_step(lambda n=n: pk.KAMH(num_basis=n), max(4000, 2 * n))
        rows.append(["pk.KAMH", n, f"{after:.1f}", f"{tuning:.1f}", f"{numpy_draw(n):.0f}", f"{likelihood:.1f}"])
    codes = "import pymc", "import pymc, pymc_kernel", FIRST_DRAW
    alone, both, first = np.array([[seconds_of(code) for code in codes] for _ in range(5)]).T
    below = (
        f"`import pymc_kernel` adds {np.median(both - alone):.2f} s to the {np.median(alone):.1f} s of `import pymc` "
        f"(median of five pairs); the first 300 draws of KAMH in a fresh process, compiled code on disk, take "
        f"{np.median(first):.2f} s."
    )
    print(TABLE.write(rows, "8 dimensions; the time of the likelihood is taken off.", below))


if __name__ == "__main__":
    harness.run(main)
