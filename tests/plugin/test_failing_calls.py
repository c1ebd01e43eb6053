"""One or two calls in a hundred that raise, and a worker that dies: nothing else is lost, and both are said."""

import multiprocessing
import os
import re
import signal
import warnings
from contextlib import suppress

import numpy as np
import pymc as pm

import pymc_kernel as pk


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


def test_simulations(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    settings = {"draws": 300, "batch_size": 10, "model": simulated_model(flag), "random_seed": 1, "progressbar": False}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found, alone = (pk.simulate(executor=executor, **settings) for executor in (2, None))
    assert not flag.exists()
    assert found["prior_predictive"]["y"].equals(alone["prior_predictive"]["y"])
    stats = found["simulation_stats"].attrs
    assert stats["raised"] == alone["simulation_stats"].attrs["raised"] > 0
    assert stats["worker_deaths"] == 1
    assert stats["lost"] == 0
    words = "; ".join(str(w.message) for w in said)
    assert re.search(r"of 300 simulations .* failed.*the solver gave up.*A worker process died", words)
