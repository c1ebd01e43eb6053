"""Exact draws along a surrogate that ``sample_surrogate`` has learned, by itself and by ``pm.sample``."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_kernel as pk
from tests.plugin.test_surrogate import Costly, exact, model_of

QUICK = {"random_seed": 1, "progressbar": False}


def sampled(*args, **kwargs):
    """A run whose doubts about the surrogate do not matter here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pk.sample_surrogate(*args, **{**QUICK, **kwargs})


def check_answers(posterior, reference=None):
    """Compare means, squares and tails of a and log b with the exact ones, in Monte Carlo standard errors."""
    if reference is None:
        reference = [(m + s * GRID, np.exp(-0.5 * GRID**2)) for m, s in zip(*exact(), strict=True)]
    for found, (grid, density) in zip((posterior["a"].values, np.log(posterior["b"].values)), reference, strict=True):
        weights = density / density.sum()
        mean, (low, high) = grid @ weights, np.interp([0.05, 0.95], np.cumsum(weights), grid)
        for of_draws, of_grid in zip(*(_statistics(x, mean, low, high) for x in (found, grid)), strict=True):
            error = of_draws.std() / np.sqrt(float(az.ess(of_draws)))
            assert abs(of_draws.mean() - of_grid @ weights) < 4.5 * error


def _statistics(x, mean, low, high):
    return x, (x - mean) ** 2, 1.0 * (x < low), 1.0 * (x > high)


GRID = np.linspace(-8.0, 8.0, 4001)


def bent(theta, library=pt):
    """A log likelihood with a bend and one long side, of a and b."""
    x, y = (theta[0] - 1.0) / 0.3, (library.log(theta[1]) - 2.0) / 0.2
    return -0.5 * x**2 - 0.5 * (y - 0.8 * x**2) ** 2 + library.log1p(library.exp(-3.0 * x))


@pytest.fixture(scope="module")
def rough():
    """A surrogate of so few evaluations that its own draws are wrong, and exact draws along it."""
    Costly.calls = 0
    idata = sampled(600, chains=3, evaluations=26, tolerance=0.0, exact=True, model=model_of())
    return idata, Costly.calls


def test_exact_draws_are_right(rough):
    check_answers(rough[0]["posterior"])


@pytest.mark.slow
def test_exact_draws_from_a_bend_with_a_long_side():
    idata = sampled(800, evaluations=50, tolerance=0.0, exact=True, model=model_of(bent), random_seed=2)
    a, log_b = np.meshgrid(np.linspace(-1.0, 2.0, 800), np.linspace(0.0, 9.0, 800), indexing="ij")
    joint = np.exp(-(a**2) / 8.0 - log_b**2 / 8.0 + bent((a, np.exp(log_b)), np))
    check_answers(idata["posterior"], [(a[:, 0], joint.sum(axis=1)), (log_b[0], joint.sum(axis=0))])


def test_a_part_that_the_surrogate_leaves_out_is_said_to_be_missing():
    """Of ten seeds this one's draws are furthest off: the standard deviation of log b is half of what it should be."""
    settings = {"evaluations": 24, "tolerance": 0.0, "exact": True, "random_seed": 8, "progressbar": False}
    with pytest.warns(UserWarning, match="a part of it is likely to be missing"):
        pk.sample_surrogate(300, model=model_of(bent), **settings)  # the draws are off, too


def test_one_evaluation_a_draw_and_all_of_them_are_kept(rough):
    idata, calls = rough
    stats, points = idata["sample_stats"], idata["evaluations"]
    assert stats["evaluations"].shape == (3, 600)
    assert calls == points.sizes["evaluation"] == stats["num_evaluations"] <= 26 + 3 * (600 + 20)
    assert np.mean(["traject" in m for m in stats["move"].values.ravel()]) > 0.85
    total = (points["log_prior"] + points["log_likelihood"]).values
    assert np.isin(stats["lp"].values, total).all()


def test_a_good_surrogate_gives_nearly_independent_draws():
    idata = sampled(250, chains=2, evaluations=70, tolerance=0.0, exact=True, model=model_of())
    stats = idata["sample_stats"]
    assert stats["distance"] < 0.05
    assert stats["moved"].mean() > 0.8
    assert float(az.ess(idata["posterior"]["a"].values)) > 250
    check_answers(idata["posterior"])


@pytest.mark.slow
def test_any_executor_gives_the_same_bits_and_a_store_goes_on(tmp_path):
    pytest.importorskip("zarr")
    settings = {"evaluations": 26, "chains": 3, "tolerance": 0.0, "exact": True, "model": model_of()}
    here = sampled(15, **settings)
    with ThreadPoolExecutor(3) as pool:
        there = sampled(15, executor=pool, store=tmp_path / "s", **settings)
    Costly.calls = 0
    longer = sampled(20, store=tmp_path / "s", **settings)
    # Five draws of each chain; the best evaluation of both stores is looked at again.
    assert 0 < Costly.calls <= 3 * 5 + 2
    for other in (there, longer):
        np.testing.assert_array_equal(here["posterior"]["a"], other["posterior"]["a"].isel(draw=slice(15)))
    np.testing.assert_array_equal(here["evaluations"]["position"], there["evaluations"]["position"])
    assert longer["posterior"].sizes["draw"] == 20


def test_an_interrupt_returns_the_draws_so_far():
    class Interrupted(Costly):
        left = 60

        def perform(self, node, inputs, outputs):
            Interrupted.left -= 1
            if Interrupted.left < 0:
                raise KeyboardInterrupt
            super().perform(node, inputs, outputs)

    idata = sampled(100, chains=2, evaluations=26, tolerance=0.0, exact=True, model=model_of(Interrupted()))
    assert 10 <= idata["posterior"].sizes["draw"] <= 20
    assert idata["sample_stats"]["accept"].shape == idata["posterior"]["a"].shape


def test_a_stored_result_is_followed_by_pm_sample(rough, tmp_path):
    rough[0].to_netcdf(tmp_path / "result.nc")
    with xr.open_datatree(tmp_path / "result.nc") as stored, model_of():
        step = pk.KernelHMC(surrogate=stored)
        runs = [
            pm.sample(
                400, tune=0, chains=2, cores=c, step=step, random_seed=3, progressbar=False,
                compute_convergence_checks=False,
            )
            for c in (1, 2)
        ]  # fmt: skip
    np.testing.assert_array_equal(runs[0]["posterior"]["a"], runs[1]["posterior"]["a"])
    check_answers(runs[0]["posterior"])
    assert np.mean(["traject" in m for m in runs[0]["sample_stats"]["move"].values.ravel()]) > 0.85
    assert runs[0]["sample_stats"]["moved"].mean() > 0.7  # it has learned from the exact draws' evaluations, too


def test_a_learned_log_posterior_will_do_and_tuning_is_said_to_be_for_nothing(caplog):
    with model_of():
        _, learned = sampled(50, chains=1, evaluations=60, return_fitted=True)
        idata = pm.sample(300, tune=5, chains=1, step=pk.KernelHMC(surrogate=learned), random_seed=3, progressbar=False)
    check_answers(idata["posterior"])
    assert "5 tuning draws had nothing to tune" in caplog.text


def test_another_prior_is_followed_exactly(rough):
    with pm.Model():
        a = pm.Normal("a", 1.2, 0.1)
        b = pm.LogNormal("b", 0, 2)
        pm.Potential("y", Costly()(pm.math.stack([a, b])))
        step = pk.KernelHMC(surrogate=rough[0])
        idata = pm.sample(500, tune=0, chains=2, cores=1, step=step, random_seed=3, progressbar=False)
    found = idata["posterior"]["a"].values
    error = found.std() / np.sqrt(float(az.ess(found)))
    assert abs(found.mean() - 1.1) < 4.0 * error
    assert abs(found.std() * np.sqrt(200.0) - 1.0) < 0.12


def test_what_is_not_of_this_model_is_refused(rough):
    idata = rough[0]
    with pm.Model():
        pm.Normal("a")
        pm.Normal("c")
        with pytest.raises(ValueError, match="variables a, b, and this one has a, c"):
            pk.KernelHMC(surrogate=idata)
    with pm.Model():
        pm.Normal("a", shape=3)
        pm.Normal("b")
        with pytest.raises(ValueError, match=r"a of shape \(\), and the model has \(3,\)"):
            pk.KernelHMC(surrogate=idata)
    with model_of() as model:
        with pytest.raises(ValueError, match="takes a result of"):
            pk.KernelHMC(surrogate=xr.DataTree.from_dict({"posterior": idata["posterior"].to_dataset()}))
        with pytest.raises(ValueError, match="leave vars out"):
            pk.KernelHMC([model["a"]], surrogate=idata)
        with pytest.raises(ValueError, match="of its own"):
            pk.sample_khmc(step=pk.KernelHMC(surrogate=idata), progressbar=False)


def test_estimated_likelihoods_keep_the_estimate_that_was_accepted():
    def estimate(rng, theta, observed):
        return -0.5 * ((theta - observed) / 0.5) ** 2 + rng.normal(0.0, 1.0)

    with pm.Model():
        theta = pm.Normal("theta", 0, 2)
        pk.EstimatedLikelihood("y", estimate, theta, observed=1.0)
        idata = sampled(1500, chains=2, evaluations=80, tolerance=0.0, exact=True)
    precision = 0.25 + 4.0
    z = (idata["posterior"]["theta"].values - 4.0 / precision) * np.sqrt(precision)
    for wanted, found in ((0.0, z), (1.0, z**2), (0.1, 1.0 * (abs(z) > 1.6449))):
        error = found.std() / np.sqrt(float(az.ess(found)))
        assert abs(found.mean() - wanted) < 4.0 * error
    assert 0.3 < idata["sample_stats"]["moved"].mean() < 0.6  # noise of sd 1 leaves a half
