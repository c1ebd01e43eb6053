"""Draws without a gradient of their model: judged by a function, or by scores that are learned from log densities."""

from functools import partial

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr

import pymc_kernel as pk
from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.reports.model_draws import Selection, read_draws
from tests.plugin.models import Counted, noisy_model
from tests.reference.bananas import bent_draws, bent_log_density, bent_score

# -- draws of other tools, judged by a function that returns scores -----------------------------------------

PRECISION = np.linalg.inv([[1.0, 0.6, 0.0], [0.6, 1.0, 0.0], [0.0, 0.0, 4.0]])
DRAWS = np.random.default_rng(2).multivariate_normal(np.zeros(3), np.linalg.inv(PRECISION), (4, 250))
LEVEL = np.array([0.0, 0.0, 1.0])


def score(draws):
    return -draws @ PRECISION


def slope_and_level(draws, **groups):
    return az.from_dict({"posterior": {"slope": draws[..., :2], "level": draws[..., 2]}, **groups})


def test_the_numbers_are_those_of_a_model_with_these_scores():
    with pm.Model() as model:
        pm.MvNormal("x", np.zeros(3), tau=PRECISION)
    draws = DRAWS + 0.3 * LEVEL
    of_model = pk.ksd_test(az.from_dict({"posterior": {"x": draws}}), model=model)
    of_function = pk.ksd_test(draws, score=score)  # an array of (chain, draw, d) is called x
    assert of_function.ksd == pytest.approx(of_model.ksd, rel=1e-8)
    assert of_function.p_value == of_model.p_value
    np.testing.assert_allclose(of_function.p_values["x"], of_model.p_values["x"])


def test_the_entry_that_is_wrong_has_its_own_name():
    """Of a vector, and of expectations."""
    wrong = DRAWS + np.array([2.0, 0.0, 0.0])
    assert pk.ksd_test(wrong, score=score).table()["ksd_share"].idxmax() == "x[0]"
    means = pk.expectation(wrong, score=score)["x"].sel(estimate="mean").values
    np.testing.assert_allclose(means, wrong.mean(axis=(0, 1)))


def test_the_function_has_the_chosen_variables_in_their_order():
    seen = []
    data = az.from_dict({"posterior": {"slope": DRAWS[..., :2], "extra": DRAWS[..., 0] ** 2, "level": DRAWS[..., 2]}})

    def recorded(values):
        seen.append(values)
        return score(values)

    assert pk.ksd_test(data, var_names=["slope", "level"], score=recorded).p_value > 0.05
    np.testing.assert_array_equal(seen[0], DRAWS.reshape(-1, 3))


def test_all_reports_take_such_draws(capsys):
    data = slope_and_level(DRAWS + 0.6 * LEVEL)
    table = pk.summary(data, score=score)
    assert table.loc["level", "ksd_p"] < 0.01
    assert pk.diagnose(data, score=score)
    assert "Parameters that do not fit by themselves: level" in capsys.readouterr().out
    few = pk.stein_thin(data, 40, score=score)
    assert abs(float(few["posterior"]["level"].mean())) < 0.15
    assert float(pk.expectation(data, score=score)["level"].sel(estimate="value")) == pytest.approx(0.0, abs=0.05)


def test_groups_without_draws_stay_and_others_with_draws_go():
    """``pm.fit`` leaves the statistics of its draws empty."""
    data = slope_and_level(DRAWS, observed_data={"y": np.arange(3.0)}, log_likelihood={"y": DRAWS})
    data["sample_stats"] = xr.DataTree(xr.Dataset(attrs={"made_by": "hand"}))
    few = pk.stein_thin(data, 5, score=score)
    assert set(few.children) == {"posterior", "sample_stats", "observed_data"}
    assert few["sample_stats"].attrs == {"made_by": "hand"}
    np.testing.assert_array_equal(few["observed_data"]["y"], np.arange(3.0))


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "no misfit detected"), (0.6, "misfit")])
def test_log_densities_of_the_run_stand_for_a_function(shift, verdict):
    draws = DRAWS + shift * LEVEL
    log_density = -0.5 * np.einsum("...i,ij,...j->...", draws, PRECISION, draws)
    report = pk.ksd_test(slope_and_level(draws, sample_stats={"lp": log_density}), score="surrogate")
    assert report.verdict() == verdict
    assert report.learned.num_evaluations == 0


def test_what_is_missing_is_named():
    broken = DRAWS.copy()
    broken[0, 3, 1] = np.nan
    counts = np.zeros((4, 250), dtype=int)
    for data, own_score, error, message in (
        (slope_and_level(DRAWS), None, TypeError, "For draws of other tools give score="),
        (slope_and_level(DRAWS), "surrogate", NoGradientError, "put them into sample_stats, as lp"),
        (DRAWS[0], score, ValueError, r"give draws\[None\]"),
        (broken, score, ValueError, "1 of 1000 draws hold NaN"),
        (az.from_dict({"posterior": {"k": counts}}), score, ValueError, "none of the chosen variables"),
    ):
        with pytest.raises(error, match=message):
            pk.ksd_test(data, score=own_score)
    counted = az.from_dict({"posterior": {"k": counts, "x": DRAWS}})
    assert pk.ksd_test(counted, score=score).conditional_on == ("k",)


# -- models without a gradient, by a score that is learned from log densities -------------------------------


def black_box():
    op = Counted(bent_log_density)
    with pm.Model(coords={"which": ["a", "b"]}) as model:
        x = pm.Flat("x", dims="which")
        pm.Potential("dark", op(x))
    return model, op


def tree(x, log_density=None):
    groups = {"posterior": {"x": x}} | ({} if log_density is None else {"sample_stats": {"lp": log_density}})
    return az.from_dict(groups, dims={"x": ["which"]}, coords={"which": ["a", "b"]})


judged = partial(pk.ksd_test, score="surrogate", num_replicates=200)


def test_log_densities_of_the_run_are_used_where_they_are_those_of_the_draws(rng):
    model, op = black_box()
    x = bent_draws(rng, 4, 100)
    report = judged(tree(x, bent_log_density(x) + 3.0), model=model)
    assert report.verdict() == "no misfit detected"
    assert report.learned.num_evaluations == 0
    assert report.learned.num_values == 400
    assert 0 < op.calls <= 10  # to see that they are the model's
    assert report.learned.score_error < 0.05
    assert report.p_value == pytest.approx(judged(tree(x), model=model, score=bent_score).p_value, abs=0.05)
    assert "learned from 400 log densities (those of the run)" in str(report)
    report = judged(tree(0.7 * x, bent_log_density(x)), model=model)  # the draws were changed after the run
    assert report.verdict() == "misfit"
    assert report.learned.num_evaluations == 400
    assert report.learned.effective_draws > 390


def test_repeated_draws_and_long_runs_cost_no_more(rng, monkeypatch):
    monkeypatch.setattr("pymc_kernel.plugin.reports.surrogate_scores._MOST_EVALUATIONS", 200)
    model, op = black_box()
    x = np.repeat(bent_draws(rng, 4, 40), 3, axis=1)  # 480 draws, of which one in three is used
    settings = {"model": model, "score": "surrogate"}
    part = read_draws(Selection(tree(x), **settings))
    assert part.every == 3
    assert part.draws.shape == (4, 40, 2)
    assert op.calls <= 165
    report = judged(tree(x), model=model)
    assert report.test.thin % 3 == 0
    assert report.learned.score_error < 0.2
    chosen = pk.stein_thin(tree(x), 5, **settings)["posterior"]
    for i in range(5):
        source = int(chosen["source_chain"][i]), int(chosen["source_draw"][i])
        np.testing.assert_array_equal(chosen["x"].values[0, i], x[source])
    assert 0.0 < chosen.attrs["stein_score_error"] < 0.2
    found = pk.expectation(tree(x), **settings)
    assert abs(float(found["x"].sel(estimate="value", which="a"))) < 0.1
    assert found.attrs["num_values"] == 160


@pytest.mark.long
def test_summary_and_diagnose_say_what_the_score_is_worth(rng, capsys):
    settings = {"model": black_box()[0], "score": "surrogate"}
    idata = tree(bent_draws(rng, 4, 100) + np.array([0.0, 0.6]))
    table = pk.summary(idata, **settings)
    assert table.loc["x[b]", "ksd_p"] < 0.01
    assert table.attrs["ksd_score_error"] < 0.1
    assert (table.attrs["ksd_verdict"], table.attrs["ksd_num_evaluations"]) == ("misfit", 400)
    has_errors, found = pk.diagnose(idata, return_diagnostics=True, **settings)
    assert (has_errors, found["ksd"].learned.num_values) == (True, 400)
    assert "scores of a surrogate, learned from 400 log densities" in capsys.readouterr().out


@pytest.mark.long
def test_a_poor_surrogate_gives_no_verdict(rng, capsys):
    """Too few draws for a density in ten dimensions that is bent in all of them."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=10)
        pm.Potential("ripple", pt.sin(5.0 * x).sum())
    idata = az.from_dict({"posterior": {"x": rng.standard_normal((4, 25, 10))}})
    settings = {"model": model, "score": "surrogate"}
    report = judged(idata, model=model)
    assert report.verdict() == "cannot be judged"
    assert np.isnan(report.p_value)
    assert all(np.isnan(p).all() for p in report.p_values.data_vars.values())
    assert "cannot be judged: its scores are off by" in str(report)
    with pytest.warns(UserWarning, match=r"ksd_share and ksd_p are NaN.*cannot judge.*mmd_test"):
        table = pk.summary(idata, **settings)
    assert table[["ksd_share", "ksd_p"]].isna().all(axis=None)
    assert table.attrs["ksd_verdict"] == "cannot be judged"
    assert not pk.diagnose(idata, ess_threshold=10, rhat_max=2.0, **settings)
    assert "cannot be judged by the surrogate" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="should not be trusted"):
        pk.stein_thin(idata, 5, **settings)


@pytest.mark.long
def test_estimated_likelihoods_are_judged_by_the_estimates_that_were_accepted(rng):
    """Of a chain that is right, and of one that lacks a part; estimates with log-normal noise as they are accepted."""
    theta = rng.standard_normal((4, 300))
    noise = rng.normal(0.5 * 0.6**2, 0.6, (4, 300))  # tilted by the acceptance: the mean was minus as much

    def run(theta, noise):
        return az.from_dict({"posterior": {"theta": theta}, "sample_stats": {"lp": -0.5 * theta**2 + noise}})

    with pytest.raises(NoGradientError, match=r"y is only estimated.*score=\"surrogate\""):
        pk.ksd_test(run(theta, noise), model=noisy_model())
    report = judged(run(theta, noise), model=noisy_model())
    assert report.verdict() == "no misfit detected"
    assert report.learned.noisy
    assert 600 < report.learned.effective_draws < 1140
    assert "with the noise of the estimates, worth" in str(report)
    kept = np.sort(np.argsort(theta, axis=1)[:, 60:], axis=1)  # without the lowest fifth
    idata = run(*(np.take_along_axis(values, kept, axis=1) for values in (theta, noise)))
    assert judged(idata, model=noisy_model()).verdict() == "misfit"
    del idata["sample_stats"]
    with pytest.raises(NoGradientError, match="does not hold the estimates that were accepted"):
        judged(idata, model=noisy_model())


def test_where_nothing_can_be_learned_one_line_says_why(rng):
    model, _ = black_box()
    few = tree(bent_draws(rng, 2, 10))
    with pytest.warns(UserWarning, match="20 draws are too few to learn a score from"):
        table = pk.summary(few, model=model, score="surrogate")
    assert table[["ksd_share", "ksd_p"]].isna().all(axis=None)
    with pytest.raises(NoGradientError, match="no score could be learned from 200 draws"):
        judged(tree(np.ones((2, 100, 2))), model=model)
    with pm.Model() as discrete:
        which = pm.Bernoulli("which", 0.3)
        pm.Normal("x", 3.0 * which, 1.0)
    idata = az.from_dict({"posterior": {"x": rng.normal(size=(2, 50)), "which": np.zeros((2, 50), dtype=int)}})
    with pytest.raises(NoGradientError, match=r"continuous variables, and which is discrete.*mmd_test"):
        pk.stein_thin(idata, 5, model=discrete, score="surrogate")
    with pm.Model() as bounded:
        x = pm.Flat("x", shape=2)
        pm.Potential("wall", pt.switch(x[0] > 3.0, -np.inf, -0.5 * (x**2).sum()))
    outside = rng.normal(size=(2, 100, 2))
    outside[0, :3, 0] = 4.0
    with pytest.raises(NoGradientError, match="not finite at 3 of 200 draws"):
        judged(az.from_dict({"posterior": {"x": outside}}), model=bounded)
    with pytest.raises(ValueError, match='a function or "surrogate"'):
        judged(few, model=model, score="learned")
