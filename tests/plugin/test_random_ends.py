"""Long calls that are killed, or interrupted, at random moments: what was finished is resumed, or returned."""

import multiprocessing
import os
import signal
import time
import traceback
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py

import pymc_kernel as pk

NUM_ENDS = 10
SECONDS = 0.01  # of a call of the user's code
pytestmark = pytest.mark.slow


def counting(log, value):
    """Count a call of the user's code that is finished; the workers of a run share the file."""
    time.sleep(SECONDS)
    if log is not None:
        with open(log, "ab") as file:
            file.write(b"x")
    return value


def calls_in(log):
    return log.stat().st_size if log.exists() else 0


def with_likelihood(log):
    @wrap_py([pt.dvector], [pt.dscalar])
    def log_likelihood(x):
        return counting(log, np.asarray(-0.5 * ((x[0] ** 2 - x[1]) ** 2 + x[0] ** 2) / 0.1))

    with pm.Model() as model:
        pm.Potential("y", log_likelihood(pm.Normal("x", shape=2)))
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


def exact(log, **settings):
    return surrogate(log, exact=True, **settings)


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
    "exact": (exact, "evaluations", 9, 13),
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
    context.set_forkserver_preload(["arviz", "pymc", "zarr"])

    def start(*settings):
        begun, outcome = context.Event(), context.SimpleQueue()
        process = context.Process(target=run_apart, args=(*settings, begun, outcome))
        process.start()
        assert begun.wait(120.0)
        return process, outcome

    return start


def finish(process, outcome):
    process.join(300.0)
    assert process.exitcode is not None, "it hangs"
    return outcome.get()


@pytest.mark.parametrize("name", ["simulate", "surrogate", "exact", "likelihood_free"])
def test_killed_at_random_moments_it_goes_on_to_the_same_result(name, tmp_path, started):
    pytest.importorskip("zarr")
    rng, began = np.random.default_rng(0), time.monotonic()
    assert finish(*started(name, None, tmp_path / "undisturbed", 2))[0] == "returned"
    longest = time.monotonic() - began
    expected = run(name, None, tmp_path / "undisturbed", None)
    kills = stores = 0
    while kills < NUM_ENDS:
        path, stores = tmp_path / f"s{stores}", stores + 1
        process = None
        while process is None or process.exitcode != 0:
            process, _ = started(name, None, path, 2 if stores % 2 else None)
            process.join(rng.uniform(0.0, 0.7) * longest)
            if process.exitcode is None:
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
