import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats

import pymc_kernel as pk
from pymc_kernel.plugin.samplers import smc
from pymc_kernel.plugin.warn import findings_in
from tests.plugin.models import black_box_model, noisy_normal

pytestmark = [
    pytest.mark.filterwarnings("ignore:The number of samples is too small"),
    pytest.mark.filterwarnings("ignore:At one stage"),
    pytest.mark.filterwarnings("ignore:Populations of particles"),
]
DATA = np.array([1.0, 2.0, 4.0])
PLAIN = {"learn_covariance": False, "learn_scale": False}
QUIET = {"progressbar": False, "compute_convergence_checks": False}


def conjugate_model():
    """mu ~ N(0, 3^2) and y ~ N(mu, 1): the evidence is a multivariate normal's."""
    with pm.Model(coords={"obs": range(3)}) as model:
        mu = pm.Normal("mu", 0.0, 3.0)
        pm.Normal("y", mu, 1.0, observed=DATA, dims="obs")
    return model


TRUTH = stats.multivariate_normal(np.zeros(3), np.eye(3) + 9.0).logpdf(DATA)


def several_variables():
    with pm.Model() as model:
        sigma = pm.HalfNormal("sigma")
        x = pm.Normal("x", 1.0, 2.0, shape=(2, 2))
        pm.Deterministic("total", x.sum())
        pm.Normal("y", x[0], sigma, observed=np.array([0.5, 1.5]))
    return model


def noisy_model():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 4.0)
        pk.EstimatedLikelihood("y", noisy_normal, theta, observed=np.zeros(1))
    return model


def sample(model, kernel, cores=1, seed=3, draws=120, **kwargs):
    with model:
        return pk.sample_smc(draws, kernel, chains=2, cores=cores, random_seed=seed, **QUIET, **kwargs)


def same(one, other):
    return all(
        np.array_equal(one["posterior"][v], other["posterior"][v]) for v in one["posterior"].data_vars
    ) and np.array_equal(one["smc_stats"]["log_evidence"], other["smc_stats"]["log_evidence"])


@pytest.mark.long
def test_same_draws_for_one_and_two_cores():
    """The noisy case is the harder one, of the kernel that learns most."""
    one = sample(noisy_model(), pk.KernelHMCSMC, draws=60)
    assert same(one, sample(noisy_model(), pk.KernelHMCSMC, draws=60, cores=2))
    assert not same(one, sample(noisy_model(), pk.KernelHMCSMC, draws=60, seed=4))
    evidence = one["smc_stats"]["log_evidence"].values
    assert evidence[0] != evidence[1]


@pytest.mark.parametrize("kernel", [pk.ASMC, pk.KASMC, pk.KernelHMCSMC])
@pytest.mark.machine_code
def test_evidence_and_posterior_of_a_conjugate_model(kernel):
    idata = sample(conjugate_model(), kernel, draws=1000)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], TRUTH, atol=0.25)
    sd = math.sqrt(1 / (3 + 1 / 9))
    mu = idata["posterior"]["mu"]
    assert float(mu.mean()) == pytest.approx(DATA.sum() * sd**2, abs=0.06)
    assert float(mu.std()) == pytest.approx(sd, rel=0.1)
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


def test_results_can_be_saved(tmp_path):
    with conjugate_model():
        ours = pk.sample_smc(60, pk.ASMC, chains=2, cores=1, random_seed=1, **QUIET)
        alone = pk.sample_smc(60, pk.ASMC, chains=1, cores=1, random_seed=1, **QUIET)
    for idata in (ours, alone):
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


# -- evaluation of all particles ----------------------------------------------------------------------------


def test_an_executor_gives_the_same_draws():
    alone = sample(noisy_model(), pk.ASMC, draws=64)
    with ThreadPoolExecutor(2) as pool:
        shared = sample(noisy_model(), pk.ASMC, draws=64, executor=pool)
        again = sample(noisy_model(), pk.ASMC, draws=64, executor=pool)
    assert same(shared, again)
    assert same(shared, alone)


def test_a_black_box_is_sampled():
    idata = sample(black_box_model(), pk.KernelHMCSMC, draws=300)
    assert float(idata["posterior"]["x"].std()) == pytest.approx(math.sqrt(0.5), rel=0.15)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], -math.log(2.0), atol=0.2)


def test_initial_values_of_the_model_are_no_particles():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 3.0, initval=0.0)
        pm.Normal("y", mu, 1.0, observed=DATA)
    idata = sample(model, pk.ASMC, draws=1000, **PLAIN)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], TRUTH, atol=0.3)


def test_particles_of_ones_own():
    rng = np.random.default_rng(0)
    start = {"mu": 3.0 * rng.standard_normal(500)}
    idata = sample(conjugate_model(), pk.ASMC, draws=500, start=start)
    np.testing.assert_allclose(idata["smc_stats"]["log_evidence"], TRUTH, atol=0.3)
    with pytest.raises(ValueError, match=r"start\['mu'\] must have shape \(250,\)"):
        sample(conjugate_model(), pk.ASMC, draws=250, start=start)
    with pytest.raises(ValueError, match="start has no mu"):
        sample(conjugate_model(), pk.ASMC, draws=250, start={"nu": start["mu"]})


# -- mistakes -----------------------------------------------------------------------------------------------


def test_discrete_variables_are_refused():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        pm.Normal("y", k, 1.0, observed=1.0)
    with pytest.raises(TypeError, match="KASMC moves continuous variables only, but k is discrete"):
        sample(model, pk.KASMC)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 3}, "3 particles are too few"),
        ({"threshold": 1.5}, "threshold must lie"),
        ({"schedule": (0.5, 0.9)}, "the last 1"),
        ({"min_moves": 0}, "min_moves"),
        ({"isotropic_share": 2.0}, "isotropic_share"),
        ({"kernel": pk.KernelHMCSMC, "exploring_share": 0.0}, "exploring_share"),
        ({"kernel": pk.KernelHMCSMC, "max_steps": 0}, "max_steps"),
    ],
)
def test_settings_are_checked_before_sampling(settings, message):
    with pytest.raises(ValueError, match=message):
        sample(conjugate_model(), **{"kernel": pk.KASMC, **settings})


def test_other_kernels_and_surrogates_are_refused():
    with pytest.raises(TypeError, match="kernel must be one of"), conjugate_model():
        pk.sample_smc(kernel=pm.smc.kernels.IMH)
    with pytest.raises(TypeError, match="surrogate must be"):
        sample(conjugate_model(), pk.KernelHMCSMC, surrogate="gradients")


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
