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
