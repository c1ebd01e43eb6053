"""Plots of surrogates, of sequential Monte Carlo and of calibration; other modules compute what is plotted."""

from collections.abc import Sequence
from typing import Any

import arviz as az
import arviz_plots as azp
import numpy as np
import numpy.typing as npt
import xarray as xr
from arviz_base.labels import MapLabeller
from arviz_plots import visuals
from matplotlib.axes import Axes

from pymc_kernel.embeddings import FittedRule, RuleCalibration
from pymc_kernel.plugin.arguments import RandomSeed
from pymc_kernel.plugin.reports.panels import add_legend, grid_arguments


def plot_score(
    surrogate: Any,
    draws: npt.ArrayLike,
    dims: tuple[int, int] = (0, 1),
    *,
    num_arrows: int = 18,
    ax: Axes | None = None,
) -> Axes:
    """Plot a learned log density and its score over draws, in two coordinates of the unconstrained space.

    Parameters
    ----------
    surrogate
        A fitted model of ``pymc_kernel.scores``: ``step.surrogate`` after ``sample_khmc``, or one that you fitted.
    draws : array_like (..., d)
        On the unconstrained scale: ``pk.unconstrained_draws(idata, model)``.
    dims : pair of int
        The coordinates of the picture (``ValueError`` if there are none such); the others are held at their medians.
    num_arrows : int
        In each direction.
    ax : matplotlib.axes.Axes, optional

    Examples
    --------
    >>> import numpy as np, pymc_kernel as pk
    >>> rng = np.random.default_rng(1)
    >>> draws = rng.normal(size=(300, 2))
    >>> fitted = pk.scores.Values().fit(draws, -0.5 * (draws**2).sum(axis=1), rng)
    >>> picture = pk.plot_score(fitted, draws)
    """
    import matplotlib.pyplot as plt

    draws = np.asarray(draws, dtype=float)
    draws = draws.reshape(-1, draws.shape[-1])
    d = draws.shape[1]
    if len(set(dims)) != 2 or not all(isinstance(i, int | np.integer) and 0 <= i < d for i in dims):
        raise ValueError(f"dims must be two different coordinates from 0 to {d - 1}, got {dims!r}.")
    horizontal, vertical = dims
    ranges = np.quantile(draws[:, list(dims)], (0.005, 0.995), axis=0).T
    middle = np.median(draws, axis=0)
    places = _plane(middle, dims, ranges, num_arrows)[2]
    score = surrogate.score(places)
    across, up, pixels = _plane(middle, dims, ranges, 150)  # sharp at the default size of the figure
    level = surrogate.log_density(pixels).reshape(len(up), len(across))
    # In units of the plot, with the square root of the length: scores in the tails would hide all others.
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


# For each group: the dimension of its statistics, and those that are plotted.
_BY_STAGE = "inverse_temperature", "ess_share", "accept", "correlation", "moves", "log_evidence_increment"
_BY_ITERATION = "effective_share", "log_evidence_of_iteration", "drift", "mean_scale"
_STATISTICS = {"smc_stats": ("stage", _BY_STAGE), "pmc_stats": ("iteration", _BY_ITERATION)}
_TITLES = {"ess_share": "effective share", "accept": "acceptance rate", "log_evidence_increment": "log evidence added"}


def plot_smc(
    data: xr.DataTree, *, var_names: str | Sequence[str] | None = None, backend: str | None = None
) -> azp.PlotCollection:
    """Plot the statistics of sequential or population Monte Carlo by stage, one panel each, with a line for each chain.

    Parameters
    ----------
    data : DataTree
        From ``pk.sample_smc`` or ``pk.sample_pmc``.
    var_names : list of str, optional
        Statistics of ``smc_stats`` or ``pmc_stats`` by stage or iteration; another name is a ``ValueError``.
    backend
        As in :func:`plot_ksd`.

    Examples
    --------
    >>> import numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    ...     y = pm.Normal("y", x[0] ** 2 + x[1], 0.5, observed=1.0)
    ...     idata = pk.sample_smc(200, chains=2, cores=1, random_seed=1, progressbar=False)
    >>> picture = pk.plot_smc(idata)
    """
    group = next((name for name in _STATISTICS if name in data.children), None)
    if group is None:
        raise ValueError("no group smc_stats or pmc_stats: take pk.sample_smc or pk.sample_pmc.")
    along, panels = _STATISTICS[group]
    stats = data[group].to_dataset()
    known = [name for name in stats.data_vars if stats[name].dims == ("chain", along)]
    chosen = [name for name in panels if name in known] if var_names is None else list(np.atleast_1d(var_names))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"{group} has no {', '.join(unknown)} by {along}; it has {', '.join(known)}.")
    count = np.broadcast_to(stats[along].values.astype(float), stats[chosen[0]].shape)
    lines = xr.Dataset(
        {name: (("plot_axis", "chain", along), [count, stats[name].values]) for name in chosen},
        {"plot_axis": ["x", "y"], "chain": stats["chain"].values},
    )
    arguments = {"cols": ["__variable__"], "aes": {"color": ["chain"]}} | grid_arguments(len(chosen), backend)
    collection = azp.PlotCollection.wrap(lines.isel(plot_axis=0, drop=True), backend=backend, **arguments)
    collection.map(visuals.line_xy, "statistic", data=lines)
    collection.map(visuals.labelled_x, "xlabel", text=along, ignore_aes="all", subset_info=False)
    named = MapLabeller({name: _TITLES.get(name, name.replace("_", " ")) for name in chosen})
    collection.map(visuals.labelled_title, "title", ignore_aes="all", subset_info=True, labeller=named)
    colors = collection.aes["color"]["mapping"]
    add_legend(collection, {f"chain {c}": {"color": colors.sel(chain=c).item()} for c in lines["chain"].values})
    return collection


def plot_calibration(
    calibration: FittedRule | RuleCalibration,
    *,
    var_names: str | Sequence[str] | None = None,
    coverage: bool = False,
    random_seed: RandomSeed = None,
    **kwargs: Any,
) -> azp.PlotCollection:
    """Plot how well the posteriors of a fitted rule cover: deviations of ranks from uniform, with a test.

    There is a panel for each latent and, unless ``coverage``, one for the joint regions ("TARP").

    Parameters
    ----------
    calibration : pymc_kernel.embeddings.FittedRule or pymc_kernel.embeddings.RuleCalibration
        A fitted rule, or the result of its ``calibration()``.
    var_names : sequence of str, optional
        Names of the latents, ``latent[0]`` and so on by default.
    coverage : bool
        Show the coverage of central intervals in place of ranks.
    random_seed : int or numpy.random.Generator, optional
        Of the cases and draws for the calibration of a rule.
    **kwargs
        Passed to ``arviz_plots.plot_ecdf_pit``.

    Examples
    --------
    >>> import numpy as np, pymc_kernel as pk
    >>> rng = np.random.default_rng(1)
    >>> latent = rng.normal(size=(300, 1))
    >>> rule = pk.embeddings.KernelBayesRule().fit(latent, latent + 0.5 * rng.normal(size=(300, 1)))
    >>> picture = pk.plot_calibration(rule)
    """
    if isinstance(calibration, FittedRule):
        calibration = calibration.calibration(rng=random_seed)
    count = calibration.ranks.shape[1]
    names = [f"latent[{j}]" for j in range(count)] if var_names is None else list(var_names)
    if len(names) != count:
        raise ValueError(f"var_names must name {count} latents, got {len(names)}.")
    ranks = {name: calibration.ranks[None, :, j] for j, name in enumerate(names)}
    if not coverage:  # joint regions have no central intervals
        ranks["TARP"] = calibration.regions[None]
    tree = az.from_dict({"prior_sbc": ranks})
    kwargs = grid_arguments(len(ranks), kwargs.get("backend")) | {"visuals": {"ylabel": True}} | kwargs
    return azp.plot_ecdf_pit(tree, coverage=coverage, **kwargs)
