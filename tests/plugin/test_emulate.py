import warnings
from functools import partial
from types import SimpleNamespace

import arviz as az
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py
from pytensor.graph.replace import vectorize_graph

import pymc_kernel as pk
from pymc_kernel.plugin.emulation import chains
from pymc_kernel.plugin.emulation.model_graph import with_hoisted
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.emulation.structure import unknown_of
from pymc_kernel.plugin.model.log_density import compile_log_density
from tests.plugin.models import Counted, black_box_model, learned_at, normal_draws, same_draws, sample, without_gradient
from tests.plugin.parts import CURVE, PLAIN, QUIET, TIMES, black_box, check_moments, curve_model, data_around
from tests.reference.grids import moments


def level(p):
    """Amount of a drug after one dose: rates of absorption and of loss."""
    return p[0] / (p[0] - p[1]) * (np.exp(-p[1] * TIMES) - np.exp(-p[0] * TIMES))


one_subject = black_box(level, "v")
by_vector = black_box(lambda *rates: np.array([level(row) for row in zip(*rates, strict=True)]), "vv", "m")
ROW = pt.dvector()


WAYS = {
    "loop": lambda p: pt.stack([one_subject(p[i]) for i in range(3)]),
    "vectors": lambda p: by_vector(p[:, 0], p[:, 1]),
    "vectorized": lambda p: vectorize_graph(one_subject(ROW), {ROW: p}),
    "gradient": lambda p: p[:, :1] / (p[:, :1] - p[:, 1:]) * (pt.exp(-p[:, 1:] * TIMES) - pt.exp(-p[:, :1] * TIMES)),
}
OBSERVED = np.array([level(p) for p in [(1.6, 0.3), (2.0, 0.2), (1.1, 0.25)]])


def drug(way):
    with pm.Model(coords={"subject": list("abc")}) as model:
        center = pm.Normal("center", [0.5, -1.3], 0.5, shape=2)
        offset = pm.Normal("offset", 0.0, 1.0, shape=(3, 2))
        levels = pm.Deterministic("level", WAYS[way](pt.exp(center + 0.3 * offset)))
        pm.Normal("y", levels, 0.05, observed=OBSERVED)
    return model


def decay(rate):
    return np.exp(-rate * TIMES)


def curve_moments(highest=np.inf, fn=decay, sd=1.0):
    """Mean and standard deviation of the rate by a grid, which has no density above the highest."""
    log_rate = np.linspace(-5.0, min(np.log(highest), 5.0), 20_001)
    rate = np.exp(log_rate)
    residuals = (CURVE - fn(rate[:, None])) / 0.1
    return moments(rate, -0.5 * (log_rate / sd) ** 2 - 0.5 * (residuals**2).sum(axis=1))


@pytest.mark.parametrize("way", [w for w in WAYS if w != "gradient"])
def test_all_ways_of_writing_subjects_come_to_the_same(way):
    [row] = pk.black_boxes(drug(way)).itertuples()
    assert (row.rows, row.inputs, row.outputs, row.functions) == (3, 2, 4, 1)
    assert row.calls == (3 if way == "loop" else 1)


@pytest.mark.parametrize(
    ("kinds", "function", "wanted", "block"),  # rows, inputs, outputs, functions
    [
        pytest.param("mm", lambda p: np.cumsum(p).reshape(p.shape), (1, 6, 6, 1), 2, id="depend_on_each_other"),
        pytest.param("mm", lambda p: np.cumsum(p, axis=0), (2, 3, 3, 1), 3, id="columns"),
        pytest.param("mm", lambda p: np.cumsum(p, axis=1), (3, 2, 2, 1), 2, id="rows"),
        pytest.param("mm", lambda p: p + np.array([[1.0], [2.0], [3.0]]), (3, 2, 2, 3), 2, id="functions_of_their_own"),
        pytest.param("mm", lambda p: p * np.array([[1.0], [2.0], [3.0]]), (3, 2, 2, 3), 2, id="alike_at_zero"),
        pytest.param("vm", lambda p: np.outer(p, [1.0, 2.0, 3.0]) * p.sum(), (1, 3, 9, 1), 3, id="outer"),
        pytest.param("vv", lambda p: np.cumsum(p), (1, 3, 3, 1), 3, id="vector"),
    ],
)
def test_rows_of_a_matrix_and_outputs_that_may_have_one_sum(kinds, function, wanted, block):
    with pm.Model() as model:
        out = black_box(function, *kinds)(pm.Normal("x", shape=(3, 2) if kinds[0] == "m" else 3))
        pm.Potential("p", -(out**2).sum())
    [row] = pk.black_boxes(model).itertuples()
    assert (row.rows, row.inputs, row.outputs, row.functions) == wanted
    assert unknown_of(model, np.random.default_rng(0)).parts[0].like.block == block


class Scaled(Counted):
    """With a pull-back of its own, or one that refuses."""

    def __init__(self, refuses):
        super().__init__(lambda x: 2.0 * x, pt.dvector)
        self.refuses = refuses

    def pullback(self, inputs, outputs, cotangents):
        if self.refuses:
            raise NotImplementedError
        return [2.0 * cotangents[0]]


def test_what_has_a_gradient_is_no_black_box():
    def found(refuses):
        with pm.Model() as model:
            x = pm.Normal("x", shape=2)
            pm.Deterministic("reported", one_subject(pt.exp(x)))  # no part of the log density
            fixed = one_subject(pt.as_tensor_variable([2.0, 1.0]))
            scaled_to_more_data = {"observed": [0.0, 0.0], "total_size": 20}
            pm.Normal("y", Scaled(refuses)(x) + fixed.sum(), 1.0, **scaled_to_more_data)
        return list(pk.black_boxes(model)["name"])

    assert found(refuses=False) == []
    assert pk.black_boxes(drug("gradient")).empty
    assert found(refuses=True) == ["Scaled"]


#: One number for each group: neither the curve nor the noise are known to PyMC.
LOG_LIKELIHOOD = black_box(lambda rate, y: -0.5 * (((y - decay(rate)) / 0.1) ** 2).sum(), "sv", "s")


def groups(way):
    """Three groups with a rate each, and a spread of the rates, in a distribution of one's own."""

    def logp(value, log_rate, times):
        if way == "gradient":
            return -0.5 * (((value - pt.exp(-pt.exp(log_rate)[:, None] * times)) / 0.1) ** 2).sum()
        return sum(LOG_LIKELIHOOD(pt.exp(log_rate[i]), value[i]) for i in range(3))

    def random(log_rate, times, rng=None, size=None):
        return rng.normal(np.exp(-np.exp(log_rate)[:, None] * times), 0.1)

    with pm.Model(coords={"group": list("abc"), "time": TIMES}) as model:
        log_rate = pm.Normal("log_rate", 0.0, pm.HalfNormal("spread", 0.5), dims="group")
        settings = {"signature": "(g),(t)->(g,t)", "dims": ("group", "time"), "observed": [CURVE, CURVE + 0.1, CURVE]}
        pm.CustomDist("y", log_rate, TIMES, logp=logp, random=random, **settings)
    return model


def test_a_copy_without_black_boxes_in_custom_distributions_is_the_same_model():
    model, true = groups("black box"), groups("gradient")
    [row] = pk.black_boxes(model).itertuples()
    assert (row.calls, row.inputs, row.outputs, row.functions) == (3, 1, 1, 3)  # each has data of its own
    assert with_hoisted(true) is true
    copy = with_hoisted(model)
    assert [v.name for v in copy.basic_RVs] == [v.name for v in model.basic_RVs]
    assert copy.coords == model.coords
    assert copy.named_vars_to_dims == model.named_vars_to_dims
    log_rate = np.array([0.1, -0.4, 0.2])
    values = [float(m.compile_logp()({"spread_log__": -0.3, "log_rate": log_rate})) for m in (copy, model, true)]
    np.testing.assert_allclose(values[1:], values[0], rtol=1e-12)
    draws = az.from_dict({"posterior": {"spread": np.full((1, 1), 0.4), "log_rate": log_rate[None, None]}})
    with copy:
        drawn = pm.sample_posterior_predictive(draws, freeze_vars=["spread", "log_rate"], **QUIET)
    predicted = drawn["posterior_predictive"]["y"].values[0, 0]
    assert predicted.shape == (3, 4)
    assert np.abs(predicted - np.exp(-np.exp(log_rate)[:, None] * TIMES)).max() < 0.5


@pytest.mark.slow
def test_black_boxes_in_potentials_and_behind_each_other():
    outer = black_box(lambda v: np.asarray(np.log1p(v.sum())), "v", "s")
    with pm.Model() as model:
        x = pm.Normal("x", [0.5, -1.3], 0.2, shape=2)
        pm.Potential("p", -10.0 * (outer(one_subject(pt.exp(x))) - 0.8) ** 2)
    assert list(pk.black_boxes(model)["inputs"]) == [2, 4]
    assert pk.emulate(model, 60, **QUIET).emulation.distance < 0.05


@pytest.mark.usefixtures("no_gradients")
def test_a_potential_may_be_the_output_of_a_black_box(give_draws):
    give_draws([1.87], [0.2])
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        for i, count in enumerate((7, 9)):
            term = black_box(lambda v, count=count: np.asarray(count * v - np.exp(v)), "s", "s")
            pm.Potential(f"p{i}", term(x))
    emulated = pk.emulate(model, 40, **QUIET)
    assert [p.name for p in emulated.potentials] == ["p0", "p1", "emulation_penalty"]
    places = np.array([1.5, 1.9, 2.2])
    learned = np.array([float(emulated.compile_logp(mode="FAST_COMPILE")({"x": x})) for x in places])
    exact = 16.0 * places - 2.0 * np.exp(places) - 0.5 * places**2
    np.testing.assert_allclose(learned - learned[0], exact - exact[0], atol=0.05)


def density_of(model):
    """Return the log density, for some calls."""
    point, settings = model.initial_point(random_seed=0), {"mode": "FAST_COMPILE"}
    return compile_log_density(model, model.value_vars, point, "test", settings)


@pytest.fixture(scope="module")
def emulated(request, as_users_run):
    """In quick tests no chain moves: their draws are some around the posterior."""
    is_slow = request.config.getoption("--runslow")
    with as_users_run() if is_slow else pytest.MonkeyPatch.context() as patch:
        if not is_slow:
            patch.setattr(chains.Chains, "draw", normal_draws([-0.31], [0.25]))
            patch.setattr(chains, "density_and_gradient", without_gradient)
        return pk.emulate(curve_model(black_box(decay)), 40, **QUIET)


def test_the_posterior_of_an_emulated_model_is_right(emulated):
    assert emulated.emulation.distance < 0.05
    assert emulated.emulation.num_evaluations < 40  # it stops by itself
    learned, log_rate = density_of(emulated), np.linspace(-5.0, 3.0, 401)
    mean, sd = curve_moments()
    found = moments(np.exp(log_rate), np.array([learned(x) for x in log_rate[:, None]]))
    assert found == (pytest.approx(mean, abs=0.15 * sd), pytest.approx(sd, rel=0.15))


@pytest.mark.long
def test_an_emulated_model_is_copied_conditioned_and_gives_pointwise_likelihoods(emulated):
    """PyMC refuses all of these for a model with initial values of its own."""
    position = emulated.emulation.draws[0]
    copy = emulated.copy()
    assert density_of(copy)(position) == pytest.approx(density_of(emulated)(position))
    assert pm.do(emulated, {"rate": 0.7}).free_RVs == []
    idata = az.from_dict({"posterior": {"rate": np.linspace(0.5, 1.0, 10)[None]}})
    pm.compute_log_likelihood(idata, model=emulated, progressbar=False)
    assert idata["log_likelihood"]["y"].shape == (1, 10, 4)
    begins = np.array(list(emulated.initial_point().values()))
    assert density_of(emulated)(begins) >= emulated.emulation.log_density.max() - 0.1  # at the best place


@pytest.mark.usefixtures("no_gradients")
def test_a_matrix_of_probabilities_has_a_density():
    """States of a chain at three times, one row each: what was learned sums to one in each row, at any input."""

    def occupied(rates):
        p = np.exp(-np.multiply.outer([0.5, 1.0, 4.0], [0.0, rates[0], rates[0] + rates[1]]))
        return p / p.sum(axis=1, keepdims=True)

    with pm.Model() as model:
        rates = pm.Exponential("rates", 1.0, shape=2)
        pm.Multinomial("y", 20, black_box(occupied, "v", "m")(rates), observed=[[8, 7, 5], [12, 6, 2], [19, 1, 0]])
    rng = np.random.default_rng(0)
    search = learned_at(model, rng.normal(size=(12, 2)))
    assert np.isfinite([search.chains.log_density(x) for x in rng.normal(size=(50, 2))]).all()


@pytest.mark.slow
def test_exact_draws_along_a_crude_model():
    def bumpy(rate):  # what ten points do not show
        return np.exp(-rate * TIMES) + 0.1 * np.sin(20.0 * rate)

    mean, sd = curve_moments(fn=bumpy, sd=0.5)
    model, settings = curve_model(black_box(bumpy), 0.5), PLAIN | {"random_seed": 2}
    with pytest.warns(UserWarning, match="should not be trusted"):  # too little is learned
        emulated = pk.emulate(model, 10, start=np.linspace(-1.5, 1.5, 6)[:, None], **QUIET)
    with model, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="chains on the emulated model do not agree")  # so crude it is
        exact = pm.sample(2000, tune=300, step=pk.EmulatedNUTS(emulated), **settings)
    with emulated:
        crude = pm.sample(1200, tune=300, **settings)
    check_moments(exact["posterior"]["rate"], mean, sd, 0.15, 0.15)
    # Without the correction the same chains are elsewhere, or too wide or narrow.
    rate = crude["posterior"]["rate"].values
    assert max(abs(rate.mean() - mean) / sd, abs(rate.std() / sd - 1.0)) > 0.25
    stats = exact["sample_stats"]
    assert int(stats["evaluations"].sum()) == 4000 + 2  # one a draw, and one at the start of each chain
    assert float(stats["moved"].mean()) == pytest.approx(float(stats["accept"].mean()), abs=0.03)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.long
def test_the_last_evaluations_are_learned_too(give_draws):
    """It ends before the curve is known well, so that the last evaluations matter."""
    give_draws([-0.35], [0.15])
    model = curve_model(black_box(lambda rate: decay(rate) + 0.1 * np.sin(5.0 * rate * TIMES)))
    emulated = pk.emulate(model, 40, tolerance=0.2, random_seed=3, progressbar=False)
    found, log_density = emulated.emulation, density_of(emulated)
    last = slice(int(found.rounds["num_evaluations"].iloc[-1]), None)
    np.testing.assert_allclose([log_density(x) for x in found.positions[last]], found.log_density[last], atol=0.001)


@pytest.mark.long
def test_exact_draws_are_the_same_for_any_number_of_cores(emulated):
    model, size = curve_model(black_box(decay)), {"draws": 10, "tune": 10}
    one, two = (sample(model, lambda: pk.EmulatedNUTS(emulated, transitions=1), cores, **size) for cores in (1, 2))
    assert same_draws(one, two)


@pytest.mark.slow
def test_chains_learn_the_part_that_is_unknown():
    with curve_model(black_box(decay)):
        pm.Normal("other")
        idata = pk.sample_khmc(500, tune=300, chains=2, cores=1, **QUIET)
    check_moments(idata["posterior"]["rate"], *curve_moments(), 0.2, 0.2)
    stats = idata["sample_stats"]
    assert stats.attrs["tuning_evaluations"] < 40
    assert stats.attrs["distance"] < 0.2
    assert int(stats["evaluations"].sum()) == 2 * 500 + 2  # one a draw, and one at the start of each chain


@pytest.mark.parametrize("make", [lambda: curve_model(black_box(decay)), black_box_model], ids=["curve", "all in one"])
def test_a_part_with_most_of_the_parameters_is_not_learned_by_itself(make):
    assert "surrogate" in pk.sample_khmc(50, tune=100, model=make(), **PLAIN)["sample_stats"].attrs


@pytest.mark.slow
def test_evaluations_that_fail_are_left_out_and_counted():
    def raising(rate):
        if rate > 1.2 or rate == 1.0:  # at the initial point, too
            raise RuntimeError("the solver gave up")
        return decay(rate)

    emulated = pk.emulate(curve_model(black_box(raising)), 60, tolerance=0.02, **QUIET)
    assert emulated.emulation.num_failed > 0
    assert emulated.emulation.distance < 0.02
    with emulated, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There were")  # divergences: the density ends within the bulk
        idata = pm.sample(1000, tune=500, chains=2, cores=1, random_seed=2, progressbar=False)
    mean, sd = curve_moments(highest=1.2)
    assert float(idata["posterior"]["rate"].max()) < 1.3
    assert float(idata["posterior"]["rate"].mean()) == pytest.approx(mean, abs=0.15 * sd)


@pytest.mark.slow
def test_a_step_in_a_function_is_not_learned_in_silence():
    """Fresh draws fall beside the step more often than not; cross-validation sees it from both sides."""
    box = black_box(lambda x: np.array([2.0 if x > 1.0 else 0.5, x]))
    with pytest.warns(UserWarning, match="should not be trusted"):
        pk.emulate(data_around(lambda: box(pm.Normal("x", 0.0, 2.0)), [0.8, 1.0], 0.7), 30, **QUIET)


@pytest.mark.slow
def test_an_input_that_was_positive_so_far_may_be_negative():
    box = black_box(lambda x: np.log(np.maximum(x, [0.05, 0.04])))
    model = data_around(lambda: box(pm.Normal("x", 0.0, 0.5)), np.log([0.05, 0.04]), 0.5)
    start = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5])[:, None]
    emulated = pk.emulate(model, 60, start=start, **QUIET)
    grid = np.linspace(-4.0, 4.0, 80_001)
    outputs = np.log(np.maximum(grid[:, None], [0.05, 0.04]) / [0.05, 0.04])
    mean, sd = moments(grid, -0.5 * (grid / 0.5) ** 2 - 0.5 * ((outputs / 0.5) ** 2).sum(axis=1))
    draws = pm.sample(1000, model=emulated, chains=4, cores=1, **QUIET)["posterior"]["x"]
    assert abs(float(draws.mean()) - mean) < 0.2 * sd


@pytest.mark.slow
def test_modes_that_the_emulation_has_invented_are_found():
    """Learned by its logarithm, the curve is a quadratic of the rate, which bends back where nothing was evaluated."""
    x = np.linspace(0.0, 3.0, 30)
    y = 2.0 * np.exp(-0.7 * x) + 0.1 * np.random.default_rng(1).standard_normal(30)
    with pm.Model() as model:
        a, k, noise = (pm.HalfNormal(name, sd) for name, sd in (("a", 3.0), ("k", 1.0), ("noise", 0.5)))
        pm.Normal("y", black_box(lambda a, k: a * np.exp(-k * x), "ss")(a, k), noise, observed=y)
    emulated = pk.emulate(model, **QUIET)
    with emulated, np.errstate(over="ignore"):  # PyMC's first leapfrog steps, before the step size is known
        idata = pm.sample(200, tune=300, chains=4, cores=1, random_seed=3, progressbar=False)
    np.testing.assert_allclose(idata["posterior"]["a"].mean("draw"), 2.05, atol=0.03)


def looped():
    box, first = black_box(lambda x, r: np.asarray(x + r), "ss", "s"), pt.as_tensor(0.0, dtype="float64")
    rate = pm.LogNormal("rate")
    return pytensor.scan(box, outputs_info=[first], non_sequences=[rate], n_steps=3, return_updates=False)


def of_a_whole_number():
    counted = wrap_py([pt.lscalar], [pt.dscalar])(lambda n: np.asarray(float(n)))
    return counted(pt.cast(pt.round(pm.Normal("x", 0.0, 2.0)), "int64"))


def curve_beside(other):
    with curve_model(black_box(decay)) as model:
        other(model["rate"])
    return model


def term_without_gradient(rate):
    box = black_box(lambda y, r: -0.5 * ((y - r) ** 2).sum(), "vv", "s")
    pm.CustomDist("z", rate, logp=lambda value, rate: box(value, rate), shape=3)


def estimated(place, fn=lambda rng, place, observed: rng.normal(), **settings):
    pk.EstimatedLikelihood("z", fn, place, observed=np.zeros(4), **settings)


in_order = black_box(np.sort, "v")
NOISE = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: drug("gradient"), ValueError, "no function without gradient"),
        (lambda: data_around(of_a_whole_number, 1.0), TypeError, "whole number"),
        (lambda: data_around(looped, np.zeros(3)), ValueError, "scan"),
        (lambda: data_around(lambda: in_order(pm.Normal("x", shape=20)), np.zeros(20)), ValueError, "20 inputs"),
        (lambda: curve_beside(lambda rate: pm.Bernoulli("group", 0.5)), TypeError, "group is discrete"),
        (lambda: curve_beside(term_without_gradient), ValueError, r"without gradient \(z\)"),
        (lambda: curve_beside(lambda r: estimated(one_subject(pt.stack([r, 0.3])))), ValueError, "only estimated"),
        (lambda: curve_beside(partial(estimated, pointwise=True)), ValueError, "pointwise"),
        (lambda: curve_beside(partial(estimated, reuse_noise=0.5)), ValueError, "reuses"),
        (lambda: curve_beside(partial(estimated, fn=lambda *_: NOISE.normal())), ValueError, "at the same place"),
        (lambda: curve_model(black_box(lambda r: decay(r) + 0.01 * NOISE.normal(size=4))), ValueError, "called again"),
    ],
)
def test_models_that_cannot_be_emulated_are_refused_before_any_work(make, error, match):
    with pytest.raises(error, match=match):
        pk.emulate(make())


def test_wrong_settings_are_named():
    for settings in (
        {"tolerance": -1.0}, {"tolerance": "no"}, {"evaluations": 0}, {"start": np.zeros((3, 2))},
        {"batch_size": 0}, {"timeout": 0.0}, {"timeout": "3"}, {"timeout": True}, {"store": "s"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(settings)) if "store" not in settings else "random_seed"):
            pk.emulate(curve_model(black_box(decay)), **settings)


def test_the_step_refuses_what_is_not_emulated():
    other = pm.Model()
    other.emulation = object()
    for given, error, match in ((pm.Model(), TypeError, r"pk\.emulate"), (other, ValueError, "other variables")):
        with curve_model(black_box(decay)), pytest.raises(error, match=match):
            pk.EmulatedNUTS(given)


def test_uncertainty_of_any_size(monkeypatch):
    """Far out an output that an exponential grows with makes log densities whose squares no float can hold."""
    search = Search.__new__(Search)
    monkeypatch.setattr(Search, "_is_poor", False)
    monkeypatch.setattr(Search, "_versions", lambda self, x, number: np.full(number, x[0]))
    search.chains = SimpleNamespace(log_density=lambda x: -1.0)
    search.draws, search.rng = np.array([[[-2.0], [-3.0], [-np.inf], [-1e200]]]), np.random.default_rng(0)
    np.testing.assert_array_equal(search._most_uncertain(), [[-1e200], [-3.0]])
