"""Random walks on a normal density whose log is only estimated: chains that are too narrow, and whether they say so.

The estimate is exact - sigma^2 / 2 + sigma N(0, 1), so noise lets a share 2 Phi(-sigma / sqrt(2)) of all steps through,
however short: .48, .29, .23 for a sigma of 1, 1.5, 1.7. A walk that aims at .234 creeps or stops. Counted are the
chains of 1,000 draws after 1,000 of tuning of which the spread (root mean square over the dimensions) is below half of
the truth, those in which it is in some dimension, those that warned, and those that are narrow in some dimension
without a warning. Through ``pm.sample(step=...)`` and on arrays, where a chain warns by what PyMC's user would be told.
"""

import logging
import warnings
from itertools import product
from typing import NamedTuple

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness, measures
from pymc_kernel.mcmc import adaptive_metropolis, kameleon

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
    """Return chains by the transitions themselves."""
    module = STEPS[name][1]
    config = module.Config(target_accept=target_accept, noisy=sigma > 0.0)
    found, warned, accept = [], [], []
    for c in range(chains):
        rng, of_noise = np.random.default_rng([seed, c]).spawn(2)

        def density(x, of_noise=of_noise):
            return log_estimate(of_noise, x, sigma, None)

        run = list(measures.chain(rng, rng.uniform(-1.0, 1.0, num_dims), density, config, tune, draws))
        found.append([state.position for state, _ in run])
        accept.append([info.accept_prob for _, info in run])
        warned.append(max(state.rejections for state, _ in run) >= STUCK_AFTER)
    return Chains(np.array(found), np.array(warned, dtype=bool), float(np.mean(accept)))


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


HEADER = ("sampler", "by", "sigma", "dimensions", "acceptance", *Counts._fields, "seconds")
TABLE = harness.Table("noisy-walks", HEADER, list(product(STEPS, WAYS, SIGMAS, DIMENSIONS)))


def main(chains=64, ways=tuple(WAYS), sigmas=SIGMAS, target_accept: float | None = None):
    """Print the rows; those of the default target acceptance are written."""
    logging.getLogger("pymc").setLevel(logging.ERROR)
    rows = []
    for name, way, sigma, num_dims in product(STEPS, ways, sigmas, DIMENSIONS):
        target = "auto" if target_accept is None else target_accept
        walked, seconds = measures.timed(WAYS[way], name, sigma, num_dims, chains, 1, target)
        rows.append([name, way, sigma, num_dims, f"{walked.accept:.3f}", *counted(walked), f"{seconds:.0f}"])
        print(*rows[-1], flush=True)
        if target_accept is None:
            TABLE.write(rows, f"{chains} chains a row.")


if __name__ == "__main__":
    harness.run(main)
