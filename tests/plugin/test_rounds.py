import os
import warnings

import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.likelihood_free.learned_likelihood import FittedLikelihood


def simulator(rng, rate, size):
    return rng.exponential(1.0 / rate, size)


def model_of_waiting(observed, spoilt=False):
    """Return a model whose posterior is known: exponential times, a gamma prior, their mean as a summary."""

    def simulate(rng, rate, size):
        times = rng.exponential(1.0 / rate, size)
        return np.full(size, np.nan) if spoilt and times.mean() > 0.8 else times

    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Deterministic("mean time", 1.0 / rate)
        pm.Simulator("y", simulate, rate, observed=observed)
    return model


def sample(model, **settings):
    settings = {"summary": np.mean, "num_simulations": 400, "rounds": 2, "random_seed": 1} | settings
    return pk.sample_likelihood_free(500, model=model, progressbar=False, **settings)


pytestmark = [
    pytest.mark.filterwarnings("ignore:RandomVariable Ops will stop hiding:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Calling a RandomVariable without an explicit rng:DeprecationWarning"),
]
TIMES = np.random.default_rng(3).exponential(0.5, 30)


def test_posterior_of_a_positive_parameter():
    idata, learned = sample(model_of_waiting(TIMES), return_likelihood=True)
    exact = stats.gamma(2.0 + 30, scale=1.0 / (1.0 + TIMES.sum()))
    rate = idata["posterior"]["rate"].values
    assert rate.shape == (4, 500)
    np.testing.assert_allclose(rate.mean(), exact.mean(), atol=0.25 * exact.std())
    np.testing.assert_allclose(rate.std(), exact.std(), rtol=0.2)
    np.testing.assert_allclose(idata["posterior"]["mean time"], 1.0 / rate)
    assert idata["prior"].sizes["draw"] == idata["prior_predictive"].sizes["draw"] == 400
    assert isinstance(learned, FittedLikelihood)
    said = idata["sample_stats"]
    np.testing.assert_array_equal(said["round_simulations"], [200, 200])
    assert said["power"].values[0] == 0.0 < said["power"].values[1] <= 1.0
    assert 0.05 < said["place"] < 1.0
    assert 0.9 < said["held_out_coverage"] <= 1.0
    assert np.isnan(said["change"].values[0])
    # The second round simulates nearer to the posterior than the first.
    logs = np.log(idata["prior"]["rate"].values[0])
    assert logs[200:].std() < 0.8 * logs[:200].std()


def test_a_run_goes_on_with_its_store(tmp_path):
    log = str(tmp_path / "calls")

    def counted(rng, rate, size):
        with open(log, "a") as file:
            file.write(".")
        return rng.exponential(1.0 / rate, size)

    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Simulator("y", counted, rate, observed=TIMES)
    first = sample(model, store=tmp_path / "kept", num_simulations=60)
    made = os.path.getsize(log)
    again = sample(model, store=tmp_path / "kept", num_simulations=60)
    assert os.path.getsize(log) == made == 60
    np.testing.assert_array_equal(first["posterior"]["rate"], again["posterior"]["rate"])
    with pytest.raises(ValueError, match="random_seed"):
        sample(model, store=tmp_path / "kept", random_seed=None)


def test_an_observation_outside_is_said():
    # Times that differ less than any exponential ones: the spread is outside of what the model simulates.
    with pytest.warns(UserWarning, match="should not be trusted.*outside of what the model simulates"):
        sample(model_of_waiting(np.full(30, 0.5)), summary=lambda y: [np.mean(y), np.log(np.std(y) + 1e-3)])


def test_failed_simulations_are_counted():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        idata = sample(model_of_waiting(TIMES, spoilt=True))
    assert any("gave NaN or infinite numbers and are left out" in str(w.message) for w in said)
    failed = int(idata["sample_stats"]["num_failed"])
    assert failed == np.isnan(idata["prior_predictive"]["y"].values[0, :, 0]).sum() > 20


def test_arguments_are_checked():
    model = model_of_waiting(TIMES)
    for wrong in ({"rounds": 0}, {"num_simulations": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            sample(model, **wrong)
    with pytest.raises(TypeError, match="do you mean random_seed"):
        pk.sample_likelihood_free(model=model, seed=1)
    with pm.Model() as flat:
        rate = pm.Flat("rate")
        pm.Simulator("y", simulator, rate, observed=TIMES)
    with pytest.raises(ValueError, match="prior cannot be drawn"):
        sample(flat)
