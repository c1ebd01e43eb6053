import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from tests.plugin.models import exact_model, noisy_model

QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.mark.parametrize("model", [exact_model, noisy_model], ids=["exact", "noisy"])
def test_same_draws_for_one_and_two_cores(model):
    found = []
    for cores, seed in ((1, 3), (2, 3), (1, 4)):
        with model():
            found.append(pk.sample_khmc(50, tune=120, chains=2, cores=cores, random_seed=seed, **QUIET)["posterior"])
    names = list(found[0].data_vars)
    assert all(np.array_equal(found[0][n], found[1][n]) for n in names)
    assert not all(np.array_equal(found[0][n], found[2][n]) for n in names)
    assert not np.array_equal(found[0][names[0]].isel(chain=0), found[0][names[0]].isel(chain=1))


def test_posterior_of_constrained_variables():
    step_seen = {}
    with pm.Model(coords={"group": ["a", "b"]}):
        scale = pm.HalfNormal("scale")
        share = pm.Dirichlet("share", np.ones(3))
        pm.Normal("x", 0.0, 1.0 + scale, dims="group")
        pm.Deterministic("twice", 2 * scale)
        step_seen["step"] = step = pk.KernelHMC()
        idata = pk.sample_khmc(2000, tune=500, step=step, random_seed=1, **QUIET)
    posterior = idata["posterior"]
    assert posterior["x"].dims == ("chain", "draw", "group")
    assert idata["posterior"].attrs["tuning_steps"] == 500
    # Effective sizes of a thousand or more: five Monte Carlo errors.
    assert float(posterior["scale"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=5 * 0.6 / np.sqrt(1000))
    np.testing.assert_allclose(posterior["share"].mean(("chain", "draw")), 1 / 3, atol=5 * 0.24 / np.sqrt(1000))
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["scale"])
    assert share.name in posterior
    # Learnt once, and to be looked at: the surrogate is of the unconstrained density, five numbers here.
    assert np.isfinite(step.surrogate.score(np.zeros((1, 5)))).all()
    assert np.unique(idata["sample_stats"]["surrogate_quality"]).size == 1


@pytest.mark.slow
def test_the_noisy_normal_has_its_exact_spread():
    with noisy_model():
        theta = pk.sample_khmc(5000, tune=500, cores=2, random_seed=2, **QUIET)["posterior"]["theta"]
    # 20,000 draws with an effective size of some 1,000: the error of the spread is 0.03 with heavy tails of noise.
    assert float(theta.std()) == pytest.approx(1.0, abs=0.12)


def test_starts():
    with exact_model():
        given = {"x": np.full((2, 2), 1.5)}
        idata = pk.sample_khmc(5, tune=50, chains=2, initvals=[given, None], random_seed=1, **QUIET)
        assert idata["posterior"].sizes["chain"] == 2
        with pytest.raises(ValueError, match="3 entries for 2 chains"):
            pk.sample_khmc(5, tune=50, chains=2, initvals=[None] * 3, **QUIET)
    with pm.Model():
        x = pm.Normal("x")
        pm.Potential("nothing", pm.math.log(0.0 * x))
        with pytest.raises(NonFiniteStartError, match="initvals"):
            pk.sample_khmc(5, tune=50, **QUIET)


def test_bad_input_is_named_before_any_work():
    with pm.Model():
        x = pm.Normal("x")
        pm.Normal("y", x)
        for name, value in (("draws", 0), ("tune", 10), ("chains", 0)):
            with pytest.raises(ValueError, match=name):
                pk.sample_khmc(**{name: value})
        with pytest.raises(TypeError, match="KernelHMC"):
            pk.sample_khmc(step=pk.KAMH())
        with pytest.raises(ValueError, match="'y'"):
            pk.sample_khmc(step=pk.KernelHMC([x]))
        pm.Poisson("k", 2.0)
        with pytest.raises(ValueError, match=r"leaves out \['k'\].*pm.sample\(step=pk.KernelHMC"):
            pk.sample_khmc()
        with pytest.raises(ValueError, match="surrogate must be one of"):
            pk.KernelHMC(surrogate="best")
        with pytest.raises(TypeError, match=r"pymc_kernel\.scores"):
            pk.KernelHMC(surrogate=3)
