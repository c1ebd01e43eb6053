"""How cost grows with the number of points, of dimensions and of particles, for every method, and memory beside it.

Each row makes one thing larger and keeps the others. Seconds are of processor time, of all threads together, the less
of two calls, so that other work on the machine counts little; targets and likelihoods are normal densities, whose own
time is negligible. The exponent is the slope of log seconds on log sizes by least squares: 1 for cost in proportion, 2
for the square. Constant parts make it smaller, caches that are full larger. Memory is the most that was allocated at
once by a call of the largest size, but for what compiled code allocates.
"""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks import harness, measures
from pymc_kernel import scores, smc, stein
from pymc_kernel.embeddings import KernelBayesRule
from pymc_kernel.kernels import Gaussian
from pymc_kernel.likelihood_free import LearnedLikelihood
from pymc_kernel.mcmc import adaptive_metropolis, kameleon, kernel_hmc

HEADER = ("method", "grows", "sizes", "seconds", "exponent", "MB")
TABLE = harness.Table("scaling", HEADER)
_TUNE, _DRAWS = 400, 1000  # of a chain
_NUM_POINTS, _NUM_DIMS = 2000, 5  # where they do not grow


@dataclass(frozen=True)
class Growth:
    """A method, and what of it grows.

    Attributes
    ----------
    prepare : callable
        Size -> a function without arguments, which is timed.
    calls : int
        Of the method by one call of that function, as draws of a chain.
    """

    method: str
    what: str
    sizes: tuple[int, ...]
    prepare: Callable[[int], Callable]
    calls: int = 1


def normal_log_density(x):
    """Return the log density of a standard normal distribution."""
    return -0.5 * float(x @ x)


def _draws(n, d):
    return np.random.default_rng(0).standard_normal((n, d))


def _stein(n, d):
    x = _draws(n, d)
    return lambda: stein.ksd_squared(x, -x)


def _thinning(n, d):
    x = _draws(n, d)
    return lambda: stein.stein_thin(x, -x, 100)


def _score_fit(estimator):
    def prepare(n, d):
        x = _draws(n, d)
        return lambda: estimator.fit(x, rng=np.random.default_rng(1))

    return prepare


def _values_fit(n, d):
    x = _draws(n, d)
    values = -0.5 * (x**2).sum(axis=1) + np.sin(x[:, 0])
    return lambda: scores.Values().fit(x, values, np.random.default_rng(1), noisy=False)


def _pairs(n, d):
    latent, noise = np.split(_draws(n, 2 * d), 2, axis=1)
    return latent, latent + 0.5 * noise


def _bayes_rule(n, d):
    latent, observed = _pairs(n, d)
    return lambda: KernelBayesRule().fit(latent, observed, rng=np.random.default_rng(1)).posteriors(observed[:1])


def _near(n):
    """Rules for ever fewer points around one observation."""
    latent = _draws(n, 3)
    noise = 0.3 * np.random.default_rng(1).standard_normal((n, 4))
    rule = KernelBayesRule().fit(latent, np.column_stack([latent**2, latent.sum(axis=1)]) + noise, rng=2)
    return lambda: rule.near(np.array([0.5, 0.3, 0.8, 0.2]), np.random.default_rng(3))


def _learned_likelihood(n, d):
    parameters, summaries = _pairs(n, d)
    return lambda: LearnedLikelihood().fit(parameters, summaries, rng=1)


def _chain(config, tune=_TUNE):
    """Return draws of a chain after tuning, whose time is not counted."""

    def prepare(d):
        draws = measures.chain(np.random.default_rng(1), np.zeros(d), normal_log_density, config, tune, 3 * _DRAWS)
        next(draws)
        return lambda: [next(draws) for _ in range(_DRAWS - 1)]

    return prepare


def _tuning(d):
    config = kernel_hmc.Config()
    return lambda: next(measures.chain(np.random.default_rng(1), np.zeros(d), normal_log_density, config, _TUNE, 1))


def _particles(config):
    def prepare(n, d):
        start = 5.0 * _draws(n, d)

        def evaluate(x):
            squared = (x**2).sum(axis=1)
            return -0.5 * squared / 25.0, -0.5 * squared * (1.0 - 1.0 / 25.0)

        return lambda: smc.sample(np.random.default_rng(1), smc.Evaluated(start, *evaluate(start)), evaluate, config)

    return prepare


def _both(method, prepare, points, dims, what="n", num_points=_NUM_POINTS):
    """Return the growth of a method with points and with dimensions."""
    return (
        Growth(method, what, points, lambda n: prepare(n, _NUM_DIMS)),
        Growth(method, "d", dims, lambda d: prepare(num_points, d)),
    )


def _basis(n):
    return _chain(kameleon.Config(num_basis=n), tune=n + _TUNE)(_NUM_DIMS)


_POINTS, _DIMS = (1000, 2000, 4000, 8000), (2, 4, 8, 16, 32)
_FEW_POINTS, _FEW_DIMS, _PARTICLES = (500, 1000, 2000), (2, 4, 8), (250, 500, 1000)
GROWTHS = (
    *_both("Stein statistic", _stein, _POINTS, _DIMS),
    *_both("Stein thinning to 100", _thinning, (*_POINTS, 16000), _DIMS),
    *_both("Lite, fit", _score_fit(scores.Lite(Gaussian(2.0), num_basis=300)), _POINTS, _DIMS),
    *_both("Finite, fit", _score_fit(scores.Finite(Gaussian(2.0), num_features=300)), _POINTS, _DIMS),
    *_both("Nystrom, fit", _score_fit(scores.Nystrom(Gaussian(2.0), num_basis=50)), _POINTS, _FEW_DIMS),
    *_both("Values, fit", _values_fit, (500, 1000, 2000, 4000), (2, 4, 8, 16)),
    *_both("KernelBayesRule, fit and a posterior", _bayes_rule, _FEW_POINTS, _FEW_DIMS, num_points=1000),
    Growth("KernelBayesRule, near one observation", "n", (2500, 5000, 10_000), _near),
    *_both("LearnedLikelihood, fit", _learned_likelihood, _FEW_POINTS, (1, 2, 4), num_points=500),
    Growth("AdaptiveMetropolis, a draw", "d", _DIMS, _chain(adaptive_metropolis.Config()), _DRAWS),
    Growth("KAMH, a draw", "basis points", (250, 500, 1000, 2000), _basis, _DRAWS),
    Growth("KAMH, a draw", "d", _DIMS, _chain(kameleon.Config(num_basis=300)), _DRAWS),
    Growth("KernelHMC, a draw", "d", (2, 4, 8, 16), _chain(kernel_hmc.Config()), _DRAWS),
    Growth("KernelHMC, 400 draws of tuning", "d", (2, 4, 8, 16), _tuning),
    *_both("ASMC", _particles(smc.Config(smc.Walk())), (*_PARTICLES, 2000), _FEW_DIMS, "particles", 500),
    *_both("KASMC", _particles(smc.Config(smc.Kameleon())), _PARTICLES, _FEW_DIMS, "particles", 500),
    *_both("KernelHMCSMC", _particles(smc.Config()), _PARTICLES, _FEW_DIMS, "particles", 500),
)
METHODS = tuple(dict.fromkeys(growth.method for growth in GROWTHS))


def exponent(sizes, seconds) -> float:
    """Return the slope of log seconds on log sizes."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def processor_seconds(function: Callable) -> float:
    """Return the processor time of the quicker of two calls."""
    taken = []
    for _ in range(2):
        begun = time.process_time()
        function()
        taken.append(time.process_time() - begun)
    return min(taken)


def peak_megabytes(function: Callable) -> float:
    """Return the most that a call has allocated at once."""
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def measured(growth: Growth) -> list:
    """Return the row of a growth; compiled code is made or read beforehand."""
    growth.prepare(growth.sizes[0])()
    seconds = [processor_seconds(growth.prepare(size)) / growth.calls for size in growth.sizes]
    memory = peak_megabytes(growth.prepare(growth.sizes[-1]))
    told = ", ".join(f"{s:.2g}" for s in seconds), f"{exponent(growth.sizes, seconds):.2f}", f"{memory:.1f}"
    return [growth.method, growth.what, ", ".join(map(str, growth.sizes)), *told]


def main(methods=METHODS):
    rows, chosen = [], [(growth,) for growth in GROWTHS if growth.method in methods]
    for row in harness.results(measured, chosen, jobs=1):
        print(*row, sep=" | ", flush=True)
        rows.append(row)
    if len(rows) == len(GROWTHS):
        TABLE.write(
            rows, f"{_NUM_POINTS} points and {_NUM_DIMS} dimensions where they do not grow, fewer for slow ones."
        )


if __name__ == "__main__":
    harness.run(main)
