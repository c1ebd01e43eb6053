import math

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.blocking import DictToArrayBijection
from pytensor import wrap_py
from scipy.special import logit
from scipy.stats import norm

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.plugin.model import priors
from pymc_kernel.plugin.model.log_density import compile_log_density
from pymc_kernel.plugin.model.unconstrained import elementwise_transform, unconstrained_draws

pytestmark = pytest.mark.usefixtures("quick_models")


def nested_model():
    """Transforms of every kind: log, interval with random ends, simplex, ordered, none; a shaped variable."""
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        scale = pm.HalfNormal("scale")
        pm.Uniform("inside", 0.0, 1.0 + scale)
        pm.Dirichlet("share", np.ones(3))
        pm.Normal("sorted", 0, 1, shape=3, transform=pm.distributions.transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.Normal("free", 0.0, scale, dims="group")
        pm.Normal("y", 0.0, 1.0, observed=[0.1, 0.2])
    return model


def test_prior_that_cannot_be_vectorized_is_compiled_once(monkeypatch):
    tried, compiled = [], pm.Model.compile_fn
    monkeypatch.setattr(priors, "vectorized", lambda *args: tried.append("vectorized") or 1 / 0)
    monkeypatch.setattr(pm.Model, "compile_fn", lambda *args, **kw: tried.append("one by one") or compiled(*args, **kw))
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0)
    density = priors.prior_density(model)
    for _ in range(3):
        np.testing.assert_allclose(density(np.array([[1.0], [3.0]])), norm(1.0, 2.0).logpdf([1.0, 3.0]))
    assert tried == ["vectorized", "one by one"]


def test_draws_come_back_to_the_unconstrained_scale():
    with nested_model() as model:
        idata = pm.sample(
            7, tune=5, chains=2, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    found = unconstrained_draws(idata["posterior"].to_dataset(), model)
    assert found.shape == (2, 7, 10)
    backward = model.compile_fn(model.unobserved_value_vars, inputs=model.value_vars, on_unused_input="ignore")
    like = DictToArrayBijection.map(model.initial_point())
    for chain in range(2):
        for draw in range(7):
            values = backward(DictToArrayBijection.rmap(like._replace(data=found[chain, draw])))
            for variable, value in zip(model.unobserved_value_vars, values, strict=True):
                if variable.name in idata["posterior"]:
                    kept = idata["posterior"][variable.name].values[chain, draw]
                    np.testing.assert_allclose(value, kept, rtol=1e-8, atol=1e-10)


def test_draws_of_another_model_are_refused():
    with nested_model() as model:
        idata = pm.sample(
            2, tune=2, chains=1, cores=1, random_seed=1, progressbar=False, compute_convergence_checks=False
        )
    posterior = idata["posterior"].to_dataset()
    with pytest.raises(ValueError, match="no scale"):
        unconstrained_draws(posterior.drop_vars("scale"), model)
    with pytest.raises(ValueError, match="free have shape"):
        unconstrained_draws(posterior.isel(group=slice(0, 2)), model)


def black_box_model(function):
    with pm.Model() as model:
        theta = pm.Normal("theta")
        pm.Potential("box", wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])(function)(theta))
    return model


@pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
def test_a_black_box_that_overflows_is_a_density_of_zero_there():
    """exp(800) raises in pure Python; proposals that far out must not end a chain."""
    with black_box_model(lambda x: np.array(-math.exp(400.0 * float(x)))) as model:
        density = compile_log_density(model, model.value_vars, model.initial_point(), "test")
        assert density(np.array([2.0])) == -np.inf
        assert isinstance(density.error, OverflowError)
        assert np.isfinite(density(np.array([0.0])))
        idata = pm.sample(200, tune=100, chains=1, step=pk.AdaptiveMetropolis(), random_seed=1, progressbar=False)
    assert float(idata["posterior"]["theta"].max()) < 0.1


@pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
def test_a_black_box_that_always_fails_is_said_with_its_error():
    def broken(x):
        raise ZeroDivisionError("no such rate")

    with black_box_model(broken):
        step = pk.AdaptiveMetropolis()
        step.setup_chain(np.random.default_rng(1), 100, 10)
        with pytest.raises(NonFiniteStartError, match="ZeroDivisionError: no such rate"):
            step.step({"theta": np.array(0.0)})


def test_transforms_of_single_numbers():
    """Forward and back are inverse to each other, each element within bounds of its own."""
    with pm.Model() as model:
        positive = pm.HalfNormal("positive")
        pm.Uniform("between", [0.0, 10.0], [1.0, 30.0], shape=2)
        pm.Beta("share", 2.0, 3.0)
        pm.Normal("free")
        pm.Uniform("below_positive", 0.0, positive)
        pm.Dirichlet("simplex", np.ones(3))
        pm.Normal("ordered", [0.0, 1.0], transform=pm.distributions.transforms.ordered)
        pm.Deterministic("twice", 2.0 * positive)
    draws = {"positive": [0.01, 3.0], "between": [[0.1, 11.0], [0.9, 29.0]], "share": [0.2, 0.95]}
    ends = {"positive": (0.0, np.inf), "between": (np.array([0.0, 10.0]), np.array([1.0, 30.0])), "share": (0.0, 1.0)}
    for name, values in draws.items():
        low, high = ends[name]
        transform = elementwise_transform(model, name)
        values = np.array(values)
        free = transform.forward(values)
        np.testing.assert_allclose(transform.backward(free), values)
        expected = np.log(values) if name == "positive" else logit((values - low) / (high - low))
        np.testing.assert_allclose(free, expected)
    for name in ("free", "below_positive", "simplex", "ordered", "twice", "unknown"):
        assert elementwise_transform(model, name) is None
