"""A model with an estimated likelihood: ``pm.sample`` takes our step, and steps that sample something else say so."""

import warnings

import numpy as np
import pymc as pm
import pytest
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods import STEP_METHODS

import pymc_kernel as pk
from pymc_kernel.errors import NoisyBlockError
from tests.plugin.models import exact_model, noisy_model, noisy_normal

QUIET = {"progressbar": False, "compute_convergence_checks": False, "random_seed": 1}


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
    everything = ["apart", "phi_log__", "theta"]
    model = mixed_model()
    assert chosen(model) == {pk.KernelHMC: everything}
    assert chosen(freeze_dims_and_data(model)) == {pk.KernelHMC: everything}
    with exact_model():  # the model in question is not the one in context
        assert chosen(model) == {pk.KernelHMC: everything}
    with pm.Model() as outer:
        pm.Normal("phi")
        with pm.Model(name="inner"):
            pk.EstimatedLikelihood("y", noisy_normal, pm.Normal("theta"), observed=np.zeros(1))
    assert chosen(outer) == {pk.KernelHMC: ["inner::theta", "phi"]}
    assert STEP_METHODS.count(pk.KernelHMC) == 1


def test_models_without_our_blocks_keep_the_steps_of_pymc():
    with pm.Model() as models:
        pm.Normal("x", shape=2)
        pm.Poisson("k", 1.0)
        pm.Bernoulli("b", 0.5)
    with pm.Model() as simulated:
        theta, many = pm.Normal("theta"), pm.Normal("many", shape=3)
        pm.Simulator("y", lambda rng, a, b, size: rng.normal(a + b.sum(), 1.0, size), theta, many, observed=np.zeros(3))
    mixed_model()
    with_ours = [chosen(m) for m in (models, simulated)]
    before = list(STEP_METHODS)
    try:
        STEP_METHODS.remove(pk.KernelHMC)
        assert [chosen(m) for m in (models, simulated)] == with_ours
    finally:
        STEP_METHODS[:] = before
    assert not any(pk.KernelHMC in steps for steps in with_ours)


@pytest.mark.machine_code
def test_plain_sampling_keeps_the_estimates_that_were_accepted():
    with noisy_model():
        idata = pm.sample(100, tune=60, chains=1, cores=1, **QUIET)
    theta, log_density = idata["posterior"]["theta"].values[0], idata["sample_stats"]["log_density"].values[0]
    stays = np.diff(theta) == 0.0
    assert 20 < stays.sum() < 99
    np.testing.assert_array_equal(np.diff(log_density) == 0.0, stays)


@pytest.mark.parametrize("step", [pm.Metropolis, pm.DEMetropolisZ, pm.Slice, pm.DEMetropolis])
def test_a_foreign_step_says_that_it_will_be_wrong(step):
    with mixed_model(), pytest.warns(UserWarning, match=rf"{step.__name__} will sample a wrong posterior.*'y'") as said:
        step()
    assert said[0].filename == __file__


def test_the_warning_reaches_users_of_several_cores():
    with noisy_model(), pytest.warns(UserWarning, match="Metropolis will sample a wrong posterior"):
        pm.sample(10, tune=10, chains=2, cores=2, step=pm.Metropolis(), **QUIET)


def test_what_is_no_step_or_keeps_its_estimates_hears_nothing():
    def simulator(rng, theta, size):
        return rng.normal(theta, 1.0, size)

    with pm.Model() as model:
        theta = pm.Normal("theta")
        pk.KernelABC("y", simulator, theta, observed=np.ones(1), epsilon=0.5)
    with warnings.catch_warnings(), model:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*wrong posterior")
        for step in (pk.KAMH, pk.AdaptiveMetropolis, pk.KernelHMC):
            step()
        model.compile_logp()({"theta": 0.0})
        model.point_logps({"theta": np.array(0.0)})
        pm.sample_prior_predictive(2, random_seed=1)
        pm.find_MAP(progressbar=False, method="Powell", maxiter=2, jitter=False, return_inferencedata=True)
        pm.sample_smc(20, chains=1, cores=1, **QUIET)
        idata = pm.sample(20, tune=20, chains=1, cores=1, **QUIET)
        pm.compute_log_likelihood(idata, progressbar=False)


def test_discrete_variables_are_refused_with_a_way_out():
    with pm.Model():
        theta, k = pm.Normal("theta"), pm.Poisson("k", 2.0)
        pk.EstimatedLikelihood("y", noisy_normal, theta + k, observed=np.zeros(1))
        with pytest.raises(NoisyBlockError, match=r"only estimated \(by y\).*k, being discrete.*let the estimate"):
            pm.sample(10, chains=1, **QUIET)
        # A step of PyMC's for the discrete ones leaves the rest to ours, which refuses to be one of two.
        with (
            pytest.warns(UserWarning, match="wrong posterior"),
            pytest.raises(NoisyBlockError, match="k, being discrete"),
        ):
            pm.sample(10, chains=1, step=pm.Metropolis([k]), **QUIET)
