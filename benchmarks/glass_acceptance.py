"""Would the posterior of Glass accept where a learned score leads? Strathmann (2018), figure 6.3.

Every estimator learns from 500 draws of a long run of ``pk.KernelHMC``; its settings are the best of a grid on 1,500
others by the score-matching objective, chosen once. From other draws, with a standard normal momentum, trajectories of
100 steps of .1 are followed; at every tenth step the marginal likelihood is estimated, with more importance samples
than the samplers take, for the probability of acceptance at that step. The last row learns from estimates of the log
density at the same 500 draws, as noisy as the samplers have them, with no settings to choose.
"""

from functools import partial
from itertools import islice, product

import numpy as np
from scipy.stats import norm
from threadpoolctl import threadpool_limits

from benchmarks import harness, measures
from benchmarks.auto_encoder import AutoEncoder
from benchmarks.glass_convergence import long_run
from benchmarks.score_convergence import full, lite, nystrom
from case_studies.glass import PRIOR_SD, load_glass, make_log_estimate
from pymc_kernel import scores as S
from pymc_kernel.kernels import Gaussian
from pymc_kernel.kernels.points import median_distance

NUM_POINTS, NUM_HELD_OUT = 500, 1500
NUM_STEPS, STEP_SIZE, SEEN_EVERY = 100, 0.1, 10
NUM_SAMPLES, NUM_SAMPLES_OF_A_DRAW = 1000, 100  # of an estimate of the likelihood: here, and of the samplers
TRAJECTORIES = 20  # for each subset of the draws
NUM_PATHS = 3  # in the picture
SCALES = (0.5, 1.0, 2.0, 4.0)  # of the kernel, in units of the median distance
REGULARIZATIONS = tuple(10.0 ** np.arange(-6, 2))
NOISES = (0.1, 0.2, 0.3, 0.5, 0.8)  # of the auto-encoder, in units of the median distance
NUM_HIDDEN = (30, 100)


def kernel_settings(make):
    """Return a function of the median distance: one estimator for each place of the grid."""
    return lambda distance: [make(Gaussian(s * distance), r) for s, r in product(SCALES, REGULARIZATIONS)]


METHODS = {
    "full": kernel_settings(full),
    **{f"Nystroem, m = {m}": kernel_settings(nystrom(m)) for m in (500, 100, 20)},
    **{f"lite, m = {m}": kernel_settings(lite(m)) for m in (500, 100, 20)},
    "auto-encoder": lambda distance: [AutoEncoder(s * distance, h) for s, h in product(NOISES, NUM_HIDDEN)],
}
VALUES = "from values"
TABLE = harness.Table(
    "glass-acceptance",
    ("estimator", "acceptance", "after 10 steps"),
    [(name,) for name in (*METHODS, VALUES)],
)


def log_posterior(rng, num_samples=NUM_SAMPLES):
    """Return a function of a place: an estimate of the log posterior."""
    inputs, labels, _ = load_glass()
    estimate = make_log_estimate(inputs, num_samples)
    return lambda theta: estimate(rng, theta, labels) + norm.logpdf(theta, 0.0, PRIOR_SD).sum()


def split(draws, seed):
    """Return points to learn from, points to choose settings on, and starts of trajectories."""
    draws = draws[np.random.default_rng([seed, 17]).permutation(len(draws))]
    return np.split(draws[: NUM_POINTS + NUM_HELD_OUT + TRAJECTORIES], [NUM_POINTS, NUM_POINTS + NUM_HELD_OUT])


def score_matching_loss(fitted, x, step=1e-4):
    """Return the mean of the divergence of the score plus half its square at points (n, d)."""
    shifts = enumerate(step * np.eye(x.shape[1]))
    divergence = sum((fitted.score(x + s) - fitted.score(x - s))[:, i] for i, s in shifts) / (2.0 * step)
    return float((divergence + 0.5 * (fitted.score(x) ** 2).sum(axis=1)).mean())


def best_estimator(name, draws):
    """Return the estimator of the smallest objective on held-out points."""
    points, held_out, _ = split(draws, 0)
    choices = METHODS[name](median_distance(points, np.random.default_rng(0)))

    def objective(estimator):
        loss = score_matching_loss(estimator.fit(points, rng=np.random.default_rng(0)), held_out)
        return loss if np.isfinite(loss) else np.inf

    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        return min(choices, key=objective)


def learned_from_values(points, rng):
    """Return what is learned from estimates of the log posterior at points, as noisy as those of the samplers."""
    target = log_posterior(rng, NUM_SAMPLES_OF_A_DRAW)
    return S.Values().fit(points, np.array([target(point) for point in points]), rng=rng)


def trajectories(fitted, starts, momenta):
    """Yield positions and momenta after each leapfrog step."""
    q, p = starts, momenta
    slopes = fitted.score(q)
    for _ in range(NUM_STEPS):
        p = p + 0.5 * STEP_SIZE * slopes
        q = q + STEP_SIZE * p
        slopes = fitted.score(q)
        p = p + 0.5 * STEP_SIZE * slopes
        yield q, p


def acceptance(fitted, starts, momenta, target):
    """Return the probabilities of acceptance at the steps seen, averaged over trajectories, (steps,)."""
    before = np.array([target(start) for start in starts]) - 0.5 * (momenta**2).sum(axis=1)
    found = []
    for q, p in islice(trajectories(fitted, starts, momenta), SEEN_EVERY - 1, None, SEEN_EVERY):
        gains = np.array([target(place) for place in q]) - 0.5 * (p**2).sum(axis=1) - before
        found.append(np.nan_to_num(np.exp(np.minimum(gains, 0.0))).mean())
    return np.array(found)


def one_subset(chosen, draws, name, seed):
    """Return the acceptance averaged over the trajectories, and that after ten steps."""
    points, _, starts = split(draws, seed)
    rng = np.random.default_rng([seed, 18])
    momenta, target = rng.standard_normal(starts.shape), log_posterior(rng)
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        if name == VALUES:
            fitted = learned_from_values(points, rng)
        else:
            fitted = chosen[name].fit(points, rng=np.random.default_rng(0))
        found = acceptance(fitted, starts, momenta, target)
    return found.mean(), found[0]


def picture(draws):
    """Save all pairs of length scales, with trajectories along what is learned from the values at 500 draws."""
    rng = np.random.default_rng(0)
    points, _, starts = split(draws, 0)
    starts, fitted = starts[:NUM_PATHS], learned_from_values(points, rng)
    momenta = rng.standard_normal(starts.shape)
    paths = np.stack([starts, *(q for q, _ in trajectories(fitted, starts, momenta))], axis=1)
    harness.draw_pairs("glass_pairs", draws[:1500], load_glass()[2], paths)


def cells(runs):
    """Return what stands behind an estimator."""
    whole, first = np.transpose(runs)
    return measures.plus_minus(whole, 2), f"{first.mean():.2f}"


def main(repetitions=10, jobs=2):
    """Half an hour, most of it for the settings of the two largest systems."""
    draws = np.random.default_rng(0).permutation(np.concatenate([chain[::4] for chain in long_run(4, jobs)]))
    picture(draws)
    chosen = dict(zip(METHODS, harness.results(best_estimator, [(name, draws) for name in METHODS], jobs), strict=True))
    measured = partial(one_subset, chosen, draws)
    note = f"{repetitions} subsets of {len(draws):,} draws of a long run, {TRAJECTORIES} trajectories each."
    TABLE.fill(measured, cells, repetitions, note, jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
