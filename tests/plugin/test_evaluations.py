"""Evaluations of a likelihood by workers: that one dies, that threads share a process, that a run goes on."""

import gc
import multiprocessing
import os
import re
import signal
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.likelihood_free import Status
from pymc_kernel.plugin.emulation.evaluated import Evaluations
from pymc_kernel.plugin.emulation.model_graph import with_hoisted
from pymc_kernel.plugin.emulation.structure import unknown_of
from tests.plugin.models import abc_model, noisy_model, noisy_normal
from tests.plugin.parts import QUIET, black_box, data_around

EIGHT = np.linspace(-2.0, 2.0, 8)[:, None]


def evaluations(model, executor, store=None, most=8):
    true = unknown_of(with_hoisted(model), np.random.default_rng(0)).true
    return Evaluations(true, most, 1, executor, store, None, {"seed": "1"}, 1)


def ignore():
    pass


def deadly_model(flag=None):
    """Whose likelihood ends a worker between two places: always, or only while the file ``flag`` is there."""

    def log_likelihood(x):
        is_worker = multiprocessing.parent_process() is not None
        if is_worker and 0.0 < x < 0.5 and (flag is None or os.path.exists(flag)):
            os.kill(os.getpid(), signal.SIGKILL)
        return np.asarray(-(x**2))

    with pm.Model() as model:
        pm.Potential("y", black_box(log_likelihood, "s", "s")(pm.Normal("x", 0, 2)))
    return model


def test_a_place_that_ends_its_process_takes_no_other_along():
    with closing(evaluations(deadly_model(), 2)) as evaluate:
        values = evaluate(0, EIGHT, ignore)[:, -1]
        is_dead = (EIGHT[:, 0] > 0.0) & (EIGHT[:, 0] < 0.5)
        assert is_dead.sum() == 1
        np.testing.assert_array_equal(values, np.where(is_dead, np.nan, -(EIGHT[:, 0] ** 2)))
        np.testing.assert_array_equal(evaluate.status(8), np.where(is_dead, Status.LOST, Status.SUCCEEDED))
        assert evaluate.workers.deaths >= 2
        assert "BrokenProcessPool" in evaluate.first_error


def test_a_place_that_was_lost_stays_so_once_later_ones_were_chosen_without_it(tmp_path):
    pytest.importorskip("zarr")
    flag = tmp_path / "flag"

    def run(store, executor, *batches):
        """With workers that die, or here without them."""
        flag.touch() if executor else flag.unlink()
        with closing(evaluations(deadly_model(flag), executor, tmp_path / store, 16)) as evaluate:
            found = [evaluate(first, places, ignore) for first, places in batches]
        return found[0]

    run("s", 2, (0, EIGHT))
    np.testing.assert_array_equal(run("s", None, (0, EIGHT))[:, -1], -(EIGHT[:, 0] ** 2))
    before = run("t", 2, (0, EIGHT), (8, EIGHT - 3.0))
    np.testing.assert_array_equal(run("t", None, (0, EIGHT)), before)


def test_places_that_failed_are_kept_in_a_store(tmp_path):
    pytest.importorskip("zarr")
    calls, added = [], [0.0]

    def squares(x):
        calls.append(x)
        if x > 1.0:
            raise RuntimeError("the solver gave up")
        return np.array([x, x**2 + added[0]])

    model = data_around(lambda: black_box(squares)(pm.Normal("x", -1.0, 0.1)), [0.1, 0.2])
    for wanted in (8, 1):  # the best of a store is evaluated again, to see that the model is the same
        with closing(evaluations(model, None, tmp_path / "s")) as evaluate:
            before = len(calls)
            evaluate.check_stored()
            values = evaluate(0, EIGHT, ignore)
            assert len(calls) == before + wanted
            np.testing.assert_array_equal(values[:, -1], np.where(EIGHT[:, 0] > 1.0, np.nan, EIGHT[:, 0] ** 2))
            assert (evaluate.status(8) == Status.RAISED).sum() == 2
    added[0] = 1.0  # code that the likelihood calls has changed, and the places have not
    with pytest.raises(ValueError, match="another likelihood"), closing(evaluations(model, None, tmp_path / "s")) as e:
        e.check_stored()


def test_simulations_lose_nothing_else_to_calls_that_raise_and_a_worker_that_dies(tmp_path, recwarn):
    flag = tmp_path / "flag"
    flag.touch()

    def simulator(rng, theta, size):
        if multiprocessing.parent_process() is not None:
            with suppress(FileNotFoundError):
                os.remove(flag)
                os.kill(os.getpid(), signal.SIGKILL)
        if rng.random() < 0.02:
            raise RuntimeError("the solver gave up")
        return rng.normal(theta, 1.0, size)

    warnings.simplefilter("always")
    with abc_model(simulator=simulator, observed=np.ones(2)):
        found, alone = (pk.simulate(300, batch_size=10, executor=executor, **QUIET) for executor in (2, None))
    assert not flag.exists()
    assert found["prior_predictive"]["y"].equals(alone["prior_predictive"]["y"])
    stats = found["simulation_stats"].attrs
    assert stats["raised"] == alone["simulation_stats"].attrs["raised"] > 0
    assert (stats["worker_deaths"], stats["lost"]) == (1, 0)
    words = "; ".join(str(w.message) for w in recwarn)
    assert re.search(r"of 300 simulations .* failed.*the solver gave up.*A worker process died", words)


def test_estimates_under_threads_have_the_bits_of_a_serial_run():
    def log_estimate(rng, theta, observed):
        first = rng.standard_normal()
        time.sleep(0.002)  # another thread's turn
        return noisy_normal(rng, theta, observed) + first

    model, places = noisy_model(log_estimate), np.linspace(-2.0, 2.0, 60)[:, None]
    with closing(evaluations(model, None, most=60)) as evaluate:
        serial = evaluate(0, places, ignore)
    with ThreadPoolExecutor(8) as pool, closing(evaluations(model, pool, most=60)) as evaluate:
        np.testing.assert_array_equal(evaluate(0, places, ignore), serial)


def simulated():
    with abc_model() as model:
        for executor in (None, 1):
            pk.simulate(4, batch_size=2, executor=executor, **QUIET)
    return weakref.ref(model)


def learned():
    with abc_model() as model, pytest.warns(UserWarning, match="should not be trusted"):
        pk.sample_surrogate(10, evaluations=40, tolerance=0.0, **QUIET)
    return weakref.ref(model)


@pytest.mark.parametrize("run", [simulated, pytest.param(learned, marks=pytest.mark.slow)])
def test_a_model_goes_with_its_simulations_and_what_was_learned(give_draws, run):
    give_draws([0.8], [0.9])
    gone = run()
    gc.collect()
    assert gone() is None
