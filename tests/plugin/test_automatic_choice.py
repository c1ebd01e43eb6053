"""A model with an estimated likelihood: ``pm.sample`` takes our step."""

import numpy as np
import pymc as pm
import pytest
from pymc.model.transform.optimization import freeze_dims_and_data
from pymc.sampling.mcmc import assign_step_methods
from pymc.step_methods import STEP_METHODS

import pymc_kernel as pk
from pymc_kernel.errors import NoisyBlockError
from tests.plugin.models import exact_model, noisy_normal

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
    with freeze_dims_and_data(model) as frozen:
        assert chosen(frozen) == {pk.KernelHMC: everything}
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


def test_discrete_variables_are_refused_with_a_way_out():
    with pm.Model():
        theta, k = pm.Normal("theta"), pm.Poisson("k", 2.0)
        pk.EstimatedLikelihood("y", noisy_normal, theta + k, observed=np.zeros(1))
        with pytest.raises(NoisyBlockError, match=r"only estimated \(by y\).*k, being discrete.*let the estimate"):
            pm.sample(10, chains=1, **QUIET)
        # A step of PyMC's for the discrete ones leaves the rest to ours, which refuses to be one of two.
        with pytest.raises(NoisyBlockError, match="k, being discrete"):
            pm.sample(10, chains=1, step=pm.Metropolis([k]), **QUIET)
