"""Long calls of a model whose code takes its time, for processes that a test ends."""

import time
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from pytensor.graph.op import Op

import pymc_kernel as pk

SECONDS = 0.01  # of a call of the user's code


def counting(log, value):
    """Count a call of the user's code that is finished; the workers of a run share the file."""
    time.sleep(SECONDS)
    if log is not None:
        with open(log, "ab") as file:
            file.write(b"x")
    return value


def calls_in(log):
    return log.stat().st_size if log.exists() else 0


class LogLikelihood(Op):
    """A curved ridge; an operator of its own, since PyMC sends it to processes of particles."""

    __props__ = ("log",)
    itypes, otypes = (pt.dvector,), (pt.dscalar,)

    def __init__(self, log):
        self.log = log

    def perform(self, node, inputs, outputs):
        x = inputs[0]
        outputs[0][0] = counting(self.log, np.asarray(-0.5 * ((x[0] ** 2 - x[1]) ** 2 + x[0] ** 2) / 0.1))


def with_likelihood(log):
    with pm.Model() as model:
        pm.Potential("y", LogLikelihood(log)(pm.Normal("x", shape=2)))
    return model


def with_simulator(log):
    def simulator(rng, x, size):
        return counting(log, rng.normal([x[0] + x[1], x[0] - x[1] ** 2], 0.3))

    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pk.KernelABC("y", simulator, x, observed=np.array([0.4, 0.1]), epsilon=0.5)
    return model


def simulate(log, **settings):
    return pk.simulate(120, batch_size=4, model=with_simulator(log), **settings)


def surrogate(log, **settings):
    return pk.sample_surrogate(15, chains=2, evaluations=40, tolerance=0.0, model=with_likelihood(log), **settings)


def likelihood_free(log, **settings):
    model = with_simulator(log)
    return pk.sample_likelihood_free(15, chains=2, num_simulations=200, rounds=3, model=model, **settings)


def khmc(log, executor, **settings):
    return pk.sample_khmc(40, tune=60, chains=2, cores=executor or 1, model=with_likelihood(log), **settings)


def smc(log, executor, **settings):
    return pk.sample_smc(20, chains=2, cores=executor or 1, kernel=pk.ASMC, model=with_likelihood(log), **settings)


# A call; the group of what it finished; and how many calls of the user's code may be finished, but not returned: in a
# batch of each worker, in a round of places; or, where there is nothing before, until the first answer.
CALLS = {
    "simulate": (simulate, "prior", 4 * 4, 4 * 4),
    "surrogate": (surrogate, "evaluations", 9, 13),
    "likelihood_free": (likelihood_free, "prior", 4, 25),
    "khmc": (khmc, "posterior", np.inf, 2 * 60 + 500),
    "smc": (smc, "posterior", np.inf, np.inf),
}


def run(name, log, store, executor):
    settings = {"random_seed": 1, "progressbar": False, "executor": executor}
    settings |= {} if store is None else {"store": store}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CALLS[name][0](log, **settings)
