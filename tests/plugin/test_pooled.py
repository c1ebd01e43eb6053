from functools import partial
from unittest import mock

import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.plugin.model.log_density import LogDensity
from tests.plugin.models import exact_model, noisy_model, noisy_normal, normal_simulator
from tests.plugin.parts import QUIET

sample_khmc = partial(pk.sample_khmc, chains=2, compute_convergence_checks=False, **QUIET)


@pytest.mark.filterwarnings("ignore:.*the surrogate is not used")  # it is learned from few values here
@pytest.mark.filterwarnings("ignore:sample_khmc. .*are likely to be missing")  # for the same reason
@pytest.mark.parametrize("model", [exact_model, noisy_model], ids=["exact", "noisy"])
@pytest.mark.long
def test_same_draws_for_one_and_two_cores(model):
    runs = ((1, 3), (2, 3), (1, 4))
    found = [sample_khmc(50, tune=120, cores=c, random_seed=s, model=model())["posterior"] for c, s in runs]
    names = list(found[0].data_vars)
    assert all(np.array_equal(found[0][n], found[1][n]) for n in names)
    assert not all(np.array_equal(found[0][n], found[2][n]) for n in names)
    assert not np.array_equal(found[0][names[0]].isel(chain=0), found[0][names[0]].isel(chain=1))


def test_draws_are_kept_where_a_check_of_them_raises(monkeypatch):
    error = RuntimeError("the solver gave up")
    monkeypatch.setattr("pymc_kernel.plugin.samplers.chain_warnings.open_ends", mock.Mock(side_effect=error))
    with exact_model(), pytest.warns(UserWarning, match="sample_khmc: the draws are kept, but .*the solver gave up$"):
        idata = sample_khmc(50, tune=120, chains=1)
    assert idata["posterior"].sizes["draw"] == 50


def rarely_possible(rng, theta, observed):
    """Half of the estimates are zero, so that a start takes a random number of them."""
    return noisy_normal(rng, theta, observed) if rng.random() < 0.5 else -np.inf


@pytest.mark.filterwarnings("ignore:.*the surrogate is not used")
def test_noise_while_tuning_follows_the_seed_and_may_be_reused(monkeypatch):
    sources, reused, kept = [], [], set()

    def noted(density, position, call=LogDensity.__call__):
        sources.append(density.noise[2].bit_generator.state["state"]["state"])
        value = call(density, position)
        reused.append(bool(density._kept) and density._kept == density._tried)
        kept.add(str(density._kept))
        return value

    monkeypatch.setattr(LogDensity, "__call__", noted)
    found = []
    for reuse_noise in (0.0, 0.0, 0.9):
        sources.clear(), reused.clear(), kept.clear()
        with noisy_model(rarely_possible, lambda: pm.Normal("theta", 0.0, 2.0), reuse_noise=reuse_noise):
            sample_khmc(5, tune=60, step=pk.KernelHMC())
        found.append(list(sources))
    assert found[0] == found[1]
    assert any(reused) == (reuse_noise > 0.0)
    assert np.mean(reused[-100:]) > 0.5
    assert len(kept) > 5  # that of an accepted proposal is kept from then on


@pytest.mark.slow
def test_posterior_of_constrained_variables():
    with pm.Model(coords={"group": ["a", "b"]}):
        scale = pm.HalfNormal("scale")
        pm.Dirichlet("share", np.ones(3))
        pm.Normal("x", 0.0, 1.0 + scale, dims="group")
        pm.Deterministic("twice", 2 * scale)
        step = pk.KernelHMC()
        idata = sample_khmc(1000, tune=500, step=step)
    posterior, told = idata["posterior"], idata["posterior"].attrs
    assert posterior["x"].dims == ("chain", "draw", "group")
    assert told["tuning_steps"] == 500
    assert 0.0 < told["tuning_time"] < 600.0
    # For each of two chains its draws, of which a few propose nothing new, and the search for a start.
    assert 2 * 250 < told["tuning_evaluations"] < 2 * (500 + 100)
    # Effective sizes of five hundred or more: five Monte Carlo errors.
    assert float(posterior["scale"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=5 * 0.6 / np.sqrt(500))
    np.testing.assert_allclose(posterior["share"].mean(("chain", "draw")), 1 / 3, atol=5 * 0.24 / np.sqrt(500))
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["scale"])
    # Learned once, and to be looked at: the surrogate is of the unconstrained density, five numbers here.
    assert np.isfinite(step.surrogate.score(np.zeros((1, 5)))).all()
    assert np.unique(idata["sample_stats"]["surrogate_quality"]).size == 1


@pytest.mark.slow
def test_the_noisy_normal_has_its_exact_spread():
    with noisy_model():
        theta = sample_khmc(5000, tune=500, chains=4, cores=2, random_seed=2)["posterior"]["theta"]
    # 20,000 draws with an effective size of some 1,000: the error of the spread is 0.03 with heavy tails of noise.
    assert float(theta.std()) == pytest.approx(1.0, abs=0.12)


# -- other steps beside it ------------------------------------------------------------------------------


def counted():
    """k ~ Poisson(3), x ~ N(k, 1), u ~ N(x, 1) not seen, v ~ N(0, 3), y ~ N(x, 1) seen at 2: exact by summing k out."""
    with pm.Model() as model:
        k = pm.Poisson("k", 3.0)
        x = pm.Normal("x", k, 1.0)
        pm.Normal("u", x, 1.0)
        pm.Normal("v", 0.0, 3.0)
        pm.Normal("y", x, 1.0, observed=2.0)
    return model


def summarized_exactly():
    """Return the shares of k = 0, 1, ... and mean, spread and distribution function of x."""
    values = np.arange(40)
    weights = stats.poisson(3.0).pmf(values) * stats.norm(values, np.sqrt(2.0)).pdf(2.0)
    weights /= weights.sum()
    means, sd = (values + 2.0) / 2.0, np.sqrt(0.5)
    mean = weights @ means
    return weights, mean, np.sqrt(weights @ (means - mean) ** 2 + 0.5), lambda x: weights @ stats.norm(means, sd).cdf(x)


STEPS_BESIDE = {
    "chosen by PyMC": lambda m: None,
    "NUTS": lambda m: [pk.KernelHMC([m["x"]]), pm.NUTS([m["u"]])],
    "several": lambda m: [pm.Metropolis([m["k"]]), pk.KernelHMC([m["x"]]), pk.KAMH([m["u"], m["v"]])],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS_BESIDE)
def test_posteriors_beside_other_steps(name):
    with counted() as model:
        idata = sample_khmc(20_000, tune=500, cores=2, random_seed=4, step=STEPS_BESIDE[name](model))
    posterior = idata["posterior"]
    weights, mean, sd, below = summarized_exactly()
    x, k = posterior["x"].values, posterior["k"].values

    def mcse(values, method="mean"):
        return float(array_stats.mcse(values, chain_axis=0, draw_axis=1, method=method))

    assert mcse(x) < 0.05
    assert abs(x.mean() - mean) < 4 * mcse(x)
    assert abs(x.std() - sd) < 4 * mcse(x, "sd")
    shares = [(x <= quantile, below(quantile)) for quantile in np.quantile(x, [0.05, 0.5, 0.95])]
    for is_so, share in shares + [(k == value, weights[value]) for value in range(5)]:
        assert abs(is_so.mean() - share) < 4 * mcse(is_so.astype(float))
    assert float(posterior["v"].std()) == pytest.approx(3.0, rel=0.1)
    # u is x with noise of variance one.
    assert float((posterior["u"] - posterior["x"]).std()) == pytest.approx(1.0, abs=0.05)


def test_settings_and_starts_of_steps_beside_it():
    with counted():
        given = {"x": 1.5, "k": 7, "u": 0.5, "v": 0.0}
        idata = sample_khmc(5, tune=50, chains=1, initvals=given, metropolis={"tune_interval": 10_000})
    assert (idata["sample_stats"]["scaling"] == 1.0).all()
    assert idata["posterior"]["k"].dtype == int


# -- what is asked of it --------------------------------------------------------------------------------


def captured(**settings):
    """Starts of chains and their number of tuning draws, where none is made."""
    tuning = mock.patch("pymc_kernel.plugin.samplers.pooled._tune_together", side_effect=ZeroDivisionError)
    with tuning as tune_together, pytest.raises(ZeroDivisionError):
        sample_khmc(**settings)
    return tune_together.call_args.args[1:3]


@pytest.mark.parametrize(("num_dims", "expected"), [(2, 1000), (10, 1200)])
def test_tuning_is_longer_in_more_dimensions(num_dims, expected):
    """So that the longest burn-in, 100 + 50 d draws, is no more than half of it."""
    with pm.Model():
        pm.Normal("x", shape=num_dims)
        assert captured(chains=1, cores=1)[1] == expected


def test_chains_begin_where_pilot_simulations_were_near_the_data():
    with pm.Model():
        theta = pm.Normal("theta", 0.0, 1000.0)
        pk.KernelABC("y", normal_simulator, theta, observed=np.full(50, 2.0), summary=np.mean, num_pilot=1000)
        starts = [float(start[0]) for start in captured(chains=4)[0]]
    assert len(set(starts)) > 1
    np.testing.assert_allclose(starts, 2.0, atol=1.0)


def test_starts():
    with exact_model():
        given = {"x": np.full((2, 2), 1.5)}
        assert sample_khmc(5, tune=50, initvals=[given, None])["posterior"].sizes["chain"] == 2
        with pytest.raises(ValueError, match="3 entries for 2 chains"):
            sample_khmc(5, tune=50, initvals=[None] * 3)
    with pm.Model():
        pm.Potential("nothing", pm.math.log(0.0 * pm.Normal("x")))
        with pytest.raises(NonFiniteStartError, match="initvals"):
            sample_khmc(5, tune=50)


def test_bad_input_is_named_before_any_work():
    with pm.Model():
        x = pm.Normal("x")
        y = pm.Normal("y", x)
        for name, value in (("draws", 0), ("tune", 10), ("chains", 0)):
            with pytest.raises(ValueError, match=name):
                pk.sample_khmc(**{name: value})
        several = r"exactly one pk\.KernelHMC.*step=\[pk\.KernelHMC\(\[theta\]\), pm"
        for steps, message in (
            *[(steps, several) for steps in ([pk.KernelHMC([x]), pk.KernelHMC([y])], [pm.Metropolis()], [])],
            *[(wrong, r"as in step=pk\.KernelHMC\(\)") for wrong in (pk.KernelHMC, "KernelHMC", [pk.KernelHMC(), 3])],
            (pk.KAMH(), "KernelHMC"),
        ):
            with pytest.raises(TypeError, match=message):
                pk.sample_khmc(step=steps)
        with pytest.raises(ValueError, match="surrogate must be one of"):
            pk.KernelHMC(surrogate="best")
        with pytest.raises(TypeError, match=r"pymc_kernel\.scores"):
            pk.KernelHMC(surrogate=3)
