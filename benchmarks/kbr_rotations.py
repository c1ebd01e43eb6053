"""Which way does a camera look? Kernel Bayes filters on rotations in three dimensions.

A camera turns on the spot in a room with colored walls and lights, by a constant rotation and noise at each step; its
20 x 20 pixels of three colors carry noise (Fukumizu, Song and Gretton 2013, section 5.3, table 1, whose movie is not
available). The state is a rotation S. The filters learn from 1,800 frames and follow 600 others. "Gaussian": S as nine
numbers. "Trace": the kernel tr(A'B), and the estimate is the rotation nearest to the mean. The Kalman filters learn
linear relations, of the nine numbers or of the quaternion, by least squares; how far the covariance of the residuals is
shrunk, and which of two quaternions stands for a rotation, is chosen on the end of the training sequence.
"""

import itertools
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.transform import Rotation
from sklearn.linear_model import RidgeCV

from benchmarks import harness, measures
from pymc_kernel import kernels
from pymc_kernel.embeddings import KernelBayesFilter

NUM_TRAINING, NUM_TEST = 1800, 600
VARIANCES = (1e-4, 1e-3)  # of a pixel
TURN, TURN_NOISE = np.array([0.12, 0.05, 0.03]), 0.08  # radians a step
NUM_PIXELS, HALF_WIDTH, NUM_LIGHTS = 20, 1.0, 30  # along each side; tangent of half the angle of view

METHODS = {
    "original, Gaussian": ("original", None),
    "original, trace": ("original", kernels.Linear()),
    "importance, Gaussian": ("importance", None),
    "importance, trace": ("importance", kernels.Linear()),
}


def frames(rotations):
    """Return the images (n, 1200) without noise that a camera sees in the directions of rotations (n, 3, 3)."""
    room = np.random.default_rng(20130101)  # the same room in every run
    walls = room.uniform(0.1, 0.6, (6, 3))
    places = room.standard_normal((NUM_LIGHTS, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    colors, sizes = room.uniform(0.0, 0.8, (NUM_LIGHTS, 3)), room.uniform(0.1, 0.3, NUM_LIGHTS)
    axis = np.linspace(-HALF_WIDTH, HALF_WIDTH, NUM_PIXELS)
    across, up = np.meshgrid(axis, axis)
    rays = np.stack([across, up, np.ones_like(across)], axis=-1).reshape(-1, 3)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    images = np.empty((len(rotations), len(rays) * 3))
    for t, rotation in enumerate(rotations):
        seen = rays @ rotation.T
        wall = np.abs(seen).argmax(axis=1)
        wall += 3 * (np.take_along_axis(seen, wall[:, None], axis=1)[:, 0] > 0.0)
        lights = np.exp((seen @ places.T - 1.0) / sizes**2) @ colors
        images[t] = (walls[wall] + lights).clip(0.0, 1.0).ravel()
    return images


def sequence(length, rng):
    """Return rotations (length, 3, 3) of a camera that keeps turning."""
    steps = Rotation.from_rotvec(TURN + TURN_NOISE * rng.standard_normal((length, 3)))
    turned, out = Rotation.random(rng=rng), np.empty((length, 3, 3))
    for t, step in enumerate(steps):
        turned = turned * step
        out[t] = turned.as_matrix()
    return out


def nearest_rotations(matrices):
    """Return the rotations (n, 3, 3) with the largest trace products with matrices (n, 3, 3)."""
    left, _, right = np.linalg.svd(matrices)
    left[:, :, -1] *= np.linalg.det(left @ right)[:, None]
    return left @ right


def error(estimates, truth):
    """Return the mean squared Frobenius distance."""
    return float(((estimates - truth) ** 2).sum(axis=(1, 2)).mean())


def least_squares(x, y):
    """Return coefficients with an intercept, and the residuals."""
    design = np.column_stack([np.ones(len(x)), x])
    coefficients = np.linalg.lstsq(design, y)[0]
    return coefficients, y - design @ coefficients


class Kalman(NamedTuple):
    """A linear state-space model learned by least squares."""

    forward: np.ndarray  # (1 + d, d)
    process: np.ndarray  # (d, d) covariance of a step
    image: np.ndarray  # (1 + d, q)
    weighted: np.ndarray  # (d, q): the image's coefficients over the covariance of its residuals
    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def learned(cls, states, images, shrinkage):
        """Learn from states (T, d) and images (T, q); the residuals' covariance is shrunk to a multiple of I."""
        forward, noise = least_squares(states[:-1], states[1:])
        image, off = least_squares(states, images)
        residual = (1.0 - shrinkage) * np.cov(off.T) + shrinkage * off.var(axis=0).mean() * np.eye(off.shape[1])
        weighted = cho_solve(cho_factor(residual), image[1:].T).T
        return cls(forward, np.cov(noise.T), image, weighted, states.mean(axis=0), np.cov(states.T))

    def filter(self, images):
        """Return the means (S, d) of the states given the images up to each time."""
        information = self.weighted @ self.image[1:].T
        mean, covariance, out = self.mean, self.covariance, []
        for seen in images:
            mean = self.forward[0] + self.forward[1:].T @ mean
            covariance = np.linalg.inv(self.forward[1:].T @ covariance @ self.forward[1:] + self.process)
            covariance = np.linalg.inv(covariance + information)
            mean = mean + covariance @ (self.weighted @ (seen - self.image[0] - mean @ self.image[1:]))
            out.append(mean)
        return np.array(out)


def quaternions(rotations, continuous):
    """Return unit quaternions (n, 4): signs that do not jump from one to the next, or a positive last part."""
    found = Rotation.from_matrix(rotations).as_quat(canonical=not continuous)
    if continuous:
        signs = np.cumprod(np.where((found[1:] * found[:-1]).sum(axis=1) < 0.0, -1.0, 1.0))
        found[1:] *= signs[:, None]
    return found


def as_nine(rotations):
    """Return rotations (n, 3, 3) as they are, (n, 9)."""
    return rotations.reshape(-1, 9)


def from_nine(vectors):
    """Return matrices (n, 3, 3), which need not be rotations."""
    return vectors.reshape(-1, 3, 3)


def from_quaternions(vectors):
    """Return rotations (n, 3, 3)."""
    return Rotation.from_quat(vectors).as_matrix()


RIVALS = {  # ways to write a rotation, and the way back; of several the best on the end of the training sequence
    "Kalman, 9 numbers": ((as_nine,), from_nine),
    "Kalman, quaternion": (
        (partial(quaternions, continuous=True), partial(quaternions, continuous=False)),
        from_quaternions,
    ),
}
SHRINKAGES = (1e-3, 1e-2, 0.1, 0.5)
NUM_VALIDATION = 200


def rival_error(name, states, images, truth, observed):
    """Return the error of a Kalman filter with the settings that are best on the end of the training sequence."""
    ways, back = RIVALS[name]

    def tried(way, shrinkage, first, last):
        learned = Kalman.learned(way(states[first]), images[first], shrinkage)
        return error(back(learned.filter(last[1])), last[0])

    head, tail = slice(0, -NUM_VALIDATION), slice(-NUM_VALIDATION, None)
    choices = itertools.product(ways, SHRINKAGES)
    best = min(choices, key=lambda choice: tried(*choice, head, (states[tail], images[tail])))
    return tried(*best, slice(None), (truth, observed))


def ridge_error(states, images, truth, observed):
    """Return the error of the linear regression of a state on its image; leave-one-out chooses the strength."""
    fitted = RidgeCV(np.logspace(0, 5, 11)).fit(images, as_nine(states))
    return error(from_nine(fitted.predict(observed)), truth)


RIDGE = "ridge regression, no filter"
HEADER = ("variance of a pixel", *METHODS, *RIVALS, RIDGE, "mean of the training states")
TABLE = harness.Table("kbr-rotations", HEADER, [(f"{v:g}",) for v in VARIANCES])


def one_run(variance, seed):
    """Return the errors of all filters."""
    rng = np.random.default_rng([seed, 23])
    states = sequence(NUM_TRAINING + NUM_TEST, rng)
    images = frames(states)
    images += np.sqrt(float(variance)) * rng.standard_normal(images.shape)
    train, test = slice(0, NUM_TRAINING), slice(NUM_TRAINING, None)
    flat, truth, found = as_nine(states), states[test], {}
    for name, (method, kernel) in METHODS.items():
        learned = KernelBayesFilter(method, state_kernel=kernel).fit(flat[train], images[train], rng=0)
        means = from_nine(learned.filter(images[test]).mean())
        found[name] = error(means if kernel is None else nearest_rotations(means), truth)
    for name in RIVALS:
        found[name] = rival_error(name, states[train], images[train], truth, images[test])
    found[RIDGE] = ridge_error(states[train], images[train], truth, images[test])
    found[HEADER[-1]] = error(np.broadcast_to(states[train].mean(axis=0), truth.shape), truth)
    return found


def cells(runs):
    """Return what stands behind the variance of a pixel."""
    return [measures.with_error([run[name] for run in runs]) for name in HEADER[1:]]


def main(runs=10, jobs=2):
    note = f"{runs} runs; mean squared Frobenius distance to the true rotation, its standard error in brackets."
    TABLE.fill(one_run, cells, runs, note, jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
