import matplotlib as mpl

mpl.use("Agg")

from functools import partial

import arviz as az
import matplotlib.pyplot as plt
import numpy as np
import pymc as pm
import pytest
import xarray as xr
from scipy import stats
from scipy.special import logit

import pymc_kernel as pk
from pymc_kernel.plugin.reports.diagnostics import KSDReport
from pymc_kernel.plugin.reports.panels import WIDTH

BACKENDS = ("none", "matplotlib", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bokeh", "plotly")))


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def shown(collection):
    """What is said around the panels of a picture, and how wide it is; bokeh and plotly only have to draw."""
    figure = collection.viz["figure"].item()
    is_one = "plot" not in collection.viz.children
    panel = collection.viz["plot"].values.ravel()[0] if is_one else collection.iget_target(0, 0)
    match collection.backend:
        case "none":
            texts = {e["function"]: e.get("string", e.get("labels")) for e in panel if "string" in e or "labels" in e}
            return {"width": figure["figsize"][0], "legend": None} | texts
        case "matplotlib":
            figure.canvas.draw()
            return {
                "width": figure.get_size_inches()[0] * figure.dpi,
                "legend": [text.get_text() for legend in figure.legends for text in legend.get_texts()],
                "xlabel": panel.get_xlabel(),
                "ylabel": panel.get_ylabel(),
                "title": panel.get_title(),
                "yticks": [text.get_text() for text in panel.get_yticklabels()],
            }
    return None


def check_page(collection, legend):
    if (said := shown(collection)) is not None:
        assert said["width"] == pytest.approx(WIDTH, abs=5)
        assert said["legend"] in (None, legend)
    return said


def report(rng, shares):
    """A test of parameters of which each has a null around 1 / its number, by variables."""
    count = sum(np.size(s) for s in shares.values())
    null = xr.Dataset(
        {
            name: ((*dims, "replicate"), rng.gamma(50.0, 0.02 / count, size=(*np.shape(s), 400)))
            for name, s in shares.items()
            for dims in [["group"][: np.ndim(s)]]
        },
        {"group": [f"g{i}" for i in range(max(np.size(s) for s in shares.values()))]},
    )
    parts = null.isel(replicate=0, drop=True).copy(data=shares)
    joint = np.sqrt(sum(v.sum([d for d in v.dims if d != "replicate"]) for v in null.data_vars.values()).values)
    band = np.quantile(joint, [0.05, 0.95])
    test = pk.stein.KSDTest(1.0, 0.25, joint, band, 0.9, np.ones(count), None, None, None, 400, 1, 0.5)
    return KSDReport(test, parts, parts * 0.0 + 0.125, parts, null, ())


def test_arrows_point_to_the_mode(rng):
    draws = rng.normal(size=(200, 3)) @ np.diag([1.0, 5.0, 0.2])
    surrogate = pk.scores.Values().fit(draws, -0.5 * (draws**2 / [1.0, 25.0, 0.04]).sum(axis=1), rng, noisy=False)
    ax = pk.plot_score(surrogate, draws.reshape(2, 100, 3), dims=(1, 0), num_arrows=7)
    [quiver] = [c for c in ax.collections if hasattr(c, "U")]
    assert quiver.U.size == 49
    far = np.abs(quiver.X) > 1.0
    assert (np.sign(quiver.U)[far] == -np.sign(quiver.X)[far]).all()
    assert ax.get_xlabel() == "coordinate 1"
    assert pk.plot_score(surrogate, draws, ax=ax) is ax  # in the same axes when given
    for dims in [(0, 0), (0, 3), (-1, 1), (0.0, 1)]:
        with pytest.raises(ValueError, match="two different coordinates from 0 to 2"):
            pk.plot_score(surrogate, draws, dims=dims)


def test_statistics_by_stage():
    padded = np.array([[0.1, 0.6, 1.0], [0.4, 1.0, np.nan]])
    both = {"inverse_temperature": padded, "accept": padded / 2}
    told = xr.Dataset({name: (("chain", "stage"), v) for name, v in both.items()})
    told["log_evidence"] = ("chain", [1.0, 2.0])
    tree = xr.DataTree.from_dict({"smc_stats": told.assign_coords(chain=[0, 1], stage=range(3))})
    for backend in ("none", "matplotlib"):
        collection = pk.plot_smc(tree, backend=backend)
        assert set(collection.viz.children) >= {"statistic", "title", "xlabel"}
        drawn = collection.viz["statistic"]
        assert set(drawn.data_vars) == set(both)
        assert drawn.sizes["chain"] == 2
    np.testing.assert_allclose(drawn["accept"].sel(chain=1).item().get_ydata(), padded[1] / 2)
    with pytest.raises(ValueError, match="has no log_evidence by stage"):
        pk.plot_smc(tree, var_names=["log_evidence"])
    with pytest.raises(ValueError, match="no group smc_stats"):
        pk.plot_smc(xr.DataTree())


def test_densities_with_their_bands(rng):
    draws = {"a": rng.normal(size=(2, 300)), "b": rng.normal([0.0, 5.0], 0.1, size=(2, 300, 2))}
    tree = az.from_dict({"posterior": draws}, coords={"school": ["x", "y"]}, dims={"b": ["school"]})
    for backend in ("none", "matplotlib"):
        drawn = pk.plot_density(tree, backend=backend).viz["density"]
        assert set(drawn.data_vars) == {"a", "b"}
        assert drawn["b"].sizes == {"school": 2}
    places, heights = drawn["b"].sel(school="y").item().get_data()
    assert np.trapezoid(heights, places) == pytest.approx(1.0, abs=0.01)
    assert places[heights.argmax()] == pytest.approx(5.0, abs=0.1)
    only = pk.plot_density(tree, var_names=["b"], coords={"school": "x"}, backend="none")
    assert set(only.viz["density"].data_vars) == {"b"}
    with pytest.raises(ValueError, match="probability"):
        pk.plot_density(tree, probability=2.0)


def test_densities_of_what_has_none(rng):
    draws = {
        "count": rng.poisson(3.0, size=(2, 200)),
        "fixed": np.ones((2, 200)),
        "atom": np.maximum(rng.normal(-1.0, 1.0, size=(2, 200)), 0.0),
        "repeats": np.repeat(rng.normal(size=(2, 150)), [1, 1, 2] * 50, axis=1),
    }
    tree = az.from_dict({"posterior": draws})
    drawn = pk.plot_density(tree, backend="matplotlib").viz["density"]
    assert set(drawn.data_vars) == {"fixed", "atom", "repeats"}
    # Nothing is drawn where there is no density.
    assert drawn["fixed"].item() is drawn["atom"].item() is None
    assert drawn["repeats"].item().get_ydata().max() == pytest.approx(0.4, abs=0.12)
    with pytest.raises(ValueError, match="count have no density"):
        pk.plot_density(tree, var_names=["count"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_discrepancies_in_rows(backend, rng):
    told = report(rng, {"level": np.array([0.25, 0.2, 0.1]), "scale": 0.45})
    collection = pk.plot_ksd(told, backend=backend)
    said = check_page(collection, ["the draws", "the same draws, random signs (90 %)"])
    assert collection.viz["plot"].size == 1
    if said is None:
        return
    assert said["xlabel"] == "distance from the model / its median with random signs"
    assert said["title"] == "KSD 1, as many normal draws 0.9"
    assert said["yticks"] == ["all together", "level[g0]", "level[g1]", "level[g2]", "scale"]
    if backend == "none":
        middle = np.sqrt(np.median(told.null["level"], axis=1))
        own = collection.viz["observed"]["level"]
        np.testing.assert_allclose([one["x"][0] for one in own.values], np.sqrt([0.25, 0.2, 0.1]) / middle)
        assert [one["y"][0] for one in own.values] == [3.0, 2.0, 1.0]
        # The joint result is set apart, and every row has its own band and p-value.
        assert collection.viz["observed"]["all together"].item()["y"][0] == 4.6
        band = collection.viz["null_band"]["scale"].item()
        expected = np.sqrt(np.quantile(told.null["scale"], [0.05, 0.95]) / np.median(told.null["scale"]))
        np.testing.assert_allclose(band["x"], expected, rtol=1e-3)
        np.testing.assert_array_equal(band["y"], 0.0)
        assert collection.viz["p_value"]["all together"].item()["string"] == "0.250"
        assert collection.viz["p_value"]["scale"].item()["string"] == "0.125"


def test_rows_of_too_many_parameters(rng):
    told = report(rng, {"level": np.arange(1.0, 46.0) / 1000.0, "joint": 1.0})
    with pytest.warns(UserWarning, match="46 parameters are too many for one picture: the 40 .* by var_names="):
        collection = pk.plot_ksd(told, backend="none")
    drawn = collection.viz["observed"]
    assert [v is None for v in drawn["level"].values] == [True] * 6 + [False] * 39
    assert drawn["joint"].item()["y"] == 0.0  # a parameter of this name is not the joint result
    assert len(shown(collection)["yticks"]) == 41


@pytest.mark.parametrize("backend", BACKENDS)
def test_chosen_draws_in_pairs(backend, rng):
    draws = {f"x{i}": rng.normal(size=(2, 60)) for i in range(5)} | {"theta": rng.normal(size=(2, 60, 2))}
    tree = az.from_dict({"posterior": draws}, coords={"school": ["a", "b"]}, dims={"theta": ["school"]})
    with pm.Model(coords={"school": ["a", "b"]}) as model:
        for name in draws:
            pm.Normal(name, dims="school" if name == "theta" else None)
    plot = partial(pk.plot_stein_thin, tree, 10, model=model, score=lambda x: -x, backend=backend)
    with pytest.warns(UserWarning, match="7 parameters make 49 panels: pairs of x0, x1, x2, x3, x4 .* max_parameters="):
        matrix = plot()
    check_page(matrix, ["all draws", "chosen"])
    assert matrix.viz["plot"].shape == (5, 5)
    matrix = plot(var_names=["x3", "theta"], coords={"school": ["b"]})
    assert matrix.viz["var_name_x"].values.tolist() == ["x3", "theta[b]"]
    if backend == "none":
        panels = matrix.viz["plot"].values
        texts = [[e["string"] for e in panel if e["function"] == "text"] for panel in panels.ravel()]
        assert texts == [["x3"], [], [], ["theta[b]"]]  # each name once, and no panel without a name or points
        below, above = ([e["x"] for e in panel if e["function"] == "scatter"] for panel in (panels[1, 0], panels[0, 1]))
        assert [len(x) for x in below] == [120, 10]
        assert [len(x) for x in above] == [10]
        np.testing.assert_array_equal(below[0], draws["x3"].ravel())
        assert set(above[0]) <= set(draws["theta"][..., 1].ravel())
    with pytest.raises(ValueError, match="x1 has no pairs"):
        plot(var_names="x1")


@pytest.fixture(scope="module")
def bounded():
    """A model with a parameter for each kind of bound, and draws from its prior."""
    with pm.Model(coords={"group": ["a", "b"]}) as model:
        tau = pm.Gamma("tau", 2.0, 1.0)
        pm.Uniform("between", [0.0, 10.0], [1.0, 30.0], dims="group")
        pm.Uniform("below_tau", 0.0, tau)
        pm.VonMises("angle", 3.0, 4.0)
        pm.Deterministic("root", tau**0.5)
    rng = np.random.default_rng(4)
    draws = {
        "tau": rng.gamma(2.0, size=(2, 200)),
        "between": rng.uniform([0.0, 10.0], [1.0, 30.0], size=(2, 200, 2)),
        "below_tau": rng.uniform(size=(2, 200)),
        "angle": rng.vonmises(3.0, 4.0, size=(2, 200)),
    }
    draws |= {"below_tau": draws["below_tau"] * draws["tau"], "root": np.sqrt(draws["tau"])}
    return model, az.from_dict({"posterior": draws}, coords={"group": ["a", "b"]}, dims={"between": ["group"]})


def curve(collection, name, **chosen):
    one = collection.viz["density"][name].sel(chosen).item()
    return one["x"], one["y"]


def estimated_as(transform, draws, places):
    """The density of transformed draws at transformed places."""
    fit = pk.density.BayesianKDE("isotropic").fit(transform(draws.values.ravel()))
    return np.exp(fit.log_density(transform(places)))


@pytest.mark.long
def test_no_density_beyond_a_bound(bounded):
    model, tree = bounded
    posterior = tree["posterior"].to_dataset()
    collection = pk.plot_density(tree, model=model, backend="none")
    x, density = curve(collection, "tau")
    assert x.min() > 0.0
    assert np.trapezoid(density, x) == pytest.approx(1.0, abs=0.02)
    # It is the estimate of the logarithm with the Jacobian of the exponential.
    smooth = x > 0.2  # nearer to zero it is an average over the width of a point
    expected = estimated_as(np.log, posterior["tau"], x) / x
    np.testing.assert_allclose(density[smooth], expected[smooth], rtol=0.01, atol=1e-3)
    assert np.trapezoid(np.abs(density - stats.gamma(2.0).pdf(x)), x) < 0.15
    for group, low, width in (("a", 0.0, 1.0), ("b", 10.0, 20.0)):
        x, density = curve(collection, "between", group=group)
        assert np.trapezoid(density, x) == pytest.approx(1.0, abs=0.02)
        shares = (x - low) / width
        assert 0.0 < shares.min() < 0.02
        assert 1.0 > shares.max() > 0.98
        expected = estimated_as(logit, (posterior["between"].sel(group=group) - low) / width, shares)
        inside = np.abs(shares - 0.5) < 0.4
        np.testing.assert_allclose(density[inside], (expected / (width * shares * (1.0 - shares)))[inside], rtol=0.01)
    # What has no bounds of its own by the model is drawn as far as there are draws.
    for name in ("below_tau", "angle", "root"):
        x, density = curve(collection, name)
        assert (x.min(), x.max()) == (posterior[name].min(), posterior[name].max())
        assert np.trapezoid(density, x) == pytest.approx(1.0, abs=0.15)


def test_bounds_without_a_model_and_by_context(bounded):
    model, tree = bounded
    quick = {"max_draws": 50, "backend": "none"}
    without, _ = curve(pk.plot_density(tree, var_names="tau", **quick), "tau")
    assert without.min() == tree["posterior"]["tau"].min()
    with model:
        found = pk.plot_density(tree, var_names=["tau", "between"], coords={"group": "b"}, **quick)
    expected = pk.plot_density(tree, var_names=["tau", "between"], model=model, **quick)
    for name, chosen in (("tau", {}), ("between", {"group": "b"})):
        np.testing.assert_allclose(curve(found, name), curve(expected, name, **chosen))


@pytest.mark.parametrize("backend", BACKENDS)
def test_densities_fit_the_page(backend, bounded):
    model, tree = bounded
    collection = pk.plot_density(tree, model=model, rug=True, max_draws=40, backend=backend)
    check_page(collection, ["density", "90% over the bandwidth"])
    if backend == "none":
        marks = collection.viz["rug"]["between"].sel(group="b").item()
        assert set(marks["x"]) == set(tree["posterior"]["between"].sel(group="b").values.ravel()[::10])
        titles = [e["string"] for v in collection.viz["title"].data_vars.values() for e in np.atleast_1d(v.values)]
        assert titles == ["tau", "between[a]", "between[b]", "below_tau", "angle", "root"]


def test_a_rule_is_plotted_as_its_calibration(rng):
    latent = rng.normal(size=(150, 2))
    rule = pk.embeddings.KernelBayesRule().fit(latent, latent + 0.5 * rng.normal(size=(150, 2)), rng=0)
    collection, expected = (
        pk.plot_calibration(one, backend="none", random_seed=0) for one in (rule, rule.calibration(rng=0))
    )
    check_page(collection, None)
    assert "TARP" not in pk.plot_calibration(rule, coverage=True, backend="none").viz["ecdf_lines"]
    with pytest.raises(ValueError, match="must name 2"):
        pk.plot_calibration(rule, var_names=["a"])
    for name in ("latent[0]", "latent[1]", "TARP"):
        lines = [one.viz["ecdf_lines"][name].item() for one in (collection, expected)]
        np.testing.assert_array_equal(lines[0]["y"], lines[1]["y"])
        # Right posteriors pass the test that the picture shows.
        assert float(collection.viz["p_value_text"][name].item()["string"].split("=")[1].split("(")[0]) > 0.05
