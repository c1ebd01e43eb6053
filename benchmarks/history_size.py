"""Kernel HMC on the 8-dimensional banana against the number of points it has learned from (thesis, figure 4.4).

B(0.03, 100); the surrogate is matched to the scores of n exact draws, with n basis points (lite) or n random features
(finite), and does not change; chains of 200 + 2,000 draws, one in ten a random walk, the others single trajectories.
Beside it adaptive Metropolis and Kameleon, tuned for 2,000 draws. Reported: the acceptance rate, smallest bulk ESS per
1,000 draws, R-hat over the chains, and the norm of the error of the mean. Last, Hamiltonian Monte Carlo with the true
gradient: trajectories of 1 to 60 steps of a size, jittered, that accepts nine in ten; larger steps mix no better.
"""

import numba
import numpy as np

from benchmarks import harness, measures
from benchmarks.targets import banana
from benchmarks.trajectories import leapfrog
from pymc_kernel.mcmc import adaptive_metropolis as am
from pymc_kernel.mcmc import kameleon as ka
from pymc_kernel.mcmc.surrogate_fit import learn, tuned
from pymc_kernel.mcmc.trajectory import SMALLEST_SHARE
from pymc_kernel.scores import Finite, Lite

TUNE, BURN_IN, DRAW = 2000, 200, 2000
SIZES = (100, 500, 1000, 2000)
CURVATURE, VARIANCE = 0.03, 100.0
TARGET = banana(CURVATURE, VARIANCE)
WALKS = {"adaptive Metropolis": am.Config(), "KAMH, thesis settings": ka.Config(gamma=0.2, whiten=False)}
TRUE = "true gradient"
STEP_SIZE, LONGEST = 0.7, 60
LEARNED = {f"lite, n = m = {n}": (n, Lite(num_basis=n)) for n in SIZES}
LEARNED |= {f"finite, n = m = {n}": (n, Finite(num_features=n)) for n in SIZES}
HEADER = ("sampler", "acceptance", "ESS / 1000", "R-hat", "norm of the mean's error")
TABLE = harness.Table("history", HEADER, [(name,) for name in (*WALKS, *LEARNED, TRUE)])


def by_learned_gradient(rng, num_points, estimator):
    """Return draws and acceptance rate of one chain along a surrogate of exact draws; one move in ten is a walk."""
    points = TARGET.sample(rng, num_points)
    shape = points.mean(axis=0), np.linalg.cholesky(np.cov(points.T))
    learned = learn(rng, estimator, points, points, np.zeros(num_points), shape)
    fit = tuned(rng, learned, shape, points, LONGEST)
    place, draws, accepted = TARGET.sample(rng, 1)[0], [], []
    for _ in range(BURN_IN + DRAW):
        momentum, log_ratio = rng.standard_normal(place.size), 0.0
        if rng.random() < 0.1:
            end = place + am.optimal_scale(place.size) * shape[1] @ momentum
        else:
            here = np.linalg.solve(shape[1], place - shape[0])
            step_size = rng.uniform(SMALLEST_SHARE, 1.0) * fit.step_size
            end, turned, _ = leapfrog(here, momentum, step_size, fit.num_steps, fit.expansion)
            end, log_ratio = shape[0] + shape[1] @ end, 0.5 * (momentum @ momentum - turned @ turned)
        accepted.append(np.log(rng.random()) < TARGET.log_density(end) - TARGET.log_density(place) + log_ratio)
        place = end if accepted[-1] else place
        draws.append(place)
    return np.array(draws[BURN_IN:]), np.mean(accepted)


@numba.njit(cache=True)
def gradient(x):
    """Return the gradient of the log density of the banana."""
    out = -x
    straight = x[1] - CURVATURE * (x[0] * x[0] - VARIANCE)
    out[0] = -x[0] / VARIANCE + 2.0 * CURVATURE * x[0] * straight
    out[1] = -straight
    return out


def by_true_gradient(rng):
    """Return draws and acceptance rate of one chain of Hamiltonian Monte Carlo."""
    place, draws, accepted = TARGET.sample(rng, 1)[0], [], []
    for _ in range(BURN_IN + DRAW):
        momentum, size = rng.standard_normal(place.size), STEP_SIZE * rng.uniform(0.8, 1.2)
        end, energy = place, 0.5 * momentum @ momentum - TARGET.log_density(place)
        momentum = momentum + 0.5 * size * gradient(end)
        steps = rng.integers(1, LONGEST + 1)
        for i in range(steps):
            end = end + size * momentum
            momentum = momentum + (0.5 if i == steps - 1 else 1.0) * size * gradient(end)
        accepted.append(np.log(rng.random()) < energy - 0.5 * momentum @ momentum + TARGET.log_density(end))
        place = end if accepted[-1] else place
        draws.append(place)
    return np.array(draws[BURN_IN:]), np.mean(accepted)


def one_chain(name, seed):
    """Return draws and acceptance rate of one chain."""
    rng = np.random.default_rng([seed, 44])
    if name == TRUE:
        return by_true_gradient(rng)
    if name in LEARNED:
        return by_learned_gradient(rng, *LEARNED[name])
    start = TARGET.sample(rng, 1)[0]
    run = measures.chain(rng, start, TARGET.log_density, WALKS[name], TUNE, BURN_IN + DRAW)
    positions, accepted = zip(*[(state.position, info.accepted) for state, info in run], strict=True)
    return np.array(positions[BURN_IN:]), np.mean(accepted)


def cells(chains):
    """Return what stands behind the sampler's name."""
    draws, accepted = np.stack([draws for draws, _ in chains]), np.mean([accepted for _, accepted in chains])
    ess = measures.smallest_bulk_ess(draws) / len(chains) / DRAW * 1000
    error = np.linalg.norm(draws.mean(axis=1), axis=1).mean()
    return f"{accepted:.2f}", f"{ess:.1f}", f"{measures.largest_rhat(draws):.2f}", f"{error:.2f}"


def main(chains=18, samplers=(*WALKS, *LEARNED, TRUE), jobs=2):
    TABLE.fill(one_chain, cells, chains, f"{chains} chains of {DRAW} draws.", [(s,) for s in samplers], jobs)


if __name__ == "__main__":
    harness.run(main)
