"""What a careless user meets: early stops at one mode of two, false modes, stores of other likelihoods, time limits."""

import time
import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py

import pymc_kernel as pk

QUICK = {"random_seed": 2, "progressbar": False}


def two_modes(num_dims, distance, spread, shares):
    with pm.Model() as model:
        x = pm.Normal("x", 0, 4, shape=num_dims)
        modes = zip(shares, (distance, -distance), strict=True)
        parts = [np.log(share) - 0.5 * ((x - center) ** 2).sum() / spread**2 for share, center in modes]
        pm.Potential("likelihood", pt.logsumexp(pt.stack(parts)))
    return model


@pytest.mark.slow
def test_it_does_not_stop_before_a_second_search_has_ended():
    """Given starts are all near the lesser mode, whose draws are right as far as they go."""
    start = np.random.default_rng(5).normal(-3.0, 1.0, (10, 2))
    with two_modes(2, 3.0, 0.6, (0.7, 0.3)):
        idata = pk.sample_surrogate(500, chains=1, evaluations=200, start=start, **{**QUICK, "random_seed": 3})
    assert abs(float((idata["posterior"]["x"] > 0.0).mean()) - 0.7) < 0.05
    assert idata["sample_stats"]["num_evaluations"] < 200


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 5])
def test_modes_far_apart_are_found_and_weighed(seed):
    """On the way surrogates have peaks where there is none."""
    with two_modes(2, 3.0, 0.6, (0.7, 0.3)):
        idata = pk.sample_surrogate(evaluations=200, **{**QUICK, "random_seed": seed})
    x, radius2 = idata["posterior"]["x"], 2 * 3.0**2
    assert float((x > 0.0).mean()) == pytest.approx(0.7, abs=0.05)
    np.testing.assert_allclose(np.abs(x).mean(), 2.93, atol=0.15)
    evidence = np.log(0.6**2 / (16.0 + 0.6**2)) - 0.5 * radius2 / (16.0 + 0.6**2)
    np.testing.assert_allclose(idata["sample_stats"]["log_evidence"], evidence, atol=0.1)


def normal_model(spread):
    @wrap_py([pt.dvector], [pt.dscalar])
    def log_likelihood(x):
        return np.asarray(-0.5 * ((x - 1.0) ** 2).sum() / spread[0] ** 2 - 2.0 * np.log(spread[0]))

    with pm.Model() as model:
        pm.Potential("likelihood", log_likelihood(pm.Normal("x", 0, 2, shape=2)))
    return model


def test_a_store_of_another_likelihood_is_refused(tmp_path):
    """Code that the likelihood calls has changed; prior, data and seed have not, nor have the places."""
    pytest.importorskip("zarr")
    settings = {"draws": 20, "chains": 1, "executor": 1, "store": tmp_path / "s", **QUICK}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few evaluations are not trusted
        pk.sample_surrogate(evaluations=14, model=normal_model([0.1]), **settings)
        pk.sample_surrogate(evaluations=18, model=normal_model([0.1]), **settings)
        with pytest.raises(ValueError, match="another likelihood"):
            pk.sample_surrogate(evaluations=22, model=normal_model([0.12]), **settings)


class Slow:
    """A likelihood whose first call takes long, as where machine code is made for it."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        if self.calls == 1 or x[0] < -0.5:
            time.sleep(0.3)
        return np.asarray(-0.5 * ((x - 1.0) ** 2).sum() / 0.01)


def test_a_time_limit_is_not_that_of_the_compiler():
    slow = Slow()
    with pm.Model():
        x = pm.Normal("x", 0, 2, shape=2)
        pm.Potential("likelihood", wrap_py([pt.dvector], [pt.dscalar])(lambda x: slow(x))(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # so few evaluations are not trusted
            idata = pk.sample_surrogate(20, chains=1, evaluations=14, timeout=0.15, **QUICK)
    evaluated = idata["evaluations"]
    assert evaluated["status"][0] == 0
    np.testing.assert_array_equal(evaluated["status"] == 3, evaluated["x"][:, 0] < -0.5)
    assert (evaluated["status"] == 3).any()
