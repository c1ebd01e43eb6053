"""What simulation at scale costs: 100,000 simulations of a millisecond each on two workers.

Efficiency is the time that the simulator itself takes, shared by two, over the time of the whole call, start of the
workers and compilation included. The simulator works, it does not sleep. Beside the ideal stands what two bare loops
without any library take on this machine.
"""

import tempfile
import time
from multiprocessing import Process

import numpy as np
import pymc as pm

import pymc_kernel as pk
from benchmarks import harness

SECONDS = 1e-3
TABLE = harness.Table("simulations", ("workers", "seconds", "efficiency", "bar"))


def simulator(rng, theta, size):
    """Work for a millisecond."""
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        pass
    return rng.normal(theta, 1.0, size)


def make_model():
    """Return a model of two parameters and ten observations."""
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        shift = pm.HalfNormal("shift", 1)
        pk.KernelABC("y", simulator, theta + shift, observed=np.zeros(10), epsilon=0.1)
    return model


def bare(calls):
    """Call the simulator in a loop."""
    rng = np.random.default_rng(1)
    for _ in range(calls):
        simulator(rng, 0.3, (10,))


def timed_bare(draws):
    """Return the seconds of two bare loops side by side."""
    processes = [Process(target=bare, args=(draws // 2,)) for _ in range(2)]
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return time.perf_counter() - start


def timed(draws, **kwargs):
    """Return the seconds of one run."""
    start = time.perf_counter()
    sims = pk.simulate(draws, model=make_model(), random_seed=1, progressbar=False, **kwargs)
    seconds = time.perf_counter() - start
    assert sims["simulation_stats"].attrs["succeeded"] == draws
    return seconds


def main(draws=100_000):
    """Run all; write the table."""
    from distributed import Client, LocalCluster

    rows = []

    def add(name, seconds, bar):
        rows.append([name, f"{seconds:.1f}", f"{100.0 * draws * SECONDS / 2 / seconds:.1f} %", bar])
        print(*rows[-1], flush=True)

    with tempfile.TemporaryDirectory() as folder:
        timed(100)  # imports
        add("two bare loops", timed_bare(draws), "")
        add("executor=2, in memory", timed(draws, executor=2), "90 %")
        add("executor=2, zarr store", timed(draws, executor=2, store=f"{folder}/own.zarr"), "90 %")
        with LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
            seconds = timed(draws, executor=client.get_executor(), store=f"{folder}/dask.zarr")
            add("Dask, two worker processes, zarr store", seconds, "75 %")
    TABLE.write(rows, f"{draws} simulations of {1e3 * SECONDS:.0f} ms.")


if __name__ == "__main__":
    harness.run(main)
