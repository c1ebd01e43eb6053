"""Small models and helpers for the tests of the plugin. Functions stand at module level so that they pickle."""

import itertools
from copy import copy
from unittest import mock

import numpy as np
import pymc as pm
import pymc.model.core
import pytensor.tensor as pt
from pytensor import wrap_py
from pytensor.graph.op import Apply, Op

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.model_graph import with_hoisted
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.emulation.structure import unknown_of


def noisy_normal(rng, theta, observed, sd=1.5):
    """Log of an unbiased estimate of exp(-theta^2 / 2): log-normal noise with mean one."""
    return -0.5 * float(theta) ** 2 + rng.normal(-0.5 * sd**2, sd)


def normal_simulator(rng, theta, size):
    return rng.normal(theta, 1.0, size)


def noisy_model(fn=noisy_normal, prior=lambda: pm.Flat("theta", initval=0.1), **settings):
    with pm.Model() as model:
        pk.EstimatedLikelihood("y", fn, prior(), observed=np.zeros(1), **settings)
    return model


def abc_model(block=pk.KernelABC, simulator=normal_simulator, **kwargs):
    """One observation of N(theta, 1) at 1, prior N(0, 1)."""
    settings = {"epsilon": 0.5, "num_simulations": 5} if block is pk.KernelABC else {}
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        block("y", simulator, theta, **({"observed": np.array([1.0])} | settings | kwargs))
    return model


class Ends:
    """A simulator that raises at one of its calls and at all after it, and says how many there were."""

    def __init__(self, at, error, sd=0.5):
        self.calls, self.at, self.error, self.sd = 0, at, error, sd

    def __call__(self, rng, theta, size):
        self.calls += 1
        if self.calls >= self.at:
            raise self.error
        return rng.normal(theta, self.sd, size)


class Counted(Op):
    """A function of one vector or number without a gradient, which counts its calls."""

    def __init__(self, function, otype=pt.dscalar):
        self.function, self.otype, self.calls = function, otype, 0

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [self.otype()])

    def perform(self, node, inputs, outputs):
        self.calls += 1
        outputs[0][0] = np.asarray(self.function(inputs[0]))


def exact_model():
    """A constrained, a shaped and a scalar variable."""
    with pm.Model() as model:
        pm.HalfNormal("sigma")
        pm.Normal("x", 1.0, 2.0, shape=(2, 2))
        pm.Normal("z", -1.0, 0.5)
    return model


@wrap_py([pt.dvector], [pt.dscalar])
def square_without_gradient(x):
    return np.asarray(-0.5 * (x**2).sum())


def black_box_model():
    with pm.Model() as model:
        pm.Potential("p", square_without_gradient(pm.Normal("x", shape=2)))
    return model


STEPS = {"KAMH": pk.KAMH, "AdaptiveMetropolis": pk.AdaptiveMetropolis, "KernelHMC": pk.KernelHMC}


def sample(model, make_step, cores, draws=60, tune=200, chains=2, seed=5, **kwargs):
    with model:
        return pm.sample(
            draws,
            tune=tune,
            chains=chains,
            cores=cores,
            step=make_step(),
            random_seed=seed,
            progressbar=False,
            compute_convergence_checks=False,
            discard_tuned_samples=False,
            **kwargs,
        )


def same_draws(one, other):
    return all(
        np.array_equal(one[group][name], other[group][name])
        for group in ("posterior", "warmup_posterior")
        for name in one["posterior"].data_vars
    )


def advance(step, point, num_draws):
    points = []
    for _ in range(num_draws):
        point, _ = step.step(point)
        points.append({k: np.copy(v) for k, v in point.items()})
    return points


def normal_draws(center, sd):
    """In place of those of chains on an emulated model: normal ones with a center (d,), others each time."""
    rng = np.random.default_rng(1)
    given = itertools.cycle(np.array(center) + np.array(sd) * rng.standard_normal((20, 4, 12, len(center))))
    return lambda *_, **__: (next(given), 1.0)


def without_gradient(model, tempered=False):
    """In place of the function that NUTS calls, where no chain moves: the density alone, compiled far sooner."""
    with mock.patch.object(pymc.model.core, "rewrite_pregrad", lambda terms: terms):  # there is no gradient to prepare
        return model.logp_dlogp_function(ravel_inputs=True, tempered=tempered, compute_grads=False)


def add_places(search, positions, kinds=()):
    """Let a search of an emulated model learn from its true model at some positions (n, d), the first of some kinds."""
    true, repeated = search.unknown.true, np.repeat(positions, search.repeats, axis=0)
    of_all = np.array([*kinds, *["uncertain"] * (len(positions) - len(kinds))])
    search.add(positions, [true.read(true.vector_at(x, search.rng), x) for x in repeated], of_all)


def learned_at(model, positions, **kwargs):
    """A search of an emulated model that has learned from some positions (n, d)."""
    rng, model = np.random.default_rng(0), with_hoisted(model)
    search = Search(model, unknown_of(model, rng), 0.05, rng, **kwargs)
    add_places(search, positions)
    assert search.learn()
    return search


def copied(search):
    """A copy of a search that has learned, as if nothing had been drawn with it: what is compiled is that of both."""
    search = copy(search)
    for part in ("record", "challengers", "chains"):
        setattr(search, part, copy(getattr(search, part)))
    for owner in (search, search.record, search.chains):
        vars(owner).update({name: list(v) for name, v in vars(owner).items() if isinstance(v, list)})
    search.rng = search.challengers._rng = np.random.default_rng(0)
    search._renew(search.fits)
    return search
