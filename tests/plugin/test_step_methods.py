import pickle

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from arviz_stats.base import array_stats
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_kernel as pk
from pymc_kernel.mcmc.kernel_hmc import MOVES
from tests.plugin.models import STEPS, Counted, abc_model, advance, exact_model, noisy_model, same_draws, sample
from tests.plugin.parts import PLAIN

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small")


# Machine code takes seconds to make: of the quick tests one has it. Kernel HMC has it there, and learns long.
MODELS_AND_STEPS = [
    *(pytest.param(noisy_model, name, id=f"noisy-{name}") for name in STEPS if name != "KernelHMC"),
    pytest.param(noisy_model, "KernelHMC", id="noisy-KernelHMC", marks=pytest.mark.slow),
    pytest.param(exact_model, "KernelHMC", id="exact-KernelHMC", marks=pytest.mark.machine_code),
    *(
        pytest.param(exact_model, name, id=f"exact-{name}", marks=[pytest.mark.machine_code, pytest.mark.slow])
        for name in ("KAMH", "AdaptiveMetropolis")
    ),
]


# -- the contract: same seed, same draws ------------------------------------------------------------


@pytest.mark.parametrize(("model", "name"), MODELS_AND_STEPS)
def test_same_draws_for_one_and_two_cores(name, model):
    sequential = sample(model(), STEPS[name], cores=1)
    parallel = sample(model(), STEPS[name], cores=2)
    assert same_draws(sequential, parallel)
    first, second = sequential["posterior"].isel(chain=0), sequential["posterior"].isel(chain=1)
    assert not any(np.array_equal(first[v], second[v]) for v in first.data_vars)
    assert not same_draws(sequential, sample(model(), STEPS[name], cores=1, seed=6))
    # Later chains adapt as the first one does.
    assert np.unique(sequential["warmup_sample_stats"]["proposal_scale"].isel(chain=1)).size > 60


@pytest.mark.slow
@pytest.mark.parametrize("model", [exact_model, noisy_model])
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_same_draws_for_every_start_method(method, model):
    assert same_draws(sample(model(), pk.KAMH, cores=1), sample(model(), pk.KAMH, cores=2, mp_ctx=method))


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_same_draws_in_a_compound_with_nuts_and_a_discrete_step(name):
    with pm.Model() as model:
        a = pm.Normal("a")
        b = pm.Normal("b", a, 1.0, shape=2)
        pm.Poisson("k", pm.math.exp(0.3 * a))
        pm.Normal("y", b, 1.0, observed=[0.5, 1.5])
    sequential, parallel = (sample(model, lambda: STEPS[name]([b]), cores=c) for c in (1, 2))
    assert same_draws(sequential, parallel)
    # Another block moves in between, so the stored density is evaluated anew, and only then.
    evaluations = sequential["sample_stats"]["evaluations"].values
    # A surrogate move that ends where it began needs none.
    assert set(np.unique(evaluations)) <= ({0, 1, 2} if name == "KernelHMC" else {1, 2})
    assert (evaluations == 2).mean() > 0.3


@pytest.mark.long
def test_nuts_beside_kernel_hmc_does_not_call_the_black_box_again():
    """At the same inputs; and all calls are counted. Two groups with rates, which the black box knows, and heights."""
    times, out = np.linspace(0.0, 2.0, 8), np.empty(8)

    def decay(rate):
        out[:] = np.exp(-times * np.exp(rate))
        return out  # one array, which is written to at the next call

    box = Counted(decay, pt.dvector)
    with pm.Model() as model:
        rates = pm.Normal("rates", 0.0, 0.3, shape=2)
        heights = pm.Normal("heights", 2.0, 0.5, shape=2)
        for g in range(2):
            pm.Normal(f"y{g}", heights[g] * box(rates[g]), 0.1, observed=2.0 * np.exp(-times))
        step = pk.KernelHMC([rates])
    before = box.calls
    idata = sample(model, lambda: step, cores=1, draws=50, tune=100, seed=1)
    counted = int(idata["sample_stats"]["evaluations"].sum() + idata["warmup_sample_stats"]["evaluations"].sum())
    assert box.calls - before == counted
    # Two groups, two chains of 150 draws, twenty candidates and climbs for each start.
    assert counted < 2 * 2 * (150 + 50)
    assert float(idata["posterior"]["rates"].mean()) == pytest.approx(0.0, abs=0.1)
    assert float(idata["posterior"]["heights"].mean()) == pytest.approx(2.0, abs=0.15)


# -- right posteriors ---------------------------------------------------------------------------------


@pytest.mark.machine_code
def test_constrained_and_shaped_variables():
    posterior = sample(exact_model(), pk.KernelHMC, cores=1, draws=1000, tune=600)["posterior"]
    assert (posterior["sigma"] > 0).all()
    # Monte Carlo error at an effective size of 300 or more: five of them.
    assert float(posterior["sigma"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=5 * 0.6 / np.sqrt(300))
    assert float(posterior["z"].std()) == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(600))
    np.testing.assert_allclose(posterior["x"].mean(("chain", "draw")), 1.0, atol=5 * 2 / np.sqrt(300))


@pytest.mark.machine_code
@pytest.mark.parametrize(
    ("name", "draws", "most"),
    [("KAMH", 5_000, 0.09), *(pytest.param(name, 80_000, 0.02, marks=pytest.mark.slow) for name in STEPS)],
)
def test_noisy_normal_has_its_exact_spread(name, draws, most):
    theta = sample(noisy_model(), STEPS[name], cores=1, draws=draws, tune=1000, chains=4)["posterior"]["theta"].values
    error = float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method="sd"))
    assert error < most
    assert abs(float(theta.std()) - 1.0) < 3 * error


# -- state ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "name"), MODELS_AND_STEPS)
def test_an_interrupted_chain_goes_on_with_the_same_draws(name, model):
    with model() as model:
        whole, first, second = STEPS[name](), STEPS[name](), STEPS[name]()
    for step in (whole, first):
        step.setup_chain(np.random.default_rng(3), 400, 100)
    uninterrupted, begun = (advance(step, model.initial_point(), n) for step, n in ((whole, 500), (first, 300)))
    saved = pickle.loads(pickle.dumps(first.sampling_state))
    advance(first, begun[-1], 20)  # what happens afterwards to the first step must not matter
    second.sampling_state = saved
    for one, other in zip(uninterrupted, begun + advance(second, begun[-1], 200), strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def tuned(step, model, tune, draws):
    """The last place of a chain after so many steps."""
    step.setup_chain(np.random.default_rng(3), tune, 100)
    return advance(step, model.initial_point(), draws)[-1]


def learned(state):
    """Everything that shapes a proposal."""
    walk = getattr(state, "walk", state)
    parts = [getattr(state, a, None) for a in ("log_scale", "fit", "shares")]
    return pickle.dumps((walk.mean, walk.factor, walk.log_scale, parts))


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_learned_after_tuning_unless_asked_for(name):
    for settings in ({},) if name == "KernelHMC" else ({"adaptation": "tuning"}, {"adaptation": "vanishing"}):
        with exact_model() as model:
            step = STEPS[name](**settings)
        last = tuned(step, model, 300, 200)  # a loop that counts evaluations may stop before
        step.stop_tuning()
        before = learned(step.transition)
        last = advance(step, last, 100)[-1]
        assert (learned(step.transition) == before) == (settings.get("adaptation") != "vanishing")
    if name == "KAMH":
        # A chain may be moved by hand: its density is evaluated anew.
        _, [info] = step.step({k: v + 0.1 for k, v in last.items()})
        assert info["evaluations"] == 2


@pytest.mark.parametrize("tune", [0, 30])
@pytest.mark.parametrize("adaptation", ["tuning", "vanishing"])
def test_short_tuning_learns_no_shape_from_a_handful_of_points(tune, adaptation):
    with exact_model() as model:
        step = pk.KAMH(adaptation=adaptation)
    tuned(step, model, tune, 30)
    assert step.transition.fit is None


# -- in PyMC's hands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_the_order_in_which_variables_are_given_does_not_matter(name):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 10.0, 0.1)
        step = STEPS[name](vars=[b, a])
    last = tuned(step, model, 200, 300)
    assert abs(last["a"]) < 5.0
    assert abs(last["b"] - 10.0) < 1.0


def test_frozen_model_initvals_blocked_and_progress_bar(capsys):
    frozen = sample(freeze_dims_and_data(exact_model()), pk.KAMH, cores=1)["posterior"]
    assert frozen["x"].shape == (2, 60, 2, 2)
    with pm.Model() as scalar:
        pm.Uniform("u", 0.0, 1.0)
        pm.Normal("v")
    apart = sample(scalar, lambda: pk.AdaptiveMetropolis(blocked=False), cores=1, initvals={"u": 0.9, "v": 3.0})
    assert apart["sample_stats"]["accept"].ndim == 3
    with exact_model():
        pm.sample(20, tune=20, chains=1, step=pk.KAMH(), compute_convergence_checks=False, random_seed=1)
    assert "Stuck" in capsys.readouterr().out


def test_float32():
    with pytensor.config.change_flags(floatX="float32"):
        idata = sample(exact_model(), pk.KAMH, cores=1)
    assert idata["posterior"]["z"].dtype == np.float32
    # Exact densities have no statistics of noise.
    assert not {"log_estimate_variance", "failed_share_y"} & set(idata["sample_stats"].data_vars)
    assert (idata["sample_stats"]["evaluations"] == 1).all()


# -- how draws were made stands beside them -------------------------------------------------------------


def test_a_block_says_how_it_estimates():
    def simulator(rng, theta, size):
        if rng.random() < 0.2:
            raise RuntimeError("no solution")
        return rng.normal(theta, 1.0, size)

    settings = {"observed": np.array([0.2, 0.5, 0.9]), "max_failures": 1.0, "epsilon": 0.7, "num_simulations": 15}
    idata = sample(abc_model(simulator=simulator, **settings), pk.AdaptiveMetropolis, cores=1)
    assert int(idata["constant_data"]["y_num_simulations"]) == 15
    failed = idata["sample_stats"]["failed_share_y"].values
    assert failed.mean() == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / (15 * failed.size)))
    assert np.isin(np.round(15 * failed, 6), np.arange(16)).all()
    np.testing.assert_array_equal(idata["constant_data"]["y_epsilon"], [0.7] * 3)


@pytest.mark.parametrize("name", ["KAMH", "KernelHMC"])
def test_the_variance_of_the_log_estimate_is_told(name):
    """The model's noise has a standard deviation of 1.5."""
    told = sample(noisy_model(), STEPS[name], cores=1, draws=20, tune=400)["sample_stats"]
    values = told["log_estimate_variance"].values
    assert (values == values[:, :1]).all()  # nothing is measured after tuning
    assert values.mean() == pytest.approx(2.25, rel=0.5)
    assert (told["failed_share_y"] == 0.0).all()


def test_estimates_of_zero_count_as_failures():
    zero_above = lambda rng, theta, observed: -np.inf if theta > 0.7 else 0.0  # noqa: E731
    model = noisy_model(zero_above, lambda: pm.Normal("theta", 0.0, 1.0, initval=0.0))
    told = sample(model, pk.AdaptiveMetropolis, cores=1)["sample_stats"]
    failed = told["failed_share_y"].values
    assert set(np.unique(failed)) == {0.0, 1.0}
    assert (told["moved"].values[failed == 1.0] == 0.0).all()


@pytest.mark.long
def test_moves_of_each_kind_are_counted_by_name(tmp_path, capsys):
    with exact_model():
        idata = pk.sample_khmc(500, tune=500, **PLAIN)
        pk.diagnose(idata)
    moves, stats = idata["sample_stats"]["move"].values, idata["sample_stats"]
    assert set(np.unique(moves)) <= set(MOVES)
    said = capsys.readouterr().out
    names, counts = np.unique(moves, return_counts=True)
    assert f"{int(stats['evaluations'].sum())} evaluations of the log density" in said
    assert f"{100 * float(stats['moved'].mean()):.0f} % of proposals were accepted: " in said
    assert f"accepted: {100 * counts.max() / moves.size:.0f} % {names[counts.argmax()]}" in said
    assert np.mean(["traject" in m for m in moves.ravel()]) > 0.3
    assert stats.attrs["surrogate"] == "Values"
    idata.to_netcdf(tmp_path / "run.nc")
    idata.to_zarr(tmp_path / "run.zarr", consolidated=False)
