"""Draws of other tools, judged by a function that returns scores, or by the log densities of their run."""

import arviz as az
import numpy as np
import pymc as pm
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.errors import NoGradientError

PRECISION = np.linalg.inv([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 4.0]])


def score(draws):
    return -draws @ PRECISION


def log_density(draws):
    return -0.5 * np.einsum("...i,ij,...j->...", draws, PRECISION, draws)


def normal_draws(shift=0.0, seed=2):
    """Four chains of 250 draws of a slope (2,) and a level; ``shift`` moves the level."""
    draws = np.random.default_rng(seed).multivariate_normal(np.zeros(3), np.linalg.inv(PRECISION), (4, 250))
    return draws + np.array([0.0, 0.0, shift])


def tree(draws, **groups):
    return az.from_dict({"posterior": {"slope": draws[..., :2], "level": draws[..., 2]}, **groups})


def test_the_numbers_are_those_of_a_model_with_these_scores():
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(3), tau=PRECISION)
    draws = normal_draws(0.3)
    of_model = pk.ksd_test(az.from_dict({"posterior": {"x": draws}}), model=model)
    of_function = pk.ksd_test(draws, score=score)  # an array of (chain, draw, d) is called x
    assert of_function.ksd == pytest.approx(of_model.ksd, rel=1e-8)
    assert of_function.p_value == of_model.p_value
    np.testing.assert_allclose(of_function.p_values["x"], of_model.p_values["x"])


def test_the_entry_that_is_wrong_has_its_own_name():
    """Of a vector, and of expectations."""
    wrong = normal_draws() + np.array([2.0, 0.0, 0.0])
    assert pk.ksd_test(wrong, score=score).table()["ksd_share"].idxmax() == "x[0]"
    means = pk.expectation(wrong, score=score)["x"].sel(estimate="mean").values
    np.testing.assert_allclose(means, wrong.mean(axis=(0, 1)))


def test_the_function_has_the_chosen_variables_in_their_order():
    draws = normal_draws()
    seen = []
    data = az.from_dict({"posterior": {"slope": draws[..., :2], "extra": draws[..., 0] ** 2, "level": draws[..., 2]}})

    def recorded(values):
        seen.append(values)
        return score(values)

    assert pk.ksd_test(data, var_names=["slope", "level"], score=recorded).p_value > 0.05
    np.testing.assert_array_equal(seen[0], draws.reshape(-1, 3))


def test_all_reports_take_such_draws(capsys):
    data = tree(normal_draws(0.6))
    table = pk.summary(data, score=score)
    assert table.loc["level", "ksd_p"] < 0.01
    assert pk.diagnose(data, score=score)
    assert "Parameters that do not fit by themselves: level" in capsys.readouterr().out
    few = pk.stein_thin(data, 40, score=score)
    assert abs(float(few["posterior"]["level"].mean())) < 0.15
    assert float(pk.expectation(data, score=score)["level"].sel(estimate="value")) == pytest.approx(0.0, abs=0.05)


def test_groups_without_draws_stay_and_others_with_draws_go():
    """``pm.fit`` leaves the statistics of its draws empty."""
    draws = normal_draws()
    data = tree(draws, observed_data={"y": np.arange(3.0)}, log_likelihood={"y": draws})
    data["sample_stats"] = xr.DataTree(xr.Dataset(attrs={"made_by": "hand"}))
    few = pk.stein_thin(data, 5, score=score)
    assert set(few.children) == {"posterior", "sample_stats", "observed_data"}
    assert few["sample_stats"].attrs == {"made_by": "hand"}
    np.testing.assert_array_equal(few["observed_data"]["y"], np.arange(3.0))


def test_log_densities_of_the_run_stand_for_a_function():
    for shift, is_wrong in ((0.0, False), (0.6, True)):
        draws = normal_draws(shift)
        data = tree(draws, sample_stats={"lp": log_density(draws)})
        report = pk.ksd_test(data, score="surrogate")
        assert report.verdict() == ("misfit" if is_wrong else "no misfit detected")
        assert report.learned.num_evaluations == 0


def test_what_is_missing_is_named():
    draws = normal_draws()
    with pytest.raises(TypeError, match="For draws of other tools give score="):
        pk.ksd_test(tree(draws))
    with pytest.raises(NoGradientError, match="put them into sample_stats, as lp"):
        pk.ksd_test(tree(draws), score="surrogate")
    with pytest.raises(ValueError, match=r"give draws\[None\]"):
        pk.ksd_test(draws[0], score=score)
    broken = draws.copy()
    broken[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match="1 of 1000 draws hold NaN"):
        pk.ksd_test(broken, score=score)
    with pytest.raises(ValueError, match="none of the chosen variables"):
        pk.ksd_test(az.from_dict({"posterior": {"k": np.zeros((2, 60), dtype=int)}}), score=score)
    counts = az.from_dict({"posterior": {"k": np.zeros((4, 250), dtype=int), "x": draws}})
    assert pk.ksd_test(counts, score=score).conditional_on == ("k",)
