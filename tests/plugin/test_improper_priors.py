"""Priors without draws, as ``pm.Flat``, beside proper ones: what can begin elsewhere does, the rest says so at once."""

import numpy as np
import pymc as pm
import pytest
from scipy.stats import norm

import pymc_kernel as pk
from pymc_kernel.plugin.model import priors, unconstrained
from pymc_kernel.plugin.model.priors import ModelPrior
from tests.plugin.parts import QUIET


def model_of(calls=None):
    def simulator(rng, x, scale, size):
        calls.append(1)
        return rng.normal(x, scale, 3)

    data = {"observed": np.array([1.0, 2.0, 1.5])}
    with pm.Model() as model:
        x, scale = pm.Flat("x", shape=2), pm.HalfNormal("scale", 3.0)
        if calls is None:
            pm.Normal("y", x[0] + x[1] ** 2, scale, **data)
        else:
            pm.Simulator("y", simulator, x[0], scale, **data)
    return model


@pytest.mark.parametrize("name", ["smc", "pmc", "kbr", "abc", "likelihood_free", "simulate"])
def test_what_needs_draws_of_the_prior_says_so_before_any_work(name):
    calls, call = [], getattr(pk, f"sample_{name}", pk.simulate)
    settings = {"draws": 100} if name in ("smc", "pmc", "simulate") else {"num_simulations": 50}
    with pytest.raises(ValueError, match=r"the prior of 'x' cannot be drawn from: pm.Flat"):
        call(model=model_of(None if name in ("smc", "pmc") else calls), **settings, **QUIET)
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
    idata = pk.sample_pmc(200, iterations=4, chains=1, start=start, model=model_of(), **QUIET)
    assert np.isfinite(idata["posterior"]["x"]).all()
