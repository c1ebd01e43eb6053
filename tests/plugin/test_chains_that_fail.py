"""Black boxes that raise, and estimates that are often zero: neither ends a chain."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor import wrap_py

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError

QUIET = {"progressbar": False, "compute_convergence_checks": False, "cores": 1}


def raising_above(limit):
    def box(x):
        if float(x) > limit:
            raise RuntimeError("no steady state")
        return np.array(-0.5 * float(x) ** 2)

    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 10.0)
        pm.Potential("box", wrap_py(itypes=[pt.dscalar], otypes=[pt.dscalar])(box)(theta))
    return model


@pytest.mark.parametrize(("limit", "is_said"), [(1.0, True), (20.0, False)])
@pytest.mark.long
def test_calls_that_raise_are_counted_and_said_where_they_are_more_than_a_few(limit, is_said, recwarn):
    with raising_above(limit):
        idata = pk.sample_khmc(400, tune=200, random_seed=1, **QUIET)
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
        pm.sample(300, tune=200, chains=1, step=pk.KernelHMC(), random_seed=1, **QUIET)
    assert caplog.text.count("RuntimeError: no steady state") == 1


def test_a_black_box_that_always_fails_is_said_with_its_error():
    with raising_above(-np.inf):
        step = pk.AdaptiveMetropolis()
        step.setup_chain(np.random.default_rng(1), 100, 10)
        with pytest.raises(NonFiniteStartError, match="RuntimeError: no steady state"):
            step.step({"theta": np.array(0.0)})
