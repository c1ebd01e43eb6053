"""Kernel Bayes filter against filters that know the dynamics.

A state moves around a circle, with a radius that is constant ("rotation") or waves eight times a turn
("oscillatory"), and is seen with noise (Fukumizu, Song and Gretton 2013, section 5.3; Xu et al. 2022, section 6.2).
The kernel filters learn motion and noise from a training sequence of length T; the extended and unscented Kalman
filters and the particle filter are given both. Then images: a camera that turns, and a sprite that moves.

A camera turns on the spot before a panorama of colored lights, 12 x 16 pixels in three colors; the state is its
direction on the circle. A sprite, a soft square that turns with its place, moves with the oscillatory motion, 16 x 16
pixels. Pixels carry noise of variance 0.01. A network learns features of the images; without it the filter compares
pixels. The state's own noise in the image is that of the sources: 0.2 and 0.05. A recurrent network that predicts a
state from eleven images is the rival.
"""

from functools import partial

import numpy as np

import pymc_kernel as pk
from benchmarks import harness, measures
from benchmarks.lstm import LSTM
from pymc_kernel import kernels
from pymc_kernel.embeddings import KernelBayesFilter, KernelBayesRule

MOTIONS = {"rotation": (0.3, 0.0, 1), "oscillatory": (0.4, 0.4, 8)}  # angle a step, amplitude and number of waves
NOISE = 0.2
LENGTHS, TEST = (200, 400, 600, 800), 200
NUM_PARTICLES = 2000


def moved(state, motion):
    """Return states (..., 2) one step later, without noise: equation 5 of Xu et al."""
    step, amplitude, waves = MOTIONS[motion]
    angle = np.arctan2(state[..., 1], state[..., 0])
    radius = 1.0 + amplitude * np.sin(waves * angle)
    return radius[..., None] * np.stack([np.cos(angle + step), np.sin(angle + step)], axis=-1)


def rotating(motion, length, rng, noise=NOISE):
    """Return states (length, 2) and observations (length, 2)."""
    angle = rng.uniform(0.0, 2.0 * np.pi)
    state, states = np.array([np.cos(angle), np.sin(angle)]), np.empty((length, 2))
    for t in range(length):
        state = moved(state, motion) + NOISE * rng.standard_normal(2)
        states[t] = state
    return states, states + noise * rng.standard_normal((length, 2))


def error(estimate, truth):
    """Return the mean squared distance."""
    return float(((estimate - truth) ** 2).sum(axis=1).mean())


def kalman(observations, predict):
    """Return filtered means; ``predict(mean, covariance)`` gives both one step later, without the noise."""
    mean, covariance, out = observations[0], np.eye(2), []
    for seen in observations:
        mean, covariance = predict(mean, covariance)
        covariance = covariance + NOISE**2 * np.eye(2)
        gain = covariance @ np.linalg.inv(covariance + NOISE**2 * np.eye(2))
        mean, covariance = mean + gain @ (seen - mean), (np.eye(2) - gain) @ covariance
        out.append(mean)
    return np.array(out)


def extended(motion, mean, covariance, width=1e-5):
    """Predict with the motion linearized by central differences."""
    steps = width * np.eye(2)
    slope = np.stack([(moved(mean + e, motion) - moved(mean - e, motion)) / (2 * width) for e in steps], axis=1)
    return moved(mean, motion), slope @ covariance @ slope.T


def unscented(motion, mean, covariance, spread=1.0):
    """Predict with the motion taken at 2 d + 1 sigma points."""
    weights = np.array([spread / (2 + spread)] + [0.5 / (2 + spread)] * 4)
    root = np.linalg.cholesky((2 + spread) * covariance).T
    points = moved(np.concatenate([mean[None], mean + root, mean - root]), motion)
    mean = weights @ points
    return mean, (weights[:, None] * (points - mean)).T @ (points - mean)


def particles(observations, motion, rng):
    """Return filtered means of a bootstrap particle filter."""
    states, out = observations[0] + rng.standard_normal((NUM_PARTICLES, 2)), []
    for seen in observations:
        states = moved(states, motion) + NOISE * rng.standard_normal(states.shape)
        logs = -0.5 * ((seen - states) ** 2).sum(axis=1) / NOISE**2
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        out.append(weights @ states)
        states = states[rng.choice(NUM_PARTICLES, NUM_PARTICLES, p=weights)]
    return np.array(out)


def one_run(motion, length, seed):
    """Return the errors of all filters, and the seconds of the kernel filter's fit."""
    rng = np.random.default_rng(seed)
    states, seen = rotating(motion, length + TEST, rng)
    truth, observations = states[length:], seen[length:]
    found = {"observation": error(observations, truth)}
    for method in ("importance", "original"):
        train = states[:length], seen[:length]
        learned, seconds = measures.timed(lambda m=method, t=train: KernelBayesFilter(m).fit(*t, rng=0))
        found[f"{method}, seconds"] = seconds
        filtered = learned.filter(observations)
        found[method] = error(filtered.mean(), truth)
        found[f"{method}, smoothed"] = error(learned.smooth(filtered, observations).mean(), truth)
    found["extended Kalman"] = error(kalman(observations, partial(extended, motion)), truth)
    found["unscented Kalman"] = error(kalman(observations, partial(unscented, motion)), truth)
    found["particles"] = error(particles(observations, motion, rng), truth)
    return found


COLUMNS = ("importance", "original", "importance, smoothed", "extended Kalman", "unscented Kalman", "particles")
HEADER = ("motion", "T", *COLUMNS, "observation", "seconds of fit")
TABLE = harness.Table("kbr-filter", HEADER, [(motion, length) for motion in MOTIONS for length in LENGTHS])


def cells_of(columns, digits, seconds, decimals, runs):
    """Return errors by column with their standard errors, and the mean of the seconds."""
    errors = [measures.with_error([run[column] for run in runs], digits) for column in columns]
    return *errors, f"{np.mean([run[seconds] for run in runs]):.{decimals}f}"


IMAGES = {"camera": 0.2, "sprite": 0.05}
IMAGE_LENGTHS = (200, 400, 800)


def camera(length, rng):
    """Return directions (length, 2) and images (length, 576) of a camera that turns by 0.4 a step, with noise 0.2."""
    lights = np.random.default_rng(20220715)  # the same room in every run
    places, heights = lights.uniform(0, 2 * np.pi, 40), lights.uniform(0, 1, 40)
    colors, sizes = lights.uniform(0, 1, (40, 3)), lights.uniform(0.05, 0.2, 40)
    angle = rng.uniform(0, 2 * np.pi) + np.cumsum(0.4 + 0.2 * rng.standard_normal(length))
    seen = angle + IMAGES["camera"] * rng.standard_normal(length)
    across, up = np.linspace(-0.6, 0.6, 16), np.linspace(0, 1, 12)
    images = np.empty((length, 12, 16, 3))
    for t, direction in enumerate(seen):
        away = np.angle(np.exp(1j * (direction + across[:, None] - places)))
        squared = away[None] ** 2 + 0.3 * (up[:, None, None] - heights) ** 2  # (12, 16, lights)
        images[t] = np.exp(-0.5 * squared / sizes**2) @ colors
    images = images.reshape(length, -1) + 0.1 * rng.standard_normal((length, 576))
    return np.column_stack([np.cos(angle), np.sin(angle)]), images


def sprite(length, rng):
    """Return places (length, 2) and images (length, 256) of a soft square."""
    states, seen = rotating("oscillatory", length, rng, noise=IMAGES["sprite"])
    axis = np.linspace(-2.0, 2.0, 16)
    across, up = np.meshgrid(axis, axis)
    images = np.empty((length, 256))
    for t, (x, y) in enumerate(seen):
        turn = 2.0 * x
        a = np.cos(turn) * (across - x) + np.sin(turn) * (up - y)
        b = -np.sin(turn) * (across - x) + np.cos(turn) * (up - y)
        images[t] = (1.0 / (1.0 + np.exp(8.0 * (np.maximum(np.abs(a), np.abs(b)) - 0.5)))).ravel()
    return states, images + 0.1 * rng.standard_normal(images.shape)


def one_image_run(kind, length, seed):
    """Return the errors with pixels and with learned features, and that of the recurrent network."""
    rng = np.random.default_rng([seed, 1])
    states, images = (camera if kind == "camera" else sprite)(length + TEST, rng)
    train, test = slice(0, length), slice(length, None)
    found = {}
    for method in ("importance", "original"):
        learned = KernelBayesFilter(method).fit(states[train], images[train], rng=0)
        found[f"{method}, pixels"] = error(learned.filter(images[test]).mean(), states[test])
    network = pk.LearnedFeatures(batch_size=64, num_features=16)
    features, found["seconds of training"] = measures.timed(
        lambda: network.fit(states[train], images[train], rng=seed, progressbar=False)
    )
    kernel = kernels.FeatureKernel(features)
    learned = KernelBayesFilter(observed_kernel=kernel).fit(states[train], images[train], rng=0)
    found["importance, learned features"] = error(learned.filter(images[test]).mean(), states[test])
    rule = KernelBayesRule(observed_kernel=kernel).fit(states[train], images[train], rng=0)
    estimate = rule.mean(images[test])
    found["learned features, no filter"] = error(estimate, states[test])
    found["LSTM"] = error(LSTM().fit(states[train], images[train], rng).filter(images[test]), states[test])
    return found


PIXELS = ("importance, pixels", "original, pixels")
IMAGE_COLUMNS = (*PIXELS, "importance, learned features", "learned features, no filter", "LSTM")
IMAGE_HEADER = ("images", "T", *IMAGE_COLUMNS, "seconds of training")
IMAGE_TABLE = harness.Table("kbr-images", IMAGE_HEADER, [(kind, length) for kind in IMAGES for length in IMAGE_LENGTHS])


def main(runs=30, parts=("circle", "images"), images=tuple(IMAGES), image_lengths=IMAGE_LENGTHS, jobs=2):
    note = "{} runs, {} test steps; mean squared error with its standard error in brackets."
    if "circle" in parts:
        cells = partial(cells_of, (*COLUMNS, "observation"), 4, "importance, seconds", 1)
        TABLE.fill(one_run, cells, runs, note.format(runs, TEST), jobs=jobs)
    if "images" in parts:
        cells, few = partial(cells_of, IMAGE_COLUMNS, 3, "seconds of training", 0), max(2, runs // 3)
        keys = [key for key in IMAGE_TABLE.keys if key[0] in images and key[1] in image_lengths]
        IMAGE_TABLE.fill(one_image_run, cells, few, note.format(few, TEST), keys, jobs)


if __name__ == "__main__":
    harness.run(main)
