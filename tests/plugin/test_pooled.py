import numpy as np
import pymc as pm
import pytest
from arviz_stats.base import array_stats
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.errors import NonFiniteStartError
from pymc_kernel.plugin.model.log_density import LogDensity
from tests.plugin.models import exact_model, noisy_model, noisy_normal, normal_simulator

QUIET = {"progressbar": False, "compute_convergence_checks": False}


@pytest.mark.filterwarnings("ignore:.*the surrogate is not used")  # it is learned from few values here
@pytest.mark.parametrize("model", [exact_model, noisy_model], ids=["exact", "noisy"])
@pytest.mark.long
def test_same_draws_for_one_and_two_cores(model):
    found = []
    for cores, seed in ((1, 3), (2, 3), (1, 4)):
        with model():
            found.append(pk.sample_khmc(50, tune=120, chains=2, cores=cores, random_seed=seed, **QUIET)["posterior"])
    names = list(found[0].data_vars)
    assert all(np.array_equal(found[0][n], found[1][n]) for n in names)
    assert not all(np.array_equal(found[0][n], found[2][n]) for n in names)
    assert not np.array_equal(found[0][names[0]].isel(chain=0), found[0][names[0]].isel(chain=1))


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
        with pm.Model():
            theta = pm.Normal("theta", 0.0, 2.0)
            data = {"observed": np.zeros(1), "reuse_noise": reuse_noise}
            pk.EstimatedLikelihood("y", rarely_possible, theta, **data)
            pk.sample_khmc(5, tune=60, chains=2, step=pk.KernelHMC(), random_seed=1, **QUIET)
        found.append(list(sources))
    assert found[0] == found[1]
    assert any(reused) == (reuse_noise > 0.0)
    assert np.mean(reused[-100:]) > 0.5
    assert len(kept) > 5  # that of an accepted proposal is kept from then on


@pytest.mark.slow
def test_posterior_of_constrained_variables():
    step_seen = {}
    with pm.Model(coords={"group": ["a", "b"]}):
        scale = pm.HalfNormal("scale")
        share = pm.Dirichlet("share", np.ones(3))
        pm.Normal("x", 0.0, 1.0 + scale, dims="group")
        pm.Deterministic("twice", 2 * scale)
        step_seen["step"] = step = pk.KernelHMC()
        idata = pk.sample_khmc(600, tune=500, chains=2, step=step, random_seed=1, **QUIET)
    posterior = idata["posterior"]
    assert posterior["x"].dims == ("chain", "draw", "group")
    told = idata["posterior"].attrs
    assert told["tuning_steps"] == 500
    assert 0.0 < told["tuning_time"] < 600.0
    # For each of two chains its draws, of which a few propose nothing new, and the search for a start.
    assert 2 * 250 < told["tuning_evaluations"] < 2 * (500 + 100)
    # Effective sizes of five hundred or more: five Monte Carlo errors.
    assert float(posterior["scale"].mean()) == pytest.approx(np.sqrt(2 / np.pi), abs=5 * 0.6 / np.sqrt(500))
    np.testing.assert_allclose(posterior["share"].mean(("chain", "draw")), 1 / 3, atol=5 * 0.24 / np.sqrt(500))
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["scale"])
    assert share.name in posterior
    # Learned once, and to be looked at: the surrogate is of the unconstrained density, five numbers here.
    assert np.isfinite(step.surrogate.score(np.zeros((1, 5)))).all()
    assert np.unique(idata["sample_stats"]["surrogate_quality"]).size == 1


@pytest.mark.parametrize(("num_dims", "expected"), [(2, 1000), (10, 1200)])
def test_tuning_is_longer_in_more_dimensions(num_dims, expected, monkeypatch):
    """So that the longest burn-in, 100 + 50 d draws, is no more than half of it."""

    def capture(step, starts, tune, *rest):
        raise Captured(tune)

    monkeypatch.setattr("pymc_kernel.plugin.samplers.pooled._tune_together", capture)
    with pm.Model():
        pm.Normal("x", shape=num_dims)
        with pytest.raises(Captured, match=str(expected)):
            pk.sample_khmc(chains=1, cores=1, random_seed=1, **QUIET)


@pytest.mark.slow
def test_the_noisy_normal_has_its_exact_spread():
    with noisy_model():
        theta = pk.sample_khmc(5000, tune=500, cores=2, random_seed=2, **QUIET)["posterior"]["theta"]
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
    settings = {"tune": 500, "chains": 2, "cores": 2, "random_seed": 4} | QUIET
    with counted() as model:
        idata = pk.sample_khmc(20_000, step=STEPS_BESIDE[name](model), **settings)
    posterior = idata["posterior"]
    weights, mean, sd, below = summarized_exactly()
    x, k = posterior["x"].values, posterior["k"].values
    errors = {m: float(array_stats.mcse(x, chain_axis=0, draw_axis=1, method=m)) for m in ("mean", "sd")}
    assert errors["mean"] < 0.05
    assert abs(x.mean() - mean) < 4 * errors["mean"]
    assert abs(x.std() - sd) < 4 * errors["sd"]
    for probability in (0.05, 0.5, 0.95):
        quantile = np.quantile(x, probability)
        error = array_stats.mcse((x <= quantile).astype(float), chain_axis=0, draw_axis=1)
        assert abs(below(quantile) - probability) < 4 * error
    for value in range(5):
        error = array_stats.mcse((k == value).astype(float), chain_axis=0, draw_axis=1)
        assert abs((k == value).mean() - weights[value]) < 4 * error
    assert float(posterior["v"].std()) == pytest.approx(3.0, rel=0.1)
    # u is x with noise of variance one.
    assert float((posterior["u"] - posterior["x"]).std()) == pytest.approx(1.0, abs=0.05)


def test_settings_and_starts_of_steps_beside_it():
    with counted():
        given = {"x": 1.5, "k": 7, "u": 0.5, "v": 0.0}
        idata = pk.sample_khmc(5, tune=50, chains=1, initvals=given, metropolis={"tune_interval": 10_000}, **QUIET)
    assert (idata["sample_stats"]["scaling"] == 1.0).all()
    assert idata["posterior"]["k"].dtype == int


# -- what is asked of it --------------------------------------------------------------------------------


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


class Captured(Exception):
    pass


def test_chains_begin_where_pilot_simulations_were_near_the_data(monkeypatch):
    def capture(step, starts, *rest):
        raise Captured([float(p[0]) for p in starts])

    monkeypatch.setattr("pymc_kernel.plugin.samplers.pooled._tune_together", capture)
    with pm.Model():
        theta = pm.Normal("theta", 0.0, 1000.0)
        pk.KernelABC("y", normal_simulator, theta, observed=np.full(50, 2.0), summary=np.mean, num_pilot=1000)
        with pytest.raises(Captured) as found:
            pk.sample_khmc(random_seed=1, **QUIET)
    [starts] = found.value.args
    assert len(set(starts)) > 1
    np.testing.assert_allclose(starts, 2.0, atol=1.0)


def test_bad_input_is_named_before_any_work():
    with pm.Model():
        x = pm.Normal("x")
        y = pm.Normal("y", x)
        for name, value in (("draws", 0), ("tune", 10), ("chains", 0)):
            with pytest.raises(ValueError, match=name):
                pk.sample_khmc(**{name: value})
        with pytest.raises(TypeError, match="KernelHMC"):
            pk.sample_khmc(step=pk.KAMH())
        for steps in ([pk.KernelHMC([x]), pk.KernelHMC([y])], [pm.Metropolis()], []):
            with pytest.raises(TypeError, match=r"exactly one pk\.KernelHMC.*step=\[pk\.KernelHMC\(\[theta\]\), pm"):
                pk.sample_khmc(step=steps)
        for wrong in (pk.KernelHMC, "KernelHMC", [pk.KernelHMC(), 3]):
            with pytest.raises(TypeError, match=r"as in step=pk\.KernelHMC\(\)"):
                pk.sample_khmc(step=wrong)
        with pytest.raises(ValueError, match="surrogate must be one of"):
            pk.KernelHMC(surrogate="best")
        with pytest.raises(TypeError, match=r"pymc_kernel\.scores"):
            pk.KernelHMC(surrogate=3)
