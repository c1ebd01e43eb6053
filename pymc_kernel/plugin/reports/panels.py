"""Sizes, legends and names that all plots share, on each of ArviZ's backends."""

from importlib import import_module

from arviz_base import rcParams, xarray_sel_iter
from arviz_base.labels import BaseLabeller

WIDTH = 800.0  # dots; the column of text on GitHub and in notebooks is about as wide

# Where a legend stands: above the panels, which keep the whole width.
_LEGENDS = {
    "matplotlib": {"loc": "outside upper center", "frameon": False},
    "bokeh": {"side": "above", "orientation": "horizontal", "border_line_color": None},
    "plotly": {
        "legend": {"orientation": "h", "traceorder": "normal"}
        | {"x": 0.5, "xanchor": "center", "y": 1.0, "yref": "container", "yanchor": "top"},
        "margin": {"l": 60, "r": 20, "t": 70, "b": 50},
    },
    "none": {},
}
# Bokeh has no legend for a whole figure: it goes into the first panel, so that all panels have the same size.
_BOKEH_WITHIN = {
    "side": "center",
    "legend_target": (0, 0),
    "location": "top_left",
    "label_text_font_size": "8pt",
    "background_fill_alpha": 0.7,
    "border_line_color": None,
    "padding": 2,
    "spacing": 0,
}


class FlatLabeller(BaseLabeller):
    """Names in one line, ``theta[Choate]``, as in tables; ArviZ's own take two, which run into the panel above."""

    def make_label_vert(self, var_name, sel, isel):
        """Return the name of a panel."""
        return self.make_label_flat(var_name, sel, isel)


def backend_of(collection):
    """Return ArviZ's functions for the backend of a collection."""
    return import_module(f"arviz_plots.backend.{collection.backend}")


def figure_arguments(height: float, backend: str | None) -> dict:
    """Return the arguments of a figure as wide as a page, in dots: backends other than matplotlib warn of inches."""
    arguments = {"figsize": (WIDTH, height), "figsize_units": "dots"}
    if (backend or rcParams["plot.backend"]) == "matplotlib":
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        arguments["layout"] = ConstrainedLayoutEngine(w_pad=0.1)  # room for titles and legends, and for ends of axes
    return arguments


def grid_arguments(num_panels: int, backend: str | None) -> dict:
    """Return the arguments of a collection that wraps panels, with room for them and no panel empty."""
    rows = -(-num_panels // 3)
    columns = -(-num_panels // rows)
    arguments = figure_arguments(230.0 * rows + 40.0, backend)  # with titles and axes, and a legend
    if (backend or rcParams["plot.backend"]) == "plotly":  # it would draw axes in empty cells
        arguments["vertical_spacing"] = 85.0 / arguments["figsize"][1]  # titles and axes; its default is a third of all
        cells = [{} if i < num_panels else None for i in range(rows * columns)]
        arguments["specs"] = [cells[i * columns : (i + 1) * columns] for i in range(rows)]
    return {"col_wrap": columns, "figure_kwargs": arguments}


def add_legend(collection, entries: dict[str, dict]) -> None:
    """Add a legend above all panels; ``entries`` are name -> properties of its line, or of its ``marker``."""
    place = _LEGENDS[collection.backend]
    if collection.backend == "matplotlib":
        place = place | {"ncols": min(len(entries), 6)}  # it does not break lines by itself
        entries = {name: line | ({"linestyle": "none"} if "marker" in line else {}) for name, line in entries.items()}
    else:  # ArviZ's legends of other backends show lines only
        entries = {name: {k: v for k, v in line.items() if k != "marker"} for name, line in entries.items()}
    if collection.backend == "bokeh" and ("plot" in collection.viz.children or collection.viz["plot"].size > 1):
        place = _BOKEH_WITHIN
    if collection.backend == "plotly":  # its legends do not translate ``alpha``
        entries = {n: {"opacity" if k == "alpha" else k: v for k, v in line.items()} for n, line in entries.items()}
    place = place | {"update_visuals": False, "visual_kwargs": {}}
    backend_of(collection).legend(collection, list(entries.values()), list(entries), **place)


def scalars(dataset) -> dict:
    """Return a dataset's scalars in order, flat name -> (variable, selection)."""
    labeller = BaseLabeller()
    return {
        labeller.make_label_flat(name, chosen, places): (name, chosen)
        for name, chosen, places in xarray_sel_iter(dataset, skip_dims={"chain", "draw"})
    }
