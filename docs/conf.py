"""How Sphinx builds the pages: ``make docs``."""

import inspect
import os
import re
import sys
from pathlib import Path

from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import pymc_kernel  # noqa: E402
from docs.tutorial_pages import markdown_to_rst  # noqa: E402
from pymc_kernel.plugin.warn import UNSEEN_MODE  # noqa: E402

project = "pymc_kernel"
author = "The authors of pymc_kernel"
copyright = "the authors of pymc_kernel, Apache License 2.0"
version = release = pymc_kernel.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_templates"]
templates_path = ["_templates"]
default_role = "literal"
rst_epilog = f".. |unseen mode| replace:: {UNSEEN_MODE}"
# Other projects' lists of names are on the network, which a build must not need.
if os.environ.get("INTERSPHINX", "0") not in ("", "0"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "pymc": ("https://www.pymc.io/projects/docs/en/stable", None),
        "pytensor": ("https://pytensor.readthedocs.io/en/latest", None),
        "arviz": ("https://python.arviz.org/en/latest", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
    }

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say what arguments are, with shapes
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
napoleon_preprocess_types = True
napoleon_type_aliases = {
    "DataTree": "~xarray.DataTree",
    "ndarray": "~numpy.ndarray",
    "TensorVariable": "~pytensor.tensor.TensorVariable",
}

html_theme = "pydata_sphinx_theme"
html_title = "pymc_kernel"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {
    page: [] for page in ("index", "gallery", "install", "choosing", "neighbors", "measured", "extending", "sources")
}
html_theme_options = {
    "logo": {"text": "pymc_kernel"},
    "navigation_with_keys": False,
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

_BARE_BAR = re.compile(r"(?<!`)\|(?!`)")


def _escape_bars(app, what, name, obj, options, lines):
    """Let |x - y| in a docstring be an absolute value, outside of ``code``: rst would take it for a substitution."""
    for i, line in enumerate(lines):
        parts = line.split("``")
        parts[::2] = [_BARE_BAR.sub(r"\\|", part) for part in parts[::2]]
        lines[i] = "``".join(parts)


def _skip_fields(app, what, name, obj, skip, options):
    """Leave out what named tuples and dataclasses say by themselves: their fields are in the docstring."""
    documentation = inspect.getdoc(obj) or ""
    return True if documentation.startswith("Alias for field number") else skip


class MeasuredTable(SphinxDirective):
    """A table of ``benchmarks/RESULTS.md``, as its script wrote it: ``.. measured:: gradient-free``."""

    required_arguments = 1

    def run(self):
        """Return the nodes of what is between the marks of that name."""
        results = ROOT / "benchmarks" / "RESULTS.md"
        self.env.note_dependency(str(results))
        name = self.arguments[0]
        text = results.read_text().split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0]
        return self.parse_text_to_nodes(markdown_to_rst(text))


def setup(app):
    app.add_directive("measured", MeasuredTable)
    app.connect("autodoc-process-docstring", _escape_bars)
    app.connect("autodoc-skip-member", _skip_fields)
