"""Models of many kinds are simulated as PyMC draws them."""

import threading

import numpy as np
import pymc as pm
import pytest
from pytensor.compile.mode import Mode
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.likelihood_free import Status
from tests.plugin.models import abc_model

QUIET = {"progressbar": False, "random_seed": 1}


def hierarchical():
    center = pm.Normal("center", 1, 1)
    spread = pm.HalfNormal("spread", 1)
    pm.Deterministic("ratio", center / spread)
    pm.Normal("y", pm.Normal("each", center, spread, shape=3), 0.1, observed=np.zeros(3))


def correlated():
    packed, *_ = pm.LKJCholeskyCov("packed", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0))
    pm.MvNormal("y", np.zeros(2), chol=packed, observed=np.zeros(2))


def mixed():
    weights = pm.Dirichlet("weights", np.ones(2))
    pm.NormalMixture("y", weights, [0.0, 3.0], [1.0, 0.5], observed=np.zeros(4))


def walking():
    path = pm.GaussianRandomWalk("path", 0.1, 1.0, init_dist=pm.Normal.dist(0, 1), steps=5)
    pm.Poisson("y", pm.math.exp(path), observed=np.zeros(6))


def several():
    rate = pm.Gamma("rate", 2, 1, shape=2)
    kind = pm.Categorical("kind", [0.2, 0.5, 0.3])
    pm.Normal("z", kind, 1.0, observed=0.0)
    pm.TruncatedNormal("y", rate, 1.0, lower=0.0, observed=np.ones((5, 2)))


@pytest.mark.parametrize("build", [hierarchical, correlated, mixed, walking, several])
def test_vectorized_draws_have_the_law_of_pymc(build):
    with pm.Model() as model:
        build()
    sims = pk.simulate(1000, model=model, **QUIET)
    expected = pm.sample_prior_predictive(
        1000, model=model, random_seed=2, compile_kwargs={"mode": Mode("py", optimizer=None)}
    )
    for group in ("prior", "prior_predictive"):
        for name, values in sims[group].data_vars.items():
            one, other = values.values[0].reshape(1000, -1), expected[group][name].values[0].reshape(1000, -1)
            for coordinate, reference in zip(one.T, other.T, strict=True):
                # Rounded: a correlation with itself is 1 but for the last bits.
                assert stats.ks_2samp(coordinate.round(12), reference.round(12)).pvalue > 1e-4, (group, name)
            if one.shape[1] > 1 and one.std(axis=0).min() > 0:
                # Entries of one draw depend on each other as they do there.
                products = [v[:, 0] * v[:, -1] for v in (one, other)]
                assert stats.ks_2samp(*products).pvalue > 1e-4, (group, name)


def test_one_draw_that_raises_spares_the_others():
    with pm.Model() as model:
        spread = pm.Normal("spread", 0, 1)
        pm.Normal("y", 0, spread, observed=np.zeros(2))  # a negative standard deviation cannot be drawn
    with pytest.warns(UserWarning, match="failed"):
        sims = pk.simulate(200, model=model, **QUIET)
    status, drawn = sims["simulation_stats"]["status"].values[0], sims["prior"]["spread"].values[0]
    np.testing.assert_array_equal(status == Status.RAISED, drawn < 0)


def test_a_simulator_that_cannot_be_pickled_runs_here():
    lock = threading.Lock()

    def simulator(rng, theta, size):
        with lock:
            return rng.normal(theta, 1.0, size)

    model = abc_model(simulator=simulator)
    assert pk.simulate(20, model=model, **QUIET)["simulation_stats"].attrs["succeeded"] == 20
    with pytest.raises(TypeError, match="cannot be sent to workers"):
        pk.simulate(20, executor=2, model=model, **QUIET)


def test_vectors_drawn_by_scipy_keep_their_shape_in_a_batch_of_one():
    with pm.Model():
        theta = pm.TruncatedNormal("theta", [1.0, 5.0, 9.0], [0.5, 0.5, 0.5], lower=0)
        pm.TruncatedNormal("y", theta, 0.1, lower=0, observed=[1.0, 1.0, 1.0])
        one, several = (pk.simulate(n, batch_size=b, random_seed=1, progressbar=False) for n, b in ((1, 1), (3, 2)))
    for found, n in ((one, 1), (several, 3)):
        assert found["prior"]["theta"].shape == found["prior_predictive"]["y"].shape == (1, n, 3)
        np.testing.assert_allclose(found["prior_predictive"]["y"], found["prior"]["theta"], atol=0.6)
