"""Posteriors from few evaluations: what is unknown is learned, as parts or as one log likelihood."""

import re
import time
import warnings
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.initial_point import make_initial_point_fns_per_chain

import pymc_kernel as pk
from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.plugin.emulation.model_graph import with_whole_likelihood
from pymc_kernel.plugin.samplers import surrogate
from pymc_kernel.plugin.samplers.surrogate import starts_of
from pymc_kernel.plugin.warn import findings_in
from tests.plugin.models import Counted
from tests.plugin.parts import QUIET, black_box


def costs_little(theta, log=pt.log):
    """A log likelihood of two numbers, with gradients, so that a model has no black box."""
    return -0.5 * ((theta[0] - 1.0) / 0.1) ** 2 - 0.5 * ((log(theta[1]) - 2.0) / 0.2) ** 2


def costly(x):
    if x[1] > 50.0:
        raise RuntimeError("the solver diverged")
    return costs_little(x, np.log)


COSTLY = Counted(costly)
# Means and standard deviations of a and log b: normal priors times normal likelihoods.
PRECISION = np.array([0.25 + 100.0, 0.25 + 25.0])
MEANS, SPREADS = np.array([100.0, 50.0]) / PRECISION, PRECISION**-0.5


def model_of(op=COSTLY):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.LogNormal("b", 0, 2)
        pm.Potential("y", op(pt.stack([a, b])))
    return model


def run(*args, **kwargs):
    """A run whose doubts do not matter here: so few evaluations are not trusted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pk.sample_surrogate(*args, **QUIET | kwargs)


def check_normal(z):
    """Mean, spread and tails of draws (chain, draw) that are to be standard normal, in Monte Carlo standard errors."""
    for wanted, found in ((0.0, z), (1.0, z**2), (0.05, 1.0 * (z > 1.6449)), (0.05, 1.0 * (z < -1.6449))):
        error = found.std() / np.sqrt(float(az.ess(found)))
        assert abs(found.mean() - wanted) < 4.0 * error + 0.02 * found.std()


def check_posterior(posterior):
    check_normal((posterior["a"].values - MEANS[0]) / SPREADS[0])
    check_normal((np.log(posterior["b"].values) - MEANS[1]) / SPREADS[1])


@pytest.mark.machine_code
def test_posterior_and_every_evaluation_of_a_black_box_with_a_positive_parameter():
    COSTLY.calls = 0
    idata = run(500, evaluations=60, tolerance=0.0, model=model_of())
    assert 60 < COSTLY.calls <= 66  # some show the structure
    check_posterior(idata["posterior"])
    stats = idata["sample_stats"]
    assert stats["distance"] < 0.05
    assert stats["num_evaluations"] == 60
    assert not stats["diverging"].any()
    points = idata["evaluations"]
    assert points.sizes["evaluation"] == 60
    np.testing.assert_allclose(points["b"], np.exp(points["position"][:, 1]))
    inside = points["status"].values == 0
    assert points.attrs["succeeded"] == inside.sum()
    places = points["position"].values[inside]
    np.testing.assert_array_equal(points["a"].values[inside], places[:, 0])
    prior = -0.125 * (places**2).sum(axis=1) - np.log(2.0 * np.pi * 4.0)
    likelihood = costs_little(places.T, log=lambda log_b: log_b)
    np.testing.assert_allclose(points["log_density"].values[inside], likelihood + prior)
    assert idata["round_stats"]["num_evaluations"].values[-1] < 60


@pytest.mark.slow
@pytest.mark.parametrize("exact_draws", [False, True])
def test_without_a_black_box_all_of_the_likelihood_is_learned(exact_draws):
    with model_of(costs_little) as model:
        pm.Deterministic("square", model["a"] ** 2)
        idata, emulated = run(500, chains=2, evaluations=200, exact=exact_draws, return_fitted=True)
    check_posterior(idata["posterior"])
    np.testing.assert_allclose(idata["posterior"]["square"], idata["posterior"]["a"] ** 2)
    assert idata["sample_stats"]["num_evaluations"] < 120
    places = [{"a": np.array(a), "b_log__": np.array(b)} for a, b in ((1.1, 2.1), (0.9, 1.9))]
    true, learned = (np.array([m.compile_logp()(place) for place in places]) for m in (model, emulated))
    assert abs(np.diff(true - learned)) < 0.02
    if exact_draws:
        assert int(idata["sample_stats"]["evaluations"].sum()) == 2 * 501


def test_whole_likelihoods_of_transformed_variables_are_the_models_own():
    with pm.Model(coords={"group": ["one", "two"]}) as model:
        x = pm.Normal("x", shape=2, dims="group")
        top = pm.HalfNormal("top")
        share = pm.Dirichlet("share", np.ones(3))
        inside = pm.Uniform("inside", 0.0, 1.0 + top)
        pm.Deterministic("sum", x.sum())
        pm.Potential("tilt", -inside * share[0])
        pm.Normal("y", x[0] ** 2 + x[1], 0.1 + top, observed=[1.0, 0.5])
        pm.Normal("log_likelihood", x[1], 1.0, observed=0.3)
        # A deterministic that calls a black box costs no evaluation.
        cost = pm.Deterministic("cost", black_box(lambda x: np.full(16, (x**2).sum()), "v")(x))
        pm.Normal("z", cost, 1.0, observed=np.ones(16))
    whole = with_whole_likelihood(model)
    assert [v.name for v in whole.value_vars] == [v.name for v in model.value_vars]
    assert not whole.observed_RVs
    assert [d.name for d in whole.deterministics if d.name in ("sum", "cost")] == ["sum"]
    assert [p.name for p in whole.potentials] == ["log_likelihood_"]
    rng, point = np.random.default_rng(0), model.initial_point()
    logps = [m.compile_logp() for m in (model, whole)]
    for _ in range(3):
        other = {name: value + rng.normal(size=np.shape(value)) for name, value in point.items()}
        np.testing.assert_allclose(*(logp(other) for logp in logps))
    table = pk.black_boxes(whole)
    assert (table["inputs"].tolist(), table["outputs"].tolist()) == ([6], [1])


def test_data_are_numbers_in_what_depends_on_them():
    """Of missing observations the variable is one, with the others in it; residuals and priors may have them too."""
    data = np.ma.masked_invalid([100.0, 102.0, np.nan])
    with pm.Model() as model:
        mean = pm.Normal("mean", 100.0, 5.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyMC says that it imputes
            y = pm.Normal("y", mean, 1.0, observed=data)
        pm.Deterministic("residual", y - mean)
        z = pm.Normal("z", mean, 1.0, observed=99.0)
        pm.Normal("other", z)
    whole = with_whole_likelihood(model)
    point = model.initial_point()
    np.testing.assert_allclose(whole.compile_logp()(point), model.compile_logp()(point))
    asked = whole.replace_rvs_by_values([whole["y"], whole["residual"]])
    drawn, left = whole.compile_fn(asked, inputs=whole.value_vars, on_unused_input="ignore")(point)
    np.testing.assert_allclose(drawn[:2], [100.0, 102.0])
    np.testing.assert_allclose(left[:2], drawn[:2] - point["mean"])


@pytest.mark.slow
@pytest.mark.parametrize("op", [COSTLY, costs_little])
def test_any_executor_gives_the_same_bits_and_a_store_goes_on(op, tmp_path):
    settings = {"evaluations": 20, "draws": 20, "chains": 1, "tolerance": 0.0}
    with model_of(op):
        here = run(**settings)
        with ThreadPoolExecutor(3) as pool:
            there = run(executor=pool, store=tmp_path / "s", **settings)
        before = COSTLY.calls
        again = run(store=tmp_path / "s", executor=None if op is COSTLY else 1, **settings)
        if op is COSTLY:  # the best one, to see that the likelihood is the same, and those that show the structure
            assert COSTLY.calls - before <= 1 + 6
        longer = run(store=tmp_path / "s", **{**settings, "evaluations": 26})
        with pytest.raises(ValueError, match="seed"):
            run(store=tmp_path / "s", **{**settings, "random_seed": 2})
    for other in (there, again):
        np.testing.assert_array_equal(here["evaluations"]["position"], other["evaluations"]["position"])
        np.testing.assert_array_equal(here["posterior"]["a"], other["posterior"]["a"])
    np.testing.assert_array_equal(here["evaluations"]["position"][:16], longer["evaluations"]["position"][:16])


@pytest.mark.slow
@pytest.mark.parametrize("exact_draws", [False, True])
def test_an_estimated_likelihood(exact_draws):
    def estimate(rng, theta, observed):
        return -0.5 * ((theta - observed) / 0.5) ** 2 + rng.normal(-0.5, 1.0)  # the mean of its exponential is one

    with pm.Model():
        theta = pm.Normal("theta", 0, 2)
        pk.EstimatedLikelihood("y", estimate, theta, observed=1.0)
        idata = run(500, chains=2, evaluations=100, tolerance=0.0, exact=exact_draws)
    precision = 0.25 + 4.0
    z = (idata["posterior"]["theta"].values - 4.0 / precision) * np.sqrt(precision)
    if exact_draws:
        check_normal(z)
        assert 0.3 < idata["sample_stats"]["moved"].mean() < 0.7  # noise of sd 1 leaves a half
    else:
        assert abs(z.mean()) < 0.35
        assert 0.75 < z.std() < 1.35


@pytest.mark.slow
def test_what_cannot_be_trusted_is_said():
    with pytest.warns(UserWarning, match="should not be trusted"):
        idata = pk.sample_surrogate(20, chains=1, evaluations=9, model=model_of(), **QUIET)
    assert "should not be trusted" in findings_in(idata["sample_stats"])[0]


def test_models_that_cannot_be_learned_are_refused_at_once():
    for variable, words in (
        (lambda: pm.Normal("y", 0.0, 1.0, observed=[0.1]), "no free variable"),
        (lambda: pm.Normal("y", pm.Flat("x", initval=3.0), 0.5, observed=4.0), "the prior alone keeps draws in bounds"),
        (lambda: pm.Normal("x"), "no likelihood to learn"),
        (lambda: pm.Normal("y", pm.Normal("position"), 1.0, observed=0.0), "rename position"),
    ):
        with pm.Model():
            variable()
            with pytest.raises(ValueError, match=words):
                pk.sample_surrogate(**QUIET)


def test_errors_come_before_long_work():
    nowhere = model_of(lambda x: pt.switch(x[0] > 1e9, 0.0, -np.inf))
    for wrong, error, words in (
        ({"evaluations": 8}, ValueError, "too few to learn from .* first places take 8"),
        ({"evaluations": 20, "model": nowhere}, ValueError, "20 evaluations are too few to learn from"),
        ({"start": np.zeros((500, 2))}, ValueError, "first places take 500"),
        ({"store": "x", "random_seed": None}, ValueError, "random_seed"),
        ({"draws": None}, ValueError, "draws must be a whole number"),
        ({"executor": "dask"}, TypeError, "executor"),
    ):
        with pytest.raises(error, match=words):
            pk.sample_surrogate(**{"model": model_of(), **QUIET, **wrong})


class Breaking(ThreadPoolExecutor):
    """Threads that are gone after so many tasks."""

    def __init__(self, most):
        super().__init__(1)
        self.left = iter(range(most))

    def submit(self, *task):
        if next(self.left, None) is None:
            raise BrokenExecutor
        return super().submit(*task)


def test_an_executor_that_breaks_before_anything_is_learned_is_an_error():
    with model_of(), Breaking(3) as pool, pytest.raises(WorkersLost, match="executor broke"):
        pk.sample_surrogate(executor=pool, **QUIET)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # others, of so few evaluations
def test_nothing_is_lost_with_an_executor_that_breaks(give_draws):
    give_draws([1.0, 2.0], [0.1, 0.2])
    settings = {"evaluations": 40, "tolerance": 0.0, "chains": 1, "draws": 20, **QUIET}
    words = "executor broke.*what was learned until then"
    with model_of(), Breaking(35) as pool, pytest.warns(UserWarning, match=words) as said:
        idata = pk.sample_surrogate(executor=pool, **settings)
    assert any(re.search(words, str(w.message)) for w in said if w.filename == __file__)
    assert 20 <= idata["evaluations"].sizes["evaluation"] <= 35
    assert idata["posterior"].sizes["draw"] == 20


@pytest.mark.filterwarnings("ignore")
def test_interrupted_it_returns_draws_by_what_was_learned(give_draws, monkeypatch):
    give_draws([1.0, 2.0], [0.1, 0.2])
    monkeypatch.setattr(surrogate, "TUNE", 20)  # chains begin at draws of what they sample
    calls = []

    def interrupted(x):
        calls.append(x)
        if len(calls) == 30:
            raise KeyboardInterrupt
        return np.asarray(costly(x))

    model = model_of(black_box(interrupted, "v", "s"))
    with pytest.warns(UserWarning, match="interrupted: the model is what was learned until"):
        idata = pk.sample_surrogate(20, chains=1, evaluations=60, tolerance=0.0, model=model, **QUIET)
    assert len(calls) == 30
    assert idata["evaluations"].sizes["evaluation"] == 16  # of the round that was interrupted there are none
    assert idata["posterior"].sizes["draw"] == 20
    assert abs(idata["posterior"]["a"] - 1.0).max() < 1.0


@pytest.mark.slow
def test_a_time_limit_is_not_that_of_the_compiler():
    """The first call takes long, as where machine code is made for it."""
    calls = []

    def slow(x):
        calls.append(x)
        if len(calls) == 1 or x[0] < -0.5:
            time.sleep(0.3)
        return np.asarray(-0.5 * ((x - 1.0) ** 2).sum() / 0.01)

    with pm.Model():
        x = pm.Normal("x", 0, 2, shape=2)
        pm.Potential("likelihood", black_box(slow, "v", "s")(x))
        evaluated = run(20, chains=1, evaluations=30, timeout=0.15)["evaluations"]
    assert evaluated["status"][0] == 0
    np.testing.assert_array_equal(evaluated["status"] == 3, evaluated["x"][:, 0] < -0.5)
    assert (evaluated["status"] == 3).any()


def test_chains_begin_at_draws_where_a_bound_is_a_parameter():
    with pm.Model() as model:
        pm.Uniform("x", 0, pm.LogNormal("b", 0, 0.3))
    draws = np.random.default_rng(1).normal(size=(5, 2))
    model.emulation = SimpleNamespace(draws=draws)
    starts = starts_of(model, 3, np.random.default_rng(2))
    for begin in make_initial_point_fns_per_chain(model=model, overrides=starts, chains=3):
        found = np.array([begin(0)[v.name] for v in model.value_vars])
        assert np.abs(draws - found).max(axis=1).min() < 1e-9
