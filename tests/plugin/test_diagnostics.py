"""Models without data: draws from the prior are exact, independent draws from the posterior."""

import re

import arviz as az
import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
import xarray as xr
from pymc.blocking import DictToArrayBijection
from pymc.distributions import transforms
from scipy.special import expit

import pymc_kernel as pk
from pymc_kernel.errors import NoGradientError
from pymc_kernel.plugin.reports.model_draws import Selection, read_draws
from pymc_kernel.plugin.warn import report
from tests.plugin.models import noisy_model, square_without_gradient
from tests.plugin.parts import data_around
from tests.reference.differences import assert_derivative


def exact_draws(model, num_draws=600, seed=1):
    """The prior as two chains of a posterior."""
    prior = pm.sample_prior_predictive(num_draws, model=model, random_seed=seed)["prior"].to_dataset()
    rows = prior[sorted(prior.data_vars)].isel(chain=0, drop=True).drop_vars("draw").coarsen(draw=num_draws // 2)
    return tree(rows.construct(draw=("chain", "draw")).assign_coords(chain=range(2), draw=range(num_draws // 2)))


def tree(dataset):
    return xr.DataTree.from_dict({"posterior": dataset})


@pytest.fixture(scope="module")
def small():
    with pm.Model(coords={"group": ["a", "b", "c"]}) as model:
        scale = pm.HalfNormal("scale")
        level = pm.Normal("level", 2.0, 3.0, dims="group")
        pm.Dirichlet("share", np.ones(3))
        pm.Deterministic("product", level * scale, dims="group")
    return model, exact_draws(model)


def moved(idata):
    """A copy of the draws, of which one entry is elsewhere."""
    other = idata.copy(deep=True)
    other["posterior"]["level"] = other["posterior"]["level"] + np.array([0.0, 1.5, 0.0])
    return other


def scores_of(model, idata):
    """Return the scores at draws as a function for ``score``, so that they are compiled once."""
    scores = read_draws(Selection(idata, model=model)).scores
    return lambda draws: scores.reshape(draws.shape)


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_scores_equal_finite_differences_for_every_transform(rng):
    """Unconstrained places, brought to the model's scale by PyMC, and back and differentiated by us."""
    with pm.Model() as model:
        scale = pm.HalfNormal("log")
        pm.Uniform("interval", -1.0, 1.0 + scale)
        pm.Beta("logodds", 2.0, 3.0)
        pm.Dirichlet("simplex", np.ones(3))
        pm.Normal("ordered", 0, 1, shape=3, transform=transforms.ordered, initval=[-1.0, 0.0, 1.0])
        pm.LKJCholeskyCov("cholesky", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2))
        pm.VonMises("circular", 0.0, 2.0)
        pm.ZeroSumNormal("zerosum", shape=3)
        pm.Gamma("log_exp_m1", 2.0, 1.0, transform=transforms.log_exp_m1)
        pm.Pareto("half_open", 2.0, 1.0)
        pm.Normal("free", scale, 1.0)
    like = DictToArrayBijection.map(model.initial_point())
    flat = rng.standard_normal((4, like.data.size))
    backward = model.compile_fn(model.unobserved_value_vars, inputs=model.value_vars, on_unused_input="ignore")

    def place_of(x):
        return DictToArrayBijection.rmap(like._replace(data=x))

    places = [backward(place_of(x)) for x in flat]
    names, free = [v.name for v in model.unobserved_value_vars], {rv.name for rv in model.free_RVs}
    draws = {n: np.stack([p[i] for p in places])[None] for i, n in enumerate(names) if n in free}
    part = read_draws(Selection(az.from_dict({"posterior": draws}), model=model))
    np.testing.assert_allclose(part.draws[0], flat, rtol=1e-6, atol=1e-6)
    density = model.compile_logp()
    for x, score in zip(flat, part.scores[0], strict=True):
        assert_derivative(score, lambda at: density(place_of(at)), x, rtol=1e-4, atol=1e-6)


def test_scores_stay_finite_far_out():
    """The quick way to evaluate has no stable form of log(1 + exp(x)); where that matters, another takes over."""
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        pm.Potential("terms", -pt.log1p(pt.exp(level)))
    level = np.array([0.3, -2.0, 800.0, -800.0])
    part = read_draws(Selection(az.from_dict({"posterior": {"level": level[None]}}), model=model))
    np.testing.assert_allclose(part.scores[0, :, 0], -level - expit(level), rtol=1e-10)


def test_exact_draws_fit_and_others_do_not(small):
    model, idata = small
    with model:
        report = pk.ksd_test(idata, num_replicates=200)
    assert report.p_value > 0.02
    assert report.test.num_draws == 600
    assert abs(sum(float(s.sum()) for s in report.shares.data_vars.values()) - 1.0) < 1e-10
    others = moved(idata)
    settings = {"model": model, "score": scores_of(model, others), "num_replicates": 200}
    bad = pk.ksd_test(others, **settings)
    assert bad.p_value < 0.01
    assert bad.shares["level"].dims == ("group",)
    assert bad.p_values["level"].sel(group="b") < 0.01 < bad.p_values["level"].sel(group="a")
    assert "level[b]" in str(bad)
    assert "as many independent normal draws have" in str(bad)
    assert pk.ksd_test(others, var_names=["scale", "share"], **settings).p_value > 0.01
    chosen = pk.ksd_test(others, var_names="level", coords={"group": ["a", "c"]}, **settings)
    assert chosen.p_value > 0.01
    assert chosen.test.shares.shape == (2,)


def test_summary_is_arviz_s_with_two_columns(small):
    model, idata = small
    ours, theirs = pk.summary(idata, model=model), az.summary(idata)
    assert list(ours.columns) == [*theirs.columns, "ksd_share", "ksd_p"]
    assert list(ours.index) == list(theirs.index)
    assert np.array_equal(ours[theirs.columns].to_numpy(), theirs.to_numpy())
    shown, plain = repr(ours).splitlines(), repr(theirs).splitlines()
    assert shown[1].startswith(plain[1])  # its own digits
    assert len(shown[1]) - len(plain[1]) < 20  # ours are short, too
    assert ours.loc["product[a]", ["ksd_share", "ksd_p"]].isna().all()
    elementwise = ours.loc[["scale", "level[a]", "level[b]", "level[c]", "share[0]"], "ksd_share"]
    assert abs(elementwise.sum() - 1.0) < 1e-10
    assert ours.attrs["ksd_p"] > 0.02
    assert ours.attrs["ksd_thin"] == 1
    known = {"model": model, "score": scores_of(model, idata)}
    rounded = pk.summary(idata, **known, round_to=2, kind="diagnostics", var_names=["sc", "prod"], filter_vars="like")
    assert set(rounded.index) == {"scale", "product[a]", "product[b]", "product[c]"}
    assert rounded.loc["scale", "ksd_share"] == 1.0
    assert "ksd_share" not in pk.summary(idata, **known, kind="stats")
    assert "ksd_p" in pk.summary(idata, **known, fmt="long").index
    assert "ksd_p" in pk.summary(idata, **known, fmt="xarray")["summary"]


def test_a_single_sample_dimension(small):
    model, idata = small
    stacked = idata["posterior"].to_dataset().isel(chain=0, drop=True).rename(draw="sample")
    report = pk.ksd_test(tree(stacked), model=model, sample_dims=["sample"], num_replicates=50)
    assert report.shares["level"].shape == (3,)
    assert "ksd" in pk.summary(tree(stacked), model=model, sample_dims=["sample"], kind="stats").attrs
    run = xr.DataTree.from_dict({"posterior": stacked, "sample_stats": xr.Dataset({"lp": ("sample", np.zeros(300))})})
    assert Selection(run, model=model, sample_dims=["sample"]).stats["lp"].shape == (1, 300)


@pytest.mark.long
def test_diagnose_says_it_in_words(small, capsys):
    model, idata = small
    assert not pk.diagnose(idata, model=model)
    said = capsys.readouterr().out
    words = (
        "R-hat",
        "no misfit detected (600 of 600 draws left after thinning;",
        "do not reveal a mode without any draw",
    )
    assert [w for w in words if w not in said] == []
    assert "The draws fit" not in said
    warned = idata.copy()
    with pytest.warns(UserWarning, match="a part is missing"):
        report("a part is missing", warned["posterior"])
    has_errors, found = pk.diagnose(warned, model=model, return_diagnostics=True)
    assert (has_errors, found["findings"]) == (True, ["a part is missing"])
    assert "a part is missing" in capsys.readouterr().out
    has_errors, found = pk.diagnose(moved(idata), model=model, return_diagnostics=True)
    assert (has_errors, found["modes"]) == (True, [])
    said = capsys.readouterr().out
    assert re.search(r"do not fit by themselves: level\[b\] \(p = 0.0\d*\); p-values are corrected for all", said)
    assert "sample anew with more tuning" in said
    table, of_level = pk.summary(moved(idata), model=model, num_replicates=1000), found["ksd"].p_values["level"]
    assert table.loc["level[b]", "ksd_p"] == float(of_level.sel(group="b")) == found["ksd"].p_value < 0.01
    assert table.attrs["ksd_p"] == found["ksd"].p_value


def test_advice_follows_from_the_first_cause(rng, capsys):
    with pm.Model() as model:
        pm.Normal("x", shape=9)
    x = 1.5 + rng.standard_normal((2, 300, 9))
    apart, diverged = x + np.array([0.0, 1.0])[:, None, None], {"diverging": np.arange(600).reshape(2, 300) < 250}
    for draws, stats, words in (
        (apart, {"sample_stats": diverged}, "250 diverged: .*target_accept"),
        (apart, {}, "take longer ones"),
        (x[:1], {}, "run several"),
    ):
        assert pk.diagnose(az.from_dict({"posterior": {"x": draws}, **stats}), model=model)
        assert re.search(rf"x\[\d\] \(p = 0.0\d*\) and 4 more;[\s\S]*{words}", capsys.readouterr().out)


def test_separated_modes_are_warned_of(capsys, rng):
    sides = {"side": ["left", "right"]}
    with pm.Model(coords=sides) as model:
        x = pm.Flat("x", dims="side")
        pm.Potential("modes", pt.logaddexp(-0.5 * (x[0] - 6) ** 2, -0.5 * (x[0] + 6) ** 2) - 0.5 * x[1] ** 2)
    draws = rng.standard_normal((2, 500, 2))
    draws[..., 0] += 6.0 * np.where(rng.random((2, 500)) < 0.85, 1.0, -1.0)  # the weights should be equal
    idata = az.from_dict({"posterior": {"x": draws}}, coords=sides, dims={"x": ["side"]})
    _, found = pk.diagnose(idata, model=model, return_diagnostics=True)
    assert found["modes"] == ["x[left]"]
    assert found["ksd"].p_value > 0.02
    said = capsys.readouterr().out
    assert "The draws of x[left] fall into separated modes" in said
    assert "cannot see a wrong one" in said


def test_discrete_variables_are_conditioned_on():
    with pm.Model() as model:
        which = pm.Bernoulli("which", 0.3)
        pm.Normal("x", 3.0 * which, 1.0)
    report = pk.ksd_test(exact_draws(model), model=model, num_replicates=200)
    assert report.conditional_on == ("which",)
    assert report.p_value > 0.02
    assert "given the discrete variables which" in str(report)


def test_without_a_gradient_the_way_out_is_named(rng, capsys):
    with pm.Model() as model:
        pm.Potential("dark", square_without_gradient(pm.Flat("x", shape=2)))
    idata = az.from_dict({"posterior": {"x": rng.standard_normal((2, 300, 2))}})
    with pytest.raises(NoGradientError, match=r"dark is a black box.*score=.*mmd_test"):
        pk.ksd_test(idata, model=model)
    plain, tables = az.summary(idata), {}
    for fmt in ("wide", "long", "xarray"):
        with pytest.warns(UserWarning, match=r"ksd_share and ksd_p are NaN.*dark is a black box"):
            tables[fmt] = pk.summary(idata, model=model, fmt=fmt)
        assert np.isnan(tables[fmt].attrs["ksd_p"])
    assert list(tables["wide"].columns) == [*plain.columns, "ksd_share", "ksd_p"]
    assert tables["wide"][["ksd_share", "ksd_p"]].isna().all(axis=None)
    assert np.array_equal(tables["wide"][plain.columns].to_numpy(), plain.to_numpy())
    assert not pk.diagnose(idata, model=model, ess_threshold=10)
    assert "dark is a black box" in capsys.readouterr().out
    good, bad = (pk.ksd_test(idata, model=model, score=lambda x, c=c: c - x, num_replicates=200) for c in (0.0, 0.5))
    assert good.p_value > 0.02
    assert bad.p_value < 0.01
    with pytest.raises(ValueError, match="score must return"):
        pk.ksd_test(idata, model=model, score=lambda draws: draws[:, 0])
    with pytest.raises(NoGradientError, match="y is only estimated"):
        pk.ksd_test(az.from_dict({"posterior": {"theta": rng.standard_normal((1, 50))}}), model=noisy_model())


def test_thinned_draws_expectations_and_two_runs(small):
    model, idata = small
    thinned = pk.stein_thin(idata, 20, model=model)
    posterior = thinned["posterior"]
    assert (posterior.sizes["chain"], posterior.sizes["draw"]) == (1, 20)
    chain, draw = (int(posterior[f"source_{n}"][3]) for n in ("chain", "draw"))
    for name in posterior.data_vars:
        np.testing.assert_array_equal(posterior[name].values[0, 3], idata["posterior"][name].values[chain, draw])
    assert list(az.summary(thinned, kind="stats").index) == list(az.summary(idata, kind="stats").index)
    found = pk.expectation(idata, model=model)["level"]
    assert found.dims == ("estimate", "group")
    ours, plain = (np.abs(found.sel(estimate=e) - 2.0).max() for e in ("value", "mean"))
    assert ours < plain
    assert float(found.sel(estimate="variance_ratio").max()) < 0.5
    squares = pk.expectation(idata, lambda posterior: posterior**2, model=model, var_names=["level"])
    assert abs(float(squares["level"].sel(estimate="value", group="a")) - 13.0) < 2.0
    other = exact_draws(model, seed=2)
    assert pk.mmd_test(idata, other, num_replicates=200).p_value > 0.02
    other["posterior"]["scale"] = other["posterior"]["scale"] * 1.5
    assert pk.mmd_test(idata, other, var_names=["scale"], num_replicates=200).p_value < 0.01


def test_wrong_draws_are_refused(small):
    model, idata = small
    draws = idata["posterior"].to_dataset()
    for given, chosen, match in (
        (draws.drop_vars("share"), None, "no share"),
        (draws.isel(group=slice(0, 2)), None, "level have shape"),
        (draws, "product", "none of the chosen variables"),
    ):
        with pytest.raises(ValueError, match=match):
            pk.ksd_test(tree(given), model=model, var_names=chosen)
    with pytest.raises(ValueError, match="same variables"):
        pk.mmd_test(idata, az.from_dict({"posterior": {"scale": np.ones((1, 10))}}))


def test_what_is_no_tree_of_draws_says_what_to_give(capsys):
    model = data_around(lambda: pm.Normal("x"), 1.0)
    idata = exact_draws(model, 20)
    approximation = pm.ADVI(model=model).approx
    for check in (pk.diagnose, pk.ksd_test, pk.summary):
        with pytest.raises(TypeError, match=r"is an approximation: give draws of it"):
            check(approximation, model=model)
        with pytest.raises(TypeError, match=r"no model in context: give model="):
            check(idata)
        with pytest.raises(ValueError, match=r"no group 'posterior'; .* Give the whole DataTree"):
            check(idata["posterior"], model=model)
    assert not capsys.readouterr().out


def test_rows_have_the_names_of_their_values_after_a_variable_with_the_last_dimension():
    """ArviZ's own table gives the mean of y[1, b] the name y[1, a] here."""
    means, coords = np.array([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]), {"a": [0, 1], "b": ["u", "v", "w"]}
    with pm.Model(coords=coords) as model:
        pm.Normal("x", dims="b")
        pm.Normal("y", means, dims=("a", "b"))
    rng = np.random.default_rng(1)
    y = means + rng.standard_normal((4, 200, 2, 3))
    y[..., 1, 1] += 0.6
    posterior = {"x": rng.standard_normal((4, 200, 3)), "y": y}
    draws = az.from_dict({"posterior": posterior}, coords=coords, dims={"x": ["b"], "y": ["a", "b"]})
    for var_names in (None, ["x", "y"], ["y"]):
        table = pk.summary(draws, model=model, var_names=var_names, round_to="none", random_seed=1)
        own = table.loc[[name for name in table.index if name.startswith("y")]]
        assert list(own.index) == ["y[0, u]", "y[0, v]", "y[0, w]", "y[1, u]", "y[1, v]", "y[1, w]"]
        np.testing.assert_allclose(own["mean"], y.mean(axis=(0, 1)).ravel())
        assert own["ksd_share"].idxmax() == "y[1, v]"
    assert pk.ksd_test(draws, model=model, random_seed=1).table().index[0] == "y[1, v]"
