"""Daily volatility of the S&P 500: population Monte Carlo with a learned drift.

The one-factor model of Barndorff-Nielsen and Shephard in the form that SMC^2 was shown on (Chopin, Jacob and
Papaspiliopoulos 2013; Strathmann 2018, section 5.3.4). Jumps arrive at the rate lambda xi^2 / omega^2, have
exponential sizes with mean omega^2 / xi, and decay at the rate lambda:

    z' = exp(-lambda) z + sum_j e_j exp(-lambda (1 - c_j)),    v' = (z - z' + sum_j e_j) / lambda,

c_j uniform over the day, and a return is N(mu + beta v, v). A compiled particle filter gives an unbiased estimate of
the likelihood, so there is no gradient; `pk.sample_pmc` learns one (KGRIS) or does without.

The returns are log base 10 times 10^(5/2), as in the literature. Those of every day are used here; the literature's
series skips one.
"""

import math
from functools import partial
from typing import NamedTuple

import numba
import numpy as np
import pymc as pm
from arch.data import sp500

import pymc_kernel as pk
from benchmarks import harness
from case_studies.particles import resample

NAMES = ["mu", "beta", "xi", "omega2", "lam"]
SYMBOLS = [r"$\mu$", r"$\beta$", r"$\log \xi$", r"$\log \omega^2$", r"$\log \lambda$"]
MOST_JUMPS = 100.0  # a day on average; beyond, the likelihood is taken as zero (its posterior has about 0.1)


def load_returns(last=753):
    """Return the last 753 returns before 2007-12-21."""
    price = sp500.load().loc[:"2007-12-21", "Adj Close"].to_numpy()
    return (10.0**2.5 * np.diff(np.log10(price)))[-last:]


@numba.njit(cache=True)
def run_filter(rng, mu, beta, xi, omega2, lam, returns, num_particles):
    """Return the log of an unbiased estimate of p(returns | parameters); systematic resampling every day."""
    shape, rate = xi * xi / omega2, xi / omega2
    decay = math.exp(-lam)
    spot = np.empty(num_particles)
    for i in range(num_particles):
        spot[i] = rng.gamma(shape, 1.0 / rate)
    log_weights, moved = np.empty(num_particles), np.empty(num_particles)
    ancestors = np.empty(num_particles, dtype=np.int64)
    total = 0.0
    for t in range(returns.shape[0]):
        for i in range(num_particles):
            after, jumped = decay * spot[i], 0.0
            for _ in range(rng.poisson(lam * shape)):
                size = rng.standard_exponential() / rate
                jumped += size
                after += size * math.exp(-lam * rng.random())
            variance = (spot[i] - after + jumped) / lam
            moved[i] = after
            if variance > 0.0:
                off = returns[t] - mu - beta * variance
                log_weights[i] = -0.5 * (off * off / variance + math.log(2.0 * math.pi * variance))
            else:
                log_weights[i] = -np.inf
        gained = resample(rng, log_weights, ancestors)
        if not gained > -np.inf:
            return -np.inf
        total += gained
        spot[:] = moved[ancestors]
    return total


def make_log_estimate(num_particles):
    """Return fn(rng, mu, beta, xi, omega2, lam, returns) with that many particles in the filter."""

    def log_estimate(rng, mu, beta, xi, omega2, lam, returns):
        numbers = [float(v) for v in (mu, beta, xi, omega2, lam)]
        _, _, xi, omega2, lam = numbers
        if not (min(xi, omega2, lam) > 1e-8 and lam * xi * xi / omega2 <= MOST_JUMPS and xi * xi / omega2 < 1e6):
            return -np.inf
        return run_filter(rng, *numbers, returns, num_particles)

    return log_estimate


def volatility_model(returns, num_particles):
    """Return the model with the vague priors of Chopin et al."""
    with pm.Model() as model:
        mu, beta = pm.Normal("mu", 0.0, math.sqrt(2.0)), pm.Normal("beta", 0.0, math.sqrt(2.0))
        xi, omega2 = pm.Exponential("xi", 0.2), pm.Exponential("omega2", 0.2)
        lam = pm.Exponential("lam", 1.0)
        pk.EstimatedLikelihood("returns", make_log_estimate(num_particles), mu, beta, xi, omega2, lam, observed=returns)
    return model


class Settings(NamedTuple):
    """The size of the study."""

    days: int = 300
    filter: int = 300  # particles of a filter
    draws: int = 150
    iterations: int = 16
    runs: int = 4


PROPOSALS = {
    "random walk, own weights": ("none", "own"),
    "learned drift (KGRIS), own weights": ("kernel", "own"),
    "random walk, mixture weights": ("none", "mixture"),
    "learned drift (KGRIS), mixture weights": ("kernel", "mixture"),
}
HEADER = ("proposal", "RMSE of the covariance", "log evidence ± sd", "ESS", "Pareto shape")
TABLE = harness.Table("volatility", HEADER, [(name,) for name in PROPOSALS])


def weighted_draws(settings, name, seed, size=1):
    """Return draws on the unconstrained scale, their weights, and the evidence, ESS and Pareto shape of one run."""
    drift, weights = PROPOSALS[name]
    returns = load_returns(settings.days)
    with volatility_model(returns, settings.filter):
        idata = pk.sample_pmc(
            size * settings.draws, iterations=settings.iterations, chains=1, drift=drift, weights=weights,
            random_seed=seed, progressbar=False,
        )  # fmt: skip
    group, told = idata["weighted_posterior"], idata["pmc_stats"]
    draws = np.column_stack([group[name].values[0] for name in NAMES])
    draws[:, 2:] = np.log(draws[:, 2:])
    found = [float(told[k].values[0]) for k in ("log_evidence", "ess", "pareto_k")]
    return draws, np.exp(group["log_weight"].values[0]), found


def one_run(settings, name, seed, size=1):
    """Return the weighted mean and covariance on the unconstrained scale, evidence, ESS and Pareto shape of one run."""
    draws, share, told = weighted_draws(settings, name, seed, size)
    mean = share @ draws
    covariance = (draws - mean).T @ ((draws - mean) * share[:, None])
    return mean, covariance, *told


def picture(settings):
    """Save all pairs of parameters of a run that is four times as large."""
    draws, share, _ = weighted_draws(settings, list(PROPOSALS)[-1], 1000, 4)
    kept = draws[np.random.default_rng(0).choice(len(draws), 2000, p=share / share.sum())]
    harness.draw_pairs("volatility_pairs", kept, SYMBOLS)


def main(full=False, parts=("table", "picture"), jobs=2):
    """Run random-walk and kernel-gradient proposals, and write the table; ``full`` takes hours, else ten minutes."""
    settings = Settings(753, 1000, 400, 100, 10) if full else Settings()
    if "picture" in parts:
        picture(settings)
    if "table" in parts:
        table(settings, jobs)


def table(settings, jobs):
    """Write the table."""
    best = list(PROPOSALS)[-1]
    reference = harness.results(one_run, [(settings, best, 1000 + seed, 4) for seed in range(2)], jobs)
    true = np.mean([covariance for _, covariance, *_ in reference], axis=0)
    scale = np.sqrt(np.outer(np.diag(true), np.diag(true)))

    def cells(runs):
        off = np.array([(covariance - true) / scale for _, covariance, *_ in runs])
        evidence, ess, shape = np.array([run[2:] for run in runs]).T
        told = f"{math.sqrt((off**2).mean()):.3f}", f"{evidence.mean():.2f} ± {evidence.std(ddof=1):.2f}"
        return *told, f"{ess.mean():.0f}", f"{np.median(shape):.2f}"

    note = (
        f"{settings.runs} runs of {settings.draws} particles and {settings.iterations} iterations, "
        f"{settings.filter} particles in the filter, {settings.days} returns. The covariance is that of mu, beta "
        "and the logs of xi, omega^2 and lambda, in units of standard deviations, against two runs of four times as "
        "many particles."
    )
    TABLE.fill(partial(one_run, settings), cells, settings.runs, note, jobs=jobs)


if __name__ == "__main__":
    harness.run(main)
