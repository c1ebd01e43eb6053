import re
import warnings
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.likelihood_free import WorkersLost
from pymc_kernel.plugin.samplers import surrogate
from pymc_kernel.plugin.warn import findings_in
from pymc_kernel.rounds import ActiveLearning
from pymc_kernel.rounds.surrogate_distance import Distance

QUICK = {"random_seed": 1, "progressbar": False}


class Costly(Op):
    """A log likelihood of two numbers without a gradient, which counts its calls."""

    calls = 0

    def make_node(self, x):
        return Apply(self, [pt.as_tensor_variable(x)], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        Costly.calls += 1
        (x,) = inputs
        if x[1] > 50.0:
            raise RuntimeError("the solver diverged")
        outputs[0][0] = np.asarray(-0.5 * ((x[0] - 1.0) / 0.1) ** 2 - 0.5 * ((np.log(x[1]) - 2.0) / 0.2) ** 2)


def model_of(op=None):
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.LogNormal("b", 0, 2)
        pm.Potential("y", (Costly() if op is None else op)(pt.stack([a, b])))
    return model


def exact():
    """Means and standard deviations of a and log b: normal priors times normal likelihoods."""
    precision = np.array([0.25 + 100.0, 0.25 + 25.0])
    return np.array([100.0, 50.0]) / precision, precision**-0.5


@pytest.fixture(scope="module")
def found():
    Costly.calls = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message="Numba will use object mode")
        idata = pk.sample_surrogate(evaluations=70, tolerance=0.0, model=model_of(), **QUICK)
    return idata, Costly.calls


def test_posterior_of_a_black_box_with_a_positive_parameter(found):
    idata, calls = found
    assert calls == 70
    mean, spread = exact()
    draws = np.stack([idata["posterior"]["a"].values, np.log(idata["posterior"]["b"].values)], axis=-1).reshape(-1, 2)
    np.testing.assert_allclose((draws.mean(axis=0) - mean) / spread, 0.0, atol=0.08)
    np.testing.assert_allclose(draws.std(axis=0) / spread, 1.0, atol=0.06)
    quantiles = (np.quantile(draws, [0.05, 0.95], axis=0) - mean) / spread
    np.testing.assert_allclose(quantiles, np.array([[-1.645], [1.645]]) * np.ones(2), atol=0.12)
    stats = idata["sample_stats"]
    assert stats["distance"] < 0.1
    assert 0.0 <= stats["distance_error"] <= stats["distance"]
    assert stats["num_evaluations"] == 70
    assert not stats["is_climbing"]
    # Normal integrals: of N(0, 4) and, on the log scale, of N(0, 4) again.
    parts = [np.log(np.sqrt(v / (4.0 + v))) - 0.5 * m**2 / (4.0 + v) for m, v in ((1.0, 0.01), (2.0, 0.04))]
    np.testing.assert_allclose(stats["log_evidence"], sum(parts), atol=0.1)


def test_every_evaluation_is_there(found):
    points = found[0]["evaluations"]
    assert points.sizes["evaluation"] == 70
    np.testing.assert_allclose(points["b"], np.exp(points["position"][:, 1]))
    inside = points["status"].values == 0
    wanted = [
        Costly().perform(None, [np.array(p)], [o := [None]]) or float(o[0])
        for p in zip(points["a"].values[inside], points["b"].values[inside], strict=True)
    ]
    np.testing.assert_allclose(points["log_likelihood"].values[inside], wanted)


def test_it_stops_when_the_distance_stays_small():
    with model_of():
        idata, learned = pk.sample_surrogate(50, chains=1, evaluations=400, return_fitted=True, **QUICK)
    assert idata["sample_stats"]["num_evaluations"] < 150
    position = idata["evaluations"]["position"].values[:1]
    exact_value = idata["evaluations"]["log_likelihood"].values[0]
    assert learned.log_likelihood(position).shape == (1,)
    assert np.isfinite(exact_value)


def test_any_executor_gives_the_same_bits_and_a_store_goes_on(tmp_path):
    pytest.importorskip("zarr")
    settings = {"evaluations": 20, "draws": 20, "chains": 1, "tolerance": 0.0, **QUICK}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few evaluations are not trusted
        with model_of():
            here = pk.sample_surrogate(**settings)
            with ThreadPoolExecutor(3) as pool:
                there = pk.sample_surrogate(executor=pool, store=tmp_path / "s", **settings)
            Costly.calls = 0
            again = pk.sample_surrogate(store=tmp_path / "s", **settings)
            assert Costly.calls == 1  # the best one, to see that the likelihood is the same
            longer = pk.sample_surrogate(store=tmp_path / "s", **{**settings, "evaluations": 26})
            assert Costly.calls == 1 + 1 + 6
            with pytest.raises(ValueError, match="seed"):
                pk.sample_surrogate(store=tmp_path / "s", **{**settings, "random_seed": 2})
    for other in (there, again):
        np.testing.assert_array_equal(here["evaluations"]["position"], other["evaluations"]["position"])
        np.testing.assert_array_equal(here["posterior"]["a"], other["posterior"]["a"])
    np.testing.assert_array_equal(here["evaluations"]["position"], longer["evaluations"]["position"][:20])


@pytest.mark.slow
def test_an_estimated_likelihood():
    def estimate(rng, theta, observed):
        return -0.5 * ((theta - observed) / 0.5) ** 2 + rng.normal(-0.5, 1.0)  # the mean of its exponential is one

    with pm.Model():
        theta = pm.Normal("theta", 0, 2)
        pk.EstimatedLikelihood("y", estimate, theta, observed=1.0)
        idata = pk.sample_surrogate(evaluations=200, tolerance=0.0, **QUICK)
    precision = 0.25 + 4.0
    draws = idata["posterior"]["theta"].values.ravel()
    assert abs(draws.mean() - 4.0 / precision) * np.sqrt(precision) < 0.3
    assert 0.75 < draws.std() * np.sqrt(precision) < 1.35
    exact = -0.5 * np.log(precision * 4.0) - 0.5 * 0.25 * 4.0 / precision
    assert abs(float(idata["sample_stats"]["log_evidence"].mean()) - exact) < 0.25


def test_what_cannot_be_trusted_is_said():
    def egg_box(x):
        return 20.0 * pt.cos(6.0 * x[0]) * pt.cos(6.0 * x[1])

    with pytest.warns(UserWarning, match="should not be trusted"):
        idata = pk.sample_surrogate(50, chains=1, evaluations=24, model=model_of(egg_box), **QUICK)
    assert "should not be trusted" in findings_in(idata["sample_stats"])[0]


@pytest.mark.parametrize(
    ("distance", "error", "tolerance", "is_far"),
    [(0.09, 0.05, 0.05, False), (0.12, 0.05, 0.05, True), (0.12, 0.05, 0.1, False), (0.12, 0.05, 0.0, True),
     (0.04, 0.0, 0.0, False)],
)  # fmt: skip
def test_a_distance_above_the_tolerance_is_said(distance, error, tolerance, is_far, monkeypatch):
    """Of a smaller one than the default too: a run that never stops by itself has not failed."""
    found = Distance(distance, error, 0.5, 30)
    monkeypatch.setattr(ActiveLearning, "distance", lambda *args: found)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = pk.sample_surrogate(50, chains=1, evaluations=30, tolerance=tolerance, model=model_of(), **QUICK)
    assert float(idata["sample_stats"]["distance_error"]) == error
    far = [str(w.message) for w in said if "total variation distance" in str(w.message)]
    assert len(far) == is_far
    if is_far:
        assert f"distance of {distance:.2f} ± {error:.2f} from the posterior" in far[0]


def test_errors_come_before_long_work():
    with model_of():
        for wrong, words in (
            ({"evaluations": 5}, "at least 10"),
            ({"tolerance": -1.0}, "tolerance"),
            ({"start": np.zeros((3, 5))}, r"an array \(n, 2\) of places"),
            ({"store": "x", "random_seed": None}, "random_seed"),
            ({"batch_size": 0}, "batch_size"),
            ({"timeout": "3"}, "timeout must be a positive number of seconds"),
            ({"timeout": 0.0}, "timeout must be a positive number of seconds"),
            ({"draws": None}, "draws must be a whole number"),
            ({"tolerance": "no"}, "tolerance"),
        ):
            with pytest.raises(ValueError, match=words):
                pk.sample_surrogate(**{**QUICK, **wrong})
        with pytest.raises(TypeError, match="executor"):
            pk.sample_surrogate(executor="dask", **QUICK)
    with pm.Model():
        pm.Poisson("k", 3.0)
        with pytest.raises(TypeError, match="discrete"):
            pk.sample_surrogate(**QUICK)
    with pm.Model():
        pm.Normal("y", 0.0, 1.0, observed=[0.1])
        with pytest.raises(ValueError, match="no free variable"):
            pk.sample_surrogate(**QUICK)

    def never(x):
        return pt.switch(x[0] > 1e9, 0.0, -np.inf)

    with pytest.raises(ValueError, match="nothing can be learned"):
        pk.sample_surrogate(evaluations=20, model=model_of(never), **QUICK)


def test_a_store_is_a_directory(tmp_path):
    pytest.importorskip("zarr")
    (tmp_path / "s").write_text("a file")
    with model_of(), pytest.raises(ValueError, match=r"must be a directory.*is a file"):
        pk.sample_surrogate(store=tmp_path / "s", **QUICK)


class Breaking(ThreadPoolExecutor):
    """Threads that are gone after so many tasks."""

    def __init__(self, most):
        super().__init__(1)
        self.left = most

    def submit(self, *task):
        """Refuse where none is left."""
        if self.left == 0:
            raise BrokenExecutor
        self.left -= 1
        return super().submit(*task)


def surrogate_on_breaking_threads(most, exact):
    """Return the result and what was said at the user's line, with 40 evaluations of which ``most`` are made."""
    settings = {"evaluations": 40, "tolerance": 0.0, "chains": 2, "draws": 50, "exact": exact, **QUICK}
    with model_of(), Breaking(most) as pool, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = pk.sample_surrogate(executor=pool, **settings)
    return idata, "; ".join(str(w.message) for w in said if w.filename == __file__)


def test_nothing_is_lost_with_an_executor_that_breaks():
    idata, said = surrogate_on_breaking_threads(30, exact=False)
    assert re.search("executor broke.*batches that are finished", said)
    assert "exact" not in said
    assert idata["evaluations"].sizes["evaluation"] == 30
    assert idata["posterior"].sizes["draw"] == 50
    idata, said = surrogate_on_breaking_threads(64, exact=True)
    assert re.search("executor broke.*exact draws a chain are finished", said)
    assert idata["evaluations"].sizes["evaluation"] in (63, 64)  # the last may belong to a batch of two that broke
    assert idata["posterior"].sizes["draw"] < 50
    with pytest.raises(WorkersLost, match="executor broke"):
        surrogate_on_breaking_threads(3, exact=True)


@pytest.mark.parametrize("most", [pytest.param(30, marks=pytest.mark.slow), 43])
def test_where_no_exact_draw_was_made_those_of_the_surrogate_are_returned(most):
    idata, said = surrogate_on_breaking_threads(most, exact=True)
    assert re.search("executor broke.*the draws are the surrogate's, not exact ones", said)
    assert idata["posterior"].sizes["draw"] == 50
    # Of exact draws the rounds that are finished: two starts make one.
    assert idata["evaluations"].sizes["evaluation"] == (most if most <= 40 else 40 + 2 * ((most - 40) // 2))
    assert "surrogate_posterior" not in idata.children


@pytest.mark.parametrize("error", [KeyboardInterrupt("by the user"), NonFiniteStartError("not finite at 20 draws")])
def test_nothing_is_lost_without_a_start_of_exact_draws(error, monkeypatch, recwarn):
    def ends(rng, first, own, trace, *_):
        trace(own[:3])
        raise error

    monkeypatch.setattr(surrogate, "run_exact", ends)
    with model_of():
        idata = pk.sample_surrogate(evaluations=30, exact=True, **QUICK)
    assert idata["evaluations"].sizes["evaluation"] == idata["sample_stats"]["num_evaluations"] == 33
    said = "; ".join(str(w.message) for w in recwarn if w.filename == __file__)
    assert "the draws are the surrogate's, not exact ones" in said
    assert ("not finite" in said) is isinstance(error, NonFiniteStartError)
    assert "by the user" not in said


def test_priors_without_draws_begin_around_the_initial_point():
    with pm.Model():
        x = pm.Flat("x", initval=3.0)
        pm.Normal("y", x, 0.5, observed=4.0)
        idata = pk.sample_surrogate(evaluations=30, **QUICK)
    assert abs(float(idata["posterior"]["x"].mean()) - 4.0) < 0.05
    assert abs(float(idata["posterior"]["x"].std()) - 0.5) < 0.04
