import warnings
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
from pymc_kernel.plugin.emulation.black_boxes import find_black_boxes
from pymc_kernel.plugin.emulation.search import Search
from pymc_kernel.plugin.emulation.structure import unknown_of
from pymc_kernel.plugin.model.log_density import compile_log_density
from tests.plugin.models import Counted, learned_at, normal_draws, same_draws, sample, without_gradient
from tests.reference.grids import moments

TIMES = np.array([0.5, 1.0, 2.0, 4.0])


def level(p):
    """Amount of a drug after one dose: rates of absorption and of loss."""
    return p[0] / (p[0] - p[1]) * (np.exp(-p[1] * TIMES) - np.exp(-p[0] * TIMES))


@wrap_py([pt.dvector], [pt.dvector])
def one_subject(p):
    return level(p)


@wrap_py([pt.dmatrix], [pt.dmatrix])
def all_subjects(p):
    return np.array([level(row) for row in p])


@wrap_py([pt.dmatrix], [pt.dmatrix])
def all_subjects_by_column(p):
    return np.array([level(row) for row in p.T]).T


@wrap_py([pt.dvector, pt.dvector], [pt.dmatrix])
def all_subjects_by_vector(absorption, loss):
    return np.array([level(row) for row in zip(absorption, loss, strict=True)])


def vectorized(p):
    row = pt.dvector()
    return vectorize_graph(one_subject(row), {row: p})


WAYS = {
    "loop": lambda p: pt.stack([one_subject(p[i]) for i in range(3)]),
    "matrix": all_subjects,
    "columns": lambda p: all_subjects_by_column(p.T).T,
    "vectors": lambda p: all_subjects_by_vector(p[:, 0], p[:, 1]),
    "vectorized": vectorized,
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


CURVE = np.array([0.7, 0.45, 0.3, 0.0])


def decay(rate):
    return np.exp(-rate * TIMES)


def curve_model(fn=decay, sd=1.0):
    """One parameter, whose posterior is known by sums over a grid."""
    with pm.Model() as model:
        rate = pm.LogNormal("rate", 0.0, sd)
        pm.Normal("y", wrap_py([pt.dscalar], [pt.dvector])(fn)(rate), 0.1, observed=CURVE)
    return model


def curve_moments(highest=np.inf, fn=decay, sd=1.0):
    """Mean and standard deviation of the rate, which has no density above the highest."""
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
    ("function", "wanted"),  # rows, inputs, outputs, functions
    [
        pytest.param(lambda p: np.cumsum(p).reshape(p.shape), (1, 6, 6, 1), id="depend_on_each_other"),
        pytest.param(lambda p: np.cumsum(p, axis=0), (2, 3, 3, 1), id="columns"),
        pytest.param(lambda p: p + np.array([[1.0], [2.0], [3.0]]), (3, 2, 2, 3), id="functions_of_their_own"),
        pytest.param(lambda p: p * np.array([[1.0], [2.0], [3.0]]), (3, 2, 2, 3), id="alike_at_the_initial_zero"),
    ],
)
def test_rows_of_a_matrix(function, wanted):
    with pm.Model() as model:
        box = wrap_py([pt.dmatrix], [pt.dmatrix])(function)
        pm.Normal("y", box(pm.Normal("x", shape=(3, 2))), 1.0, observed=np.zeros((3, 2)))
    [row] = pk.black_boxes(model).itertuples()
    assert (row.rows, row.inputs, row.outputs, row.functions) == wanted


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
            pm.Normal("y", Scaled(refuses)(x) + fixed.sum(), 1.0, observed=[0.0, 0.0])
        return [box.name for box in find_black_boxes(model)]

    assert found(refuses=False) == []
    assert found(refuses=True) == ["Scaled"]


def test_a_likelihood_that_is_scaled_to_more_data_is_no_black_box():
    solve = wrap_py([pt.dvector], [pt.dvector])(np.exp)
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Normal("y", solve(x), 1.0, observed=[1.0, 2.0], total_size=20)
    assert list(pk.black_boxes(model)["name"]) == ["exp"]


@pytest.mark.slow
def test_black_boxes_in_potentials_and_behind_each_other():
    outer = wrap_py([pt.dvector], [pt.dscalar])(lambda v: np.asarray(np.log1p(v.sum())))
    with pm.Model() as model:
        x = pm.Normal("x", [0.5, -1.3], 0.2, shape=2)
        pm.Potential("p", -10.0 * (outer(one_subject(pt.exp(x))) - 0.8) ** 2)
    assert list(pk.black_boxes(model)["inputs"]) == [2, 4]
    assert pk.emulate(model, 60, random_seed=1, progressbar=False).emulation.distance < 0.05


@pytest.mark.usefixtures("no_gradients")
def test_a_potential_may_be_the_output_of_a_black_box(give_draws):
    give_draws([1.87], [0.2])
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        for i, count in enumerate((7, 9)):
            term = wrap_py([pt.dscalar], [pt.dscalar])(lambda v, count=count: np.asarray(count * v - np.exp(v)))
            pm.Potential(f"p{i}", term(x))
    emulated = pk.emulate(model, 40, random_seed=1, progressbar=False)
    assert [p.name for p in emulated.potentials] == ["p0", "p1", "emulation_penalty"]
    places = np.array([1.5, 1.9, 2.2])
    learned = np.array([float(emulated.compile_logp(mode="FAST_COMPILE")({"x": x})) for x in places])
    exact = 16.0 * places - 2.0 * np.exp(places) - 0.5 * places**2
    np.testing.assert_allclose(learned - learned[0], exact - exact[0], atol=0.05)


def density_of(model):
    """Return the log density, for some calls."""
    point, settings = model.initial_point(random_seed=0), {"mode": "FAST_COMPILE"}
    return compile_log_density(model, model.value_vars, point, "test", settings)


@pytest.mark.slow
def test_an_emulated_hierarchy():
    true, learned = drug("loop"), pk.emulate(drug("loop"), 60, random_seed=3, progressbar=False)
    assert learned.emulation.distance < 0.05
    assert [v.name for v in learned.value_vars] == [v.name for v in true.value_vars]
    assert learned.coords == true.coords
    density, truth = density_of(learned), density_of(drug("gradient"))
    x = learned.emulation.draws[0]
    assert density(x) == pytest.approx(truth(x), abs=0.1)
    function = learned.logp_dlogp_function(ravel_inputs=True)
    _, gradient = function(pm.blocking.RaveledVars(x, ()))
    numeric = [(density(x + e) - density(x - e)) / 2e-5 for e in 1e-5 * np.eye(x.size)]
    np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def emulated(request, as_users_run):
    """In quick tests no chain moves: their draws are some around the posterior."""
    is_slow = request.config.getoption("--runslow")
    with as_users_run() if is_slow else pytest.MonkeyPatch.context() as patch:
        if not is_slow:
            patch.setattr(chains.Chains, "draw", normal_draws([-0.31], [0.25]))
            patch.setattr(chains, "density_and_gradient", without_gradient)
        return pk.emulate(curve_model(), 40, random_seed=1, progressbar=False)


def test_the_posterior_of_an_emulated_model_is_right(emulated):
    assert emulated.emulation.distance < 0.05
    assert emulated.emulation.num_evaluations < 40  # it stops by itself
    learned, log_rate = density_of(emulated), np.linspace(-5.0, 3.0, 401)
    found = moments(np.exp(log_rate), np.array([learned(x) for x in log_rate[:, None]]))
    mean, sd = curve_moments()
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


@pytest.mark.parametrize(
    ("in_and_out", "function", "block"),
    [
        ("dd", lambda p: np.cumsum(p, axis=0), 3),  # the columns are rows
        ("dd", lambda p: np.cumsum(p, axis=1), 2),
        ("dd", lambda p: np.cumsum(p).reshape(p.shape), 2),  # one row
        ("vd", lambda p: np.outer(p, [1.0, 2.0, 3.0, 5.0]) * p.sum(), 4),
        ("vv", lambda p: np.cumsum(p), 3),
    ],
)
def test_outputs_that_may_have_one_sum_are_those_of_a_row(in_and_out, function, block):
    types = {"d": pt.dmatrix, "v": pt.dvector}
    shape = (3, 2) if in_and_out[0] == "d" else 3
    with pm.Model() as model:
        out = wrap_py([types[in_and_out[0]]], [types[in_and_out[1]]])(function)(pm.Normal("x", shape=shape))
        pm.Potential("p", -(out**2).sum())
    unknown = unknown_of(model, np.random.default_rng(0))
    assert unknown.parts[0].like.block == block


@pytest.mark.usefixtures("no_gradients")
def test_a_matrix_of_probabilities_has_a_density():
    """States of a chain at three times, one row each: what was learned sums to one in each row, at any input."""
    times = np.array([0.5, 1.0, 4.0])

    @wrap_py([pt.dvector], [pt.dmatrix])
    def occupied(rates):
        p = np.exp(-np.multiply.outer(times, [0.0, rates[0], rates[0] + rates[1]]))
        return p / p.sum(axis=1, keepdims=True)

    with pm.Model() as model:
        rates = pm.Exponential("rates", 1.0, shape=2)
        pm.Multinomial("y", 20, occupied(rates), observed=[[8, 7, 5], [12, 6, 2], [19, 1, 0]])
    rng = np.random.default_rng(0)
    search = learned_at(model, rng.normal(size=(12, 2)))
    assert np.isfinite([search.chains.log_density(x) for x in rng.normal(size=(50, 2))]).all()


def crude_model(model):
    """An emulated model that has learned too little."""
    with pytest.warns(UserWarning, match="should not be trusted"):
        return pk.emulate(model, 10, start=np.linspace(-1.5, 1.5, 6)[:, None], random_seed=1, progressbar=False)


@pytest.mark.slow
def test_exact_draws_along_a_crude_model():
    def bumpy(rate):  # what ten points do not show
        return np.exp(-rate * TIMES) + 0.1 * np.sin(20.0 * rate)

    mean, sd = curve_moments(fn=bumpy, sd=0.5)
    model = curve_model(bumpy, 0.5)
    emulated = crude_model(model)
    settings = {"chains": 2, "cores": 1, "random_seed": 2, "progressbar": False, "compute_convergence_checks": False}
    with model, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="chains on the emulated model do not agree")  # so crude it is
        exact = pm.sample(2000, tune=300, step=pk.EmulatedNUTS(emulated), **settings)
    with emulated:
        crude = pm.sample(1200, tune=300, **settings)
    assert float(exact["posterior"]["rate"].mean()) == pytest.approx(mean, abs=0.15 * sd)
    assert float(exact["posterior"]["rate"].std()) == pytest.approx(sd, rel=0.15)
    # Without the correction the same chains are elsewhere, or too wide or narrow.
    rate = crude["posterior"]["rate"].values
    assert max(abs(rate.mean() - mean) / sd, abs(rate.std() / sd - 1.0)) > 0.25
    stats = exact["sample_stats"]
    assert int(stats["evaluations"].sum()) == 4000 + 2  # one a draw, and one at the start of each chain
    assert float(stats["moved"].mean()) == pytest.approx(float(stats["accept"].mean()), abs=0.03)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.long
def test_the_last_evaluations_are_learned_too(give_draws):
    give_draws([-0.35], [0.15])
    emulated = pk.emulate(
        curve_model(lambda rate: np.exp(-rate * TIMES) + 0.1 * np.sin(5.0 * rate * TIMES)),
        40,
        tolerance=0.2,  # it ends before the curve is known well, so that the last evaluations matter
        random_seed=3,
        progressbar=False,
    )
    found, log_density = emulated.emulation, emulated.compile_logp()
    last = slice(int(found.rounds["num_evaluations"].iloc[-1]), None)
    learned = [float(log_density({"rate_log__": x})) for x in found.positions[last, 0]]
    np.testing.assert_allclose(learned, found.log_density[last], atol=0.001)


@pytest.mark.long
def test_exact_draws_are_the_same_for_any_number_of_cores(emulated):
    model, size = curve_model(), {"draws": 10, "tune": 10}
    one, two = (sample(model, lambda: pk.EmulatedNUTS(emulated, transitions=1), cores, **size) for cores in (1, 2))
    assert same_draws(one, two)


SAMPLERS = {
    "chains": lambda: pk.sample_khmc(500, tune=300, chains=2, cores=1, random_seed=1, progressbar=False),
    "surrogate": lambda: pk.sample_surrogate(500, chains=2, evaluations=40, random_seed=1, progressbar=False),
    "exact": lambda: pk.sample_surrogate(500, chains=2, evaluations=40, exact=True, random_seed=1, progressbar=False),
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_learn_the_part_that_is_unknown(sampler):
    mean, sd = curve_moments()
    with curve_model():
        pm.Normal("other")
        idata = SAMPLERS[sampler]()
    draws, stats = idata["posterior"]["rate"], idata["sample_stats"]
    assert float(draws.mean()) == pytest.approx(mean, abs=0.2 * sd)
    assert float(draws.std()) == pytest.approx(sd, rel=0.2)
    if sampler == "chains":
        assert stats.attrs["tuning_evaluations"] < 40
        assert stats.attrs["distance"] < 0.2
        assert int(stats["evaluations"].sum()) == 2 * 500 + 2  # one a draw, and one at the start of each chain
    else:
        assert float(stats["distance"]) < 0.05
        assert idata["evaluations"]["position"].shape == (int(stats["num_evaluations"]), 2)
        assert ("evaluations" in stats) == (sampler == "exact")


def all_in_one():
    """A log likelihood of all parameters, of which nothing is known besides."""
    box = wrap_py([pt.dvector], [pt.dscalar])(lambda x: np.asarray(-0.5 * (x @ x)))
    with pm.Model() as model:
        pm.Potential("p", box(pm.Normal("x", shape=2)))
    return model


@pytest.mark.parametrize("make", [curve_model, all_in_one])
def test_a_part_with_most_of_the_parameters_is_not_learned_by_itself(make):
    settings = {"chains": 2, "cores": 1, "progressbar": False, "compute_convergence_checks": False}
    idata = pk.sample_khmc(50, tune=100, model=make(), **settings)
    assert "surrogate" in idata["sample_stats"].attrs


@pytest.mark.slow
def test_evaluations_that_fail_are_left_out_and_counted():
    def raising(rate):
        if rate > 1.2 or rate == 1.0:  # at the initial point, too
            raise RuntimeError("the solver gave up")
        return np.exp(-rate * TIMES)

    emulated = pk.emulate(curve_model(raising), 60, random_seed=1, progressbar=False, tolerance=0.02)
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
    box = wrap_py([pt.dscalar], [pt.dvector])(lambda x: np.array([2.0 if x > 1.0 else 0.5, x]))
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0)
        pm.Normal("y", box(x), 0.7, observed=[0.8, 1.0])
    with pytest.warns(UserWarning, match="should not be trusted"):
        pk.emulate(model, 30, random_seed=1, progressbar=False)


def test_a_black_box_that_is_random_is_refused():
    noise = np.random.default_rng(1)
    with pytest.raises(ValueError, match="other values when it is called again"):
        pk.emulate(curve_model(lambda r: np.exp(-r * TIMES) + 0.01 * noise.normal(size=4)), 30)


@pytest.mark.slow
def test_an_input_that_was_positive_so_far_may_be_negative():
    box = wrap_py([pt.dscalar], [pt.dvector])(lambda x: np.log(np.maximum(x, [0.05, 0.04])))
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 0.5)
        pm.Normal("y", box(x), 0.5, observed=np.log([0.05, 0.04]))
    start = np.array([0.1, 0.2, 0.4, 0.7, 1.0, 1.5])[:, None]
    emulated = pk.emulate(model, 60, start=start, random_seed=1, progressbar=False)
    grid = np.linspace(-4.0, 4.0, 80_001)
    outputs = np.log(np.maximum(grid[:, None], [0.05, 0.04]) / [0.05, 0.04])
    mean, sd = moments(grid, -0.5 * (grid / 0.5) ** 2 - 0.5 * ((outputs / 0.5) ** 2).sum(axis=1))
    draws = pm.sample(1000, model=emulated, random_seed=1, chains=4, cores=1, progressbar=False)["posterior"]["x"]
    assert abs(float(draws.mean()) - mean) < 0.2 * sd


@pytest.mark.slow
def test_modes_that_the_emulation_has_invented_are_found():
    """Learned by its logarithm, the curve is a quadratic of the rate, which bends back where nothing was evaluated."""
    x = np.linspace(0.0, 3.0, 30)
    y = 2.0 * np.exp(-0.7 * x) + 0.1 * np.random.default_rng(1).standard_normal(30)
    curve = wrap_py([pt.dscalar, pt.dscalar], [pt.dvector])(lambda a, k: a * np.exp(-k * x))
    with pm.Model() as model:
        a, k, noise = (pm.HalfNormal(name, sd) for name, sd in (("a", 3.0), ("k", 1.0), ("noise", 0.5)))
        pm.Normal("y", curve(a, k), noise, observed=y)
    emulated = pk.emulate(model, random_seed=1, progressbar=False)
    with emulated, np.errstate(over="ignore"):  # PyMC's first leapfrog steps, before the step size is known
        idata = pm.sample(200, tune=300, chains=4, cores=1, random_seed=3, progressbar=False)
    np.testing.assert_allclose(idata["posterior"]["a"].mean("draw"), 2.05, atol=0.03)


def test_models_that_cannot_be_emulated_are_refused_before_any_work():
    with pytest.raises(ValueError, match="no function without gradient"):
        pk.emulate(drug("gradient"))
    assert pk.black_boxes(drug("gradient")).empty
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 2.0)
        counted = wrap_py([pt.lscalar], [pt.dscalar])(lambda n: np.asarray(float(n)))
        pm.Normal("y", counted(pt.cast(pt.round(x), "int64")), 1.0, observed=1.0)
    with pytest.raises(TypeError, match="whole number"):
        pk.emulate(model)
    with pm.Model() as model:
        rate = pm.LogNormal("rate")
        box = wrap_py([pt.dscalar, pt.dscalar], [pt.dscalar])(lambda x, r: np.asarray(x + r))
        first = pt.as_tensor(0.0, dtype="float64")
        looped = pytensor.scan(box, outputs_info=[first], non_sequences=[rate], n_steps=3, return_updates=False)
        pm.Normal("y", looped, 1.0, observed=np.zeros(3))
    with pytest.raises(ValueError, match="scan"):
        pk.emulate(model)
    wide = wrap_py([pt.dvector], [pt.dvector])(lambda x: np.sort(x))
    with pm.Model() as model:
        x = pm.Normal("x", shape=20)
        pm.Normal("y", wide(x), 1.0, observed=np.zeros(20))
    with pytest.raises(ValueError, match="20 inputs"):
        pk.emulate(model)
    with curve_model() as model:
        pm.Bernoulli("group", 0.5)
    with pytest.raises(TypeError, match="group is discrete"):
        pk.emulate(model)
    with pm.Model() as model:
        rate = pm.LogNormal("rate")
        box = one_subject(pt.stack([rate, 0.3]))
        pk.EstimatedLikelihood("y", lambda rng, x, y: rng.normal(), box, observed=np.zeros(4))
    with pytest.raises(ValueError, match="only estimated"):
        pk.emulate(model)
    for settings in (
        {"tolerance": -1.0}, {"tolerance": "no"}, {"evaluations": 0}, {"start": np.zeros((3, 2))},
        {"batch_size": 0}, {"timeout": 0.0}, {"timeout": "3"}, {"timeout": True}, {"store": "s"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(settings)) if "store" not in settings else "random_seed"):
            pk.emulate(curve_model(), **settings)


def test_terms_without_gradient_besides_the_black_boxes_are_named():
    def log_density(value, rate):
        return wrap_py([pt.dvector, pt.dvector], [pt.dscalar])(lambda y, r: -0.5 * ((y - r) ** 2).sum())(value, rate)

    with curve_model() as model:
        pm.CustomDist("z", model["rate"], logp=log_density, shape=3)
    with pytest.raises(ValueError, match="without gradient \\(z\\)"):
        pk.emulate(model)


def test_the_step_refuses_what_is_not_emulated():
    model = curve_model()
    with model, pytest.raises(TypeError, match=r"pk\.emulate"):
        pk.EmulatedNUTS(pm.Model())
    emulated = pm.Model()
    emulated.emulation = object()
    with model, pytest.raises(ValueError, match="other variables"):
        pk.EmulatedNUTS(emulated)


def test_uncertainty_of_any_size(monkeypatch):
    """Far out an output that an exponential grows with makes log densities whose squares no float can hold."""
    search = Search.__new__(Search)
    monkeypatch.setattr(Search, "_is_poor", False)
    monkeypatch.setattr(Search, "_versions", lambda self, x, number: np.full(number, x[0]))
    search.chains = SimpleNamespace(log_density=lambda x: -1.0)
    search.draws, search.rng = np.array([[[-2.0], [-3.0], [-np.inf], [-1e200]]]), np.random.default_rng(0)
    np.testing.assert_array_equal(search._most_uncertain(), [[-1e200], [-3.0]])
