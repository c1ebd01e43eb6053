"""One meaning of ``summary=``: a function of a variable's array, handed on by its block wherever data are compared."""

import numpy as np
import pymc as pm
import pytest
from pymc.model.transform.optimization import freeze_dims_and_data

import pymc_kernel as pk
from pymc_kernel.plugin.simulation.pairs import simulated_pairs
from tests.plugin.models import normal_simulator

QUIET = {"progressbar": False, "random_seed": 1}


def test_other_blocks_hand_on_how_they_see_the_data():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 3)
        pk.SyntheticLikelihood("y", normal_simulator, theta, observed=np.arange(9.0), summary=np.mean)
    simulations = pk.simulate(10, model=model, **QUIET)
    for one in (model, freeze_dims_and_data(model)):
        assert simulated_pairs(simulations, one, None)[1].shape == (10, 1)


def test_each_observed_variable_has_a_summary_of_its_own():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pk.KernelABC("y", normal_simulator, theta, observed=np.arange(4.0), summary=np.mean, epsilon=0.1)
        pm.Normal("z", theta, 1.0, observed=np.arange(3.0))
    simulations = pk.simulate(20, model=model, **QUIET)
    y, z = (simulations["prior_predictive"][name].values[0] for name in "yz")

    def summaries(summary):
        return simulated_pairs(simulations, model, summary)[1]

    np.testing.assert_array_equal(summaries(None), np.column_stack([y.mean(axis=1), z]))
    both = summaries({"z": np.max, "y": np.ravel})
    np.testing.assert_array_equal(both, np.column_stack([y, z.max(axis=1)]))
    np.testing.assert_array_equal(summaries({"z": np.max}), np.column_stack([y.mean(axis=1), z.max(axis=1)]))
    with pytest.raises(ValueError, match="observes y, z, and one function cannot"):
        pk.sample_abc(simulations=simulations, model=model, summary=np.mean)
    with pytest.raises(ValueError, match=r"names x; the model observes y, z"):
        pk.sample_kbr(simulations=simulations, model=model, summary={"x": np.mean})
    with pytest.raises(TypeError, match="summary of 'z' must be a function"):
        pk.sample_kbr(simulations=simulations, model=model, summary={"z": 3.0})
    with pytest.raises(TypeError, match="summary must be a function of the observed array"):
        pk.sample_kbr(simulations=simulations, model=model, summary="mean")
    with pytest.raises(ValueError, match="summary of 'z' must return vectors of one length"):
        pk.sample_kbr(simulations=simulations, model=model, summary={"z": lambda z: z[z > 0.0]})
