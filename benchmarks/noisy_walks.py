"""Random walks on a normal density whose log is only estimated: chains that are too narrow, and whether they say so.

The estimate is exact - sigma^2 / 2 + sigma N(0, 1), so noise lets a share 2 Phi(-sigma / sqrt(2)) of all steps through,
however short: .48, .29, .23 for a sigma of 1, 1.5, 1.7. A walk that aims at .234 creeps or stops. Counted are the
chains of 1,000 draws after 1,000 of tuning of which the spread (root mean square over the dimensions) is below half of
the truth, those in which it is in some dimension, those that warned, and those that are narrow in some dimension
without a warning. Through ``pm.sample(step=...)`` and on arrays, where a chain warns by what PyMC's user would be told.

Run: python -m benchmarks.noisy_walks [--chains 64] [--ways pm.sample arrays] [--sigmas 1.5]
     [--target-accept .234]
"""

import argparse
import logging
import time
import warnings
from typing import NamedTuple

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import measures
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, noise

SIGMAS, DIMENSIONS = (1.0, 1.5, 1.7), (1, 2, 5)
STEPS = {"KAMH": (pk.KAMH, kameleon), "AdaptiveMetropolis": (pk.AdaptiveMetropolis, adaptive_metropolis)}
STUCK_AFTER = 200  # rejections in a row, of which a step tells


class Chains(NamedTuple):
    """What some chains did after tuning."""

    draws: np.ndarray  # (chains, draws, d)
    warned: np.ndarray  # (chains,), bool
    accept: float


def log_estimate(rng, theta, sigma, observed):
    """Return the log of an unbiased estimate of exp(-|theta|^2 / 2)."""
    return float(-0.5 * np.dot(theta, theta) - 0.5 * sigma**2 + sigma * rng.standard_normal())


def through_pymc(name, sigma, num_dims, chains, seed, target_accept="auto", tune=1000, draws=1000):
    """Return chains of ``pm.sample``."""
    with pm.Model(), warnings.catch_warnings():
        # Warnings of steps are kept apart by chains in this form alone.
        warnings.filterwarnings("ignore", message="`return_inferencedata=False` is deprecated")
        theta = pm.Flat("theta", shape=num_dims, initval=np.zeros(num_dims))
        pk.EstimatedLikelihood("y", log_estimate, theta, np.float64(sigma), observed=np.zeros(1))
        trace = pm.sample(
            draws, tune=tune, chains=chains, cores=1, step=STEPS[name][0](target_accept=target_accept),
            random_seed=seed, progressbar=False, compute_convergence_checks=False, return_inferencedata=False,
        )  # fmt: skip
    found = np.stack(trace.get_values("theta", combine=False))
    said = trace.get_sampler_stats("warning", combine=False)
    warned = np.array([any(w is not None for w in np.ravel(chain)) for chain in said])
    return Chains(found, warned, float(np.mean(trace.get_sampler_stats("accept"))))


def on_arrays(name, sigma, num_dims, chains, seed, target_accept="auto", tune=1000, draws=1000):
    """Return chains by the transitions themselves, which have to find the noise."""
    module = STEPS[name][1]
    config = module.Config(target_accept=target_accept)
    found, warned, accept = np.empty((chains, draws, num_dims)), np.zeros(chains, dtype=bool), np.empty((chains, draws))
    for c in range(chains):
        rng, of_noise = np.random.default_rng([seed, c]).spawn(2)

        def density(x, of_noise=of_noise):
            return log_estimate(of_noise, x, sigma, None)

        start = rng.uniform(-1.0, 1.0, num_dims)
        state = module.init(start, density(start), config)
        for t in range(tune + draws):
            state, info = module.step(rng, state, density, config)
            if t >= tune:
                found[c, t - tune], accept[c, t - tune] = state.position, info.accept_prob
                warned[c] |= state.rejections >= STUCK_AFTER
            elif module is kameleon:
                state = module.adapt(rng, state, info, config, tune)
            else:
                state = module.adapt(state, info, config)
        warned[c] |= module.is_at_floor(state, config) or noise.is_out_of_reach(target_accept, state.noise)
        warned[c] |= (np.diff(found[c, :, 0]) != 0.0).sum() < noise.MOVES_PER_DIMENSION * num_dims
    return Chains(found, warned, float(accept.mean()))


WAYS = {"pm.sample": through_pymc, "arrays": on_arrays}


class Counts(NamedTuple):
    """Of chains."""

    narrow: int  # spread below half of the truth
    narrow_somewhere: int  # in some dimension
    warned: int
    silent: int  # narrow somewhere without a warning


def counted(chains: Chains) -> Counts:
    """Return how many chains were too narrow, and how many said so."""
    spreads = chains.draws.std(axis=1)
    narrow = np.sqrt((spreads**2).mean(axis=1)) < 0.5
    somewhere = spreads.min(axis=1) < 0.5
    return Counts(*(int(v.sum()) for v in (narrow, somewhere, chains.warned, somewhere & ~chains.warned)))


def main():
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--sigmas", type=float, nargs="*", default=SIGMAS)
    parser.add_argument("--target-accept", type=float, default=None)
    arguments = parser.parse_args()
    logging.getLogger("pymc").setLevel(logging.ERROR)
    target = "auto" if arguments.target_accept is None else arguments.target_accept
    header = ["sampler", "by", "sigma", "dimensions", "acceptance", *Counts._fields, "seconds"]
    rows = []
    for name in STEPS:
        for way in arguments.ways:
            for sigma in arguments.sigmas:
                for num_dims in DIMENSIONS:
                    begun = time.perf_counter()
                    chains = WAYS[way](name, sigma, num_dims, arguments.chains, 1, target)
                    seconds = time.perf_counter() - begun
                    counts = counted(chains)
                    rows.append([name, way, sigma, num_dims, f"{chains.accept:.3f}", *counts, f"{seconds:.0f}"])
                    print(*rows[-1], flush=True)
    print(measures.markdown_table(header, [[str(v) for v in row] for row in rows]))


if __name__ == "__main__":
    main()
