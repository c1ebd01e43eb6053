"""What steps refuse or warn of, and how they say it."""

from functools import partial

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph

import pymc_kernel as pk
from benchmarks import noisy_walks
from pymc_kernel.errors import NoisyBlockError, NonFiniteStartError
from pymc_kernel.plugin.model import estimated
from tests.plugin.models import STEPS, exact_model, noisy_model, noisy_normal, normal_simulator, same_draws, sample


def _nested(mean):
    value = pt.dscalar()
    op = estimated.EstimatedLogLikelihoodOp("inner", noisy_normal)
    pm.Potential("p", OpFromGraph([value], [op(value, pt.zeros(1))])(mean))


ESTIMATES = {
    "y": lambda mean: pk.EstimatedLikelihood("y", noisy_normal, mean, observed=np.zeros(1)),
    "Simulator_s": lambda mean: pm.Simulator("s", normal_simulator, mean, epsilon=1.0, observed=np.zeros(5)),
    "inner": _nested,
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", ESTIMATES)
def test_a_noisy_density_in_parts_is_refused(name, step):
    with pm.Model():
        theta, phi = pm.Normal("theta"), pm.Normal("phi")
        ESTIMATES[name](theta + phi)
        for settings in ({"vars": [theta]}, {"blocked": False}):
            with pytest.raises(NoisyBlockError, match=rf"\(by {name}\).*not given: phi"):
                STEPS[step](**settings)


def test_pymc_simulator_is_reproducible():
    with pm.Model() as model:
        ESTIMATES["Simulator_s"](pm.Normal("theta"))
    assert same_draws(*(sample(model, pk.AdaptiveMetropolis, cores=c) for c in (1, 2)))


@pytest.mark.parametrize("name", STEPS)
def test_discrete_variables_are_left_to_other_steps(name):
    with pm.Model():
        k = pm.Poisson("k", 3.0)
        x = pm.Normal("x", k, 1.0)
        assert [v.name for v in STEPS[name]().vars] == ["x"]
        with pytest.raises(TypeError, match="k is discrete"):
            STEPS[name]([x, k])


def test_too_little_tuning_is_said(caplog):
    for tune, said in ((30, True), (300, False)):
        caplog.clear()
        sample(exact_model(), pk.KernelHMC, cores=1, draws=20, tune=tune, chains=1)
        assert (f"{tune} tuning draws were too few" in caplog.text) is said


@pytest.mark.parametrize(
    ("variable", "step", "settings", "message"),
    [
        (lambda: pm.Poisson("k", 3.0), pk.KAMH, {}, "KAMH samples continuous variables"),
        (lambda: pm.Normal("none", shape=0), pk.KAMH, {}, "without entries: none"),
        (lambda: pm.Normal("x", shape=6), pk.KAMH, {"adaptation": "never"}, "adaptation"),
        (lambda: pm.Normal("x", shape=6), pk.KAMH, {"kernel": pk.kernels.Gaussian([1.0, 2.0])}, "6 dimensions"),
        (lambda: pm.Normal("x", shape=6), pk.AdaptiveMetropolis, {"covariance": np.eye(2)}, "6 dimensions"),
    ],
)
def test_what_a_step_cannot_do_is_refused_before_any_work(variable, step, settings, message):
    with pm.Model():
        variable()
        with pytest.raises(ValueError, match=message):
            step(**settings)


def begun(model, make_step=pk.KAMH, *names):
    """A step, for variables of some names or for all, whose chain begins."""
    with model:
        step = make_step([model[name] for name in names] or None)
    step.setup_chain(np.random.default_rng(3), 10, 10)
    return step


def test_a_start_without_density_is_a_clear_error():
    with pm.Model() as model:
        pm.Potential("never", pm.math.log(pm.Normal("x") * 0.0))
    with pytest.raises(NonFiniteStartError, match="KAMH for x: the log density at the starting position"):
        begun(model).step(model.initial_point())


def test_a_compound_whose_steps_see_different_densities_is_named():
    step = begun(model := exact_model(), pk.KAMH, "z")
    point, _ = step.step(model.initial_point())
    with pytest.raises(NonFiniteStartError, match="KAMH for z: after another step moved the chain"):
        step.step(point | {"x": np.full((2, 2), np.nan)})


def test_a_second_step_on_a_noisy_block_is_refused():
    """Each alone is right; together neither knows which estimate was accepted last."""
    model = noisy_model()
    steps, point = [begun(model, pk.AdaptiveMetropolis) for _ in range(2)], model.initial_point()

    def take_turns(point):
        for _ in range(100):
            for step in steps:
                point, _ = step.step(point)

    with pytest.raises(NoisyBlockError, match="AdaptiveMetropolis for theta: another step moved the chain"):
        take_turns(point)


def test_a_stuck_chain_is_reported_with_the_noise_of_the_estimate(caplog):
    idata = sample(noisy_model(partial(noisy_normal, sd=6.0)), pk.AdaptiveMetropolis, cores=2, draws=1000)
    assert int(idata["sample_stats"]["stuck_for"].max()) >= 200
    [message, *_] = [r.message for r in caplog.records if "rejected 200" in r.message]
    assert "variance of" in message
    assert "times as many replicates" in message
    # Looking at the noise is counted, and happens once a chain.
    extra = (idata["sample_stats"]["evaluations"] - 1).sum("draw").values
    assert set(extra) <= {0, 20}


def test_a_stuck_chain_with_an_exact_density_is_reported(caplog):
    with pm.Model() as model:
        pm.Normal("x")
    sample(model, lambda: pk.AdaptiveMetropolis(scale=1e4, learn_scale=False), cores=1, draws=800, chains=1)
    assert any("do not fit" in r.message for r in caplog.records)


def noisy_pair(rng, theta, observed):
    """Log of an unbiased estimate of exp(-|theta|^2 / 2); the log-normal noise lets .23 of all steps through."""
    return float(-0.5 * theta @ theta - 0.5 * 1.7**2 + 1.7 * rng.standard_normal())


@pytest.mark.parametrize("name", ["KAMH", "AdaptiveMetropolis"])
def test_noise_is_measured_while_tuning_and_scales_do_not_collapse(name):
    model = noisy_model(noisy_pair, lambda: pm.Flat("theta", shape=2, initval=np.zeros(2)))
    idata = sample(model, STEPS[name], cores=1, tune=800, draws=200, chains=3)
    tuning, drawing = idata["warmup_sample_stats"]["evaluations"], idata["sample_stats"]["evaluations"]
    # The very first draw has one evaluation more, at the start.
    np.testing.assert_array_equal(tuning.sum("draw"), 800 + 80 + 1)
    assert set(np.unique(drawing)) <= {1, 21}  # 21: a stuck chain looks at the noise
    scales = idata["sample_stats"]["proposal_scale"].values[:, -1] / (2.38 / np.sqrt(2))
    assert scales.min() > 0.5
    assert scales.max() < 4.0


@pytest.mark.slow
@pytest.mark.parametrize("way", noisy_walks.WAYS)
@pytest.mark.parametrize("name", noisy_walks.STEPS)
def test_no_walk_under_noise_is_narrow_in_silence(name, way):
    """A part of the table of ``benchmarks.noisy_walks``."""
    for sigma, num_dims in ((1.5, 5), (1.7, 1), (1.7, 2)):
        chains = noisy_walks.WAYS[way](name, sigma, num_dims, 32, 2)
        assert noisy_walks.counted(chains).silent == 0
