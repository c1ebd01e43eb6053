import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_kernel as pk
from pymc_kernel.plugin.emulation.model_graph import with_hoisted
from tests.plugin.models import QUIET, TIMES, black_box

# NUTS takes tens of thousands of gradients.
pytestmark = pytest.mark.machine_code

OBSERVED = np.array([[0.7, 0.45, 0.3, 0.05], [0.8, 0.6, 0.4, 0.1], [0.6, 0.4, 0.1, 0.0]])


#: One number for each group: neither the curve nor the noise are known to PyMC.
log_likelihood = black_box(lambda rate, y: -0.5 * (((y - np.exp(-rate * TIMES)) / 0.1) ** 2).sum(), "sv", "s")


def groups(way):
    """Three groups with a rate each, and a spread of the rates."""

    def logp(value, log_rate, times):
        if way == "gradient":
            return -0.5 * (((value - pt.exp(-pt.exp(log_rate)[:, None] * times)) / 0.1) ** 2).sum()
        return sum(log_likelihood(pt.exp(log_rate[i]), value[i]) for i in range(3))

    def random(log_rate, times, rng=None, size=None):
        return rng.normal(np.exp(-np.exp(log_rate)[:, None] * times), 0.1)

    with pm.Model(coords={"group": list("abc"), "time": TIMES}) as model:
        log_rate = pm.Normal("log_rate", 0.0, pm.HalfNormal("spread", 0.5), dims="group")
        settings = {"signature": "(g),(t)->(g,t)", "dims": ("group", "time"), "observed": OBSERVED}
        pm.CustomDist("y", log_rate, TIMES, logp=logp, random=random, **settings)
    return model


def test_black_boxes_in_custom_distributions_are_found():
    [row] = pk.black_boxes(groups("black box")).itertuples()
    assert (row.calls, row.inputs, row.outputs, row.functions) == (3, 1, 1, 3)  # each has data of its own


def test_the_copy_is_the_same_model():
    model, true = groups("black box"), groups("gradient")
    assert with_hoisted(true) is true, "without black boxes in log densities a model stays as it is"
    copy = with_hoisted(model)
    assert [v.name for v in copy.basic_RVs] == [v.name for v in model.basic_RVs]
    assert copy.coords == model.coords
    assert copy.named_vars_to_dims == model.named_vars_to_dims
    log_rate, settings = np.array([0.1, -0.4, 0.2]), {"mode": "FAST_COMPILE"}
    point = {"spread_log__": np.array(-0.3), "log_rate": log_rate}
    values = [float(m.compile_logp(**settings)(point)) for m in (copy, model, true)]
    np.testing.assert_allclose(values[1:], values[0], rtol=1e-12)
    draws = az.from_dict({"posterior": {"spread": np.full((1, 1), 0.4), "log_rate": log_rate[None, None]}})
    with copy:
        settings = QUIET | {"freeze_vars": ["spread", "log_rate"], "compile_kwargs": settings}
        predicted = pm.sample_posterior_predictive(draws, **settings)["posterior_predictive"]["y"].values[0, 0]
    assert predicted.shape == (3, 4)
    assert np.abs(predicted - np.exp(-np.exp(log_rate)[:, None] * TIMES)).max() < 0.5
