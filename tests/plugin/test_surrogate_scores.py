"""Checks of models without a gradient, by a score that is learned from log densities."""

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_kernel as pk
from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.reports.model_draws import Selection, read_draws
from tests.plugin.models import Counted, noisy_model
from tests.reference.bananas import bent_draws, bent_log_density, bent_score


def black_box():
    op = Counted(bent_log_density)
    with pm.Model(coords={"which": ["a", "b"]}) as model:
        x = pm.Flat("x", dims="which")
        pm.Potential("dark", op(x))
    return model, op


def tree(x, log_density=None):
    groups = {"posterior": {"x": x}}
    if log_density is not None:
        groups["sample_stats"] = {"lp": log_density}
    return az.from_dict(groups, dims={"x": ["which"]}, coords={"which": ["a", "b"]})


def test_log_densities_of_the_run_are_used(rng):
    model, op = black_box()
    x = bent_draws(rng, 4, 100)
    report = pk.ksd_test(tree(x, bent_log_density(x) + 3.0), model=model, score="surrogate", num_replicates=200)
    assert report.verdict() == "no misfit detected"
    assert report.learned.num_evaluations == 0
    assert report.learned.num_values == 400
    assert 0 < op.calls <= 10  # to see that they are the model's
    assert report.learned.score_error < 0.05
    known = pk.ksd_test(tree(x), model=model, score=bent_score, num_replicates=200)
    assert report.p_value == pytest.approx(known.p_value, abs=0.05)
    assert "learned from 400 log densities (those of the run)" in str(report)


def test_other_log_densities_are_not(rng):
    """Draws that were changed after the run: what the run holds is not their log density."""
    model, _ = black_box()
    x = bent_draws(rng, 4, 100)
    narrow = tree(0.7 * x, bent_log_density(x))
    report = pk.ksd_test(narrow, model=model, score="surrogate", num_replicates=200)
    assert report.verdict() == "misfit"
    assert report.learned.num_evaluations == 400
    assert report.learned.effective_draws > 390


def test_repeated_draws_and_long_runs_cost_no_more(rng, monkeypatch):
    monkeypatch.setattr("pymc_kernel.plugin.reports.surrogate_scores._MOST_EVALUATIONS", 200)
    model, op = black_box()
    x = np.repeat(bent_draws(rng, 4, 40), 3, axis=1)  # 480 draws, of which one in three is used
    part = read_draws(Selection(tree(x), model=model, score="surrogate"))
    assert part.every == 3
    assert part.draws.shape == (4, 40, 2)
    assert op.calls <= 165
    report = pk.ksd_test(tree(x), model=model, score="surrogate", num_replicates=50)
    assert report.test.thin % 3 == 0
    chosen = pk.stein_thin(tree(x), 5, model=model, score="surrogate")["posterior"]
    for i in range(5):
        source = int(chosen["source_chain"][i]), int(chosen["source_draw"][i])
        np.testing.assert_array_equal(chosen["x"].values[0, i], x[source])
    assert 0.0 < chosen.attrs["stein_score_error"] < 0.2
    found = pk.expectation(tree(x), model=model, score="surrogate")
    assert abs(float(found["x"].sel(estimate="value", which="a"))) < 0.1
    assert found.attrs["num_values"] == 160
    assert pk.ksd_test(tree(x), model=model, score="surrogate").learned.score_error < 0.2


@pytest.mark.long
def test_summary_and_diagnose_say_what_the_score_is_worth(rng, capsys):
    model, _ = black_box()
    x = bent_draws(rng, 4, 100)
    idata = tree(x + np.array([0.0, 0.6]))
    table = pk.summary(idata, model=model, score="surrogate")
    assert table.loc["x[b]", "ksd_p"] < 0.01
    assert table.attrs["ksd_verdict"] == "misfit"
    assert table.attrs["ksd_score_error"] < 0.1
    assert table.attrs["ksd_num_evaluations"] == 400
    has_errors, found = pk.diagnose(idata, model=model, score="surrogate", return_diagnostics=True)
    assert has_errors
    assert found["ksd"].learned.num_values == 400
    assert "scores of a surrogate, learned from 400 log densities" in capsys.readouterr().out


@pytest.mark.long
def test_a_poor_surrogate_gives_no_verdict(rng, capsys):
    """Too few draws for a density in ten dimensions that is bent in all of them."""
    with pm.Model() as model:
        x = pm.Normal("x", 0, 1, shape=10)
        pm.Potential("ripple", pt.sin(5.0 * x).sum())
    idata = az.from_dict({"posterior": {"x": rng.standard_normal((4, 25, 10))}})
    report = pk.ksd_test(idata, model=model, score="surrogate", num_replicates=100)
    assert report.verdict() == "cannot be judged"
    assert np.isnan(report.p_value)
    assert all(np.isnan(p).all() for p in report.p_values.data_vars.values())
    assert "cannot be judged: its scores are off by" in str(report)
    with pytest.warns(UserWarning, match=r"ksd_share and ksd_p are NaN.*cannot judge.*mmd_test"):
        table = pk.summary(idata, model=model, score="surrogate")
    assert table[["ksd_share", "ksd_p"]].isna().all(axis=None)
    assert table.attrs["ksd_verdict"] == "cannot be judged"
    assert not pk.diagnose(idata, model=model, score="surrogate", ess_threshold=10, rhat_max=2.0)
    assert "cannot be judged by the surrogate" in capsys.readouterr().out
    with pytest.warns(UserWarning, match="should not be trusted"):
        pk.stein_thin(idata, 5, model=model, score="surrogate")


@pytest.mark.long
def test_estimated_likelihoods_are_judged_by_the_estimates_that_were_accepted(rng):
    """Of a chain that is right, and of one that lacks a part; estimates with log-normal noise as they are accepted."""
    theta = rng.standard_normal((4, 300))
    noise = rng.normal(0.5 * 0.6**2, 0.6, (4, 300))  # tilted by the acceptance: the mean was minus as much
    idata = az.from_dict({"posterior": {"theta": theta}, "sample_stats": {"lp": -0.5 * theta**2 + noise}})
    with pytest.raises(NoGradientError, match=r"y is only estimated.*score=\"surrogate\""):
        pk.ksd_test(idata, model=noisy_model())
    report = pk.ksd_test(idata, model=noisy_model(), score="surrogate", num_replicates=200)
    assert report.verdict() == "no misfit detected"
    assert report.learned.noisy
    assert 600 < report.learned.effective_draws < 1140
    assert "with the noise of the estimates, worth" in str(report)
    kept = np.stack([row[np.sort(np.argsort(row)[60:])] for row in theta])  # without the lowest fifth
    there = np.stack([values[np.sort(np.argsort(row)[60:])] for row, values in zip(theta, noise, strict=True)])
    idata = az.from_dict({"posterior": {"theta": kept}, "sample_stats": {"lp": -0.5 * kept**2 + there}})
    assert pk.ksd_test(idata, model=noisy_model(), score="surrogate", num_replicates=200).verdict() == "misfit"
    del idata["sample_stats"]
    with pytest.raises(NoGradientError, match="does not hold the estimates that were accepted"):
        pk.ksd_test(idata, model=noisy_model(), score="surrogate")


def test_where_nothing_can_be_learned_one_line_says_why(rng, capsys):
    model, _ = black_box()
    few = tree(bent_draws(rng, 2, 10))
    with pytest.warns(UserWarning, match="20 draws are too few to learn a score from"):
        table = pk.summary(few, model=model, score="surrogate")
    assert table[["ksd_share", "ksd_p"]].isna().all(axis=None)
    still = tree(np.ones((2, 100, 2)))
    with pytest.raises(NoGradientError, match="no score could be learned from 200 draws"):
        pk.ksd_test(still, model=model, score="surrogate")
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
        pk.ksd_test(az.from_dict({"posterior": {"x": outside}}), model=bounded, score="surrogate")
    with pytest.raises(ValueError, match='a function or "surrogate"'):
        pk.ksd_test(few, model=model, score="learned")
