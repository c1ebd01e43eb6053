"""A run of ``pk.simulate`` that a test kills: ``python -m tests.plugin.killed_run STORE``."""

import sys
import time

import numpy as np
import pymc as pm

import pymc_kernel as pk


def slow_simulator(rng, theta, size):
    time.sleep(0.005)
    if rng.random() < 0.1:
        raise RuntimeError("one in ten")
    return rng.normal(theta, 1.0, size)


def model():
    with pm.Model() as made:
        theta = pm.Normal("theta", 0, 1)
        spread = pm.HalfNormal("spread", 1, shape=2)
        pm.Deterministic("total", spread.sum())
        pk.KernelABC("y", slow_simulator, theta + spread[0], observed=np.zeros(3), epsilon=0.5)
    return made


def run(store, **kwargs):
    settings = {"draws": 240, "batch_size": 10, "random_seed": 5, "progressbar": False, "max_failures": 1.0}
    return pk.simulate(store=store, model=model(), **(settings | kwargs))


if __name__ == "__main__":
    run(sys.argv[1], executor=2)
