"""Priors without draws, as ``pm.Flat``, beside proper ones: what can begin elsewhere does, the rest says so at once."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_kernel as pk
from pymc_kernel.plugin.model import priors, unconstrained
from pymc_kernel.plugin.model.priors import ModelPrior

QUICK = {"random_seed": 1, "progressbar": False}


def model_of(calls=None):
    with pm.Model() as model:
        x, scale = pm.Flat("x", shape=2), pm.HalfNormal("scale", 3.0)
        if calls is None:
            pm.Normal("y", x[0] + x[1] ** 2, scale, observed=np.array([1.0, 2.0, 1.5]))
        else:

            def simulator(rng, x, scale, size):
                calls.append(1)
                return rng.normal(x, scale, 3)

            pm.Simulator("y", simulator, x[0], scale, observed=np.array([1.0, 2.0, 1.5]))
    return model


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sample_smc", {"draws": 100, "chains": 1}),
        ("sample_pmc", {"draws": 100}),
        ("simulate", {"draws": 10}),
        ("sample_kbr", {"num_simulations": 50}),
        ("sample_abc", {"num_simulations": 50}),
        ("sample_likelihood_free", {"num_simulations": 50}),
    ],
)
def test_what_needs_draws_of_the_prior_says_so_before_any_work(name, settings):
    calls = []
    model = model_of() if name in ("sample_smc", "sample_pmc") else model_of(calls)
    with model, pytest.raises(ValueError, match=r"the prior of 'x' cannot be drawn from: pm.Flat"):
        getattr(pk, name)(**settings, **QUICK)
    assert not calls


def test_draws_begin_around_the_initial_value_and_follow_the_proper_priors():
    draws = ModelPrior(model_of()).draw(np.random.default_rng(0), 2000)
    assert np.abs(draws[:, :2]).max() < 1.0  # PyMC's jitter around zero
    assert draws[:, :2].std(axis=0) == pytest.approx(1.0 / np.sqrt(3.0), rel=0.1)
    assert np.exp(draws[:, 2]).mean() == pytest.approx(3.0 * np.sqrt(2.0 / np.pi), rel=0.1)


def test_a_prior_that_cannot_be_vectorized_is_compiled_once(monkeypatch):
    tried, compiled = [], unconstrained.of_vector
    monkeypatch.setattr(unconstrained, "over_draws", lambda *args, **kw: tried.append("vectorized") or 1 / 0)
    monkeypatch.setattr(unconstrained, "of_vector", lambda *args: tried.append("one by one") or compiled(*args))
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0)
    density = priors.prior_density(model)
    for _ in range(3):
        np.testing.assert_allclose(density(np.array([[1.0], [3.0]])), norm(1.0, 2.0).logpdf([1.0, 3.0]))
    assert tried == ["vectorized", "one by one"]


def test_a_start_of_ones_own_needs_no_draws_of_the_prior():
    start = np.random.default_rng(0).normal([1.0, 0.5, 0.0], 0.5, size=(200, 3))
    with model_of():
        idata = pk.sample_pmc(200, iterations=4, chains=1, start=start, **QUICK)
    assert np.isfinite(idata["posterior"]["x"]).all()
