"""Populations of particles: sequential and population Monte Carlo."""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from unittest.mock import Mock

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.plugin.samplers import smc
from pymc_kernel.plugin.warn import findings_in
from tests.plugin.models import black_box_model, noisy_model
from tests.plugin.parts import check_moments

pytestmark = pytest.mark.filterwarnings("ignore:The number of samples is too small", "ignore:Populations of particles")
DATA = np.array([1.0, 2.0, 4.0])
PLAIN = {"learn_covariance": False, "learn_scale": False}
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def conjugate_model(**settings):
    """mu ~ N(0, 3^2) and y ~ N(mu, 1): the evidence is a multivariate normal's."""
    with pm.Model(coords={"obs": range(3)}) as model:
        mu = pm.Normal("mu", 0.0, 3.0, **settings)
        pm.Normal("y", mu, 1.0, observed=DATA, dims="obs")
    return model


TRUTH = stats.multivariate_normal(np.zeros(3), np.eye(3) + 9.0).logpdf(DATA)
SD = math.sqrt(1 / (3 + 1 / 9))
MEAN = DATA.sum() * SD**2


def several_variables():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma")
        x = pm.Normal("x", 1.0, 2.0, shape=(2, 2))
        pm.Deterministic("total", x.sum())
        pm.Normal("y", x[0], sigma, observed=np.array([0.5, 1.5]))
    return model


def noisy():
    return noisy_model(prior=lambda: pm.Normal("theta", 0.0, 4.0))


def sample(model, kernel, draws=120, **kwargs):
    with model:
        return pk.sample_smc(draws, kernel, **{"chains": 2, "cores": 1, "random_seed": 3} | QUIET | kwargs)


def same(one, other):
    drawn = all(np.array_equal(one["posterior"][v], other["posterior"][v]) for v in one["posterior"].data_vars)
    return drawn and np.array_equal(one["smc_stats"]["log_evidence"], other["smc_stats"]["log_evidence"])


@pytest.mark.parametrize("kernel", [pk.ASMC, pk.KASMC, pk.KernelHMCSMC])
@pytest.mark.machine_code
def test_evidence_and_posterior_of_a_conjugate_model(kernel):
    idata = sample(conjugate_model(), kernel, draws=1000)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], TRUTH, atol=0.25)
    check_moments(idata["posterior"]["mu"], MEAN, SD, 0.06 / SD, 0.1)
    assert not findings_in(idata["smc_stats"])  # populations that agree are not spoken of


def test_importance_sampling_ends_a_run_unless_it_is_left_out():
    """The error of the stages' evidence is some .1 with 120 particles, and that of 480 weighted draws below .02."""
    stats = sample(conjugate_model(), pk.ASMC)["smc_stats"]
    last = stats["importance_ess"].values[[0, 1], stats["num_stages"].values - 1]
    assert (last > 300.0).all()
    np.testing.assert_allclose(stats["log_evidence"], TRUTH, atol=0.05)
    np.testing.assert_allclose(stats["log_evidence_increment"].sum("stage"), stats["log_evidence"])
    stages = sample(conjugate_model(), pk.ASMC, importance=False)["smc_stats"]
    assert np.isnan(stages["importance_ess"]).all()
    assert not np.allclose(stages["log_evidence"], stats["log_evidence"])


def test_with_pm_sample_smc_as_well():
    with several_variables():
        idata = pm.sample_smc(100, kernel=pk.KASMC, chains=1, random_seed=1, num_basis=50, threshold=0.7, **QUIET)
    assert idata["sample_stats"]["beta"].values.ravel()[-1] == 1.0
    assert idata["posterior"]["total"].shape == (1, 100)


@pytest.mark.parametrize("chains", [2, 1])
def test_results_can_be_saved(chains, tmp_path):
    idata = sample(conjugate_model(), pk.ASMC, draws=60, chains=chains)
    idata.to_netcdf(tmp_path / "smc.nc", engine="h5netcdf")
    idata.to_zarr(tmp_path / "smc.zarr", mode="w", consolidated=False)
    stored = xr.open_datatree(tmp_path / "smc.zarr", engine="zarr", consolidated=False)
    np.testing.assert_array_equal(stored["smc_stats"]["log_evidence"], idata["smc_stats"]["log_evidence"])
    with xr.open_datatree(tmp_path / "smc.nc", engine="h5netcdf") as again:
        xr.testing.assert_equal(again["smc_stats"].to_dataset(), idata["smc_stats"].to_dataset())
        assert again["smc_stats"]["log_evidence"].dims == ("chain",)
        assert again["smc_stats"]["inverse_temperature"].dims == ("chain", "stage")


def test_chains_of_different_length_are_padded():
    """PyMC gives one list for each chain."""
    lists = {"beta": [[0.1, 0.5, 1.0], [0.3, 1.0]], "log_marginal_likelihood": [[np.nan, np.nan, -3.0], [np.nan, -4.0]]}
    stats_ = xr.Dataset({name: ("chain", np.array(of_chains, dtype=object)) for name, of_chains in lists.items()})
    posterior = xr.Dataset({"mu": (("chain", "draw"), np.zeros((2, 5)))}, {"chain": [0, 1]})
    tidy = smc._tidied(xr.DataTree.from_dict({"posterior": posterior, "sample_stats": stats_}))["smc_stats"]
    np.testing.assert_array_equal(tidy["inverse_temperature"], [[0.1, 0.5, 1.0], [0.3, 1.0, np.nan]])
    np.testing.assert_array_equal(tidy["log_evidence"], [-3.0, -4.0])
    np.testing.assert_array_equal(tidy["num_stages"], [3, 2])


@pytest.mark.parametrize("kernel", [pk.ASMC, pytest.param(pk.KernelHMCSMC, marks=pytest.mark.long)])
def test_same_draws_for_any_cores_and_executor(kernel):
    """The noisy case is the harder one."""
    drawn = partial(sample, noisy(), kernel, draws=60)
    alone = drawn()
    with ThreadPoolExecutor(2) as pool:
        for settings in ({"cores": 2}, {"executor": pool}, {"executor": pool}):
            assert same(drawn(**settings), alone)
    assert not same(drawn(random_seed=4), alone)
    first, second = alone["smc_stats"]["log_evidence"].values
    assert first != second


def test_a_black_box_is_sampled():
    idata = sample(black_box_model(), pk.KernelHMCSMC, draws=300)
    assert float(idata["posterior"]["x"].std()) == pytest.approx(math.sqrt(0.5), rel=0.15)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], -math.log(2.0), atol=0.2)


def test_particles_begin_at_draws_of_the_prior_or_where_the_user_says():
    """Initial values of the model are no particles."""
    start = {"mu": 3.0 * np.random.default_rng(0).standard_normal(500)}
    for idata in (
        sample(conjugate_model(initval=0.0), pk.ASMC, draws=1000, **PLAIN),
        sample(conjugate_model(), pk.ASMC, draws=500, start=start),
    ):
        np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], TRUTH, atol=0.3)
    for wrong, message in ((start, r"start\['mu'\] must have shape \(250,\)"), ({"nu": 1.0}, "start has no mu")):
        with pytest.raises(ValueError, match=message):
            sample(conjugate_model(), pk.ASMC, draws=250, start=wrong)


def test_discrete_variables_are_refused():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        pm.Normal("y", k, 1.0, observed=1.0)
    with pytest.raises(TypeError, match="KASMC moves continuous variables only, but k is discrete"):
        sample(model, pk.KASMC)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"draws": 3}, ValueError, "3 particles are too few"),
        ({"threshold": 1.5}, ValueError, "threshold must lie"),
        ({"schedule": (0.5, 0.9)}, ValueError, "the last 1"),
        ({"min_moves": 0}, ValueError, "min_moves"),
        ({"isotropic_share": 2.0}, ValueError, "isotropic_share"),
        ({"kernel": pk.KernelHMCSMC, "exploring_share": 0.0}, ValueError, "exploring_share"),
        ({"kernel": pk.KernelHMCSMC, "max_steps": 0}, ValueError, "max_steps"),
        ({"kernel": pk.KernelHMCSMC, "surrogate": "gradients"}, TypeError, "surrogate must be"),
        ({"kernel": pm.smc.kernels.IMH}, TypeError, "kernel must be one of"),
    ],
)
def test_settings_are_checked_before_sampling(settings, error, message):
    with pytest.raises(error, match=message):
        sample(conjugate_model(), **{"kernel": pk.KASMC, **settings})


@pytest.mark.filterwarnings("default:Populations of particles")
def test_degenerate_particles_are_reported():
    with pm.Model():
        x = pm.Normal("x", 0.0, 100.0, shape=2)
        pm.Normal("y", x, 0.01, observed=np.zeros(2))
        with pytest.warns(UserWarning, match="Populations") as said:
            idata = pk.sample_smc(200, scale=1e-3, max_moves=4, schedule=(0.5, 1.0), chains=2, cores=1, random_seed=1,
                                  kernel=pk.ASMC, **PLAIN, **QUIET)  # fmt: skip
    assert float(idata["smc_stats"]["distinct_ancestors"].min()) < 0.02
    (apart,) = findings_in(idata["smc_stats"])
    assert "Populations of particles do not agree" in apart
    assert [str(w.message) for w in said if w.filename == __file__] == [apart]


# -- population Monte Carlo ---------------------------------------------------------------------------------

heavy_weights = pytest.mark.filterwarnings("ignore:The weights have a Pareto shape")


def sample_pmc(model, draws=400, **kwargs):
    with model:
        return pk.sample_pmc(draws, **{"iterations": 8, "random_seed": 2, "progressbar": False} | kwargs)


@pytest.mark.machine_code
def test_weighted_draws_and_evidence_of_a_conjugate_model():
    idata = sample_pmc(conjugate_model())
    told, group = idata["pmc_stats"], idata["weighted_posterior"]
    np.testing.assert_allclose(told["log_evidence"], TRUTH, atol=0.1)
    weights = np.exp(group["log_weight"].values.ravel())
    by_weights = np.random.default_rng(0).choice(group["mu"].values.ravel(), 5000, p=weights / weights.sum())
    for mu in (idata["posterior"]["mu"].values, by_weights):
        check_moments(mu, MEAN, SD, 5 / math.sqrt(800), 0.12)
    assert float(told["pareto_k"].max()) < 0.7
    assert told["ess"].min() > 400
    assert told.sizes == {"chain": 2, "iteration": 8}


@heavy_weights
@pytest.mark.filterwarnings("ignore:sample_pmc. the draws end")  # so few particles lack the tails of log sigma
def test_weights_are_normalized_and_rows_agree():
    idata = sample_pmc(several_variables())
    np.testing.assert_allclose(np.exp(idata["weighted_posterior"]["log_weight"]).sum("draw"), 1.0)
    assert (idata["weighted_posterior"]["sigma"] > 0).all()
    assert idata["posterior"].sizes["draw"] == 400
    for group in ("weighted_posterior", "posterior"):  # a draw is one place
        np.testing.assert_allclose(idata[group]["total"], idata[group]["x"].sum(("x_dim_0", "x_dim_1")))
    np.testing.assert_array_equal(idata["observed_data"]["y"], [0.5, 1.5])


@heavy_weights
@pytest.mark.long
def test_population_monte_carlo_of_a_noisy_likelihood():
    idata = sample_pmc(noisy(), draws=600)
    assert float(idata["posterior"]["theta"].std()) == pytest.approx(math.sqrt(16 / 17), rel=0.12)
    assert float(np.exp(idata["pmc_stats"]["log_evidence"]).mean()) == pytest.approx(1 / math.sqrt(17), rel=0.25)
    first, second = idata["posterior"]["theta"].values
    assert not np.array_equal(first, second)
    few, again = (sample_pmc(noisy(), draws=150)["posterior"]["theta"] for _ in range(2))
    np.testing.assert_array_equal(again, few)


def test_a_black_box_and_a_start_of_ones_own():
    start = np.random.default_rng(0).normal(size=(400, 2))
    idata = sample_pmc(black_box_model(), start=start)
    np.testing.assert_allclose(idata["pmc_stats"]["log_evidence"], -math.log(2.0), atol=0.1)
    for wrong, message in ((start[:10], "400 rows"), (np.column_stack([start, start]), "has 4 dimensions")):
        with pytest.raises(ValueError, match=message):
            sample_pmc(black_box_model(), start=wrong)


@heavy_weights
def test_a_start_far_off_with_a_small_likelihood_is_left_behind():
    """Start particles have no true weight: with an evidence of exp(-400) they would outweigh all draws."""
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 10.0, shape=2)
        pm.Normal("y", x.sum(), 1.0, observed=4.0 + rng.normal(size=300))
    found = sample_pmc(model, start=rng.normal(-5.0, 1.0, size=(400, 2)))
    other = sample_pmc(model)
    np.testing.assert_allclose(found["pmc_stats"]["log_evidence"], other["pmc_stats"]["log_evidence"].mean(), atol=0.5)


def test_weights_that_a_few_draws_carry_are_reported():
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1000.0, shape=6)
        pm.Normal("y", x, 1e-3, observed=np.zeros(6))
    with pytest.warns(UserWarning, match="Pareto shape"):
        idata = sample_pmc(model, 20, iterations=2, chains=1, random_seed=1)
    assert "Pareto shape" in findings_in(idata["pmc_stats"])[0]


@heavy_weights
def test_a_ridge_that_particles_have_not_gone_along_is_reported(rng):
    """The first coordinate has a standard deviation of 100, particles begin near zero."""
    with pm.Model() as model:
        x = pm.Flat("x", shape=2)
        pm.Potential("ridge", -0.5 * ((x[0] / 100.0) ** 2 + (x[1] - 0.001 * x[0] ** 3) ** 2))
    with pytest.warns(UserWarning, match=r"sample_pmc: the draws end where the posterior goes on, at .*x\[0\] = "):
        sample_pmc(model, iterations=4, start=rng.standard_normal((400, 2)))


@heavy_weights
def test_draws_are_kept_where_a_check_of_them_is_interrupted(monkeypatch):
    monkeypatch.setattr("pymc_kernel.plugin.samplers.chain_warnings.open_ends", Mock(side_effect=KeyboardInterrupt))
    with pytest.warns(UserWarning, match="sample_pmc: the draws are kept, but .*KeyboardInterrupt$"):
        posterior = sample_pmc(black_box_model(), 100, iterations=4, random_seed=1)["posterior"]
    assert posterior.sizes["draw"] == 100


@pytest.mark.parametrize(("iterations", "chains"), [(6, 2), (2, 1)])
def test_draws_of_interrupted_chains_are_of_the_iterations_that_are_shown(iterations, chains):
    """The second of two chains ends after so many of eight iterations."""
    calls = []

    def estimate(rng, theta, observed):
        calls.append(1)
        if len(calls) == 100 * (9 + 1 + iterations) + 50:
            raise KeyboardInterrupt
        return -0.5 * float(theta) ** 2

    model = noisy_model(estimate, lambda: pm.Normal("theta"))
    stats = sample_pmc(model, 100, chains=2, random_seed=1)["pmc_stats"]
    done = iterations if chains == 2 else 8
    assert (stats.sizes["chain"], stats.sizes["iteration"]) == (chains, done)
    of_iterations = np.log(np.exp(stats["log_evidence_of_iteration"].values[:, done // 2 :]).mean(axis=1))
    np.testing.assert_allclose(stats["log_evidence"], of_iterations, rtol=1e-10)


@pytest.mark.parametrize("wrong", [{"draws": 5}, {"chains": 0}, {"drift": "up"}, {"weights": "equal"}])
def test_settings_of_population_monte_carlo_are_checked(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        sample_pmc(conjugate_model(), **wrong)


@pytest.mark.long
def test_priors_that_round_to_their_bounds():
    with pm.Model() as model:
        p = pm.Beta("p", 0.1, 0.1)
        pm.Binomial("y", 10, p, observed=4)
    exact = stats.betabinom(10, 0.1, 0.1).logpmf(4)
    by_smc = sample(model, pk.ASMC, draws=1500, chains=1, random_seed=1)
    for told in (sample_pmc(model, draws=1500)["pmc_stats"], by_smc["smc_stats"]):
        assert float(told["log_evidence"].mean()) == pytest.approx(exact, abs=0.25)
