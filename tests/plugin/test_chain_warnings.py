"""What chains say of themselves: calls that raised, and surrogates that are not used or miss a part."""

import warnings
from unittest import mock

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import Coverage
from pymc_kernel.plugin.samplers import chain_warnings
from tests.plugin.parts import PLAIN, black_box


def raising_above(limit):
    def box(x):
        if float(x) > limit:
            raise RuntimeError("no steady state")
        return np.array(-0.5 * float(x) ** 2)

    with pm.Model() as model:
        pm.Potential("box", black_box(box, "s", "s")(pm.Normal("theta", 0.0, 10.0)))
    return model


@pytest.mark.parametrize(("limit", "is_said"), [(1.0, True), (20.0, False)])
@pytest.mark.long
def test_calls_that_raise_are_counted_and_said_where_they_are_more_than_a_few(limit, is_said, recwarn):
    with raising_above(limit):
        idata = pk.sample_khmc(400, tune=200, **(PLAIN | {"chains": 4}))
    stats = idata["sample_stats"]
    # The prior reaches further than the posterior, so that some of the twenty draws for a start raise in any case.
    assert stats.attrs["tuning_raised"] > 0
    assert (int(stats["raised"].sum()) > 0) == is_said
    said = [str(w.message) for w in recwarn if "raised an error" in str(w.message)]
    assert len(said) == is_said
    assert all(f"{int(stats['raised'].sum())} calls" in m and "RuntimeError: no steady state" in m for m in said)
    assert float(idata["posterior"]["theta"].max()) < limit


def test_a_step_of_pymc_s_sampler_says_once_a_chain_that_calls_raised(caplog):
    with raising_above(1.0):
        pm.sample(300, tune=200, step=pk.KernelHMC(), **(PLAIN | {"chains": 1}))
    assert caplog.text.count("RuntimeError: no steady state") == 1


def test_a_black_box_that_always_fails_is_said_with_its_error():
    with raising_above(-np.inf):
        step = pk.AdaptiveMetropolis()
        step.setup_chain(np.random.default_rng(1), 100, 10)
        with pytest.raises(NonFiniteStartError, match="RuntimeError: no steady state"):
            step.step({"theta": np.array(0.0)})


@pytest.mark.parametrize(("outside", "is_dropped"), [(0.05, False), (0.015, False), (0.015, True)])
def test_a_surrogate_that_misses_a_part_or_is_not_used_is_said(outside, is_dropped, caplog, monkeypatch):
    """By each of two chains of a step where it ends, and once of two chains that learn together."""
    judge = mock.Mock(return_value=Coverage(outside, 0.01, 3.0))
    monkeypatch.setattr(chain_warnings, "coverage_of", judge)
    monkeypatch.setattr(kernel_hmc, "is_dropped", lambda state: is_dropped)
    with pm.Model(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pm.Normal("x")
        pm.sample(60, tune=120, step=pk.KernelHMC(), **PLAIN)
        logged, found = caplog.text, len(caught)
        caplog.clear()
        pk.sample_khmc(60, tune=120, **PLAIN)
    together = "\n".join(str(w.message) for w in caught[found:])
    is_missing = outside == 0.05
    said = {"likely to be missing": is_missing, "20 times": is_missing, "the surrogate is not used": is_dropped}
    for words, is_said in said.items():
        assert logged.count(words) == 2 * is_said
        assert together.count(words) == is_said
        assert words not in caplog.text
    assert together.startswith("sample_khmc: the surrogate is not used") is is_dropped
    judged = [call.args[0] for call in judge.call_args_list]
    assert [x.size for x in judged] == [60, 60, 2 * 60]
    assert np.isfinite(judged[2]).all()


@pytest.mark.long
def test_chains_on_a_ridge_whose_ends_they_have_not_reached_say_so():
    """The first coordinate has a standard deviation of 100; chains that begin near zero do not get there."""
    run = PLAIN | {"tune": 300, "chains": 1, "initvals": {"x": [0.0, 0.0]}}
    with pm.Model():
        x = pm.Flat("x", shape=2)
        # A sine, which no coordinates of kernel HMC straighten.
        pm.Potential("ridge", -0.5 * ((x[0] / 100.0) ** 2 + (x[1] - 20.0 * pt.sin(x[0] / 10.0)) ** 2))
        with pytest.warns(UserWarning, match=r"end where the posterior goes on, at .*x\[0\] = "):
            idata = pk.sample_khmc(500, **run)
    assert idata["sample_stats"].attrs["check_evaluations"] >= 64 * 3
