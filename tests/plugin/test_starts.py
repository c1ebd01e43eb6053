import logging

import arviz as az
import numpy as np
import pymc as pm
import pytest
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.plugin.model.priors import ModelPrior, PriorDraws, first_places, prior_draws
from pymc_kernel.plugin.warn import findings_in
from tests.plugin.models import sample
from tests.plugin.parts import check_moments


def draws_of(build):
    with pm.Model() as model:
        build()
    return prior_draws(model, model.value_vars, start := model.initial_point()), model, start


def test_draws_and_densities_are_those_of_the_prior_on_the_unconstrained_scale():
    def build():
        small = pm.Normal("small", 0.0, 1e-6)
        pm.HalfNormal("sigma", 1e3, shape=2)
        pm.Normal("y", small, 1.0, observed=3.0)

    found, model, start = draws_of(build)
    small, log_sigma = found.positions[:, 0], found.positions[:, 1:]
    assert found.positions.shape == (200, 3)
    exact = stats.norm(0, 1e-6).logpdf(small) + (stats.halfnorm(0, 1e3).logpdf(np.exp(log_sigma)) + log_sigma).sum(1)
    np.testing.assert_allclose(found.log_densities, exact, rtol=1e-6)
    assert found.scales[0] == pytest.approx(1e-6, rel=0.2)
    np.testing.assert_allclose(found.scales[1:], 0.9, rtol=0.25)  # of the log of a half-normal variable
    assert stats.kstest(np.exp(log_sigma[:, 0]), stats.halfnorm(0, 1e3).cdf).pvalue > 1e-3
    default = float(model.compile_logp(vars=model.free_RVs)(start))
    assert found.default_log_density == pytest.approx(default, rel=1e-10)


def test_what_cannot_be_drawn_or_is_given_keeps_its_place():
    assert draws_of(lambda: pm.Flat("x"))[0] is None
    assert draws_of(lambda: pm.Normal("x", initval=4.0))[0] is None
    found, *_ = draws_of(lambda: [pm.Normal("x", initval=4.0), pm.Normal("z")])
    assert (found.positions[:, 0] == 4.0).all()
    assert found.positions[:, 1].std() > 0.5
    assert found.scales[0] == 1.0


def test_draws_without_a_place_are_left_out():
    found, *_ = draws_of(lambda: pm.Normal("cut", shape=2, transform=pm.distributions.transforms.ordered))
    assert np.isfinite(found.positions).all()
    assert np.isfinite(found.log_densities).all()
    assert 60 < len(found.positions) < 140  # half of all pairs


def test_starts_follow_the_posterior_where_the_prior_is_near_it(rng):
    """A normal prior and a likelihood as wide: importance resampling of twenty draws is nearly exact."""
    prior, *_ = draws_of(lambda: pm.Normal("x"))
    density = lambda x: stats.norm.logpdf(x[0]) + stats.norm.logpdf(2.0, x[0])  # noqa: E731
    starts = [prior.choose(density, rng)[0][0] for _ in range(400)]
    check_moments(np.array(starts), 1.0, np.sqrt(0.5), 0.2 / np.sqrt(0.5), 0.2)


def test_other_modes_are_looked_for_in_the_prior_s_units(rng):
    """Two modes a million apart and draws at the foot of both: the lower one is found, and is no start."""
    prior = PriorDraws(1e6 * np.array([[3.4], [-2.6]]), np.zeros(2), np.array([3e6]), 0.0)
    assert prior.scales == pytest.approx(1e6 * 3.0 * 0.6827, rel=1e-3)

    def two_modes(x):
        return -12.5e-12 * float(((x[0] - 1e6 * np.array([3.0, -3.0])) ** 2).min()) - 20.0 * (x[0] < 0.0)

    start, places = prior.choose(two_modes, rng, budget=100)
    assert start[0] > 0.0
    assert places.positions.shape == (4, 1)
    assert places.positions[3] == pytest.approx(-3e6, rel=0.05)
    assert places.log_densities[3] == two_modes(places.positions[3])


def test_a_likelihood_that_fails_away_from_the_initial_point_is_zero_there(rng):
    prior, *_ = draws_of(lambda: pm.Normal("x", shape=2))
    start, places = prior.choose(lambda x: -np.inf if (x != 0.0).any() else -1.0, rng, budget=100)
    np.testing.assert_array_equal(start, [0.0, 0.0])
    assert np.isfinite(places.log_densities).sum() == 1


def test_chains_in_one_of_two_modes_say_so_and_initial_values_of_the_user_are_kept(caplog):
    caplog.set_level(logging.WARNING, logger="pymc")
    with pm.Model() as square_root_of_nine:
        x = pm.Normal("x", 0.924, 2)
        pm.Normal("y", x**2, 1, observed=9.0)
        pm.sample(300, step=pk.AdaptiveMetropolis(), chains=4, cores=1, random_seed=1, progressbar=False)
    assert "never came near x = -" in caplog.text
    chains = {"draws": 10, "chains": 4, "cores": 1, "seed": 1}
    idata = sample(square_root_of_nine, pk.AdaptiveMetropolis, initvals={"x": -3.0}, **chains)
    assert (idata["warmup_posterior"]["x"].values[:, :20] < 0.0).all()


def test_a_mode_that_all_chains_miss_is_reported_once_and_kept_in_the_findings(caplog):
    caplog.set_level(logging.WARNING, logger="pymc")
    with pm.Model():
        x = pm.Normal("x", 0.924, 2)
        pm.Normal("y", x**2, 1, observed=9.0)
        with pytest.warns(UserWarning, match="never came near x = ") as caught:
            idata = pk.sample_khmc(cores=1, random_seed=1, progressbar=False)
    assert sum("never came near" in str(one.message) for one in caught) == 1
    [finding] = findings_in(idata["sample_stats"])
    assert "never came near x = " in finding
    assert "never came near" not in caplog.text


def test_scales_far_from_one_are_learned():
    """Default tuning, where the identity as first proposal gave an R-hat above two."""
    with pm.Model():
        small = pm.Normal("small", 0.0, 1e-6)
        large = pm.Normal("large", 0.0, 1e6)
        pm.Normal("y", [1e6 * small, 1e-6 * large], 1.0, observed=[1.0, -1.0])
        idata = pm.sample(step=pk.AdaptiveMetropolis(), chains=2, cores=1, random_seed=2, progressbar=False)
    for name, unit, mean in (("small", 1e-6, 0.5), ("large", 1e6, -0.5)):
        check_moments(idata["posterior"][name] / unit, mean, np.sqrt(0.5), 0.15 / np.sqrt(0.5), 0.15)


@pytest.fixture(scope="module")
def bounded():
    with pm.Model() as model:
        rate = pm.Uniform("rate", -5.0, 5.0, shape=2)
        noise = pm.HalfNormal("noise", 2.0)
        pm.Deterministic("sum", rate.sum())
        pm.Normal("y", rate.sum(), noise, observed=1.0)
    return model


def unconstrained(rate, noise):
    """Values of the bounded model in the last dimension: two rates and one of noise."""
    rate = np.asarray(rate)
    return np.concatenate([np.log(rate + 5.0) - np.log(5.0 - rate), np.log(noise)[..., None]], axis=-1)


def places(model, start, count=9):
    return first_places(model, ModelPrior(model), start, count, np.random.default_rng(0))


def test_a_search_starts_at_values_by_names(bounded):
    """As in initvals, and as find_MAP returns them, with deterministic and transformed variables."""
    exact = unconstrained([-3.0, 4.9], 0.01)
    named = {"rate": [-3.0, 4.9], "noise": 0.01}
    found = places(bounded, named)
    assert found.shape == (10, 3)
    np.testing.assert_allclose(found[0], exact)
    of_map = named | {"sum": 1.9, "rate_interval__": exact[:2], "noise_log__": exact[2]}
    np.testing.assert_allclose(places(bounded, of_map)[0], exact)
    np.testing.assert_allclose(places(bounded, {"noise_log__": exact[2]})[0], [0.0, 0.0, exact[2]])
    both = places(bounded, [named, {"noise": 3.0}])
    np.testing.assert_allclose(both[:2], [exact, unconstrained([0.0, 0.0], 3.0)])
    # Most others are near, some are as far as the prior.
    apart = np.abs(places(bounded, named, 400)[1:] - exact).max(axis=1)
    assert np.quantile(apart, 0.2) < 0.2
    assert np.quantile(apart, 0.95) > 1.0


def test_a_search_starts_at_draws(bounded):
    rng = np.random.default_rng(1)
    rate, noise = rng.uniform(-1.0, 1.0, (2, 30, 2)), rng.uniform(0.5, 1.0, (2, 30))
    data, exact = az.from_dict({"posterior": {"rate": rate, "noise": noise}}), unconstrained(rate, noise).reshape(-1, 3)
    for start in (data, data["posterior"], data["posterior"].to_dataset()):
        found = places(bounded, start)
        assert found.shape == (10, 3)
        assert (np.abs(found[:, None] - exact).max(axis=2).min(axis=1) < 1e-10).all()
    np.testing.assert_array_equal(places(bounded, exact[:4]), exact[:4])  # an array is taken as it is


def test_a_start_that_cannot_be_is_named(bounded):
    wrong = [(one, "start must be values by the names") for one in (3.0, "middle", np.zeros((2, 4)), [[1.0, 2.0]])]
    wrong += [({"rates": [0.0, 0.0]}, "start has rates, which the model has not")]
    wrong += [({"rate": [5.0, 0.0]}, "give values within bounds")]
    for start, message in wrong:
        with pytest.raises(ValueError, match=message):
            places(bounded, start)
    with bounded, pytest.raises(ValueError, match="which the model has not"):
        pk.sample_surrogate(evaluations=100, start={"mu": 0.0}, progressbar=False)
