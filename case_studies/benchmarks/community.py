"""Posteriors from simulations alone, on four of the community's benchmarks with known answers.

The tasks of Lueckmann, Boelts, Greenberg, Goncalves and Macke, "Benchmarking simulation-based inference" (2021), whose
published figures stand in the table: two moons, a Gaussian of ten dimensions, a mixture of a wide and a narrow
Gaussian, and a simple likelihood with a complex posterior. Exact draws come from samplers of our own. The score is the
accuracy of a classifier that tells draws from exact ones (two hidden layers of 10 d units, five folds, inputs
standardised by the exact draws): 0.5 is perfect. Ten observations each; ours are drawn anew, from stated seeds.

Run: python -m case_studies.benchmarks.community [--observations 10] [--tasks two_moons ...] [--methods ...]
"""

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
import pymc as pm
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, cross_val_score
from sklearn.neural_network import MLPClassifier

import pymc_kernel as pk
from case_studies.benchmarks import measures

HERE = Path(__file__).parent
DRAWS = 10_000
BUDGETS = (1_000, 10_000)


# -- the tasks: a model with data, and exact draws of its posterior --------------------------------------


def two_moons(rng, theta, size):
    """Simulate a crescent, placed by theta."""
    angle, radius = rng.uniform(-np.pi / 2, np.pi / 2), rng.normal(0.1, 0.01)
    crescent = np.array([radius * np.cos(angle) + 0.25, radius * np.sin(angle)])
    return crescent + np.array([-abs(theta[0] + theta[1]), theta[1] - theta[0]]) / np.sqrt(2.0)


def two_moons_exact(seen, rng):
    """Invert the simulator: crescent, then one of two signs; the Jacobian is constant."""
    found = np.empty((0, 2))
    while len(found) < DRAWS:
        angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, 4 * DRAWS), rng.normal(0.1, 0.01, 4 * DRAWS)
        total = np.sqrt(2.0) * (radius * np.cos(angle) + 0.25 - seen[0])
        gap = np.sqrt(2.0) * (seen[1] - radius * np.sin(angle))
        signed = rng.choice([-1.0, 1.0], total.size) * total
        theta = 0.5 * np.stack([signed - gap, signed + gap], axis=1)
        found = np.concatenate([found, theta[(total > 0) & (np.abs(theta) < 1.0).all(axis=1)]])
    return found[:DRAWS]


def gaussian(rng, theta, size):
    """Simulate one observation of ten dimensions."""
    return rng.normal(theta, np.sqrt(0.1))


def gaussian_exact(seen, rng):
    """Draw from the conjugate posterior."""
    return rng.normal(0.5 * seen, np.sqrt(0.05), (DRAWS, seen.size))


def mixture(rng, theta, size):
    """Simulate from the wide Gaussian or from the narrow one."""
    return rng.normal(theta, rng.choice([1.0, 0.1]))


def mixture_exact(seen, rng):
    """Draw from the same mixture around the data, inside of the prior."""
    found = np.empty((0, 2))
    while len(found) < DRAWS:
        theta = seen + rng.choice([1.0, 0.1], (4 * DRAWS, 1)) * rng.standard_normal((4 * DRAWS, 2))
        found = np.concatenate([found, theta[(np.abs(theta) < 10.0).all(axis=1)]])
    return found[:DRAWS]


def simple_likelihood(rng, theta, size):
    """Simulate four points of a Gaussian whose mean and covariance are functions of theta."""
    first, second = theta[2] ** 2, theta[3] ** 2
    z = rng.standard_normal((4, 2))
    correlation = np.tanh(theta[4])
    other = correlation * z[:, 0] + np.sqrt(1.0 - correlation**2) * z[:, 1]
    return np.stack([theta[0] + first * z[:, 0], theta[1] + second * other], axis=1).ravel()


def simple_log_likelihood(theta, seen):
    """Return the log likelihood (n,) at theta (n, 5)."""
    first, second, correlation = theta[:, 2] ** 2 + 1e-300, theta[:, 3] ** 2 + 1e-300, np.tanh(theta[:, 4])
    points = seen.reshape(4, 2)
    a = (points[:, 0] - theta[:, :1]) / first[:, None]
    b = (points[:, 1] - theta[:, 1:2]) / second[:, None]
    left = 1.0 - correlation**2 + 1e-300
    quadratic = (a**2 - 2.0 * correlation[:, None] * a * b + b**2).sum(axis=1) / left
    return -0.5 * quadratic - 4.0 * (np.log(first) + np.log(second) + 0.5 * np.log(left))


def simple_exact(seen, rng, steps=1000):
    """Draw by importance resampling from the prior and a thousand Metropolis steps of every draw; signs at random."""
    start = rng.uniform(-3.0, 3.0, (1_000_000, 5))
    log_weights = simple_log_likelihood(start, seen)
    theta = start[rng.choice(len(start), DRAWS, p=np.exp(log_weights - logsumexp(log_weights)))]
    theta[:, 2:4] = np.abs(theta[:, 2:4])
    log_density, scale = simple_log_likelihood(theta, seen), 0.5
    for _ in range(steps):
        # Differences of two other draws: a walk that knows the posterior's shape (ter Braak 2006).
        one, other = rng.permutation(DRAWS), rng.permutation(DRAWS)
        proposal = theta + scale * (theta[one] - theta[other]) + 1e-4 * rng.standard_normal(theta.shape)
        proposed = np.where((np.abs(proposal) < 3.0).all(axis=1), simple_log_likelihood(proposal, seen), -np.inf)
        accepted = np.log(rng.random(DRAWS)) < proposed - log_density
        theta[accepted], log_density[accepted] = proposal[accepted], proposed[accepted]
        scale *= np.exp(0.05 * (accepted.mean() - 0.25))
    theta[:, 2:4] *= rng.choice([-1.0, 1.0], (DRAWS, 2))
    return theta


TASKS = {
    "two_moons": (two_moons, lambda: pm.Uniform("theta", -1, 1, shape=2), 2, two_moons_exact),
    "gaussian": (gaussian, lambda: pm.Normal("theta", 0, np.sqrt(0.1), shape=10), 10, gaussian_exact),
    "mixture": (mixture, lambda: pm.Uniform("theta", -10, 10, shape=2), 2, mixture_exact),
    "simple_likelihood": (simple_likelihood, lambda: pm.Uniform("theta", -3, 3, shape=5), 8, simple_exact),
}
PUBLISHED = {  # at 1,000 and 10,000 simulations: rejection ABC, SMC-ABC, neural posterior estimation
    "two_moons": ((0.960, 0.847), (0.922, 0.707), (0.725, 0.606)),
    "gaussian": ((0.913, 0.858), (0.922, 0.829), (0.694, 0.552)),
    "mixture": ((0.860, 0.781), (0.791, 0.722), (0.716, 0.615)),
    "simple_likelihood": ((0.982, 0.973), (0.982, 0.969), (0.975, 0.901)),
}


def make_model(task, seen):
    """Return the model of a task with one observation."""
    simulator, prior, _, _ = TASKS[task]
    with pm.Model() as model:
        pk.KernelABC("x", simulator, prior(), observed=seen, epsilon=1.0)
    return model


def accuracy(draws, exact, seed=1):
    """Return the cross-validated accuracy of a classifier between two samples (n, d)."""
    mean, spread = exact.mean(axis=0), exact.std(axis=0)
    points = np.concatenate([draws, exact])
    labels = np.repeat([0, 1], [len(draws), len(exact)])
    width = 10 * points.shape[1]
    # Training stops when a tenth that is held out no longer improves: no worse a classifier, in seconds for minutes.
    network = MLPClassifier((width, width), max_iter=1000, early_stopping=True, random_state=seed)
    folds = KFold(5, shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return cross_val_score(network, (points - mean) / spread, labels, cv=folds).mean()


METHODS = {
    "pk.sample_kbr": lambda sims, model: pk.sample_kbr(sims, draws=DRAWS, chains=1, model=model, random_seed=1),
    "pk.sample_abc": lambda sims, model: pk.sample_abc(
        sims, draws=DRAWS, quantile=100 / sims["prior"].sizes["draw"], model=model, random_seed=1
    ),
}


def run(task, observations, methods):
    """Yield method, budget, accuracies and the seconds of an average posterior."""
    _, _, width, exact = TASKS[task]
    truths = pk.simulate(observations, model=make_model(task, np.zeros(width)), random_seed=7, progressbar=False)
    data = truths["prior_predictive"]["x"].values[0]
    references = [exact(seen, np.random.default_rng([3, i])) for i, seen in enumerate(data)]
    for budget in BUDGETS:
        # One set of simulations serves all observations, as it may: they do not depend on the data.
        sims = pk.simulate(budget, model=make_model(task, data[0]), random_seed=11, progressbar=False)
        for name in methods:
            scores, seconds = [], []
            for seen, reference in zip(data, references, strict=True):
                start = time.perf_counter()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", UserWarning)  # few simulations nearby: that is the task
                    idata = METHODS[name](sims, make_model(task, seen))
                seconds.append(time.perf_counter() - start)
                scores.append(accuracy(idata["posterior"]["theta"].values[0], reference))
            yield name, budget, np.array(scores), np.mean(seconds)


def main():
    """Run all; write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, default=10)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    arguments = parser.parse_args()
    rows = []
    for task in arguments.tasks:
        for name, budget, scores, seconds in run(task, arguments.observations, arguments.methods):
            published = [f"{numbers[BUDGETS.index(budget)]:.3f}" for numbers in PUBLISHED[task]]
            error = scores.std(ddof=1) / np.sqrt(len(scores))
            rows.append([task, str(budget), name, f"{scores.mean():.3f} ({error:.3f})", f"{seconds:.1f}", *published])
            print(*rows[-1], flush=True)
    header = ["task", "simulations", "method", "accuracy", "s", "rejection ABC", "SMC-ABC", "neural posterior"]
    note = (
        f"{arguments.observations} observations, standard errors in brackets; the last three columns as published.\n\n"
    )
    keys = [(task, str(budget), name) for task in TASKS for budget in BUDGETS for name in METHODS]
    table = measures.merge_rows(HERE / "RESULTS.md", "community", header, rows, keys)
    measures.write_between(HERE / "RESULTS.md", "community", note + table)


if __name__ == "__main__":
    main()
