import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.model_graph import with_hoisted

# NUTS takes tens of thousands of gradients.
pytestmark = pytest.mark.machine_code

TIMES = np.array([0.5, 1.0, 2.0, 4.0])
OBSERVED = np.array([[0.7, 0.45, 0.3, 0.05], [0.8, 0.6, 0.4, 0.1], [0.6, 0.4, 0.1, 0.0]])


@wrap_py([pt.dscalar, pt.dvector], [pt.dscalar])
def log_likelihood(rate, y):
    """One number for each group: neither the curve nor the noise are known to PyMC."""
    return np.asarray(-0.5 * (((y - np.exp(-rate * TIMES)) / 0.1) ** 2).sum())


def groups(way):
    """Three groups with a rate each, and a spread of the rates."""
    with pm.Model(coords={"group": list("abc"), "time": TIMES}) as model:
        spread = pm.HalfNormal("spread", 0.5)
        log_rate = pm.Normal("log_rate", 0.0, spread, dims="group")

        def logp(value, log_rate, times):
            if way == "gradient":
                return -0.5 * (((value - pt.exp(-pt.exp(log_rate)[:, None] * times)) / 0.1) ** 2).sum()
            return sum(log_likelihood(pt.exp(log_rate[i]), value[i]) for i in range(3))

        def random(log_rate, times, rng=None, size=None):
            return rng.normal(np.exp(-np.exp(log_rate)[:, None] * times), 0.1)

        pm.CustomDist(
            "y", log_rate, TIMES, logp=logp, random=random, signature="(g),(t)->(g,t)", observed=OBSERVED,
            dims=("group", "time"),
        )  # fmt: skip
    return model


def test_black_boxes_in_custom_distributions_are_found():
    [row] = pk.black_boxes(groups("black box")).itertuples()
    assert (row.calls, row.inputs, row.outputs, row.functions) == (3, 1, 1, 3)  # each has data of its own


def test_the_copy_is_the_same_model():
    model, true = groups("black box"), groups("gradient")
    copy = with_hoisted(model)
    assert [v.name for v in copy.basic_RVs] == [v.name for v in model.basic_RVs]
    assert copy.coords == model.coords
    assert copy.named_vars_to_dims == model.named_vars_to_dims
    log_rate = np.array([0.1, -0.4, 0.2])
    point = {"spread_log__": np.array(-0.3), "log_rate": log_rate}
    settings = {"mode": "FAST_COMPILE"}
    values = [float(m.compile_logp(**settings)(point)) for m in (copy, model, true)]
    np.testing.assert_allclose(values[1:], values[0], rtol=1e-12)
    draws = az.from_dict({"posterior": {"spread": np.full((1, 1), 0.4), "log_rate": log_rate[None, None]}})
    with copy:
        predicted = pm.sample_posterior_predictive(
            draws, freeze_vars=["spread", "log_rate"], random_seed=1, progressbar=False, compile_kwargs=settings
        )
    predicted = predicted["posterior_predictive"]["y"].values[0, 0]
    expected = np.exp(-np.exp(log_rate)[:, None] * TIMES)
    assert np.abs(predicted - expected).max() < 0.5
    assert predicted.shape == (3, 4)


def test_a_model_without_black_boxes_in_log_densities_stays_as_it_is():
    assert with_hoisted(model := groups("gradient")) is model
