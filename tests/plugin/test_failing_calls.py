"""One or two calls in a hundred that raise, and a worker that dies: nothing else is lost, and both are said."""

import multiprocessing
import os
import re
import signal
import warnings
from contextlib import suppress

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk

QUIET = {"random_seed": 1, "progressbar": False}


def dies_once(flag):
    """End this process, if it is a worker, unless another one has done so."""
    if multiprocessing.parent_process() is None:
        return
    with suppress(FileNotFoundError):
        os.remove(flag)
        os.kill(os.getpid(), signal.SIGKILL)


def simulated_model(flag):
    def simulator(rng, theta, size):
        dies_once(flag)
        if rng.random() < 0.02:
            raise RuntimeError("the solver gave up")
        return rng.normal(theta, 1.0, size)

    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pk.KernelABC("y", simulator, theta, observed=np.ones(2), epsilon=0.5)
    return model


def run(call, tmp_path, make, **settings):
    """Return the results with a worker that dies and without, and what was said of the first."""
    flag, results, words = tmp_path / "flag", [], []
    for executor in (2, None):
        if executor:
            flag.touch()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            results.append(call(model=make(flag), executor=executor, **QUIET, **settings))
        assert not executor or not flag.exists()
        words.append("; ".join(str(w.message) for w in said))
    return *results, words[0]


def test_simulations(tmp_path):
    found, alone, said = run(pk.simulate, tmp_path, simulated_model, draws=300, batch_size=10)
    assert found["prior_predictive"]["y"].equals(alone["prior_predictive"]["y"])
    stats = found["simulation_stats"].attrs
    assert stats["raised"] == alone["simulation_stats"].attrs["raised"] > 0
    assert stats["worker_deaths"] == 1
    assert stats["lost"] == 0
    assert re.search(r"of 300 simulations .* failed.*the solver gave up.*A worker process died", said)


@pytest.mark.slow
def test_rounds_of_simulations(tmp_path):
    settings = {"draws": 50, "chains": 1, "num_simulations": 200, "rounds": 2}
    found, alone, said = run(pk.sample_likelihood_free, tmp_path, simulated_model, **settings)
    np.testing.assert_array_equal(found["posterior"]["theta"], alone["posterior"]["theta"])
    assert re.search("A worker process died", said)
    assert re.search(r"of 200 simulations .* are left out", said)
