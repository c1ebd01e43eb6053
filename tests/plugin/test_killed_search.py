"""Runs of ``sample_surrogate`` that are killed go on to the same evaluations."""

import multiprocessing
import os
import signal
import time
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kernel as pk

NUM_KILLS = 20


class Slow(Op):
    """A log likelihood that sleeps."""

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        time.sleep(0.02)
        (x,) = inputs
        outputs[0][0] = np.asarray(-0.5 * ((x[0] ** 2 - x[1]) ** 2 + x[0] ** 2) / 0.1)


def run(store, executor=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pm.Model():
            pm.Potential("y", Slow()(pm.Normal("x", shape=2)))
            return pk.sample_surrogate(
                15, chains=2, evaluations=40, tolerance=0.0, exact=True, executor=executor, store=store, random_seed=1,
                progressbar=False,
            )  # fmt: skip


def run_quietly(store, executor, begun):
    os.setsid()  # with its workers a group of its own
    multiprocessing.set_start_method("fork", force=True)
    begun.set()
    run(store, executor)


def is_group_alive(number):
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_runs_killed_at_random_moments_go_on_to_the_same_evaluations(tmp_path):
    pytest.importorskip("zarr")
    context, rng = multiprocessing.get_context("forkserver"), np.random.default_rng(0)
    context.set_forkserver_preload(["arviz", "pymc", "zarr"])

    def started(store, executor):
        begun = context.Event()
        process = context.Process(target=run_quietly, args=(store, executor, begun))
        process.start()
        assert begun.wait(120.0)
        return process

    began, process = time.monotonic(), started(tmp_path / "undisturbed", 2)
    process.join()
    longest = time.monotonic() - began
    expected = run(tmp_path / "undisturbed")
    kills = stores = 0
    while kills < NUM_KILLS:
        path, stores = tmp_path / f"s{stores}", stores + 1
        process = None
        while process is None or process.exitcode != 0:
            process = started(path, 2 if stores % 2 else None)
            process.join(rng.uniform(0.0, 0.7) * longest)
            if process.exitcode is None:
                process.kill()
                process.join()
                kills += 1
                deadline = time.monotonic() + 20.0
                while is_group_alive(process.pid):  # its workers end with it
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            assert process.exitcode in (0, -signal.SIGKILL)
        found = run(path)
        for name in ("position", "log_likelihood"):
            np.testing.assert_array_equal(found["evaluations"][name], expected["evaluations"][name])
        np.testing.assert_array_equal(found["posterior"]["x"], expected["posterior"]["x"])
