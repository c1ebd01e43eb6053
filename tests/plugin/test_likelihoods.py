import os

import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods import STEP_METHODS

import pymc_kernel as pk
from pymc_kernel.errors import NoisyBlockError
from pymc_kernel.plugin.model.log_density import compile_log_density
from tests.plugin.models import abc_model, exact_model, noisy_model, noisy_normal, sample
from tests.plugin.parts import QUIET, check_moments


def test_arguments_arrive_and_the_data_are_recorded():
    seen = {}

    def fn(rng, theta, matrix, observed):
        seen.update(rng=rng, matrix=matrix.copy(), observed=observed.copy())
        return -0.5 * float(theta @ theta)

    data = np.arange(6.0).reshape(3, 2)
    with pm.Model(coords={"row": range(3), "column": range(2)}) as model:
        theta = pm.Normal("theta", shape=2)
        pk.EstimatedLikelihood("y", fn, theta, np.eye(2), observed=data, dims=("row", "column"))
    assert model.compile_logp()({"theta": np.ones(2)}) == pytest.approx(-1.0 - 1.0 - np.log(2 * np.pi))
    assert isinstance(seen["rng"], np.random.Generator)
    idata = sample(model, pk.AdaptiveMetropolis, cores=1)
    for found, given in ((seen["matrix"], np.eye(2)), (seen["observed"], data), (idata["observed_data"]["y"], data)):
        np.testing.assert_array_equal(found, given)


@pytest.mark.machine_code
def test_with_pymc_alone_every_place_has_a_new_estimate_and_the_last_ones_keep_theirs():
    logp = noisy_model().compile_logp()

    def noise(places):
        return [float(logp({"theta": x})) + 0.5 * x**2 for x in places]

    first = noise(np.arange(20.0))
    assert len(set(first)) == 20
    assert noise(np.arange(20.0)) == first
    noise(np.arange(100.0, 2200.0))
    assert noise([0.0]) != first[:1]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # another process does not repeat the noise
        os.write(write, repr(float(logp({"theta": -1.0}))).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(read, 100)) != float(logp({"theta": -1.0}))


@pytest.mark.machine_code
def test_steps_of_pymc_keep_the_estimates_too():
    places = []

    def log_estimate(rng, theta, observed):
        places.append(float(theta))
        return noisy_normal(rng, theta, observed)

    sample(noisy_model(log_estimate), pm.Slice, cores=1, draws=50, tune=50, chains=1)
    assert len(places) > 60
    assert len(set(places)) == len(places)  # nowhere is a second estimate made


def careless(rng, theta, observed):
    theta += 1.0
    return 0.0


def returns(value):
    return lambda *args, **kwargs: value


def log_density(fn, **settings):
    """The log density of an estimate of two parameters, or of one for each of three data."""
    with pm.Model() as model:
        given = {"observed": np.zeros(3)} | settings
        y = pk.EstimatedLikelihood("y", fn, pm.Normal("theta", shape=2), **given)
    return pm.draw(y) if "random" in settings else model.compile_logp()({"theta": np.zeros(2)})


@pytest.mark.machine_code
@pytest.mark.parametrize(
    ("fn", "settings", "error", "words"),
    [
        (3.0, {}, TypeError, "fn must be a function"),
        (returns(0.0), {"random": 3}, TypeError, "random must be a function"),
        (returns(np.zeros(3)), {}, TypeError, r"EstimatedLikelihood 'y' returned an array of shape \(3,\)"),
        (returns(None), {}, TypeError, "EstimatedLikelihood 'y' returned None"),
        (returns(0.0), {"pointwise": True}, TypeError, r"array of the data's shape \(3,\)"),
        (
            returns(0.0),
            {"random": returns(np.zeros(2))},
            ValueError,
            r"returned shape \(2,\) for size=\(3,\); it must return a data set",
        ),
        (noisy_normal, {"observed": np.array([1.0, np.nan])}, ValueError, "'y' has missing entries"),
        (noisy_normal, {"observed": np.ma.masked_greater([1.0, 5.0], 3.0)}, ValueError, "'y' has missing entries"),
        (careless, {}, ValueError, "read-only"),  # the position is not to be written to, nor are the data
    ],
)
def test_bad_input_is_named(fn, settings, error, words):
    with pytest.raises(error, match=words):
        log_density(fn, **settings)


def test_what_a_block_does_not_have_is_named():
    with noisy_model() as model:
        with pytest.raises(ValueError, match="'y' cannot be simulated"):
            pk.simulate(10)
        with pytest.raises(NotImplementedError):
            model.dlogp()
        with pytest.raises(ValueError, match="at least one parameter"):
            pk.EstimatedLikelihood("b", noisy_normal, observed=np.zeros(1))


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
    check_moments(idata["posterior"]["theta"], y.sum() / 2 * sd**2, sd, 0.1 / sd, 0.12)
    few = idata.isel(draw=slice(300))
    with model:
        pm.compute_log_likelihood(few, progressbar=False)
        after = pm.sample_posterior_predictive(few, **QUIET)["posterior_predictive"]["y"]
        before = pm.sample_prior_predictive(300, random_seed=1)["prior_predictive"]["y"]
    assert few["log_likelihood"]["y"].dims == after.dims == ("chain", "draw", "place")
    exact = -0.25 * (y - few["posterior"]["theta"].values[..., None]) ** 2 - 0.5 * np.log(4 * np.pi)
    assert np.abs(few["log_likelihood"]["y"].values - exact).mean() < 0.2
    assert float(after.std()) == pytest.approx(np.sqrt(2 + sd**2), rel=0.1)
    assert float(before.std()) == pytest.approx(np.sqrt(6.0), rel=0.1)


# -- common random numbers: the seed of an estimate is part of the chain's state -----------------------


def wavy_normal(rng, theta, observed):
    """Log of an estimate of exp(-theta^2 / 2): times 1 + 0.95 cos(2 theta + a uniform phase), which has mean one."""
    phase = rng.uniform(0.0, 2.0 * np.pi)
    return -0.5 * float(theta) ** 2 + np.log1p(0.95 * np.cos(2.0 * float(theta) + phase))


@pytest.mark.machine_code
@pytest.mark.long
def test_with_common_numbers_the_posterior_stays_exact():
    """Chains agree on mean zero and spread one: small Monte Carlo errors, and within 3.5 of them."""
    model = noisy_model(wavy_normal, reuse_noise=0.8)
    theta = sample(model, pk.KAMH, cores=1, draws=4000, tune=500)["posterior"]["theta"].values
    errors = [float(array_stats.mcse(theta, chain_axis=0, draw_axis=1, method=m)) for m in ("mean", "sd")]
    assert max(errors) < 0.05
    assert abs(theta.mean()) < 3.5 * errors[0]
    assert abs(theta.std() - 1.0) < 3.5 * errors[1]


def spread_of_log_ratio(reuse_noise):
    """The standard deviation of the noise in the log ratio of a proposal that lies nearby."""
    model = abc_model(epsilon=0.2, reuse_noise=reuse_noise)
    density = compile_log_density(model, model.value_vars, model.initial_point(), "a test")
    density.seed(np.random.default_rng(1))
    ratios = []
    for _ in range(400):
        here = density(np.array([0.6]))
        density.settle(True)
        ratios.append(density(np.array([0.601])) - here)
    return np.std(ratios)


def test_common_numbers_lower_the_noise_of_the_acceptance_ratio():
    assert spread_of_log_ratio(0.9) < 0.75 * spread_of_log_ratio(0.0)
    with pytest.raises(ValueError, match="reuse_noise"):
        abc_model(reuse_noise=1.0)


# -- pm.sample takes our step --------------------------------------------------------------------------


def chosen(model):
    return {step: sorted(v.name for v in names) for step, names in assign_step_methods(model)[1].items()}


def mixed_model():
    """One variable that the estimate does not depend on, a vector and a scalar."""
    with pm.Model() as model:
        theta, phi = pm.Normal("theta", shape=2), pm.HalfNormal("phi")
        pm.Normal("apart")
        pk.EstimatedLikelihood("y", noisy_normal, theta.sum() + phi, observed=np.zeros(1))
    return model


def test_all_variables_of_an_estimated_model_go_to_one_step():
    model, everything = mixed_model(), {pk.KernelHMC: ["apart", "phi_log__", "theta"]}
    assert chosen(model) == everything
    with freeze_dims_and_data(model) as frozen:
        assert chosen(frozen) == everything
    with exact_model():  # the model in question is not the one in context
        assert chosen(model) == everything
    with pm.Model() as outer:
        pm.Normal("phi")
        with pm.Model(name="inner"):
            pk.EstimatedLikelihood("y", noisy_normal, pm.Normal("theta"), observed=np.zeros(1))
    assert chosen(outer) == {pk.KernelHMC: ["inner::theta", "phi"]}
    assert STEP_METHODS.count(pk.KernelHMC) == 1


def test_models_without_our_blocks_keep_the_steps_of_pymc(monkeypatch):
    with pm.Model() as models:
        pm.Normal("x", shape=2)
        pm.Poisson("k", 1.0)
        pm.Bernoulli("b", 0.5)
    with pm.Model() as simulated:
        theta, many = pm.Normal("theta"), pm.Normal("many", shape=3)
        pm.Simulator("y", lambda rng, a, b, size: rng.normal(a + b.sum(), 1.0, size), theta, many, observed=np.zeros(3))
    mixed_model()
    with_ours = [chosen(m) for m in (models, simulated)]
    assert not any(pk.KernelHMC in steps for steps in with_ours)
    monkeypatch.setattr("pymc.sampling.mcmc.STEP_METHODS", [s for s in STEP_METHODS if s is not pk.KernelHMC])
    assert [chosen(m) for m in (models, simulated)] == with_ours


def test_discrete_variables_are_refused_with_a_way_out():
    with pm.Model():
        theta, k = pm.Normal("theta"), pm.Poisson("k", 2.0)
        pk.EstimatedLikelihood("y", noisy_normal, theta + k, observed=np.zeros(1))
        with pytest.raises(NoisyBlockError, match=r"only estimated \(by y\).*k, being discrete.*let the estimate"):
            pm.sample(10, chains=1, **QUIET)
        # A step of PyMC's for the discrete ones leaves the rest to ours, which refuses to be one of two.
        with pytest.raises(NoisyBlockError, match="k, being discrete"):
            pm.sample(10, chains=1, step=pm.Metropolis([k]), **QUIET)
