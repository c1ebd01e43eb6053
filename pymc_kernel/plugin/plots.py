"""Pictures. What they show is computed elsewhere."""

import warnings
from collections.abc import Sequence
from typing import Any

import arviz as az
import arviz_plots as azp
import numpy as np
import numpy.typing as npt
import xarray as xr
from arviz_plots import visuals
from matplotlib.axes import Axes

from pymc_kernel import stein
from pymc_kernel.density import BayesianKDE
from pymc_kernel.embeddings import Calibration
from pymc_kernel.plugin import diagnostics
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.model_draws import as_chains_and_draws, choose, list_sample_dims, read_draws
from pymc_kernel.plugin.stein_uses import stein_thin
from pymc_kernel.stein.draws import as_chains, choose_thinning, thin_chains

__all__ = [
    "plot_calibration",
    "plot_density",
    "plot_ksd",
    "plot_ksd_evolution",
    "plot_score",
    "plot_smc",
    "plot_stein_thin",
]

_QUANTILES = (0.005, 0.995)
_PIXELS = 150


def plot_score(
    surrogate: Any,
    draws: npt.ArrayLike,
    dims: tuple[int, int] = (0, 1),
    *,
    num_arrows: int = 18,
    ax: Axes | None = None,
) -> Axes:
    """Draw a learnt log density and its score over draws, two coordinates of the unconstrained space at a time.

    Parameters
    ----------
    surrogate
        A fitted model of ``pymc_kernel.scores``: ``step.surrogate`` after ``sample_khmc``, or one of your own.
    draws : array_like (..., d)
        On the unconstrained scale: ``pk.unconstrained_draws(idata["posterior"].to_dataset(), model)``.
    dims : pair of int
        The coordinates of the picture; the others are held at their medians.
    num_arrows : int
        In each direction.
    ax : matplotlib.axes.Axes, optional

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Where a coordinate does not exist.
    """
    import matplotlib.pyplot as plt

    draws = np.asarray(draws, dtype=float)
    draws = draws.reshape(-1, draws.shape[-1])
    d = draws.shape[1]
    if len(set(dims)) != 2 or not all(isinstance(i, int | np.integer) and 0 <= i < d for i in dims):
        raise ValueError(f"dims must be two different coordinates from 0 to {d - 1}, got {dims!r}.")
    horizontal, vertical = dims
    ranges = np.quantile(draws[:, list(dims)], _QUANTILES, axis=0).T
    middle = np.median(draws, axis=0)
    places = _plane(middle, dims, ranges, num_arrows)[2]
    score = surrogate.score(places)
    across, up, pixels = _plane(middle, dims, ranges, _PIXELS)
    level = surrogate.log_density(pixels).reshape(_PIXELS, _PIXELS)
    # In units of the picture, and by the root of the length: scores in the tails would hide all others.
    arrows = score[:, list(dims)] * np.ptp(ranges, axis=1)
    length = np.linalg.norm(arrows, axis=1, keepdims=True)
    arrows = arrows / np.sqrt(np.maximum(length, 1e-300)) * np.ptp(ranges, axis=1)
    if ax is None:
        _, ax = plt.subplots(figsize=(5.5, 4.5))
    heights = level.max() - np.array([15.0, 10.0, 6.0, 3.0, 1.5, 0.5])
    ax.contourf(across, up, level, levels=[*heights, level.max() + 1e-9], cmap="Blues", extend="min", alpha=0.6)
    shown = draws[:: max(1, len(draws) // 1000)]
    ax.plot(shown[:, horizontal], shown[:, vertical], ".", color="0.25", markersize=2, alpha=0.5)
    ax.quiver(places[:, horizontal], places[:, vertical], *arrows.T, color="C3", angles="xy", width=0.003, headwidth=4)
    ax.set(xlabel=f"coordinate {horizontal}", ylabel=f"coordinate {vertical}", xlim=ranges[0], ylim=ranges[1])
    return ax


def _plane(middle, dims, ranges, num):
    """Return the grids of both coordinates, and their points (num^2, d) with the others as in ``middle``."""
    across, up = (np.linspace(*r, num) for r in ranges)
    places = np.tile(middle, (num**2, 1))
    places[:, dims[0]], places[:, dims[1]] = (g.ravel() for g in np.meshgrid(across, up))
    return across, up, places


def plot_ksd(
    data: Any,
    *,
    backend: str | None = None,
    plot_collection: azp.PlotCollection | None = None,
    **arguments: Any,
) -> azp.PlotCollection:
    """Draw the null distribution of the kernel Stein discrepancy with what the draws have, joint and per parameter.

    Parameters
    ----------
    data : DataTree or convertible, or KSDReport
        Draws, or the result of ``pk.ksd_test``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        As everywhere in ArviZ.
    plot_collection : arviz_plots.PlotCollection, optional
        To draw into.
    **arguments
        Of ``pk.ksd_test``: ``model``, ``var_names`` and so on.

    Returns
    -------
    arviz_plots.PlotCollection
        A panel for all parameters together, ``joint``, and one each; the line is the draws' own discrepancy.
    """
    report = data if isinstance(data, diagnostics.KSDReport) else diagnostics.ksd_test(data, **arguments)
    joint = xr.DataArray(report.test.null, dims="replicate")
    null = xr.Dataset({"joint": joint, **np.sqrt(report.null).data_vars})
    own = report.ksd * np.sqrt(report.shares)
    observed = xr.Dataset({"joint": xr.DataArray(report.ksd), **own.data_vars})
    plot_collection = azp.plot_dist(
        xr.DataTree.from_dict({"null": null}),
        group="null",
        sample_dims=["replicate"],
        backend=backend,
        plot_collection=plot_collection,
        visuals={"credible_interval": False, "point_estimate": False, "point_estimate_text": False},
    )
    plot_collection.map(visuals.vline, "observed", data=observed, ignore_aes="all", color="C1")
    return plot_collection


def plot_ksd_evolution(
    data: Any,
    *,
    num_sizes: int = 8,
    num_replicates: int = 300,
    max_draws: int | None = 2000,
    backend: str | None = None,
    random_seed: RandomSeed = None,
    **arguments: Any,
) -> azp.PlotCollection:
    """Draw the kernel Stein discrepancy against the number of draws, with its null band, a panel for each chain.

    Parameters
    ----------
    data : DataTree or convertible
    num_sizes : int
        Numbers of draws, evenly spaced.
    num_replicates : int
        Of the bootstrap, for the band from 5 % to 95 %.
    max_draws : int, optional
        Of each chain, after thinning.
    backend
        As in :func:`plot_ksd`.
    random_seed : int, optional
    **arguments
        ``model``, ``var_names``, ``filter_vars``, ``group``, ``coords``, ``sample_dims``, ``score`` as in ``pk.ksd``.

    Returns
    -------
    arviz_plots.PlotCollection

    Notes
    -----
    All sizes are standardised alike, by the mean and covariance of all draws.
    """
    part = read_draws(data, **arguments)
    chains = as_chains(part.draws, part.scores)
    thin = choose_thinning(chains.draws, chains.lengths)
    if max_draws is not None:
        thin = max(thin, -(-min(chains.lengths) // max_draws))
    draws, scores = stein.standardise(chains.draws, chains.scores)
    chains = thin_chains(chains._replace(draws=draws, scores=scores), thin)
    length = min(chains.lengths)
    sizes = np.unique(np.linspace(length / num_sizes, length, num_sizes).astype(int))
    rng = np.random.default_rng(0 if random_seed is None else random_seed)
    found = np.empty((len(chains.lengths), len(sizes), 3))
    edges = np.cumsum((0, *chains.lengths))
    for c, first in enumerate(edges[:-1]):
        for s, size in enumerate(sizes):
            rows = slice(first, first + size)
            test = stein.ksd_test(
                chains.draws[rows], chains.scores[rows], how="none", thin=1, num_replicates=num_replicates, rng=rng
            )
            found[c, s] = test.ksd, *test.null_quantiles
    count = np.broadcast_to(sizes * thin, found.shape[:2])
    dims = ("chain", "size")
    name, sides = "KSD of chain", ["x", "y_bottom", "y_top"]
    lines = xr.Dataset({name: (("plot_axis", *dims), [count, found[..., 0]])}, {"plot_axis": ["x", "y"]})
    band = xr.Dataset({name: (("kwarg", *dims), [count, found[..., 1], found[..., 2]])}, {"kwarg": sides})
    collection = azp.PlotCollection.wrap(lines.isel(plot_axis=0, drop=True), cols=["chain"], backend=backend)
    collection.map(visuals.fill_between_y, "null_band", data=band, color="C0", alpha=0.3)
    collection.map(visuals.line_xy, "ksd", data=lines, color="C1")
    collection.map(visuals.labelled_x, "xlabel", text="draws", subset_info=False)
    collection.map(visuals.labelled_y, "ylabel", text="KSD", subset_info=False)
    collection.map(visuals.labelled_title, "title", subset_info=True, labeller=azp.visuals.BaseLabeller())
    return collection


def plot_stein_thin(
    data: Any,
    num_points: int = 50,
    *,
    var_names: str | Sequence[str] | None = None,
    coords: dict[str, Any] | None = None,
    backend: str | None = None,
    **arguments: Any,
) -> azp.PlotMatrix:
    """Draw pairs of parameters with the draws that Stein thinning chooses.

    Parameters
    ----------
    data : DataTree or convertible
    num_points : int
        Draws to choose.
    var_names, coords
        What is drawn, and looked at by the choice.
    backend
        As in :func:`plot_ksd`.
    **arguments
        Of ``pk.stein_thin``: ``model``, ``group`` and so on.

    Returns
    -------
    arviz_plots.PlotMatrix
    """
    chosen = stein_thin(data, num_points, var_names=var_names, coords=coords, **arguments)
    group = arguments.get("group", "posterior")
    matrix = azp.plot_pair(
        data,
        var_names=var_names,
        coords=coords,
        group=group,
        sample_dims=arguments.get("sample_dims"),
        backend=backend,
        visuals={"scatter": {"alpha": 0.15, "color": "C0"}},
    )
    points = chosen[group].to_dataset()
    points = points if var_names is None else points[list(np.atleast_1d(var_names))]
    points = points if coords is None else points.sel(coords)
    points = points.drop_vars(["source_chain", "source_draw"], errors="ignore")
    matrix.map_lower(visuals.scatter_couple, "chosen", data=points, color="C1", alpha=1.0, ignore_aes="all")
    return matrix


_LEAST_DISTINCT = 0.5  # of the draws; with fewer, a variable is discrete, or has an atom
_SMC_PANELS = ("inverse_temperature", "ess_share", "accept", "correlation", "moves", "log_evidence_increment")
_PMC_PANELS = ("effective_share", "log_evidence_of_iteration", "drift", "mean_scale")


def _three_in_a_row(num_panels):
    """Return the arguments of a collection that wraps panels, with room for them."""
    return {
        "col_wrap": 3,
        "figure_kwargs": {"figsize": (10.0, 3.2 * -(-num_panels // 3)), "figsize_units": "inches"},
    }


def plot_smc(
    data: xr.DataTree, *, var_names: str | Sequence[str] | None = None, backend: str | None = None
) -> azp.PlotCollection:
    """Draw the statistics of sequential or population Monte Carlo by stage, a panel for each, a line for each chain.

    Parameters
    ----------
    data : DataTree
        From ``pk.sample_smc``, ``pk.smc_stats`` or ``pk.sample_pmc``.
    var_names : list of str, optional
        Statistics of ``smc_stats`` or ``pmc_stats`` by stage or iteration.
    backend
        As in :func:`plot_ksd`.

    Returns
    -------
    arviz_plots.PlotCollection

    Raises
    ------
    ValueError
        Where the statistics are missing, or a name is not one of them.
    """
    groups = {"smc_stats": ("stage", _SMC_PANELS), "pmc_stats": ("iteration", _PMC_PANELS)}
    group = next((name for name in groups if name in data.children), None)
    if group is None:
        raise ValueError("no group smc_stats or pmc_stats: make it by pk.smc_stats(idata) after pm.sample_smc.")
    along, panels = groups[group]
    told = data[group].to_dataset()
    known = [name for name in told.data_vars if told[name].dims == ("chain", along)]
    chosen = [name for name in panels if name in known] if var_names is None else list(np.atleast_1d(var_names))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"{group} has no {', '.join(unknown)} by {along}; it has {', '.join(known)}.")
    count = np.broadcast_to(told[along].values.astype(float), told[chosen[0]].shape)
    lines = xr.Dataset(
        {name: (("plot_axis", "chain", along), [count, told[name].values]) for name in chosen},
        {"plot_axis": ["x", "y"], "chain": told["chain"].values},
    )
    collection = azp.PlotCollection.wrap(
        lines.isel(plot_axis=0, drop=True),
        cols=["__variable__"],
        aes={"color": ["chain"]},
        backend=backend,
        **_three_in_a_row(len(chosen)),
    )
    collection.map(visuals.line_xy, "statistic", data=lines)
    collection.map(visuals.labelled_x, "xlabel", text=along, ignore_aes="all", subset_info=False)
    labels = {"subset_info": True, "labeller": azp.visuals.BaseLabeller()}
    collection.map(visuals.labelled_title, "title", ignore_aes="all", **labels)
    return collection


def plot_density(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    filter_vars: str | None = None,
    group: str = "posterior",
    coords: dict[str, Any] | None = None,
    sample_dims: str | Sequence[str] | None = None,
    probability: float = 0.9,
    max_draws: int = 500,
    num_points: int = 200,
    backend: str | None = None,
) -> azp.PlotCollection:
    """Draw the density of each parameter by a Bayesian bandwidth, with the band of what the bandwidth may be.

    Parameters
    ----------
    data : DataTree or convertible
    var_names, filter_vars, group, coords, sample_dims
        What is drawn, as in ArviZ.
    probability : float
        Of the band, over the posterior of the bandwidth.
    max_draws : int
        Of each parameter, after chains are thinned to an autocorrelation below a half: a leave-one-out likelihood takes
        points as independent. O(max_draws^2) for each.
    num_points : int
        Of the curve.
    backend
        As in :func:`plot_ksd`.

    Returns
    -------
    arviz_plots.PlotCollection

    Notes
    -----
    Densities are those of ``pk.density.BayesianKDE``. Discrete variables are left out; a parameter that is constant, or
    has fewer than half of its draws at places of their own, gets an empty panel. Near the bound of a constrained
    parameter densities are too low, as every kernel estimate is.
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie between 0 and 1, got {probability!r}.")
    tree = az.convert_to_datatree(data)
    dims = list_sample_dims(sample_dims)
    chosen = as_chains_and_draws(choose(tree, var_names, filter_vars, group, coords, dims), dims)

    def curve(values):
        return _density_curve(values, probability, max_draws, num_points)

    without = [name for name, v in chosen.data_vars.items() if not np.issubdtype(v.dtype, np.floating)]
    chosen = chosen.drop_vars(without)
    if not chosen.data_vars:
        raise ValueError(f"no continuous variable to draw; {', '.join(without)} have no density.")
    curves = xr.apply_ufunc(
        curve, chosen, input_core_dims=[["chain", "draw"]], output_core_dims=[["curve", "point"]], vectorize=True
    )
    lines = curves.isel(curve=[0, 1]).rename(curve="plot_axis").assign_coords(plot_axis=["x", "y"])
    band = curves.isel(curve=[0, 2, 3]).rename(curve="kwarg").assign_coords(kwarg=["x", "y_bottom", "y_top"])
    panels = lines.isel(plot_axis=0, point=0, drop=True)
    others = list(dict.fromkeys(d for v in panels.data_vars.values() for d in v.dims))
    count = sum(int(np.prod(v.shape)) for v in panels.data_vars.values())
    collection = azp.PlotCollection.wrap(
        panels,
        cols=["__variable__", *others],
        backend=backend,
        **_three_in_a_row(count),
    )
    collection.map(visuals.fill_between_y, "band", data=band, color="C0", alpha=0.3)
    collection.map(visuals.line_xy, "density", data=lines, color="C0")
    collection.map(visuals.labelled_title, "title", subset_info=True, labeller=azp.visuals.BaseLabeller())
    return collection


def _density_curve(values, probability, max_draws, num_points):
    """Return places, density and its band, (4, num_points), of draws (chain, draw); NaN where there is no density."""
    thin = choose_thinning(values.reshape(-1, 1), (values.shape[1],) * values.shape[0]) if np.ptp(values) > 0 else 1
    kept = values[:, ::thin].ravel()
    kept = kept[:: -(-len(kept) // max_draws)]
    if not np.isfinite(kept).all() or len(np.unique(kept)) < _LEAST_DISTINCT * len(kept):
        return np.full((4, num_points), np.nan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*repeat an earlier one")
        fit = BayesianKDE("isotropic").fit(kept)
    margin = 3.0 * np.sqrt(fit.bandwidth_[0, 0])
    places = np.linspace(kept.min() - margin, kept.max() + margin, num_points)
    return np.vstack([places, np.exp(fit.log_density(places)), fit.interval(places, probability)])


def plot_calibration(
    calibration: Calibration,
    *,
    var_names: str | Sequence[str] | None = None,
    coverage: bool = False,
    **kwargs: Any,
) -> azp.PlotCollection:
    """Plot whether the posteriors of a fitted rule cover: differences of ranks from uniform ones, with a test.

    Parameters
    ----------
    calibration : pymc_kernel.embeddings.Calibration
        From ``rule.calibration()``.
    var_names : sequence of str, optional
        Names of the latents, ``latent[0]`` and so on by default.
    coverage : bool
        Show the coverage of central intervals in place of ranks.
    **kwargs
        Of ``arviz_plots.plot_ecdf_pit``.

    Returns
    -------
    arviz_plots.PlotCollection
        A panel for each latent and, unless ``coverage``, one for the joint regions ("TARP").
    """
    count = calibration.ranks.shape[1]
    names = [f"latent[{j}]" for j in range(count)] if var_names is None else list(var_names)
    if len(names) != count:
        raise ValueError(f"var_names must name {count} latents, got {len(names)}.")
    ranks = {name: calibration.ranks[None, :, j] for j, name in enumerate(names)}
    if not coverage:  # the joint regions have no two sides
        ranks["TARP"] = calibration.regions[None]
    tree = az.from_dict({"prior_sbc": ranks})
    return azp.plot_ecdf_pit(tree, coverage=coverage, **kwargs)
