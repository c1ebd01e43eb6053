"""Black boxes in compounds: other steps do not call them again at the same inputs, and all calls are counted."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_kernel as pk
from tests.plugin.models import Counted

TIMES = np.linspace(0.0, 2.0, 8)
QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1, "chains": 2, "random_seed": 1}


def decay():
    """Return a black box that hands out one array, which it writes to at the next call."""
    out = np.empty(TIMES.size)

    def write(rate):
        out[:] = np.exp(-TIMES * np.exp(rate))
        return out

    return Counted(write, pt.dvector)


def decays(box):
    """Two groups with a rate each, which the black box knows, and heights, which NUTS moves."""
    with pm.Model() as model:
        rates = pm.Normal("rates", 0.0, 0.3, shape=2)
        heights = pm.Normal("heights", 2.0, 0.5, shape=2)
        for g in range(2):
            pm.Normal(f"y{g}", heights[g] * box(rates[g]), 0.1, observed=2.0 * np.exp(-TIMES))
    return model, rates


@pytest.mark.long
def test_nuts_beside_kernel_hmc_does_not_call_the_black_box_again():
    box = decay()
    model, rates = decays(box)
    with model:
        step = pk.KernelHMC([rates])
        before = box.calls
        idata = pm.sample(50, tune=100, step=step, discard_tuned_samples=False, **QUIET)
    counted = int(idata["sample_stats"]["evaluations"].sum() + idata["warmup_sample_stats"]["evaluations"].sum())
    assert box.calls - before == counted
    # Two groups, two chains of 150 draws, twenty candidates and climbs for each start.
    assert counted < 2 * 2 * (150 + 50)
    assert float(idata["posterior"]["rates"].mean()) == pytest.approx(0.0, abs=0.1)
    assert float(idata["posterior"]["heights"].mean()) == pytest.approx(2.0, abs=0.15)
