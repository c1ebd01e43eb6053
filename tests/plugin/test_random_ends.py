"""Long calls that are killed, or interrupted, at random moments: what was finished is resumed, or returned."""

import multiprocessing
import os
import signal
import time
import traceback

import numpy as np
import pytest

from tests.plugin.long_calls import CALLS, calls_in, run

NUM_ENDS = 10
pytestmark = pytest.mark.slow


def run_apart(name, log, store, executor, begun, outcome):
    os.setsid()  # with its workers a group of its own
    signal.signal(signal.SIGINT, signal.default_int_handler)
    multiprocessing.set_start_method("fork", force=True)
    begun.set()
    try:
        tree = run(name, log, store, executor)
        sizes = tree[CALLS[name][1]].sizes
        outcome.put(
            (
                "returned",
                sizes.get("draw", sizes.get("evaluation")),
                np.isfinite(tree["prior" if name == "simulate" else "posterior"]["x"]).all().item(),
            )
        )
    except KeyboardInterrupt:
        outcome.put(("interrupted", 0, True))
    except BaseException:
        outcome.put((traceback.format_exc(), 0, False))


def is_group_alive(number):
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for_end_of_group(number):
    deadline = time.monotonic() + 30.0
    while is_group_alive(number):  # its workers end with it
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def started():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zarr", "tests.plugin.calls_made_once"])

    def start(*settings):
        begun, outcome = context.Event(), context.SimpleQueue()
        process = context.Process(target=run_apart, args=(*settings, begun, outcome))
        process.start()
        assert begun.wait(300.0)  # the first one waits for the calls that are made once
        return process, outcome

    return start


def finish(process, outcome):
    process.join(300.0)
    assert process.exitcode is not None, "it hangs"
    return outcome.get()


@pytest.mark.parametrize("name", ["simulate", "surrogate", "exact", "likelihood_free"])
def test_killed_at_random_moments_it_goes_on_to_the_same_result(name, tmp_path, started):
    pytest.importorskip("zarr")
    rng = np.random.default_rng(0)
    undisturbed, began = started(name, None, tmp_path / "undisturbed", 2), time.monotonic()
    assert finish(*undisturbed)[0] == "returned"
    longest = time.monotonic() - began
    expected = run(name, None, tmp_path / "undisturbed", None)
    kills = stores = 0
    while kills < NUM_ENDS:
        path, stores = tmp_path / f"s{stores}", stores + 1
        process = None
        while process is None or process.exitcode != 0:
            process, _ = started(name, None, path, 2 if stores % 2 else None)
            process.join(rng.uniform(0.0, 0.7) * longest if kills < NUM_ENDS else 300.0)  # the last one may finish
            if process.exitcode is None:
                assert kills < NUM_ENDS, "it hangs"
                process.kill()
                process.join()
                kills += 1
                wait_for_end_of_group(process.pid)
            assert process.exitcode in (0, -signal.SIGKILL)
        found = run(name, None, path, None)
        for group in {"prior", "prior_predictive", "evaluations", "posterior"} & set(expected.children):
            assert found[group].to_dataset().equals(expected[group].to_dataset())


@pytest.mark.parametrize("name", CALLS)
def test_interrupted_at_random_moments_it_returns_what_is_finished(name, tmp_path, started):
    _, _, most_lost, before_the_first = CALLS[name]
    rng, returned = np.random.default_rng(1), 0
    assert finish(*started(name, tmp_path / "undisturbed", None, 2))[0] == "returned"
    for number in range(NUM_ENDS):
        log, wanted = tmp_path / f"calls_{number}", rng.integers(calls_in(tmp_path / "undisturbed") + 1)
        process, outcome = started(name, log, None, 2 if number % 2 else None)
        while process.exitcode is None and calls_in(log) < wanted:
            time.sleep(0.001)
        process.join(rng.exponential(0.1))
        calls = calls_in(log)
        if process.exitcode is None:
            os.killpg(process.pid, signal.SIGINT)
        what, count, is_finite = finish(process, outcome)
        wait_for_end_of_group(process.pid)
        assert what in ("returned", "interrupted"), what
        assert is_finite
        if what == "interrupted":
            assert calls <= before_the_first
        else:
            assert count >= calls - most_lost
            returned += 1
    assert returned or name == "smc"
