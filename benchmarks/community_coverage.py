"""How often 95 % intervals by a learned likelihood hold the parameters, on the tasks of :mod:`benchmarks.community`.

Parameters come from the prior and data from the simulator at them, so intervals hold them as often as they should where
posteriors are right. By "one fit" a likelihood is learned from draws of the prior once for all data sets of a task; by
"pk.sample_likelihood_free" each data set has rounds of its own. A row is kept in ``benchmarks/rows`` as
it is finished, and not run again.
"""

import time
import warnings
from functools import cache
from itertools import product

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness
from benchmarks.sbibm_tasks import PLAIN, TASKS, make_model
from pymc_kernel.plugin.model.priors import ModelPrior
from pymc_kernel.rounds import LocalLikelihood, sample_particles

ROWS = harness.Rows(harness.ROWS / "community_coverage.jsonl", lambda row: tuple(row["key"]))
METHODS = ("one fit", "pk.sample_likelihood_free")
CHEAP = ("two_moons", "mixture", "linear", "linear, uniform prior", "logistic GLM")
BUDGET = 1_000
CHAINS, DRAWS = 4, 500
LEVELS = (0.95, 0.5)
HEADER = ("task", "method", "data sets", *[f"in {100 * level:.0f} % intervals" for level in LEVELS], "warned", "cpu s")
KEYS = list(product(PLAIN, METHODS))
TABLE = harness.Table("community-coverage", HEADER, KEYS)
NOTE = (
    f"{BUDGET} simulations. Shares of parameters in central intervals, over all coordinates; in brackets standard "
    "errors over data sets. Processor seconds of a posterior, with the simulations, without the one fit."
)


def _data(task, number):
    """Return parameters (d,) from the prior, and data (q,) from the simulator at them."""
    rng = np.random.default_rng([2026, number])
    with pm.Model():
        theta = pm.draw(TASKS[task].prior(), random_seed=int(rng.integers(2**31)))
    return theta, TASKS[task].simulate(rng, theta[None])[0]


class _OneFit:
    """What is learned from simulations at draws of the prior, once for all data sets of a task."""

    def __init__(self, task):
        model, rng = make_model(task, _data(task, 0)[1]), np.random.default_rng(1)
        (theta,) = model.replace_rvs_by_values([model["theta"]])
        self.prior, self.to_theta = ModelPrior(model), model.compile_fn(theta, inputs=model.value_vars, point_fn=False)
        latent = self.prior.draw(rng, BUDGET)
        self.fit = pk.likelihood_free.LearnedLikelihood().fit(
            latent, TASKS[task].simulate(rng, self.theta(latent)), rng
        )

    def theta(self, latent):
        """Return parameters (n, d) of points (n, d) on the unconstrained scale."""
        return np.array([self.to_theta(row) for row in latent])

    def draws(self, data, rng):
        """Return draws (n, d) of the posterior, by likelihoods that differ as much as what was learned is unsure."""
        likelihoods = LocalLikelihood(self.fit, data, None).replicates()[:CHAINS]
        found = [sample_particles(rng, self.prior, one, 2 * DRAWS).positions[:DRAWS] for one in likelihoods]
        return self.theta(np.concatenate(found))


_one_fit = cache(_OneFit)


def _draws(task, data, method, number):
    """Return draws (n, d) of the posterior."""
    if method == METHODS[0]:
        return _one_fit(task).draws(data, np.random.default_rng(number))
    settings = {"chains": CHAINS, "num_simulations": BUDGET, "random_seed": number, "progressbar": False}
    found = pk.sample_likelihood_free(DRAWS, model=make_model(task, data), **settings)
    return found["posterior"]["theta"].values


def run(task, number, method):
    """Return the row of one data set: ranks of its parameters among draws of the posterior, warnings, seconds."""
    theta, data = _data(task, number)
    if method == METHODS[0]:
        _one_fit(task)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        begun = time.process_time()
        draws = _draws(task, data, method, number)
    is_said = any("should not be trusted" in str(w.message) for w in said)
    ranks = (draws.reshape(-1, theta.size) < theta).mean(axis=0)
    key, seconds = [task, number, method], time.process_time() - begun
    return {"key": key, "ranks": ranks.tolist(), "seconds": seconds, "said": is_said}


def cells(task, method, rows):
    """Return a row of shares over data sets."""
    ranks = np.array([row["ranks"] for row in rows])
    shares = []
    for level in LEVELS:
        inside = (np.abs(ranks - 0.5) <= 0.5 * level).mean(axis=1)
        shares.append(f"{inside.mean():.3f} ({inside.std() / np.sqrt(len(inside)):.3f})")
    said = f"{sum(row['said'] for row in rows)} of {len(rows)}" if method == METHODS[1] else ""
    return [task, method, len(rows), *shares, said, f"{np.mean([row['seconds'] for row in rows]):.1f}"]


def main(number=50, tasks=CHEAP, methods=METHODS, again=False):
    wanted = [(task, i, method) for method, task, i in product(methods, tasks, range(1, number + 1))]
    rows = ROWS.complete(run, wanted, lambda row: str(np.round(row["ranks"], 2)), again)
    groups = {}
    for row in rows:
        groups.setdefault((row["key"][0], row["key"][2]), []).append(row)
    TABLE.write([cells(*key, groups[key]) for key in KEYS if key in groups], NOTE)


if __name__ == "__main__":
    harness.run(main)
