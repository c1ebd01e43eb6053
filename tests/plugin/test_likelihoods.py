import os

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from tests.plugin.models import noisy_model, noisy_normal, sample


def test_arguments_arrive_and_the_data_are_recorded():
    seen = {}

    def fn(rng, theta, matrix, observed):
        seen.update(rng=rng, theta=theta.copy(), matrix=matrix.copy(), observed=observed.copy())
        return -0.5 * float(theta @ theta)

    data = np.arange(6.0).reshape(3, 2)
    with pm.Model(coords={"row": range(3), "column": range(2)}) as model:
        theta = pm.Normal("theta", shape=2)
        pk.EstimatedLikelihood("y", fn, theta, np.eye(2), observed=data, dims=("row", "column"))
    logp = model.compile_logp()
    assert logp({"theta": np.ones(2)}) == pytest.approx(-1.0 - 1.0 - np.log(2 * np.pi))
    assert isinstance(seen["rng"], np.random.Generator)
    np.testing.assert_array_equal(seen["matrix"], np.eye(2))
    np.testing.assert_array_equal(seen["observed"], data)
    idata = sample(model, pk.AdaptiveMetropolis, cores=1)
    np.testing.assert_array_equal(idata["observed_data"]["y"], data)


@pytest.mark.machine_code
def test_with_pymc_alone_every_place_has_a_new_estimate_and_the_last_ones_keep_theirs():
    logp = noisy_model().compile_logp()
    places = np.arange(20.0)
    noise = [float(logp({"theta": x})) + 0.5 * x**2 for x in places]
    assert len(set(noise)) == 20
    assert [float(logp({"theta": x})) + 0.5 * x**2 for x in places] == noise
    for x in np.arange(100.0, 2200.0):
        logp({"theta": x})
    assert float(logp({"theta": 0.0})) != noise[0]


@pytest.mark.machine_code
def test_steps_of_pymc_keep_the_estimates_too():
    places = []

    def log_estimate(rng, theta, observed):
        places.append(float(theta))
        return noisy_normal(rng, theta, observed)

    sample(noisy_model(log_estimate), pm.Slice, cores=1, draws=50, tune=50, chains=1)
    assert len(places) > 60
    assert len(set(places)) == len(places)  # nowhere is a second estimate made


@pytest.mark.machine_code
def test_a_forked_process_does_not_repeat_the_noise():
    logp = noisy_model().compile_logp()
    logp({"theta": 0.0})
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr(float(logp({"theta": 1.0}))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(read, 100)) != float(logp({"theta": 1.0}))


@pytest.mark.machine_code
def test_bad_input_is_named():
    with pm.Model() as model:
        theta = pm.Normal("theta")
        with pytest.raises(TypeError, match="fn must be a function"):
            pk.EstimatedLikelihood("a", 3.0, theta, observed=np.zeros(1))
        with pytest.raises(ValueError, match="at least one parameter"):
            pk.EstimatedLikelihood("b", noisy_normal, observed=np.zeros(1))
    for value, words in ((np.zeros(3), r"an array of shape \(3,\)"), (None, "None")):
        model = noisy_model(lambda rng, t, y, v=value: v)
        with pytest.raises(TypeError, match=f"EstimatedLikelihood 'y' returned {words}"):
            model.compile_logp()({"theta": 0.0})


def test_a_block_that_cannot_be_drawn_says_what_to_give():
    with noisy_model(), pytest.raises(ValueError, match="'y' cannot be simulated"):
        pk.simulate(10)


@pytest.mark.parametrize("observed", [np.array([1.0, np.nan]), np.ma.masked_greater([1.0, 5.0], 3.0)])
def test_missing_data_are_refused(observed):
    with pm.Model(), pytest.raises(ValueError, match="'y' has missing entries"):
        pk.EstimatedLikelihood("y", noisy_normal, pm.Normal("theta"), observed=observed)


@pytest.mark.machine_code
def test_a_function_cannot_write_to_the_position_or_the_data():
    def careless(rng, theta, observed):
        theta += 1.0
        return 0.0

    with pm.Model() as model:
        pk.EstimatedLikelihood("y", careless, pm.Normal("theta", shape=2), observed=np.zeros(1))
    with pytest.raises(ValueError, match="read-only"):
        model.compile_logp()({"theta": np.zeros(2)})


def test_a_gradient_is_refused():
    with noisy_model() as model, pytest.raises(NotImplementedError):
        model.dlogp()


@pytest.mark.machine_code
@pytest.mark.long
def test_an_estimate_for_each_observation_and_predictive_draws():
    """y_i ~ N(theta, 2): the latent half of the noise is averaged over. Exact by conjugacy."""
    y = np.random.default_rng(1).normal(1.0, np.sqrt(2.0), size=6)

    def estimates(rng, theta, observed):
        latent = theta + rng.standard_normal((50, observed.size))
        return np.log(np.exp(-0.5 * (observed - latent) ** 2).mean(axis=0) / np.sqrt(2 * np.pi))

    def draw(rng, theta, size):
        return rng.normal(theta, np.sqrt(2.0), size=size)

    with pm.Model(coords={"place": list("abcdef")}) as model:
        theta = pm.Normal("theta", 0.0, 2.0)
        pk.EstimatedLikelihood("y", estimates, theta, observed=y, random=draw, pointwise=True, dims="place")
    idata = sample(model, pk.AdaptiveMetropolis, cores=1, draws=2500, tune=500)
    sd = (6 / 2 + 1 / 4) ** -0.5
    theta = idata["posterior"]["theta"]
    assert float(theta.mean()) == pytest.approx(y.sum() / 2 * sd**2, abs=0.1)
    assert float(theta.std()) == pytest.approx(sd, rel=0.12)
    few = idata.isel(draw=slice(300))
    with model:
        pm.compute_log_likelihood(few, progressbar=False)
        after = pm.sample_posterior_predictive(few, progressbar=False, random_seed=1)["posterior_predictive"]["y"]
        before = pm.sample_prior_predictive(300, random_seed=1)["prior_predictive"]["y"]
    assert few["log_likelihood"]["y"].dims == after.dims == ("chain", "draw", "place")
    exact = -0.25 * (y - few["posterior"]["theta"].values[..., None]) ** 2 - 0.5 * np.log(4 * np.pi)
    assert np.abs(few["log_likelihood"]["y"].values - exact).mean() < 0.2
    assert float(after.std()) == pytest.approx(np.sqrt(2 + sd**2), rel=0.1)
    assert float(before.std()) == pytest.approx(np.sqrt(6.0), rel=0.1)


def test_estimates_and_draws_of_another_shape_are_named():
    with pm.Model():
        theta = pm.Normal("theta")
        y = pk.EstimatedLikelihood(
            "y", lambda r, t, y: 0.0, theta, observed=np.zeros(3), pointwise=True, random=lambda r, t, size: np.zeros(2)
        )
        with pytest.raises(TypeError, match=r"array of the data's shape \(3,\)"):
            pm.Model.get_context().compile_logp()({"theta": 0.0})
        with pytest.raises(ValueError, match=r"returned shape \(2,\) for size=\(3,\); it must return a data set"):
            pm.draw(y)
        with pytest.raises(TypeError, match="random must be a function"):
            pk.EstimatedLikelihood("z", lambda r, t, y: 0.0, theta, observed=np.zeros(3), random=3)
