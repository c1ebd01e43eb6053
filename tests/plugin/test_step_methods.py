import pickle

import numpy as np
import pymc as pm
import pytensor
import pytest
from arviz_stats.base import array_stats
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_kernel as pk
from tests.plugin.models import STEPS, advance, exact_model, noisy_model, same_draws, sample

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
@pytest.mark.parametrize("name", ["KAMH", "AdaptiveMetropolis", "KernelHMC"])
def test_same_draws_in_a_compound_with_nuts_and_a_discrete_step(name):
    with pm.Model() as model:
        a = pm.Normal("a")
        b = pm.Normal("b", a, 1.0, shape=2)
        pm.Poisson("k", pm.math.exp(0.3 * a))
        pm.Normal("y", b, 1.0, observed=[0.5, 1.5])
    sequential = sample(model, lambda: STEPS[name]([b]), cores=1)
    assert same_draws(sequential, sample(model, lambda: STEPS[name]([b]), cores=2))
    # Another block moves in between, so the stored density is evaluated anew, and only then.
    evaluations = sequential["sample_stats"]["evaluations"].values
    # A surrogate move that ends where it began needs none.
    assert set(np.unique(evaluations)) <= ({0, 1, 2} if name == "KernelHMC" else {1, 2})
    assert (evaluations == 2).mean() > 0.3


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
    model = model()
    with model:
        whole, first, second = STEPS[name](), STEPS[name](), STEPS[name]()
    start = model.initial_point()
    whole.setup_chain(np.random.default_rng(3), 400, 100)
    uninterrupted = advance(whole, start, 500)
    first.setup_chain(np.random.default_rng(3), 400, 100)
    begun = advance(first, start, 300)
    saved = pickle.loads(pickle.dumps(first.sampling_state))
    advance(first, begun[-1], 20)  # what happens afterwards to the first step must not matter
    second.sampling_state = saved
    resumed = begun + advance(second, begun[-1], 200)
    for one, other in zip(uninterrupted, resumed, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_a_chain_may_be_moved_by_hand():
    model = exact_model()
    with model:
        step = pk.KAMH()
    step.setup_chain(np.random.default_rng(3), 300, 50)
    last = advance(step, model.initial_point(), 300)[-1]
    moved = {k: v + 0.1 for k, v in last.items()}
    _, [info] = step.step(moved)
    assert info["evaluations"] == 2


def learned(state):
    """Everything that shapes a proposal."""
    walk = getattr(state, "walk", state)
    return pickle.dumps(
        (walk.mean, walk.factor, walk.log_scale, [getattr(state, a, None) for a in ("log_scale", "fit", "shares")])
    )


@pytest.mark.parametrize("name", STEPS)
def test_nothing_is_learned_after_tuning_unless_asked_for(name):
    model = exact_model()
    for adaptation in ("tuning",) if name == "KernelHMC" else ("tuning", "vanishing"):
        with model:
            step = STEPS[name]() if name == "KernelHMC" else STEPS[name](adaptation=adaptation)
        step.setup_chain(np.random.default_rng(3), 300, 100)
        last = advance(step, model.initial_point(), 200)[-1]  # a loop that counts evaluations may stop before
        step.stop_tuning()
        before = learned(step.transition)
        advance(step, last, 100)
        assert (learned(step.transition) == before) == (adaptation == "tuning")


# -- in PyMC's hands ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STEPS)
def test_the_order_in_which_variables_are_given_does_not_matter(name):
    with pm.Model() as model:
        a, b = pm.Normal("a", 0.0, 1.0), pm.Normal("b", 10.0, 0.1)
        step = STEPS[name](vars=[b, a])
    step.setup_chain(np.random.default_rng(3), 200, 100)
    last = advance(step, model.initial_point(), 300)[-1]
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
    assert (idata["sample_stats"]["evaluations"] == 1).all()
