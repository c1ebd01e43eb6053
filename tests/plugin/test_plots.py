import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pytest
import xarray as xr

import pymc_kernel as pk


@pytest.fixture
def fitted(rng):
    x = rng.normal(size=(200, 3)) @ np.diag([1.0, 5.0, 0.2])
    return pk.scores.Values().fit(x, -0.5 * (x**2 / [1.0, 25.0, 0.04]).sum(axis=1), rng, noisy=False), x


def test_arrows_point_to_the_mode(fitted):
    surrogate, draws = fitted
    ax = pk.plot_score(surrogate, draws.reshape(2, 100, 3), dims=(1, 0), num_arrows=7)
    [quiver] = [c for c in ax.collections if hasattr(c, "U")]
    assert quiver.U.size == 49
    far = np.abs(quiver.X) > 1.0
    assert (np.sign(quiver.U)[far] == -np.sign(quiver.X)[far]).all()
    assert ax.get_xlabel() == "coordinate 1"
    # In the same axes when given.
    assert pk.plot_score(surrogate, draws, ax=ax) is ax


@pytest.mark.parametrize("dims", [(0, 0), (0, 3), (-1, 1), (0.0, 1)])
def test_coordinates_that_do_not_exist_are_refused(dims, fitted):
    with pytest.raises(ValueError, match="two different coordinates from 0 to 2"):
        pk.plot_score(*fitted, dims=dims)


@pytest.mark.parametrize("backend", ["none", "matplotlib"])
def test_statistics_by_stage(backend):
    padded = np.array([[0.1, 0.6, 1.0], [0.4, 1.0, np.nan]])
    told = xr.Dataset(
        {"inverse_temperature": (("chain", "stage"), padded), "accept": (("chain", "stage"), padded / 2)},
        {"chain": [0, 1], "stage": range(3)},
    )
    told["log_evidence"] = ("chain", [1.0, 2.0])
    tree = xr.DataTree.from_dict({"smc_stats": told})
    collection = pk.plot_smc(tree, backend=backend)
    assert set(collection.viz.children) >= {"statistic", "title", "xlabel"}
    drawn = collection.viz["statistic"]
    assert set(drawn.data_vars) == {"inverse_temperature", "accept"}
    assert drawn.sizes["chain"] == 2
    if backend == "matplotlib":
        line = drawn["accept"].sel(chain=1).item()
        np.testing.assert_allclose(line.get_ydata(), padded[1] / 2)
    with pytest.raises(ValueError, match="has no log_evidence by stage"):
        pk.plot_smc(tree, var_names=["log_evidence"])
    with pytest.raises(ValueError, match="no group smc_stats"):
        pk.plot_smc(xr.DataTree())


@pytest.mark.parametrize("backend", ["none", "matplotlib"])
def test_densities_with_their_bands(backend, rng):
    draws = {"a": rng.normal(size=(2, 300)), "b": rng.normal([0.0, 5.0], 0.1, size=(2, 300, 2))}
    posterior = xr.Dataset(
        {"a": (("chain", "draw"), draws["a"]), "b": (("chain", "draw", "school"), draws["b"])},
        {"chain": [0, 1], "draw": range(300), "school": ["x", "y"]},
    )
    tree = xr.DataTree.from_dict({"posterior": posterior})
    collection = pk.plot_density(tree, backend=backend)
    drawn = collection.viz["density"]
    assert set(drawn.data_vars) == {"a", "b"}
    assert drawn["b"].sizes == {"school": 2}
    if backend == "matplotlib":
        places, heights = drawn["b"].sel(school="y").item().get_data()
        assert np.trapezoid(heights, places) == pytest.approx(1.0, abs=0.01)
        assert places[heights.argmax()] == pytest.approx(5.0, abs=0.1)
    only = pk.plot_density(tree, var_names=["b"], coords={"school": "x"}, backend="none")
    assert set(only.viz["density"].data_vars) == {"b"}
    with pytest.raises(ValueError, match="probability"):
        pk.plot_density(tree, probability=2.0)


def test_densities_of_what_has_none(rng):
    posterior = xr.Dataset(
        {
            "count": (("chain", "draw"), rng.poisson(3.0, size=(2, 200))),
            "fixed": (("chain", "draw"), np.ones((2, 200))),
            "atom": (("chain", "draw"), np.maximum(rng.normal(-1.0, 1.0, size=(2, 200)), 0.0)),
            "repeats": (("chain", "draw"), np.repeat(rng.normal(size=(2, 150)), [1, 1, 2] * 50, axis=1)),
        },
        {"chain": [0, 1], "draw": range(200)},
    )
    tree = xr.DataTree.from_dict({"posterior": posterior})
    drawn = pk.plot_density(tree, backend="matplotlib").viz["density"]
    assert set(drawn.data_vars) == {"fixed", "atom", "repeats"}
    # Nothing is drawn where there is no density.
    assert drawn["fixed"].item() is None
    assert drawn["atom"].item() is None
    heights = drawn["repeats"].item().get_ydata()
    assert heights.max() == pytest.approx(0.4, abs=0.12)
    with pytest.raises(ValueError, match="count have no density"):
        pk.plot_density(tree, var_names=["count"])
