"""Densities of parameters, estimated on the unconstrained scale and mapped back."""

import warnings
from collections.abc import Sequence
from typing import Any, Unpack

import arviz_plots as azp
import numpy as np
import xarray as xr
from arviz_plots import visuals
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import PchipInterpolator

from pymc_kernel.density import BayesianKDE
from pymc_kernel.plugin.model.unconstrained import elementwise_transform
from pymc_kernel.plugin.reports.model_draws import Selected, Selection
from pymc_kernel.plugin.reports.panels import FlatLabeller, add_legend, grid_arguments
from pymc_kernel.stein.draws import choose_thinning

_LEAST_DISTINCT = 0.5  # share of the draws; if fewer are distinct, a variable is discrete or has an atom
_LARGEST_CORRELATION = 0.5  # largest autocorrelation of the draws that a curve is estimated from
_COLOR = "C0"


def plot_density(
    data: Any,
    var_names: str | Sequence[str] | None = None,
    *,
    probability: float = 0.9,
    max_draws: int = 500,
    num_points: int = 200,
    rug: bool = False,
    backend: str | None = None,
    **selection: Unpack[Selected],
) -> azp.PlotCollection:
    """Plot the density of each parameter with a Bayesian bandwidth, and a band for the uncertainty of the bandwidth.

    Parameters
    ----------
    data : DataTree or convertible
    var_names, filter_vars, group, coords, sample_dims
        What to plot, as in ArviZ.
    model : pymc.Model, optional
        The model that was sampled, for the bounds of parameters; by default the one in context, if any.
    probability : float
        Probability of the band, under the posterior of the bandwidth.
    max_draws : int
        Draws used for each parameter, after chains are thinned to an autocorrelation below a half, because a
        leave-one-out likelihood assumes independent points. O(max_draws^2) for each.
    num_points : int
        Points on each curve.
    rug : bool
        Mark the draws that the curve is estimated from.
    backend
        As in :func:`plot_ksd`.

    Notes
    -----
    Densities are those of ``pk.density.BayesianKDE``. With a model they are estimated on the unconstrained scale, and
    mapped back by the Jacobian, averaged over the spacing of the curve's points. Variables without an elementwise
    transform (deterministic variables, simplices; all variables without a model) are estimated on their own scale, and
    plotted between the smallest and the largest draw, so no bound is crossed; near a bound these curves are too low.
    Discrete variables are left out; a parameter that is constant, or has fewer than half of its draws distinct, gets an
    empty panel.

    Examples
    --------
    >>> import arviz as az, numpy as np, pymc_kernel as pk
    >>> draws = np.random.default_rng(1).normal(size=(4, 250, 2))
    >>> picture = pk.plot_density(az.from_dict({"posterior": {"x": draws}}))
    """
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability must lie between 0 and 1, got {probability!r}.")
    selected = Selection(data, var_names, **selection)
    model, asked, whole = selected.model, selected.as_chains(selected.chosen), selected.draws
    without = [name for name, v in asked.data_vars.items() if not np.issubdtype(v.dtype, np.floating)]
    asked = asked.drop_vars(without)
    if not asked.data_vars:
        raise ValueError(f"no continuous variable to draw; {', '.join(without)} have no density.")
    by_name = {}
    for name, variable in whole[list(asked.data_vars)].items():
        transform = None if model is None else elementwise_transform(model, name)
        by_name[name] = _curves(variable, selected.entries(variable), transform, probability, max_draws, num_points)
    curves, kept = (xr.Dataset({name: pair[i] for name, pair in by_name.items()}) for i in (0, 1))
    return _drawn(curves, kept if rug else None, probability, backend)


def _drawn(curves, kept, probability, backend):
    """Return the plot of curves, with dimensions curve (place, density, ends of the band) and point, and of draws."""
    lines = curves.isel(curve=[0, 1]).rename(curve="plot_axis").assign_coords(plot_axis=["x", "y"])
    band = curves.isel(curve=[0, 2, 3]).rename(curve="kwarg").assign_coords(kwarg=["x", "y_bottom", "y_top"])
    panels = lines.isel(plot_axis=0, point=0, drop=True)
    others = list(dict.fromkeys(d for v in panels.data_vars.values() for d in v.dims))
    count = sum(v.size for v in panels.data_vars.values())
    arguments = {"cols": ["__variable__", *others], "backend": backend} | grid_arguments(count, backend)
    collection = azp.PlotCollection.wrap(panels, **arguments)
    collection.map(visuals.fill_between_y, "band", data=band, color=_COLOR, alpha=0.3)
    collection.map(visuals.line_xy, "density", data=lines, color=_COLOR)
    if kept is not None:
        collection.map(visuals.scatter_x, "rug", data=kept, color="B1", marker="|", size=30, alpha=0.5)
    collection.map(visuals.labelled_title, "title", subset_info=True, labeller=FlatLabeller())
    collection.map(visuals.remove_axis, axis="y", store_artist=False)
    shaded = {"color": _COLOR, "width": 8, "alpha": 0.3}
    add_legend(collection, {"density": {"color": _COLOR, "width": 2}, f"{probability:.0%} over the bandwidth": shaded})
    return collection


def _curves(whole, numbers, transform, probability, max_draws, num_points):
    """Return the curves (..., 4, num_points) of a variable's chosen elements, and the draws behind them (..., kept).

    ``whole`` has all elements of the variable, since each may have its own bounds; ``numbers`` are the indices of the
    chosen ones. ``transform`` is a pair of functions, to the unconstrained scale and back, or None.
    """
    columns = numbers.values.ravel()
    draws = whole.transpose("chain", "draw", ...).values
    flat = free = draws.reshape(*draws.shape[:2], -1)
    if transform is not None:
        free = transform[0](draws.reshape(-1, *draws.shape[2:])).reshape(flat.shape)
        if not np.isfinite(free).all():  # rounding has put a draw at a bound
            return _curves(whole, numbers, None, probability, max_draws, num_points)
    kept = [_thinned(free[..., c], max_draws) for c in columns]
    fits = [_fitted(free[..., c].ravel()[index]) for c, index in zip(columns, kept, strict=True)]
    places = np.zeros((num_points, flat.shape[2]))
    for c, fit in zip(columns, fits, strict=True):
        if fit is None:
            continue
        ends = free[..., c].min(), free[..., c].max()
        if transform is not None:  # as far beyond the draws as the estimate goes
            margin = 3.0 * np.sqrt(fit.bandwidth[0, 0])
            ends = fit.centers.min() - margin, fit.centers.max() + margin
        places[:, c] = np.linspace(*ends, num_points)
    there = places
    if transform is not None:
        there = transform[1](places.reshape(-1, *draws.shape[2:])).reshape(places.shape)
        if (np.diff(there[:, columns], axis=0) < 0.0).any():  # not increasing, as for an angle
            return _curves(whole, numbers, None, probability, max_draws, num_points)
    curves = np.full((numbers.size, 4, num_points), np.nan)
    rug = np.full((numbers.size, min(max_draws, flat[..., 0].size)), np.nan)
    for i, (c, index, fit) in enumerate(zip(columns, kept, fits, strict=True)):
        rug[i, : index.size] = flat[..., c].ravel()[index]
        if fit is not None:
            at = places[:, c]
            heights = np.vstack([np.exp(fit.log_density(at)), fit.interval(at, probability, rng=0)])
            curves[i] = [at, *heights] if transform is None else _mapped(at, heights, there[:, c], flat[..., c])
    return _labeled(curves, numbers, "curve", "point"), _labeled(rug, numbers, "kept")


def _mapped(places, heights, there, draws):
    """Return points evenly over the range of the draws, with densities (3, num_points) mapped there from ``places``.

    Each is an average over the width of its point, by the cumulative integral, which no transform changes: near a
    bound, the Jacobian turns single draws into peaks narrower than a line.
    """
    spare = 0.05 * np.ptp(draws)  # beyond the draws
    edges = np.linspace(max(there[0], draws.min() - spare), min(there[-1], draws.max() + spare), len(places) + 1)
    distinct = np.append(True, np.diff(there) > 0.0)
    below = cumulative_trapezoid(heights, places, initial=0.0)[:, distinct]
    averages = np.diff(PchipInterpolator(there[distinct], below, axis=1)(edges), axis=1) / np.diff(edges)
    return np.vstack([0.5 * (edges[1:] + edges[:-1]), averages])


def _labeled(values, like, *further):
    """Return values (like.size, ...) as a DataArray with the dimensions of ``like`` and further ones."""
    return xr.DataArray(values.reshape(*like.shape, *values.shape[1:]), like.coords, [*like.dims, *further])


def _thinned(draws, max_draws):
    """Return the indices, chain after chain, of draws (chain, draw) that are nearly independent."""
    lengths = (draws.shape[1],) * draws.shape[0]
    thin = choose_thinning(draws.reshape(-1, 1), lengths, _LARGEST_CORRELATION) if np.ptp(draws) > 0 else 1
    kept = np.arange(draws.size).reshape(draws.shape)[:, ::thin].ravel()
    return kept[:: -(-len(kept) // max_draws)]


def _fitted(kept):
    """Return the estimate from independent draws, None where there is no density."""
    if not np.isfinite(kept).all() or len(np.unique(kept)) < _LEAST_DISTINCT * len(kept) or np.ptp(kept) == 0.0:
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*repeat an earlier one")
        return BayesianKDE("isotropic").fit(kept, rng=0)  # the same draws give the same noise on ties
