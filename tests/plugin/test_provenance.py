"""How draws were made stands beside them."""

import numpy as np
import pymc as pm
import pytest

import pymc_kernel as pk
from pymc_kernel.mcmc.kernel_hmc import MOVES
from tests.plugin.models import STEPS, abc_model, exact_model, noisy_model, sample


def failing_simulator(rng, theta, size):
    """Fails for one simulation in five."""
    if rng.random() < 0.2:
        raise RuntimeError("no solution")
    return rng.normal(theta, 1.0, size)


def failing_model(num_simulations):
    settings = {"observed": np.array([0.2, 0.5, 0.9]), "max_failures": 1.0, "epsilon": 0.7}
    return abc_model(simulator=failing_simulator, num_simulations=num_simulations, **settings)


def test_a_block_says_how_it_estimates():
    idata = sample(failing_model(15), pk.AdaptiveMetropolis, cores=1)
    assert int(idata["constant_data"]["y_num_simulations"]) == 15
    failed = idata["sample_stats"]["failed_share_y"].values
    assert failed.mean() == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / (15 * failed.size)))
    assert np.isin(np.round(15 * failed, 6), np.arange(16)).all()
    np.testing.assert_array_equal(idata["constant_data"]["y_epsilon"], [0.7] * 3)


@pytest.mark.parametrize("name", ["KAMH", "KernelHMC"])
def test_the_variance_of_the_log_estimate_is_told(name):
    """The model's noise has a standard deviation of 1.5."""
    idata = sample(noisy_model(), STEPS[name], cores=1, draws=20, tune=400)
    values = idata["sample_stats"]["log_estimate_variance"].values
    assert (values == values[:, :1]).all()  # nothing is measured after tuning
    assert values.mean() == pytest.approx(2.25, rel=0.5)
    assert (idata["sample_stats"]["failed_share_y"] == 0.0).all()


def zero_above_two(rng, theta, observed):
    return -np.inf if theta > 0.7 else 0.0


def test_estimates_of_zero_count_as_failures():
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, initval=0.0)
        pk.EstimatedLikelihood("y", zero_above_two, theta, observed=np.zeros(1))
    idata = sample(model, pk.AdaptiveMetropolis, cores=1)
    failed = idata["sample_stats"]["failed_share_y"].values
    assert set(np.unique(failed)) == {0.0, 1.0}
    assert (idata["sample_stats"]["moved"].values[failed == 1.0] == 0.0).all()


def test_exact_densities_have_no_statistics_of_noise():
    idata = sample(exact_model(), pk.AdaptiveMetropolis, cores=1, draws=5, tune=5)
    assert not {"log_estimate_variance", "failed_share_y"} & set(idata["sample_stats"].data_vars)


@pytest.mark.long
def test_moves_of_each_kind_are_counted_by_name(tmp_path, capsys):
    with exact_model():
        idata = pk.sample_khmc(200, tune=300, chains=2, random_seed=1, progressbar=False, cores=1,
                               compute_convergence_checks=False)  # fmt: skip
        pk.diagnose(idata)
    moves, stats = idata["sample_stats"]["move"].values, idata["sample_stats"]
    assert set(np.unique(moves)) <= set(MOVES)
    said = capsys.readouterr().out
    names, counts = np.unique(moves, return_counts=True)
    first = names[counts.argmax()]
    assert f"{int(stats['evaluations'].sum())} evaluations of the log density" in said
    assert f"{100 * float(stats['moved'].mean()):.0f} % of proposals were accepted: " in said
    assert f"accepted: {100 * counts.max() / moves.size:.0f} % {first}" in said
    assert np.mean(["traject" in m for m in moves.ravel()]) > 0.3
    assert stats.attrs["surrogate"] == "Values"
    idata.to_netcdf(tmp_path / "run.nc")
    idata.to_zarr(tmp_path / "run.zarr", consolidated=False)


def test_sequential_monte_carlo_tells_its_settings():
    with failing_model(4):
        idata = pk.sample_smc(60, kernel=pk.ASMC, chains=1, cores=1, random_seed=1, progressbar=False,
                              compute_convergence_checks=False)  # fmt: skip
    attrs = idata["smc_stats"].attrs
    assert idata["constant_data"]["y_num_simulations"] == 4
    assert attrs["surrogate"] == 0
    assert attrs["smc_kernel"] == "ASMC"
