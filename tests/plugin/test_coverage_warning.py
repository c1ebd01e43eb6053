import warnings
from unittest import mock

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.chain_checks import Coverage
from pymc_kernel.plugin.samplers import chain_warnings

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small")
SAID = "likely to be missing"


@pytest.mark.parametrize(
    ("coverage", "is_said"), [(Coverage(0.05, 0.01, 3.0), True), (Coverage(0.015, 0.01, 3.0), False)]
)
def test_a_surrogate_that_does_not_cover_the_posterior_is_reported_at_the_end(coverage, is_said, caplog, monkeypatch):
    judge = mock.Mock(return_value=coverage)
    monkeypatch.setattr(chain_warnings, "coverage_of", judge)
    with pm.Model():
        pm.Normal("x")
        pm.sample(60, tune=120, chains=2, cores=1, step=pk.KernelHMC(), random_seed=1, progressbar=False)
    found = [r.message for r in caplog.records if SAID in r.message]
    assert len(found) == (2 if is_said else 0)
    assert all("20 times" in message for message in found)
    assert [call.args[0].size for call in judge.call_args_list] == [60, 60]


def test_chains_that_share_a_surrogate_say_it_once(caplog, monkeypatch):
    judge = mock.Mock(return_value=Coverage(0.05, 0.01, 3.0))
    monkeypatch.setattr(chain_warnings, "coverage_of", judge)
    with pm.Model():
        pm.Normal("x")
        with pytest.warns(UserWarning, match=SAID) as caught:
            pk.sample_khmc(60, tune=120, chains=3, cores=1, random_seed=1, progressbar=False)
    assert not [r for r in caplog.records if SAID in r.message]
    assert len(caught) == judge.call_count == 1
    assert np.isfinite(judge.call_args.args[0]).sum() == judge.call_args.args[0].size == 3 * 60


@pytest.mark.long
def test_chains_on_a_ridge_whose_ends_they_have_not_reached_say_so(caplog):
    """The first coordinate has a standard deviation of 100; chains that begin near zero do not get there."""
    run = {"tune": 300, "chains": 1, "initvals": {"x": [0.0, 0.0]}, "random_seed": 1, "progressbar": False}
    with pm.Model():
        x = pm.Flat("x", shape=2)
        # A cube, which no coordinates of kernel HMC straighten.
        pm.Potential("ridge", -0.5 * ((x[0] / 100.0) ** 2 + (x[1] - 0.001 * x[0] ** 3) ** 2))
        pm.sample(500, step=pk.KernelHMC(), **run)
        assert caplog.text.count("end where the posterior goes on") == 1
        with pytest.warns(UserWarning, match=r"end where the posterior goes on, at .*x\[0\] = "):
            idata = pk.sample_khmc(500, **run)
    assert idata["sample_stats"].attrs["check_evaluations"] >= 64 * 3


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_surrogate_that_is_not_used_is_announced(is_dropped, caplog, monkeypatch):
    """By a step once for each chain; once for all chains that learned together."""
    monkeypatch.setattr(kernel_hmc, "is_dropped", lambda state: is_dropped)
    settings = {"tune": 120, "chains": 2, "cores": 1, "random_seed": 1, "progressbar": False}
    with pm.Model():
        pm.Normal("x")
        pm.sample(20, step=pk.KernelHMC(), **settings)
        assert caplog.text.count("the surrogate is not used") == 2 * is_dropped
        caplog.clear()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            pk.sample_khmc(20, **settings)
    assert "the surrogate is not used" not in caplog.text
    assert [str(w.message)[:38] for w in said] == ["sample_khmc: the surrogate is not used"] * is_dropped
