import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk

QUIET = {"progressbar": False, "random_seed": 1}


def normal_model():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0, 1)
        pm.HalfNormal("unused", 1)
        pm.Normal("y", theta, 1, observed=np.full(4, 1.5))
    return model


def test_posterior_of_a_normal_model():
    model = normal_model()
    idata = pk.sample_abc(model=model, quantile=0.05, summary=np.mean, num_simulations=20_000, **QUIET)
    stats = idata["sample_stats"].to_dataset()
    assert int(stats["num_accepted"]) == 1000
    assert float(stats["accept"]) == pytest.approx(0.05)
    theta = idata["posterior"]["theta"]
    # Exact: N(1.2, 0.2), and the other parameter has its prior.
    assert float(theta.mean()) == pytest.approx(1.2, abs=4 * np.sqrt(0.2 / 800))
    assert float(theta.std()) == pytest.approx(np.sqrt(0.2), rel=0.1)
    assert float(idata["posterior"]["unused"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=0.08)
    assert (idata["posterior"]["unused"] > 0).all()


@pytest.mark.long
def test_without_adjustment_a_large_epsilon_shows():
    model = normal_model()
    settings = {"model": model, "quantile": 0.5, "summary": np.mean, "num_simulations": 4000} | QUIET
    adjusted = pk.sample_abc(**settings)["posterior"]["theta"]
    with pytest.warns(
        UserWarning, match=r"a likelihood learned from the same simulations puts a mean 0\.\d+ posterior"
    ):
        plain = pk.sample_abc(adjust=False, **settings)["posterior"]["theta"]
    assert abs(float(adjusted.mean()) - 1.2) < 0.1
    assert abs(float(plain.mean()) - 1.2) > 0.3


def test_statistics_say_how_good_the_answer_is():
    """The default on a model that it gets right: no warning, and the standard error of a mean of so many draws."""
    idata = pk.sample_abc(model=normal_model(), summary=np.mean, num_simulations=4000, **QUIET)
    stats = idata["sample_stats"]
    assert int(stats["num_accepted"]) == 120
    assert 0.5 / np.sqrt(120) < float(stats["learning_error"]) < 2.0 / np.sqrt(120)
    assert float(stats["typicality"]) > 0.05
    assert 90 < float(stats["num_effective"]) < 120


def test_every_coefficient_of_the_adjustment_has_ten_simulations():
    doubt = r"means differ by .* posterior standard deviations between fits .*sample_likelihood_free"
    with pytest.warns(UserWarning, match=doubt):
        idata = pk.sample_abc(model=normal_model(), num_simulations=500, **QUIET)
    assert int(idata["sample_stats"]["num_accepted"]) == 50


@pytest.mark.long
def test_draws_are_reproducible_and_chains_as_far_apart_as_sixty_simulations_make_them():
    """Means of sixty draws have standard errors of an eighth of their spread, whatever is resampled from them."""
    settings = {"model": normal_model(), "draws": 1000, "num_simulations": 2000, "summary": np.mean} | QUIET
    one, other = (pk.sample_abc(**settings)["posterior"]["theta"] for _ in range(2))
    assert one.shape == (16, 1000)
    np.testing.assert_array_equal(one, other)
    assert 0.06 < float(one.mean("draw").std(ddof=1) / one.std("draw").mean()) < 0.35


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="quantile"):
        pk.sample_abc(model=normal_model(), quantile=0.0)
    with pytest.raises(ValueError, match="draws"):
        pk.sample_abc(model=normal_model(), draws=0)
