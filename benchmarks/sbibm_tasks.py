"""Ten tasks of the community's benchmark for simulators, with its observations and reference posteriors.

J.-M. Lueckmann, J. Boelts, D. Greenberg, P. Goncalves and J. Macke, "Benchmarking simulation-based inference" (2021);
package ``sbibm`` 1.1 (MIT), whose files hold ten observations a task and 10,000 reference draws of each posterior.
Simulators are written anew here, in NumPy and Numba, for all parameters at once. Two tasks hide the data of another
one: among 92 numbers that say nothing, and in a hundred spikes whose sufficient statistics nobody gives.
"""

import bz2
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numba as nb
import numpy as np
import pymc as pm

from benchmarks.posteriors import black_boxes

CACHE = Path(__file__).parents[1] / "build" / "sbibm"
NUM_NOISE = 92  # distractors among a hundred numbers
POPULATION = 1e6  # people in the epidemic
STEPS_A_DAY = 10  # of the Runge-Kutta solvers


class Task(NamedTuple):
    """A simulator with its prior."""

    simulate: Callable
    """(rng, parameters (n, d)) -> data (n, q)."""
    prior: Callable
    """Makes the PyMC variable ``theta`` in the model in context."""
    published: str
    """Name in the package."""
    observed: str = "observation.csv"
    """File of an observation."""


def two_moons(rng, theta):
    """Simulate points on a crescent that the parameters shift, two ways."""
    angle, radius = rng.uniform(-np.pi / 2, np.pi / 2, len(theta)), rng.normal(0.1, 0.01, len(theta))
    crescent = np.stack([radius * np.cos(angle) + 0.25, radius * np.sin(angle)], axis=1)
    return crescent + np.stack([-np.abs(theta.sum(axis=1)), theta[:, 1] - theta[:, 0]], axis=1) / np.sqrt(2.0)


def gaussian_linear(rng, theta):
    """Simulate one observation of ten dimensions."""
    return rng.normal(theta, np.sqrt(0.1))


def gaussian_mixture(rng, theta):
    """Simulate from a wide Gaussian or from a narrow one."""
    return theta + rng.choice([1.0, 0.1], (len(theta), 1)) * rng.standard_normal(theta.shape)


def slcp(rng, theta):
    """Simulate four points of a Gaussian whose mean and covariance are functions of the parameters."""
    first, second = theta[:, 2, None] ** 2, theta[:, 3, None] ** 2
    correlation = np.tanh(theta[:, 4, None])
    z = rng.standard_normal((len(theta), 4, 2))
    along = np.sqrt(first**2 + 1e-6)  # covariance [[s1^2 + 1e-6, r s1 s2], [., s2^2 + 1e-6]]
    across = correlation * first * second / along
    rest = np.sqrt(second**2 + 1e-6 - across**2)
    points = np.stack([theta[:, :1] + along * z[..., 0], theta[:, 1:2] + across * z[..., 0] + rest * z[..., 1]], axis=2)
    return points.reshape(len(theta), 8)


@cache
def _noise():
    """Return centers (20, 92) and scales (20, 92, 92) of the mixture that distractors are from, as published."""
    rng = np.random.RandomState(42)
    centers = np.array([15.0 * rng.normal(size=NUM_NOISE) for _ in range(20)])
    spread = [np.tril(rng.normal(size=(NUM_NOISE,) * 2)) + np.diag(np.exp(rng.normal(size=NUM_NOISE))) for _ in centers]
    return centers, 3.0 * np.array(spread)


@cache
def _order():
    """Return which of data and distractors (100,) stands where: the numbers with which a file of the package ends."""
    with _files() as wheel:
        return np.frombuffer(wheel.read("sbibm/tasks/slcp/files/permutation_idx.torch")[-8 * (8 + NUM_NOISE) :], "<i8")


def slcp_distractors(rng, theta):
    """Simulate four points among numbers from a mixture of Student's distributions with two degrees of freedom."""
    centers, scales = _noise()
    component = rng.integers(len(centers), size=len(theta))
    radius = np.sqrt(2.0 / rng.chisquare(2.0, len(theta)))[:, None]
    z = rng.standard_normal((len(theta), NUM_NOISE))
    noise = centers[component] + radius * np.array([scales[c] @ one for c, one in zip(component, z, strict=True)])
    return np.concatenate([slcp(rng, theta), noise], axis=1)[:, _order()]


@nb.njit(cache=True)
def _epidemic(theta, times, steps_a_day):
    """Return the infected (n, len(times)) of a town with one ill person, by Runge and Kutta."""
    out = np.empty((len(theta), len(times)))
    size = 1.0 / steps_a_day
    slope = np.empty((4, 2))
    for i in range(len(theta)):
        contact, recovery = theta[i]
        well, ill, day = POPULATION - 1.0, 1.0, 0.0
        for t in range(len(times)):
            while day < times[t] - 0.5 * size:
                s, x = well, ill
                for k in range(4):
                    caught = contact * s * x / POPULATION
                    slope[k, 0], slope[k, 1] = -caught, caught - recovery * x
                    ahead = size if k == 2 else 0.5 * size
                    s, x = well + ahead * slope[k, 0], ill + ahead * slope[k, 1]
                well += size / 6.0 * (slope[0, 0] + 2.0 * slope[1, 0] + 2.0 * slope[2, 0] + slope[3, 0])
                ill += size / 6.0 * (slope[0, 1] + 2.0 * slope[1, 1] + 2.0 * slope[2, 1] + slope[3, 1])
                day += size
            out[i, t] = ill
    return out


def sir(rng, theta):
    """Simulate how many of a thousand people tested are ill, on ten days of an epidemic."""
    ill = _epidemic(theta, np.arange(0.0, 154.0, 17.0), STEPS_A_DAY)
    return rng.binomial(1000, np.clip(ill / POPULATION, 0.0, 1.0)).astype(float)


def lotka_volterra(rng, theta):
    """Simulate counts of prey, then of predators, with log-normal errors of a tenth."""
    times, start = np.arange(0.0, 20.0, 2.1), np.array([30.0, 1.0])
    logs = np.array([black_boxes.lotka_volterra(rates, start, times, 10 * STEPS_A_DAY).T for rates in theta])
    means = np.exp(logs).reshape(len(theta), 20)
    return means * np.exp(0.1 * rng.standard_normal(means.shape))


def _glm():
    """Return the design (100, 10) of the generalized linear model and the Cholesky factor of its prior."""
    stimulus = np.random.RandomState(42).randn(100).astype(np.float32)
    design = np.zeros((100, 10))
    design[:, 0] = 1.0
    for lag in range(9):
        design[lag:, 1 + lag] = stimulus[: 100 - lag]
    rough = np.diag(np.ones(9)) - np.diag(np.ones(8), -1)
    smooth = rough @ rough + np.diag(np.sqrt(np.arange(9) / 9.0))
    precision = np.zeros((10, 10))
    precision[0, 0] = 0.5
    precision[1:, 1:] = smooth.T @ smooth
    return design, np.linalg.cholesky(np.linalg.inv(precision))


DESIGN, GLM_FACTOR = _glm()


def bernoulli_glm_raw(rng, theta):
    """Simulate a hundred spikes or none."""
    return (rng.random((len(theta), 100)) < 1.0 / (1.0 + np.exp(-theta @ DESIGN.T))).astype(float)


def bernoulli_glm(rng, theta):
    """Simulate a hundred spikes or none; the data are their sufficient statistics."""
    return bernoulli_glm_raw(rng, theta) @ DESIGN


def _slcp_prior():
    return pm.Uniform("theta", -3, 3, shape=5)


def _glm_prior():
    return pm.MvNormal("theta", np.zeros(10), chol=GLM_FACTOR, shape=10)


LOTKA = (np.array([-0.125, -3.0, -0.125, -3.0]), 0.5)
SIR = (np.log([0.4, 0.125]), np.array([0.5, 0.2]))
TASKS = {
    "two_moons": Task(two_moons, lambda: pm.Uniform("theta", -1, 1, shape=2), "two_moons"),
    "mixture": Task(gaussian_mixture, lambda: pm.Uniform("theta", -10, 10, shape=2), "gaussian_mixture"),
    "epidemic": Task(sir, lambda: pm.LogNormal("theta", *SIR, shape=2), "sir"),
    "Lotka-Volterra": Task(lotka_volterra, lambda: pm.LogNormal("theta", *LOTKA, shape=4), "lotka_volterra"),
    "simple likelihood": Task(slcp, _slcp_prior, "slcp"),
    "linear": Task(gaussian_linear, lambda: pm.Normal("theta", 0, np.sqrt(0.1), shape=10), "gaussian_linear"),
    "linear, uniform prior": Task(
        gaussian_linear, lambda: pm.Uniform("theta", -1, 1, shape=10), "gaussian_linear_uniform"
    ),
    "logistic GLM": Task(bernoulli_glm, _glm_prior, "bernoulli_glm"),
    "simple likelihood, distractors": Task(slcp_distractors, _slcp_prior, "slcp", "observation_distractors.csv"),
    "logistic GLM, raw": Task(bernoulli_glm_raw, _glm_prior, "bernoulli_glm", "observation_raw.csv"),
}

#: Tasks whose data are not hidden among others.
PLAIN = tuple(name for name, task in TASKS.items() if task.observed == Task._field_defaults["observed"])


def _files() -> zipfile.ZipFile:
    """Return the package's wheel, fetched by pip the first time and never installed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    if not list(CACHE.glob("sbibm-1.1.0*.whl")):
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(CACHE), "sbibm==1.1.0"]
        subprocess.run(fetch, check=True)
    return zipfile.ZipFile(next(CACHE.glob("sbibm-1.1.0*.whl")))


def _table(task, number, name):
    with _files() as wheel:
        data = wheel.read(f"sbibm/tasks/{TASKS[task].published}/files/num_observation_{number}/{name}")
    text = (bz2.decompress(data) if name.endswith("bz2") else data).decode()
    return np.loadtxt(text.splitlines(), delimiter=",", skiprows=1, ndmin=2)


def observation(task: str, number: int) -> np.ndarray:
    """Return the published observation (q,), ``number`` from 1 to 10."""
    return np.ravel(_table(task, number, TASKS[task].observed))


def reference(task: str, number: int) -> np.ndarray:
    """Return the published draws (10,000, d) of its posterior."""
    kept = CACHE / f"{TASKS[task].published}_{number}.npy"
    if not kept.exists():
        np.save(kept, _table(task, number, "reference_posterior_samples.csv.bz2"))
    return np.load(kept)


def make_model(task: str, observed: np.ndarray) -> pm.Model:
    """Return the model of a task with one observation."""
    simulate = TASKS[task].simulate

    def one(theta, places, rng=None, size=None):
        return simulate(rng, np.asarray(theta, dtype=float)[None])[0]

    with pm.Model() as model:
        theta = TASKS[task].prior()
        pm.CustomDist("x", theta, np.arange(observed.size), random=one, signature="(d),(q)->(q)", observed=observed)
    return model
