import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from pymc.model.transform.optimization import freeze_dims_and_data
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.likelihood_free import Status
from pymc_kernel.plugin.model import remote
from pymc_kernel.plugin.simulation.pairs import simulated_pairs
from tests.plugin import killed_run
from tests.plugin.models import Ends, abc_model
from tests.plugin.parts import QUIET


def same(one, other):
    groups = ("prior", "prior_predictive", "simulation_stats")
    return all(one[g].to_dataset().equals(other[g].to_dataset()) for g in groups)


def small_model(spread=0.5, block=pm.Normal):
    with pm.Model() as model:
        block("y", pm.Normal("theta", 2, 1), spread, observed=np.zeros(2))
    return model


def shifted(name, theta, spread, observed):
    pm.Simulator(name, lambda rng, theta, size: rng.normal(theta + 1.0, spread, size), theta, observed=observed)


def failing(rng, theta, size):
    kind = rng.random()
    if kind < 0.1:
        raise RuntimeError("the solver gave up")
    if kind < 0.25:
        return np.full(size, np.nan if kind < 0.2 else np.inf)
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


def hierarchical():
    center = pm.Normal("center", 1, 1)
    spread = pm.HalfNormal("spread", 1)
    pm.Deterministic("ratio", center / spread)
    pm.Normal("y", pm.Normal("each", center, spread, shape=3), 0.1, observed=np.zeros(3))


def correlated():
    packed, *_ = pm.LKJCholeskyCov("packed", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    pm.MvNormal("y", np.zeros(2), chol=packed, observed=np.zeros(2))


def mixed():
    weights = pm.Dirichlet("weights", np.ones(2))
    pm.NormalMixture("y", weights, [0.0, 3.0], [1.0, 0.5], observed=np.zeros(4))


def walking():
    path = pm.GaussianRandomWalk("path", 0.1, 1.0, init_dist=pm.Normal.dist(0, 1), steps=5)
    pm.Poisson("y", pm.math.exp(path), observed=np.zeros(6))


def several():
    rate = pm.Gamma("rate", 2, 1, shape=2)
    kind = pm.Categorical("kind", [0.2, 0.5, 0.3])
    pm.Normal("z", kind, 1.0, observed=0.0)
    pm.TruncatedNormal("y", rate, 1.0, lower=0.0, observed=np.ones((5, 2)))


@pytest.mark.parametrize("build", [hierarchical, correlated, mixed, walking, several])
def test_vectorized_draws_have_the_law_of_pymc(build):
    with pm.Model():
        build()
        sims = pk.simulate(1000, **QUIET)
        mode = Mode("py", optimizer=None)
        expected = pm.sample_prior_predictive(1000, random_seed=2, compile_kwargs={"mode": mode})
    for group in ("prior", "prior_predictive"):
        for name, values in sims[group].data_vars.items():
            # Rounded: a correlation with itself is 1 but for the last bits.
            pair = [v.values[0].reshape(1000, -1).round(12) for v in (values, expected[group][name])]
            assert stats.ks_2samp(*pair).pvalue.min() > 1e-4, (group, name)
            if pair[0].shape[1] > 1 and pair[0].std(axis=0).min() > 0:
                # Entries of one draw depend on each other as they do there.
                assert stats.ks_2samp(*(v[:, 0] * v[:, -1] for v in pair)).pvalue > 1e-4, (group, name)


def test_vectors_drawn_by_scipy_keep_their_shape_in_a_batch_of_one():
    with pm.Model():
        theta = pm.TruncatedNormal("theta", [1.0, 5.0, 9.0], [0.5, 0.5, 0.5], lower=0)
        pm.TruncatedNormal("y", theta, 0.1, lower=0, observed=[1.0, 1.0, 1.0])
        found = [pk.simulate(n, batch_size=b, **QUIET) for n, b in ((1, 1), (3, 2))]
    for one, n in zip(found, (1, 3), strict=True):
        assert one["prior"]["theta"].shape == one["prior_predictive"]["y"].shape == (1, n, 3)
        np.testing.assert_allclose(one["prior_predictive"]["y"], one["prior"]["theta"], atol=0.6)


# A limit may end while objects are deleted, where Python drops what is raised.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_failure_has_a_status():
    with pm.Model():
        theta = pm.Normal("theta", 2, 1, shape=3)
        pk.KernelABC("y", failing, theta, observed=np.zeros((3, 2)), epsilon=0.1)
        with pytest.warns(UserWarning, match=r"of 200 simulations \(\d+ %\) failed.*the solver gave up"):
            sims = pk.simulate(200, timeout=0.05, retries=0, **QUIET)
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


def test_one_draw_that_raises_spares_the_others():
    with pm.Model() as model:
        spread = pm.Normal("spread", 0, 1)
        pm.Normal("y", 0, spread, observed=np.zeros(2))  # a negative standard deviation cannot be drawn
    with pytest.warns(UserWarning, match="failed"):
        sims = pk.simulate(200, model=model, **QUIET)
    status, drawn = sims["simulation_stats"]["status"].values[0], sims["prior"]["spread"].values[0]
    np.testing.assert_array_equal(status == Status.RAISED, drawn < 0)


def test_any_executor_gives_the_same_bits(tmp_path):
    run = partial(killed_run.run, draws=60, batch_size=7)
    alone = run(None)
    with ThreadPoolExecutor(3) as threads:
        assert same(alone, run(None, executor=threads))
    for store in (None, tmp_path / "sims.zarr"):
        assert same(alone, run(store, executor=2))
    for other in ({"random_seed": 2}, {"batch_size": 8}):
        assert not same(alone, run(None, **other))


@pytest.mark.parametrize("processes", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dask_gives_the_same_bits(processes):
    distributed = pytest.importorskip("distributed")
    run = partial(killed_run.run, None, draws=40, batch_size=5)
    alone = run()
    with (
        distributed.LocalCluster(1, processes=processes, threads_per_worker=2, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert same(alone, run(executor=client.get_executor()))


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


def test_a_simulator_that_cannot_be_pickled_runs_here():
    lock = threading.Lock()

    def simulator(rng, theta, size):
        with lock:
            return rng.normal(theta, 1.0, size)

    model = abc_model(simulator=simulator)
    assert pk.simulate(20, model=model, **QUIET)["simulation_stats"].attrs["succeeded"] == 20
    with pytest.raises(TypeError, match="cannot be sent to workers"):
        pk.simulate(20, executor=2, model=model, **QUIET)


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
    assert marks(path) < 24
    resumed = killed_run.run(path)
    assert marks(path) == 24
    undisturbed = killed_run.run(tmp_path / "other.zarr")
    assert same(resumed, undisturbed)
    assert (resumed["simulation_stats"]["status"] == Status.RAISED).any()
    # The store is read by xarray alone, too.
    assert same(xr.open_datatree(path, engine="zarr", consolidated=False), undisturbed)


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
        (lambda: {"random_seed": 2}, 'seed: "1" there, "2" now'),
        (lambda: {"batch_size": 3}, "batch size: 5 there, 3 now"),
        (lambda: {"model": small_model(spread=0.6)}, "constants"),
        (lambda: {"model": small_model(block=shifted)}, "graph"),
    ],
)
def test_another_model_seed_or_batch_size_is_refused(tmp_path, change, what):
    settings = {"draws": 10, "batch_size": 5, "store": tmp_path / "s.zarr", "model": small_model()} | QUIET
    pk.simulate(**settings)
    with pytest.raises(ValueError, match=what):
        pk.simulate(**(settings | change()))


def test_simulations_at_given_parameters():
    theta = np.linspace(-50.0, 50.0, 60)
    given = xr.Dataset({"theta": (("chain", "draw"), theta.reshape(2, 30))})
    with small_model():
        sims = pk.simulate(given=given, **QUIET)
        np.testing.assert_array_equal(sims["prior"]["theta"].values[0], theta)
        assert float(abs(sims["prior_predictive"]["y"] - sims["prior"]["theta"]).max()) < 3.0
        with pytest.raises(ValueError, match="given has no theta"):
            pk.simulate(given=given.rename(theta="phi"), **QUIET)
        with pytest.raises(ValueError, match="given has 60 draws"):
            pk.simulate(10, given=given, **QUIET)
        with pytest.raises(TypeError, match="chain and draw"):
            pk.simulate(given=given.isel(chain=0), **QUIET)


def test_interrupted_it_returns_what_is_finished():
    with pm.Model():
        pm.Simulator("y", Ends(35, KeyboardInterrupt), pm.Normal("theta", 0, 1), observed=np.zeros(2))
        with pytest.warns(UserWarning, match="interrupted"):
            sims = pk.simulate(100, batch_size=10, **QUIET)
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


def _a_density_alone():
    theta = pm.Normal("theta", 0, 1)
    pm.CustomDist("y", theta, logp=lambda value, theta: -((value - theta) ** 2), observed=np.ones(2))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (_a_density_alone, "'y' cannot be simulated"),
        (lambda: pm.Normal("theta", 0, 1), "no observed variable"),
        (lambda: pm.Normal("y", 0, 1, observed=1.0), "no free variable"),
    ],
)
def test_models_with_nothing_to_simulate_are_refused(build, message):
    with pm.Model() as model:
        build()
    with pytest.raises(ValueError, match=message):
        pk.simulate(model=model, **QUIET)


# -- one meaning of ``summary=``: a function of a variable's array, handed on by its block ------------------


def test_other_blocks_hand_on_how_they_see_the_data():
    model = abc_model(pk.SyntheticLikelihood, observed=np.arange(9.0), summary=np.mean)
    simulations = pk.simulate(10, model=model, **QUIET)
    for one in (model, freeze_dims_and_data(model)):
        assert simulated_pairs(simulations, one, None)[1].shape == (10, 1)


def test_each_observed_variable_has_a_summary_of_its_own():
    with abc_model(observed=np.arange(4.0), summary=np.mean) as model:
        pm.Normal("z", model["theta"], 1.0, observed=np.arange(3.0))
        simulations = pk.simulate(20, **QUIET)
    y, z = (simulations["prior_predictive"][name].values[0] for name in "yz")
    for summary, columns in (
        (None, [y.mean(axis=1), z]),
        ({"z": np.max, "y": np.ravel}, [y, z.max(axis=1)]),
        ({"z": np.max}, [y.mean(axis=1), z.max(axis=1)]),
    ):
        found = simulated_pairs(simulations, model, summary)[1]
        np.testing.assert_array_equal(found, np.column_stack(columns))
    for sampler, summary, error, message in (
        (pk.sample_abc, np.mean, ValueError, "observes y, z, and one function cannot"),
        (pk.sample_kbr, {"x": np.mean}, ValueError, "names x; the model observes y, z"),
        (pk.sample_kbr, {"z": 3.0}, TypeError, "summary of 'z' must be a function"),
        (pk.sample_kbr, "mean", TypeError, "summary must be a function of the observed array"),
        (pk.sample_kbr, {"z": lambda z: z[z > 0.0]}, ValueError, "summary of 'z' must return vectors of one length"),
    ):
        with pytest.raises(error, match=message):
            sampler(simulations=simulations, model=model, summary=summary)
