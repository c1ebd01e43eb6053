import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.likelihood_free import Status
from pymc_kernel.plugin.model import remote
from tests.plugin import killed_run
from tests.plugin.models import Ends

GROUPS = ("prior", "prior_predictive", "simulation_stats")
QUIET = {"progressbar": False, "random_seed": 1}


def same(one, other):
    return all(one[g].to_dataset().equals(other[g].to_dataset()) for g in GROUPS)


def normal_model(simulator, observed=0.0):
    with pm.Model() as model:
        theta = pm.Normal("theta", 2, 1, shape=3)
        pk.KernelABC("y", simulator, theta, observed=np.full((3, 2), observed), epsilon=0.1)
    return model


def small_model(spread=0.5, shift=None):
    with pm.Model() as model:
        theta = pm.Normal("theta", 2, 1)
        if shift is None:
            pm.Normal("y", theta, spread, observed=np.zeros(2))
        else:

            def simulator(rng, theta, size):
                return rng.normal(theta + shift, spread, size)

            pm.Simulator("y", simulator, theta, observed=np.zeros(2))
    return model


def failing(rng, theta, size):
    kind = rng.random()
    if kind < 0.1:
        raise RuntimeError("the solver gave up")
    if kind < 0.2:
        return np.full(size, np.nan)
    if kind < 0.25:
        return np.full(size, np.inf)
    if kind < 0.3:
        end = time.perf_counter() + 10.0
        while time.perf_counter() < end:
            pass
    return rng.normal(theta[:, None], 0.5, (3, 2))


def test_draws_have_the_law_of_the_model():
    with pm.Model(coords={"place": list("abc"), "time": [0.5, 1.5]}):
        theta = pm.Normal("theta", 2, 1, dims="place")
        pm.Deterministic("twice", 2.0 * theta)
        count = pm.Poisson("count", 3.0)
        y = pm.Normal("y", theta[:, None] + 0.0 * count, 0.5, observed=np.zeros((3, 2)), dims=("place", "time"))
        pm.Deterministic("of the data", y.sum())
        sims = pk.simulate(2000, **QUIET)
    prior, data = sims["prior"].to_dataset(), sims["prior_predictive"]["y"]
    assert set(prior.data_vars) == {"theta", "twice", "count"}
    assert prior["count"].dtype.kind == "i"
    assert data.dims == ("chain", "draw", "place", "time")
    assert list(prior["place"].values) == list("abc")
    np.testing.assert_array_equal(prior["twice"], 2.0 * prior["theta"])
    residuals = (data - prior["theta"]).values.ravel()
    assert stats.kstest(residuals, stats.norm(0, 0.5).cdf).pvalue > 1e-3
    assert stats.kstest(prior["theta"].values.ravel(), stats.norm(2, 1).cdf).pvalue > 1e-3
    # Neighboring draws, in one batch and over the seam of two, are independent.
    lagged = np.corrcoef(residuals[:-6], residuals[6:])[0, 1]
    assert abs(lagged) < 4.0 / np.sqrt(len(residuals))
    assert sims["observed_data"]["y"].shape == (3, 2)


def test_every_failure_has_a_status():
    model = normal_model(failing)
    with pytest.warns(UserWarning, match=r"of 200 simulations \(\d+ %\) failed.*the solver gave up"):
        sims = pk.simulate(200, timeout=0.05, retries=0, model=model, **QUIET)
    status = sims["simulation_stats"]["status"].values[0]
    counts = {s: int((status == s).sum()) for s in Status}
    assert counts[Status.NOT_RUN] == counts[Status.LOST] == 0
    for kind, share in ((Status.RAISED, 0.1), (Status.NOT_FINITE, 0.15), (Status.TIMED_OUT, 0.05)):
        assert stats.binomtest(counts[kind], 200, share).pvalue > 1e-3
    attrs = sims["simulation_stats"].attrs
    assert attrs["timed_out"] == counts[Status.TIMED_OUT]
    assert attrs["first_error"] == "RuntimeError: the solver gave up"
    is_finite = np.isfinite(sims["prior_predictive"]["y"].values[0]).all(axis=(1, 2))
    np.testing.assert_array_equal(is_finite, status == 0)
    assert np.isfinite(sims["prior"]["theta"]).all()


def test_any_executor_gives_the_same_bits(tmp_path):
    model = killed_run.model()
    settings = {"draws": 60, "batch_size": 7, "model": model, "max_failures": 1.0} | QUIET
    alone = pk.simulate(**settings)
    with ThreadPoolExecutor(3) as threads:
        assert same(alone, pk.simulate(executor=threads, **settings))
    assert same(alone, pk.simulate(executor=2, **settings))
    assert same(alone, pk.simulate(store=tmp_path / "sims.zarr", executor=2, **settings))
    assert not same(alone, pk.simulate(**(settings | {"random_seed": 2})))
    assert not same(alone, pk.simulate(**(settings | {"batch_size": 8})))


class Compiled:
    """Counts how many of its kind are being made."""

    inside, most = [], []

    def __init__(self):
        self.inside.append(1)
        time.sleep(0.05)
        self.most.append(len(self.inside))
        self.inside.pop()


def test_threads_compile_one_after_the_other():
    """Two at once would leave PyTensor's mode changed for the whole session."""
    ready, sent = threading.Barrier(2), remote.Remote(Compiled, is_sent=True)

    def ask(_):
        ready.wait()
        return sent.here()

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(ask, range(2))
    assert first is not second
    assert Compiled.most == [1, 1]


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dask_gives_the_same_bits(processes):
    distributed = pytest.importorskip("distributed")
    settings = {"draws": 40, "batch_size": 5, "model": killed_run.model(), "max_failures": 1.0} | QUIET
    alone = pk.simulate(**settings)
    with (
        distributed.LocalCluster(1, processes=processes, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert same(alone, pk.simulate(executor=client.get_executor(), **settings))


def marks(path):
    return len(list((path / "done").rglob("c/*"))) if path.exists() else 0


@pytest.mark.slow
def test_a_killed_client_goes_on_to_the_same_arrays(tmp_path):
    path, root = tmp_path / "sims.zarr", Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-m", "tests.plugin.killed_run", str(path)], cwd=root)
    deadline = time.monotonic() + 120.0
    while marks(path) < 5:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.wait()
    before = marks(path)
    assert before < 24
    resumed = killed_run.run(path)
    assert marks(path) == 24
    undisturbed = killed_run.run(tmp_path / "other.zarr")
    assert same(resumed, undisturbed)
    assert (resumed["simulation_stats"]["status"] == Status.RAISED).any()
    # The store is read by xarray alone, too.
    read = xr.open_datatree(path, engine="zarr", consolidated=False)
    assert same(read, undisturbed)


def test_a_store_goes_on_and_grows(tmp_path):
    path, model = tmp_path / "sims.zarr", small_model()
    first = pk.simulate(95, batch_size=10, store=path, model=model, **QUIET)
    longer = pk.simulate(200, store=path, model=model, progressbar=False)
    whole = pk.simulate(200, batch_size=10, model=model, **QUIET)
    assert same(longer, whole)
    np.testing.assert_array_equal(first["prior"]["theta"], whole["prior"]["theta"].isel(draw=slice(95)))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"random_seed": 2}, 'seed: "1" there, "2" now'),
        ({"batch_size": 3}, "batch size: 5 there, 3 now"),
        ({"model": {"spread": 0.6}}, "constants"),
        ({"model": {"shift": 1.0}}, "graph"),
    ],
)
def test_another_model_seed_or_batch_size_is_refused(tmp_path, change, what):
    settings = {"draws": 10, "batch_size": 5, "store": tmp_path / "s.zarr", "model": small_model()} | QUIET
    pk.simulate(**settings)
    if "model" in change:
        change = {"model": small_model(**change["model"])}
    with pytest.raises(ValueError, match=what):
        pk.simulate(**(settings | change))


def test_simulations_at_given_parameters():
    model = small_model()
    given = xr.Dataset({"theta": (("chain", "draw"), np.linspace(-50.0, 50.0, 60).reshape(2, 30))})
    sims = pk.simulate(given=given, model=model, **QUIET)
    np.testing.assert_array_equal(sims["prior"]["theta"].values[0], np.linspace(-50.0, 50.0, 60))
    assert float(abs(sims["prior_predictive"]["y"] - sims["prior"]["theta"]).max()) < 3.0
    with pytest.raises(ValueError, match="given has no theta"):
        pk.simulate(given=given.rename(theta="phi"), model=model, **QUIET)
    with pytest.raises(ValueError, match="given has 60 draws"):
        pk.simulate(10, given=given, model=model, **QUIET)
    with pytest.raises(TypeError, match="chain and draw"):
        pk.simulate(given=given.isel(chain=0), model=model, **QUIET)


def test_interrupted_it_returns_what_is_finished():
    with pm.Model() as model:
        pm.Simulator("y", Ends(35, KeyboardInterrupt), pm.Normal("theta", 0, 1), observed=np.zeros(2))
    with pytest.warns(UserWarning, match="interrupted"):
        sims = pk.simulate(100, batch_size=10, model=model, **QUIET)
    assert sims["prior"].sizes["draw"] == 30
    assert (sims["simulation_stats"]["status"] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"draws": 0}, ValueError, "draws must be a whole number >= 1"),
        ({"batch_size": 1.5}, ValueError, "batch_size"),
        ({"timeout": -1.0}, ValueError, "timeout"),
        ({"max_failures": 2.0}, ValueError, "max_failures"),
        ({"retries": -1}, ValueError, "retries"),
        ({"executor": "dask"}, TypeError, "executor must be None"),
    ],
)
def test_wrong_settings_are_said_at_once(wrong, error, message):
    with pytest.raises(error, match=message):
        pk.simulate(model=small_model(), **(QUIET | wrong))


def test_models_with_nothing_to_simulate_are_refused():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.CustomDist("y", theta, logp=lambda value, theta: -((value - theta) ** 2), observed=np.ones(2))
    with pytest.raises(ValueError, match="'y' cannot be simulated"):
        pk.simulate(model=model, **QUIET)
    with pm.Model() as model:
        pm.Normal("theta", 0, 1)
    with pytest.raises(ValueError, match="no observed variable"):
        pk.simulate(model=model, **QUIET)
    with pm.Model() as model:
        pm.Normal("y", 0, 1, observed=1.0)
    with pytest.raises(ValueError, match="no free variable"):
        pk.simulate(model=model, **QUIET)
