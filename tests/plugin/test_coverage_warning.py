import warnings

import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.mcmc import kernel_hmc
from pymc_kernel.mcmc.coverage import Coverage

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small")


@pytest.mark.parametrize(
    ("coverage", "is_said"), [(Coverage(1.2, 3.0), True), (Coverage(0.2, 3.0), False), (None, False)]
)
def test_a_surrogate_that_does_not_cover_the_posterior_is_reported_at_the_end(coverage, is_said, caplog, monkeypatch):
    judged = []

    def fixed(state):
        judged.append(state.excesses.count)
        return coverage

    monkeypatch.setattr(kernel_hmc, "coverage", fixed)
    with pm.Model():
        pm.Normal("x")
        pm.sample(60, tune=120, chains=2, cores=1, step=pk.KernelHMC(), random_seed=1, progressbar=False)
    found = [r.message for r in caplog.records if "likely to be missing" in r.message]
    assert len(found) == (2 if is_said else 0)
    assert all("20 times" in message for message in found)
    assert len(judged) == 2


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
