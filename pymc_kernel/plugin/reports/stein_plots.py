"""Plots of the kernel Stein discrepancy and of the draws that Stein thinning chooses."""

from typing import Any, Unpack

import arviz_plots as azp
import numpy as np
import xarray as xr
from arviz_base import rcParams
from arviz_plots import visuals

from pymc_kernel.plugin.reports import diagnostics
from pymc_kernel.plugin.reports.model_draws import Scored, Selection
from pymc_kernel.plugin.reports.panels import FlatLabeller, add_legend, backend_of, figure_arguments, scalars
from pymc_kernel.plugin.reports.stein_uses import stein_thin
from pymc_kernel.plugin.warn import warn_user

_JOINT = "all together"
_BAND_COLOR = "C0"
_OWN_COLOR = "C1"


def plot_ksd(data: Any, *, backend: str | None = None, **arguments: Any) -> azp.PlotCollection:
    """Plot the kernel Stein discrepancy beside its null distribution, a row for each parameter.

    The first row is the test of all parameters together; below it, set apart, is a row for each parameter: its
    statistic as a point, the central 90 % under random signs as a bar, and the p-value, corrected for all rows. Each
    row is in units of the median of its bar, so rows can be compared. With more than 40 parameters, only those with the
    largest statistics in these units are shown.

    Parameters
    ----------
    data : DataTree or convertible, or KSDReport
        Draws, or the result of ``pk.ksd_test``.
    backend : {"matplotlib", "bokeh", "plotly", "none"}, optional
        As everywhere in ArviZ.
    **arguments
        Passed to ``pk.ksd_test``: ``model``, ``var_names`` and so on.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> picture = pk.plot_ksd(data, model=model)
    >>> picture.savefig("checks.png")  # doctest: +SKIP
    """
    report = data if isinstance(data, diagnostics.KSDReport) else diagnostics.ksd_test(data, **arguments)
    own, band, p_values, y, heights = _rows(report)
    figure = figure_arguments(24.0 * (heights[_JOINT] + 1.0) + 130.0, backend)
    collection = azp.PlotCollection.wrap(own, cols=[], backend=backend, figure_kwargs=figure)
    ends = [float(end) for one in (own, band) for v in one.data_vars.values() for end in (v.min(), v.max())]
    low, high = np.nanmin(ends), np.nanmax(ends)
    start, stop = low - 0.03 * (high - low), high + 0.17 * (high - low)  # with room for p-values on the right
    collection.update_aes_from_dataset("y", y)
    collection.map(visuals.line_x, "null_band", data=band, color=_BAND_COLOR, alpha=0.4, width=8)
    collection.map(visuals.scatter_x, "observed", data=own, color=_OWN_COLOR, size=40)
    text = {"text": "{:.3f}".format, "horizontal_align": "right", "color": "B1"}
    collection.map(visuals.annotate_xy, "p_value", data=p_values, x=stop, **text)
    _add_names(collection, heights, start, stop)
    expected = "cannot be judged" if report.unjudged else f"as many normal draws {report.test.normal_ksd:.3g}"
    backend_of(collection).title(f"KSD {report.ksd:.3g}, {expected}", collection.get_target(None, {}))
    return collection


def _rows(report, most=40):
    """Return what a picture of discrepancies shows, in units of the medians of their null distributions.

    Datasets: the discrepancies, their null distributions' quantiles, p-values and heights of the rows. Rows that are
    left out, since no more than ``most`` are legible, have NaN in all of them. Then the heights by the labels of the
    rows.
    """
    null = xr.Dataset({_JOINT: ("replicate", report.test.null), **np.sqrt(report.null).data_vars})
    own = xr.Dataset({_JOINT: report.ksd, **np.sqrt(report.margins).data_vars})
    p_values = xr.Dataset({_JOINT: report.p_value, **report.p_values.data_vars})
    middle = null.median("replicate")
    own, band = own / middle, (null / middle).quantile((0.05, 0.95), dim="replicate")
    places = scalars(own)
    sizes = {label: float(own[name].sel(place)) for label, (name, place) in places.items() if name != _JOINT}
    shown = set(sorted(sizes, key=sizes.get, reverse=True)[:most])
    if len(shown) < len(sizes):
        warn_user(
            f"{len(sizes)} parameters are too many for one picture: the {most} whose discrepancy is largest are "
            "shown. Choose others by var_names= and coords=."
        )
    in_order = [label for label in sizes if label in shown]
    heights = {_JOINT: len(shown) + 0.6} | {label: len(shown) - 1.0 - i for i, label in enumerate(in_order)}
    y = xr.full_like(own, np.nan)
    for label, height in heights.items():
        name, place = places[label]
        y[name].loc[place] = height
    return *(one.where(np.isfinite(y)) for one in (own, band, p_values)), y, heights


def _add_names(collection, heights, start, stop):
    """Label the rows, the axis and the colors."""
    backend, panel, top = backend_of(collection), collection.get_target(None, {}), heights[_JOINT]
    backend.yticks(list(heights.values()), list(heights), panel)
    backend.hline(top - 0.8, panel, color="B3", width=1)  # halfway to the next row
    backend.text(stop, top + 1.0, "p-value", panel, color="B1", horizontal_align="right")
    backend.xlim((start, stop + 0.01 * (stop - start)), panel)
    backend.ylim((-0.8, top + 1.6), panel)
    backend.xlabel("distance from the model / its median with random signs", panel)
    own, band = {"color": _OWN_COLOR, "width": 4, "marker": "o"}, {"color": _BAND_COLOR, "width": 8, "alpha": 0.4}
    add_legend(collection, {"the draws": own, "the same draws, random signs (90 %)": band})


def plot_stein_thin(
    data: Any, num_points: int = 50, *, max_parameters: int = 5, backend: str | None = None, **selection: Unpack[Scored]
) -> azp.PlotMatrix:
    """Plot pairs of parameters with the draws that Stein thinning chooses.

    Names are on the diagonal; below it all draws and the chosen ones, above it only the chosen ones.

    Parameters
    ----------
    data : DataTree or convertible
    num_points : int
        Draws to choose.
    max_parameters : int
        The number of panels grows with its square. If there are more parameters, only the first are plotted, with a
        warning that names them; the choice of draws uses all.
    backend
        As in :func:`plot_ksd`.
    **selection
        As in ``pk.stein_thin``: ``model``, ``var_names`` and so on. Draws are chosen by the selected variables, which
        are plotted.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc as pm, pymc_kernel as pk
    >>> with pm.Model() as model:
    ...     x = pm.Normal("x", shape=2)
    >>> draws = np.random.default_rng(1).normal([0.0, 0.5], 1.0, (4, 250, 2))  # the second mean is wrong
    >>> data = az.from_dict({"posterior": {"x": draws}})
    >>> picture = pk.plot_stein_thin(data, 20, model=model)
    """
    chosen = stein_thin(data, num_points, **selection)
    selected = Selection(data, **selection)
    draws = selected.as_chains(selected.chosen)
    points = chosen[selected.group].to_dataset()[list(draws.data_vars)].sel(selected.coords or {})
    names = list(scalars(draws))
    if len(names) > max_parameters:
        warn_user(
            f"{len(names)} parameters make {len(names) ** 2} panels: pairs of {', '.join(names[:max_parameters])} are "
            "drawn. Choose others by var_names= and coords=, or set max_parameters=."
        )
        names = names[:max_parameters]
    if len(names) < 2:
        raise ValueError(f"{', '.join(names)} has no pairs: choose two parameters or more.")
    return _pairs(*(_flat(one, names) for one in (draws, points)), backend)


def _pairs(draws, points, backend):
    """Return the matrix of pairs of scalar variables, of draws and of the points chosen among them."""
    arguments = figure_arguments(160.0 * len(draws.data_vars), backend)
    if (backend or rcParams["plot.backend"]) == "plotly":  # its default gap is as high as a row
        arguments |= {"vertical_spacing": 0.02, "plot_hspace": 0.02}
    arguments |= {"sharex": "col", "sharey": "row"}
    matrix = azp.PlotMatrix(draws, ["__variable__"], backend=backend, figure_kwargs=arguments)
    draws, points = draws.stack(sample=["chain", "draw"], create_index=False), points.isel(chain=0, drop=True)
    low, high = draws.min(), draws.max()
    margin = 0.05 * (high - low)
    ends, centers = {"lim_low": low - margin, "lim_high": high + margin}, 0.5 * (low + high)
    labels = {"subset_info": True, "labeller": FlatLabeller()}
    matrix.map(visuals.label_plot, "label", x=centers, y=centers, **ends, **labels)
    every = {"color": _BAND_COLOR, "alpha": 0.15, "size": 8, "width": 0}
    few = {"color": _OWN_COLOR, "size": 14, "width": 0}
    matrix.map_lower(visuals.scatter_couple, "scatter", data=draws, **every)
    matrix.map_lower(visuals.scatter_couple, "chosen", data=points, **few)
    matrix.map_upper(visuals.scatter_couple, "chosen_alone", data=points, **few)
    colors = {"all draws": _BAND_COLOR, "chosen": _OWN_COLOR}
    add_legend(matrix, {name: {"color": color, "width": 4, "marker": "o"} for name, color in colors.items()})
    return matrix


def _flat(dataset, names):
    """Return the named scalars of a dataset as variables of their own."""
    places = scalars(dataset)
    return xr.Dataset({name: dataset[places[name][0]].sel(places[name][1]).reset_coords(drop=True) for name in names})
